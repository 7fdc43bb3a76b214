// Package s3 keeps recordings in a bucket of an S3 service. It is apart from package
// collector so that only those who use it compile a client of S3.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// DefaultDelay is how long frames gather before they become an object.
const DefaultDelay = time.Second

// Options of [New].
type Options struct {
	// Endpoint is the host, and perhaps the port, of the service. Required.
	Endpoint string
	// Insecure speaks HTTP.
	Insecure bool
	// Region is that of the bucket. Default: us-east-1.
	Region string
	// Bucket keeps the recordings. It must exist. Required.
	Bucket string
	// Prefix is what the names of all objects begin with, such as "sessions/".
	Prefix string
	// Credentials are those of the service. Default: the environment (AWS_ACCESS_KEY_ID,
	// AWS_SECRET_ACCESS_KEY), and else what the cloud gives the Pod.
	Credentials *credentials.Credentials
	// Transport makes connections. Default: that of the client.
	Transport http.RoundTripper
	// Delay is how long frames gather before they become an object. A session that is
	// acknowledged that late keeps up to 1 MiB in memory. Default: DefaultDelay.
	Delay time.Duration
}

// Storage is a [collector.Storage] in a bucket.
type Storage struct {
	client  minio.Core
	options Options
}

var _ collector.Storage = (*Storage)(nil)

// New returns a Storage. If the options are invalid, the error wraps
// collector.ErrConfiguration; else the service does not do what it should. It is an error if the service does not refuse to create an object
// that exists (If-None-Match): tickets could be redeemed twice.
func New(ctx context.Context, options Options) (*Storage, error) {
	switch {
	case options.Endpoint == "" || strings.Contains(options.Endpoint, "/"):
		return nil, fmt.Errorf("s3: %w: Endpoint is %q: must be a host or host:port", collector.ErrConfiguration, options.Endpoint)
	case options.Bucket == "":
		return nil, fmt.Errorf("s3: %w: Bucket is empty: name the bucket for recordings", collector.ErrConfiguration)
	case s3utils.CheckValidBucketName(options.Bucket) != nil:
		return nil, fmt.Errorf("s3: %w: Bucket is %q: %w", collector.ErrConfiguration, options.Bucket, s3utils.CheckValidBucketName(options.Bucket))
	case options.Delay < 0 || options.Delay > 5*time.Second:
		return nil, fmt.Errorf("s3: %w: Delay is %s: must be at most 5s", collector.ErrConfiguration, options.Delay)
	}
	if options.Delay == 0 {
		options.Delay = DefaultDelay
	}
	if options.Region == "" {
		options.Region = "us-east-1" // else the client asks for it, which needs one more right
	}
	if options.Credentials == nil {
		options.Credentials = credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.IAM{}})
	}
	client, err := minio.NewCore(options.Endpoint, &minio.Options{
		Creds: options.Credentials, Secure: !options.Insecure, Region: options.Region, Transport: options.Transport,
		// A service may refuse an object, and hang up before it has read it, which looks like a
		// failure.
		MaxRetries: 4,
	})
	if err != nil {
		return nil, fmt.Errorf("s3: %w: %w", collector.ErrConfiguration, err)
	}
	s := &Storage{*client, options}
	return s, s.probe(ctx)
}

// probe creates an object twice.
func (s *Storage) probe(ctx context.Context) error {
	name := "probe/" + protocol.NewID()
	if err := s.Create(ctx, name, []byte("x")); err != nil {
		return fmt.Errorf("s3: creating an object in bucket %s: %w", s.options.Bucket, err)
	}
	second := s.Create(ctx, name, []byte("y"))
	if err := s.Remove(ctx, name); err != nil {
		return fmt.Errorf("s3: removing an object of bucket %s: %w", s.options.Bucket, err)
	}
	switch {
	case errors.Is(second, fs.ErrExist):
		return nil
	case second != nil:
		return fmt.Errorf("s3: creating an object in bucket %s for a second time: %w", s.options.Bucket, second)
	default:
		return fmt.Errorf("s3: %s overwrites an object although If-None-Match says not to: a ticket could be redeemed twice", s.options.Endpoint)
	}
}

// reason makes errors of package fs of those of the service.
func reason(err error) error {
	if err == nil {
		return nil
	}
	switch response := minio.ToErrorResponse(err); {
	case response.StatusCode == http.StatusPreconditionFailed, response.Code == "ConditionalRequestConflict":
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	case response.Code == minio.NoSuchKey:
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func (s *Storage) put(ctx context.Context, name string, content []byte, options minio.PutObjectOptions) error {
	_, err := s.client.Client.PutObject(ctx, s.options.Bucket, s.options.Prefix+name, bytes.NewReader(content), int64(len(content)), options)
	return reason(err)
}

// Create implements [collector.Storage].
func (s *Storage) Create(ctx context.Context, name string, content []byte) error {
	options := minio.PutObjectOptions{ContentType: "application/json", DisableMultipart: true}
	options.SetMatchETagExcept("*")
	return s.put(ctx, name, content, options)
}

// Open implements [collector.Storage].
func (s *Storage) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	content, _, _, err := s.client.GetObject(ctx, s.options.Bucket, s.options.Prefix+name, minio.GetObjectOptions{})
	return content, reason(err)
}

// Sessions implements [collector.Storage].
func (s *Storage) Sessions(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx) // which ends the listing
	defer cancel()
	var ids []string
	for object := range s.client.Client.ListObjects(ctx, s.options.Bucket, minio.ListObjectsOptions{Prefix: s.options.Prefix}) {
		if object.Err != nil {
			return nil, object.Err
		}
		if id := strings.TrimSuffix(strings.TrimPrefix(object.Key, s.options.Prefix), "/"); protocol.ValidID(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// List implements [collector.Storage].
func (s *Storage) List(ctx context.Context, id string) ([]collector.Entry, error) {
	ctx, cancel := context.WithCancel(ctx) // which ends the listing
	defer cancel()
	var entries []collector.Entry
	prefix := s.options.Prefix + id + "/"
	for object := range s.client.Client.ListObjects(ctx, s.options.Bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if object.Err != nil {
			return nil, object.Err
		}
		entries = append(entries, collector.Entry{Name: strings.TrimPrefix(object.Key, prefix), Size: object.Size, Modified: object.LastModified})
	}
	return entries, nil
}

// Remove implements [collector.Storage].
func (s *Storage) Remove(ctx context.Context, name string) error {
	err := reason(s.client.RemoveObject(ctx, s.options.Bucket, s.options.Prefix+name, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Delay implements [collector.Storage].
func (s *Storage) Delay() time.Duration { return s.options.Delay }

// Part implements [collector.Storage]. An empty object takes the number.
func (s *Storage) Part(ctx context.Context, id string, number int) (collector.Part, error) {
	p := &part{storage: s, name: fmt.Sprintf("%s/%06d-", id, number)}
	return p, s.Create(ctx, p.next(), nil)
}

// part is made of objects, one for each Append.
type part struct {
	storage *Storage
	name    string
	pieces  int
}

func (p *part) next() string {
	p.pieces++
	return fmt.Sprintf("%s%08d.part", p.name, p.pieces-1)
}

// Append implements [collector.Part]. The number of the part is this one's; so nobody else
// writes the object.
func (p *part) Append(ctx context.Context, frames []byte) error {
	return p.storage.put(ctx, p.next(), frames, minio.PutObjectOptions{DisableMultipart: true})
}

// Close implements [collector.Part].
func (*part) Close() error { return nil }

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/collector/s3"
	"github.com/admitkit/admitkit/operator/session"
)

// maxS3Prefix leaves most of the 1024 bytes that a name may have to the collector.
const maxS3Prefix = 255

// s3Flags are the flags of a bucket that keeps recordings.
type s3Flags struct {
	flags   *pflag.FlagSet
	options s3.Options
	secret  string
}

func (s *s3Flags) bind(flags *pflag.FlagSet) {
	s.flags = flags
	o := &s.options
	flags.StringVar(&o.Endpoint, "sessions-s3-endpoint", "", "S3 service that keeps the recordings in place of --sessions-dir, as HOST or HOST:PORT; its credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or what the cloud gives the Pod")
	flags.BoolVar(&o.Insecure, "sessions-s3-insecure", false, "reach the S3 service by HTTP, without TLS")
	flags.StringVar(&o.Bucket, "sessions-s3-bucket", "", "bucket of the recordings, which must exist (required with --sessions-s3-endpoint)")
	flags.StringVar(&o.Region, "sessions-s3-region", "us-east-1", "region of the bucket")
	flags.StringVar(&o.Prefix, "sessions-s3-prefix", "", "what the names of all objects begin with, such as sessions/")
	flags.StringVar(&s.secret, "sessions-s3-secret", "", "name of the Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for the subcommand manifests (default: none)")
}

// apply has a bucket keep the recordings, if one is named.
func (s *s3Flags) apply(to *session.Options) error {
	o := s.options
	if err := s.check(); err != nil || o.Endpoint == "" {
		return err
	}
	to.Folder, to.Location = "", "s3://"+o.Bucket+"/"+o.Prefix
	to.Storage = func(ctx context.Context) (collector.Storage, error) { return s3.New(ctx, o) }
	if s.secret == "" {
		return nil
	}
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		to.StorageEnv = append(to.StorageEnv, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: s.secret}, Key: name,
		}}})
	}
	return nil
}

func (s *s3Flags) check() (err error) {
	o := &s.options
	switch {
	case o.Endpoint == "":
		s.flags.VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Name, "sessions-s3-") && f.Changed && f.Value.String() != f.DefValue {
				err = errors.Join(err, fmt.Errorf("--%s has no effect without --sessions-s3-endpoint", f.Name))
			}
		})
		return err
	case strings.Contains(o.Endpoint, "/"):
		return fmt.Errorf("--sessions-s3-endpoint: %q: must be HOST or HOST:PORT; for http:// set --sessions-s3-insecure", o.Endpoint)
	case o.Bucket == "":
		return errors.New("--sessions-s3-bucket: required with --sessions-s3-endpoint: name the bucket of the recordings")
	case s3utils.CheckValidBucketName(o.Bucket) != nil:
		return fmt.Errorf("--sessions-s3-bucket: %q: %w", o.Bucket, s3utils.CheckValidBucketName(o.Bucket))
	case strings.HasPrefix(o.Prefix, "/") || len(o.Prefix) > maxS3Prefix:
		return fmt.Errorf("--sessions-s3-prefix: %q: must not begin with /, and have at most %d bytes", o.Prefix, maxS3Prefix)
	}
	for _, name := range []string{"sessions-dir", "sessions-claim"} {
		if s.flags.Changed(name) {
			return fmt.Errorf("--%s has no effect with --sessions-s3-endpoint, which keeps the recordings: leave one of them out", name)
		}
	}
	return nil
}

// Package cloudevents sends events to an HTTP endpoint: batches of CloudEvents
// 1.0 (application/cloudevents-batch+json), through a bounded queue on disk if
// you want one.
//
//	s := cloudevents.New(cloudevents.Options{
//		Name: "orders", Source: "example.com/orders", URL: "https://events.example.com", Dir: "/queue",
//	})
//	if err := s.Validate(); err != nil { ... }
//
//	func (e *MyExtension) Register(mgr extension.Manager) error { return e.sender.Register(mgr) }
//
//	err := s.Send(ctx, cloudevents.Event{ID: id, Type: "com.example.order", Time: now, Data: order})
//
// Without a queue, Send returns when the endpoint has the event. With a queue,
// Send returns when the event is on disk; the endpoint gets it later, at least
// once and in order, even if the process is killed in between. After a failure a
// batch is sent again, so the endpoint must recognize events by source and id.
package cloudevents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/internal/outbox"
	"github.com/admitkit/admitkit/extension/remote"
)

// Options are the options of [New].
type Options struct {
	// Name names the sender in logs and metrics. There is no default.
	Name string
	// URL is the endpoint. It must be https, or http on this machine. There is
	// no default.
	URL string
	// Source is the source of the events: a URI that names their origin, for
	// example the cluster. There is no default.
	Source string
	// Header is added to each request.
	Header http.Header
	// TokenFile has the bearer token. Like the other files it is read again before
	// each request, so it may be replaced at any time; while it cannot be read, the last
	// token stays in use. Default: no token.
	TokenFile string
	// CertFile and KeyFile have the client certificate and its key, in PEM. A new
	// one is presented on a new connection. Default: no client certificate.
	CertFile, KeyFile string
	// CAFile has the authorities that the endpoint's certificate may be of, in PEM.
	// Default: those of the system.
	CAFile string
	// Client sends the requests. It follows no redirects, whatever its
	// CheckRedirect says: the events and the credential are for this endpoint alone.
	// Default: http.DefaultTransport with a timeout of 10 s.
	Client *http.Client
	// Dir is the folder of the queue on disk. Each replica needs its own.
	// Default: no queue.
	Dir string
	// Memory queues events in memory instead, where they end with the process, so that
	// Send waits for no endpoint and no disk. Default: false.
	Memory bool
	// MaxQueued is how many events the queue holds. Default: 100,000.
	MaxQueued int
	// BatchSize is how many events a request has at most. Default: 100.
	BatchSize int
	// Backoff is the pause after the first failure. It doubles with each further
	// failure, up to MaxBackoff. Default: 500 ms, up to 30 s.
	Backoff, MaxBackoff time.Duration
	// Rejected is called for each queued event that the endpoint rejects for
	// good. Such an event is logged, counted, and not sent again.
	Rejected func(event json.RawMessage)
	// Fs is the file system of Dir. Default: the real one.
	Fs afero.Fs
	// Clock tells the time. Default: the real clock.
	Clock clock.Clock
}

// Defaults of [Options].
const (
	DefaultMaxQueued  = 100_000
	DefaultBatchSize  = 100
	DefaultBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
)

// Event is an event, without what all events of a sender have in common.
type Event struct {
	// ID is unique among the events of the source. There is no default.
	ID string
	// Type is the type of the event, such as com.example.order. There is no
	// default.
	Type string
	// Subject names the object of the event. It is optional.
	Subject string
	// Time is when the event happened.
	Time time.Time
	// Data is the payload. It is sent as JSON.
	Data any
	// Extensions are further attributes, such as the cluster. Their names have lower-case
	// letters and digits, at most 20, as the specification of CloudEvents says.
	Extensions map[string]string
}

// Sender sends events. Make one with [New].
type Sender struct {
	options Options
	remote  *remote.Client
	log     *zap.Logger
	queue   *outbox.Queue // nil without Dir and Memory
}

var _ extension.Hosted = (*Sender)(nil)

// New returns a Sender. [Sender.Validate] reports invalid options.
func New(options Options) *Sender {
	if options.Client == nil {
		options.Client = &http.Client{Timeout: 10 * time.Second}
	}
	if options.MaxQueued == 0 {
		options.MaxQueued = DefaultMaxQueued
	}
	if options.BatchSize == 0 {
		options.BatchSize = DefaultBatchSize
	}
	if options.Backoff == 0 {
		options.Backoff = DefaultBackoff
	}
	if options.MaxBackoff == 0 {
		options.MaxBackoff = max(DefaultMaxBackoff, options.Backoff)
	}
	if options.Rejected == nil {
		options.Rejected = func(json.RawMessage) {}
	}
	if options.Fs == nil {
		options.Fs = afero.NewOsFs()
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	s := &Sender{options: options, log: zap.NewNop()}
	s.remote = remote.New(remote.Options{
		TokenFile: options.TokenFile, CAFile: options.CAFile, CertFile: options.CertFile, KeyFile: options.KeyFile,
		Client: *options.Client, Fs: options.Fs,
	})
	if options.Dir != "" {
		s.queue = outbox.NewQueue(options.Fs, options.Dir, options.MaxQueued)
	} else if options.Memory {
		s.queue = outbox.NewQueue(afero.NewMemMapFs(), "queue", options.MaxQueued)
	}
	return s
}

// Validate returns an error that names the wrong option, if there is one.
func (s *Sender) Validate() error { //nolint:gocyclo // a list of cases, each of which stands alone
	o := &s.options
	u, err := url.Parse(o.URL)
	switch {
	case o.Name == "":
		return errors.New("Name is missing")
	case o.Source == "":
		return errors.New("Source is missing")
	case err != nil:
		return fmt.Errorf("URL: %w", err)
	case u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !onThisMachine(u.Hostname())):
		return fmt.Errorf("URL %q must be https, or http on this machine", u.Redacted())
	case o.Client.Transport != nil && (o.CertFile != "" || o.KeyFile != "" || o.CAFile != ""):
		return errors.New("CertFile, KeyFile and CAFile configure the default Client: with a Client of your own, configure its Transport")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("CertFile and KeyFile need each other: set both")
	case o.Dir != "" && o.Memory:
		return errors.New("Dir and Memory exclude each other")
	case o.TokenFile != "" && o.Header.Get("Authorization") != "":
		return errors.New("TokenFile and an Authorization in Header exclude each other")
	case len(o.Source) > maxSource:
		return fmt.Errorf("Source has %d bytes: at most %d", len(o.Source), maxSource)
	case o.MaxQueued < 0 || o.BatchSize < 0 || o.Backoff < 0 || o.MaxBackoff < o.Backoff:
		return errors.New("MaxQueued, BatchSize and Backoff must be positive, and MaxBackoff no less than Backoff")
	}
	return nil
}

// maxSource bounds what each event repeats.
const maxSource = 1024

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Register opens the queue and has the manager deliver it, in every replica. A
// Sender without a queue needs it for its logger only.
func (s *Sender) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named("cloudevents").With(zap.String("sender", s.options.Name))
	s.beginCounts()
	if _, err := s.remote.Connect(); err != nil {
		return fmt.Errorf("the credential for the endpoint: %w", err)
	}
	if s.queue == nil {
		return nil
	}
	if err := s.queue.Open(); err != nil {
		return fmt.Errorf("the queue in %s: %w", s.options.Dir, err)
	}
	return mgr.GetKubeManager().Add(s.delivery())
}

// delivery sends what the queue holds.
func (s *Sender) delivery() *outbox.Sender {
	return &outbox.Sender{
		Queue: s.queue, BatchSize: s.options.BatchSize, BatchBytes: math.MaxInt,
		Backoff: s.options.Backoff, MaxBackoff: s.options.MaxBackoff, Clock: s.options.Clock, Log: s.log,
		Send: s.post, Left: s.countUndelivered,
		Rejected: func(event []byte, err error) {
			rejected.WithLabelValues(s.options.Name).Inc()
			s.log.Error("event lost: the endpoint rejects it", zap.ByteString("event", event), zap.Error(err))
			s.options.Rejected(event)
		},
	}
}

// Send sends an event, or puts it into the queue. An event whose ID is in the
// queue already is not queued again.
func (s *Sender) Send(ctx context.Context, event Event) error {
	text, err := s.marshal(event)
	if err != nil {
		return err
	}
	if s.queue == nil {
		return s.post(ctx, [][]byte{text})
	}
	if err := s.queue.Push(ctx, event.ID, text); err != nil {
		return err
	}
	s.countUndelivered(s.queue.Len())
	return nil
}

// marshal returns the event in the JSON format of CloudEvents 1.0
// (https://github.com/cloudevents/spec, formats/json-format.md).
func (s *Sender) marshal(event Event) ([]byte, error) {
	if event.ID == "" || event.Type == "" {
		return nil, errors.New("a CloudEvent needs an ID and a Type")
	}
	attributes := map[string]any{
		"specversion": "1.0", "id": event.ID, "source": s.options.Source, "type": event.Type,
		"time": event.Time.UTC(), "datacontenttype": "application/json", "data": event.Data,
	}
	if event.Subject != "" {
		attributes["subject"] = event.Subject
	}
	for name, value := range event.Extensions {
		if _, taken := attributes[name]; taken || !attributeName.MatchString(name) {
			return nil, fmt.Errorf("the extension attribute %.40q of a CloudEvent must have 1 to 20 lower-case letters and digits, and be none of the specification's", name)
		}
		attributes[name] = value
	}
	return json.Marshal(attributes)
}

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// CloudEventsSinkOptions are the options of NewCloudEventsSink.
type CloudEventsSinkOptions struct {
	// URL is the endpoint. It must be https, or http on this machine. There is
	// no default.
	URL string
	// Source is the source of the events: a URI that names the cluster.
	// Default: admitkit.dev/audit.
	Source string
	// Header is added to each request; it is where a credential goes.
	Header http.Header
	// Client is what sends. Default: http.DefaultTransport with a timeout of
	// 10 s.
	Client *http.Client
	// Dir is the folder of the queue on disk, one for each replica. With it, a
	// record is taken when it is in the queue; the endpoint may be down for as
	// long as the queue has room. Without it, it is taken when the endpoint has
	// it.
	Dir string
	// MaxQueued is how many records the queue holds. Default: 100,000.
	MaxQueued int
	// BatchSize is how many events a request has at most. Default: 100.
	BatchSize int
	// Backoff is how long the queue waits after a failure; at first, and at
	// most. Default: 500 ms to 30 s.
	Backoff, MaxBackoff time.Duration
	// Fs is the file system of Dir; the real one by default.
	Fs afero.Fs
	// Clock is the real one by default.
	Clock clock.Clock
}

// Defaults of CloudEventsSinkOptions.
const (
	DefaultMaxQueued  = 100_000
	DefaultBatchSize  = 100
	DefaultBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
)

// cloudEvent is an event in the JSON format of CloudEvents 1.0
// (https://github.com/cloudevents/spec, formats/json-format.md).
type cloudEvent struct {
	SpecVersion     string                `json:"specversion"`
	ID              string                `json:"id"`
	Source          string                `json:"source"`
	Type            string                `json:"type"`
	Subject         string                `json:"subject,omitempty"`
	Time            time.Time             `json:"time"`
	DataContentType string                `json:"datacontenttype"`
	Data            *v1alpha1.AuditRecord `json:"data"`
}

// cloudEventType is the type of the events.
const cloudEventType = "dev.admitkit.audit.record.v1alpha1"

// cloudEventsSink sends records to an HTTP endpoint.
type cloudEventsSink struct {
	options CloudEventsSinkOptions
	log     *zap.Logger
	spool   *spool // nil without Dir
}

// NewCloudEventsSink returns the sink "cloudevents": records go to an HTTP
// endpoint in batches of CloudEvents 1.0
// (application/cloudevents-batch+json). An event's id is the record's ID, so
// that an endpoint can tell what it has already: after a failure a batch is sent
// again.
func NewCloudEventsSink(options CloudEventsSinkOptions) Sink {
	if options.Source == "" {
		options.Source = reportingController
	}
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
	if options.Fs == nil {
		options.Fs = afero.NewOsFs()
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	s := &cloudEventsSink{options: options, log: zap.NewNop()}
	if options.Dir != "" {
		s.spool = newSpool(options.Fs, options.Dir, options.MaxQueued)
	}
	return s
}

// Name is "cloudevents".
func (*cloudEventsSink) Name() string { return "cloudevents" }

func (s *cloudEventsSink) validate() error {
	u, err := url.Parse(s.options.URL)
	switch {
	case err != nil:
		return fmt.Errorf("URL: %w", err)
	case u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !onThisMachine(u.Hostname())):
		return fmt.Errorf("URL %q must be https, or http on this machine", u.Redacted())
	case s.options.MaxQueued < 0 || s.options.BatchSize < 0 || s.options.Backoff < 0 || s.options.MaxBackoff < s.options.Backoff:
		return errors.New("MaxQueued, BatchSize and Backoff must be positive, and MaxBackoff no less than Backoff")
	}
	return nil
}

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Register starts what sends the queue, in every replica.
func (s *cloudEventsSink) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named("audit").With(zap.String("sink", s.Name()))
	if s.spool == nil {
		return nil
	}
	if err := s.spool.open(); err != nil {
		return fmt.Errorf("the queue in %s: %w", s.options.Dir, err)
	}
	undelivered.WithLabelValues(s.Name()).Set(float64(s.spool.len()))
	return mgr.GetKubeManager().Add(&sender{s})
}

// Write sends the record, or puts it into the queue.
func (s *cloudEventsSink) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun {
		return nil
	}
	event, err := json.Marshal(s.event(r))
	if err != nil {
		return err
	}
	if s.spool == nil {
		return s.post(ctx, [][]byte{event})
	}
	if err := s.spool.push(ctx, r.ID, event); err != nil {
		return err
	}
	undelivered.WithLabelValues(s.Name()).Set(float64(s.spool.len()))
	return nil
}

func (s *cloudEventsSink) event(r *v1alpha1.AuditRecord) cloudEvent {
	subject := ""
	if r.Pod != "" {
		subject = "/api/v1/namespaces/" + r.Namespace + "/pods/" + r.Pod
	}
	return cloudEvent{
		SpecVersion: "1.0", ID: r.ID, Source: s.options.Source, Type: cloudEventType, Subject: subject,
		Time: r.Time.UTC(), DataContentType: "application/json", Data: r,
	}
}

// rejection is the answer of an endpoint that will not take a batch, however
// often it is sent.
type rejection struct{ status string }

func (r *rejection) Error() string { return "the endpoint answered " + r.status }

// busy is the answer of an endpoint that says when to come back.
type busy struct {
	status string
	after  time.Duration
}

func (b *busy) Error() string { return "the endpoint answered " + b.status }

// post sends a batch.
func (s *cloudEventsSink) post(ctx context.Context, events [][]byte) error {
	body := append([]byte{'['}, bytes.Join(events, []byte{','})...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(append(body, ']')))
	if err != nil {
		return err
	}
	for key, values := range s.options.Header {
		req.Header[key] = values
	}
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	response, err := s.options.Client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return &rejection{response.Status}
	default:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &busy{response.Status, time.Duration(max(0, seconds)) * time.Second}
	}
}

// withoutURL leaves the URL out of an error, since it goes to whoever is refused.
func withoutURL(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		return fmt.Errorf("the endpoint cannot be reached: %w", inner.Err)
	}
	return err
}

// sender sends what is in the queue.
type sender struct{ *cloudEventsSink }

// NeedLeaderElection is false: each replica has a queue of its own.
func (*sender) NeedLeaderElection() bool { return false }

// lastAttempt bounds the sending at the end. What is left stays on disk.
const lastAttempt = 5 * time.Second

// Start sends until ctx ends, and then once more what is there.
func (s *sender) Start(ctx context.Context) error {
	delay := s.delay()
	for {
		select {
		case <-s.spool.ready():
		case <-ctx.Done():
			return s.finish(ctx)
		}
		err := s.send(ctx)
		if err == nil {
			delay = s.delay()
			continue
		}
		if ctx.Err() != nil {
			return s.finish(ctx)
		}
		pause := delay.Step()
		if later := (*busy)(nil); errors.As(err, &later) {
			pause = max(pause, min(later.after, s.options.MaxBackoff))
		}
		s.log.Warn("batch not delivered", zap.Error(err), zap.Duration("retryIn", pause), zap.Int("undelivered", s.spool.len()))
		timer := s.options.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return s.finish(ctx)
		}
	}
}

func (s *sender) delay() wait.Backoff {
	return wait.Backoff{Duration: s.options.Backoff, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: s.options.MaxBackoff}
}

func (s *sender) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAttempt)
	defer cancel()
	for s.spool.len() > 0 {
		if err := s.send(ctx); err != nil {
			s.log.Warn("records stay in the queue", zap.Int("undelivered", s.spool.len()), zap.Error(err))
			break
		}
	}
	return nil
}

// send sends the first batch of the queue.
func (s *sender) send(ctx context.Context) error {
	names, events, err := s.spool.first(s.options.BatchSize)
	if err != nil || len(names) == 0 {
		return err
	}
	err = s.post(ctx, events)
	if rejected := (*rejection)(nil); errors.As(err, &rejected) {
		return s.sendOneByOne(ctx, names, events)
	}
	if err != nil {
		return err
	}
	return s.done(names)
}

// sendOneByOne finds the events of a batch that the endpoint rejects, so that
// they do not hold up the others.
func (s *sender) sendOneByOne(ctx context.Context, names []string, events [][]byte) error {
	for i := range names {
		err := s.post(ctx, events[i:i+1])
		if rejected := (*rejection)(nil); errors.As(err, &rejected) {
			lost.WithLabelValues(s.Name()).Inc()
			s.log.Error("record lost: the endpoint rejects it", zap.ByteString("event", events[i]), zap.Error(err))
		} else if err != nil {
			return err
		}
		if err := s.done(names[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) done(names []string) error {
	err := s.spool.remove(names)
	undelivered.WithLabelValues(s.Name()).Set(float64(s.spool.len()))
	return err
}

package otlp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/afero"
	"go.opentelemetry.io/otel/log"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/internal/outbox"
)

// LogOptions are the options of [NewLogs].
type LogOptions struct {
	// Endpoint is the collector. Its URL is required.
	Endpoint Endpoint
	// Name names the sender in logs and metrics, and is the instrumentation scope of the
	// records. There is no default.
	Name string
	// Resource are attributes of where the records come from, such as k8s.cluster.name:
	// at most 32, of 1 KiB each. Default: service.name is admitkit, and
	// service.instance.id the name of the host.
	Resource map[string]string
	// Dir is the folder of the queue on disk. Each replica needs its own. Default: no
	// queue.
	Dir string
	// MaxQueued is how many records the queue holds. Default: 100,000.
	MaxQueued int
	// BatchSize is how many records a request has at most. Default: 100.
	BatchSize int
	// Backoff is the pause after the first failure. It doubles with each further
	// failure, up to MaxBackoff. Default: 500 ms, up to 30 s.
	Backoff, MaxBackoff time.Duration
	// Rejected is called with the number of queued records that the collector rejects for
	// good. They are logged, counted, and not sent again.
	Rejected func(records int64)
	// Fs is the file system of Dir. Default: the real one.
	Fs afero.Fs
	// Clock tells the time. Default: the real clock.
	Clock clock.Clock
}

// Defaults and limits of [LogOptions].
const (
	DefaultMaxQueued  = 100_000
	DefaultBatchSize  = 100
	DefaultBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second

	// MaxRequest is the size of a request with several records. A collector takes 20 MiB
	// by default.
	MaxRequest = 4 << 20
	// MaxRecord is the size of the largest record.
	MaxRecord = 2 << 20

	maxAttributes = 32
	maxAttribute  = 1 << 10
)

// Logs sends log records. Make one with [NewLogs].
type Logs struct {
	options  LogOptions
	client   *Client
	resource *resourcepb.Resource
	log      *zap.Logger
	queue    *outbox.Queue // nil without Dir
}

var _ extension.Hosted = (*Logs)(nil)

// NewLogs returns a sender of logs. [Logs.Validate] reports invalid options.
func NewLogs(options LogOptions) *Logs {
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
		options.Rejected = func(int64) {}
	}
	if options.Fs == nil {
		options.Fs = afero.NewOsFs()
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	l := &Logs{options: options, client: NewClient(options.Name, SignalLogs, options.Endpoint), resource: resourceOf(options.Resource), log: zap.NewNop()}
	rejected.WithLabelValues(options.Name)
	if options.Dir != "" {
		l.queue = outbox.NewQueue(options.Fs, options.Dir, options.MaxQueued)
	}
	return l
}

// resourceOf returns the attributes of where the records come from.
func resourceOf(attributes map[string]string) *resourcepb.Resource {
	all := map[string]string{"service.name": "admitkit"}
	if host, err := os.Hostname(); err == nil {
		all["service.instance.id"] = host
	}
	maps.Copy(all, attributes)
	resource := &resourcepb.Resource{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		resource.Attributes = append(resource.Attributes, &commonpb.KeyValue{Key: key, Value: text(all[key])})
	}
	return resource
}

// Validate returns an error that names the wrong option, if there is one.
func (l *Logs) Validate() error {
	o := &l.options
	if err := o.Endpoint.Validate(); err != nil {
		return fmt.Errorf("Endpoint: %w", err)
	}
	switch {
	case o.Name == "":
		return errors.New("Name is missing")
	case o.MaxQueued < 0 || o.BatchSize < 0 || o.Backoff < 0 || o.MaxBackoff < o.Backoff:
		return errors.New("MaxQueued, BatchSize and Backoff must be positive, and MaxBackoff no less than Backoff")
	case len(o.Resource) > maxAttributes:
		return fmt.Errorf("Resource has %d attributes; it can have %d", len(o.Resource), maxAttributes)
	}
	for key, value := range o.Resource {
		if key == "" || len(key)+len(value) > maxAttribute {
			return fmt.Errorf("Resource: the attribute %.40q must have a name, and at most %d bytes", key, maxAttribute)
		}
	}
	return nil
}

// Register reads the files of the endpoint, opens the queue and has the manager deliver
// it, in every replica.
func (l *Logs) Register(mgr extension.Manager) error {
	l.log = mgr.GetLogger().Desugar().Named("otlp").With(zap.String("sender", l.options.Name))
	if err := l.client.Open(); err != nil {
		return fmt.Errorf("Endpoint.%w", err)
	}
	if l.queue == nil {
		return nil
	}
	if err := l.queue.Open(); err != nil {
		return fmt.Errorf("the queue in %s: %w", l.options.Dir, err)
	}
	l.left(l.queue.Len())
	return mgr.GetKubeManager().Add(&outbox.Sender{
		Queue: l.queue, BatchSize: l.options.BatchSize, BatchBytes: MaxRequest, Backoff: l.options.Backoff, MaxBackoff: l.options.MaxBackoff,
		Clock: l.options.Clock, Log: l.log, Send: l.deliver, Rejected: l.lose, Left: l.left,
	})
}

func (l *Logs) left(records int) { undelivered.WithLabelValues(l.options.Name).Set(float64(records)) }

// Send sends a record, or puts it into the queue. Its ID becomes the attribute
// log.record.uid. A record whose ID is in the queue already is not queued again.
func (l *Logs) Send(ctx context.Context, id string, record log.Record) error {
	if id == "" {
		return errors.New("a log record needs an ID")
	}
	item, err := proto.Marshal(recordOf(id, &record))
	if err != nil {
		return err
	}
	if len(item) > MaxRecord {
		return fmt.Errorf("a log record of %d bytes is too large; the limit is %d", len(item), MaxRecord)
	}
	if l.queue == nil {
		return l.sendNow(ctx, item)
	}
	if err := l.queue.Push(ctx, id, item); err != nil {
		return err
	}
	l.left(l.queue.Len())
	return nil
}

// sendNow returns nil if the collector has taken the record.
func (l *Logs) sendNow(ctx context.Context, item []byte) error {
	partial, err := l.export(ctx, [][]byte{item})
	if err == nil && partial.Rejected > 0 {
		rejected.WithLabelValues(l.options.Name).Inc()
		return fmt.Errorf("the collector rejected the record: %s", partial.Message)
	}
	return err
}

// deliver sends records of the queue. Of those that the collector rejects while it takes
// others, it says only the number. OTLP forbids to send any of them again.
func (l *Logs) deliver(ctx context.Context, items [][]byte) error {
	partial, err := l.export(ctx, items)
	if err != nil || partial.Message == "" && partial.Rejected == 0 {
		return err
	}
	ids := make([]string, 0, len(items))
	for _, item := range items {
		ids = append(ids, idOf(item))
	}
	lost := min(partial.Rejected, int64(len(items)))
	if lost == 0 {
		l.log.Warn("the collector warns", zap.String("message", partial.Message), zap.Strings("ids", ids))
		return nil
	}
	rejected.WithLabelValues(l.options.Name).Add(float64(lost))
	l.log.Error("records lost: the collector rejects them", zap.Int64("lost", lost), zap.String("message", partial.Message), zap.Strings("among", ids))
	l.options.Rejected(lost)
	return nil
}

// lose is called for a record that the collector does not take alone either.
func (l *Logs) lose(item []byte, err error) {
	rejected.WithLabelValues(l.options.Name).Inc()
	l.log.Error("record lost: the collector rejects it", zap.Error(err), zap.String("id", idOf(item)), zap.String("record", bodyOf(item)))
	l.options.Rejected(1)
}

// export sends encoded records in one request. LogsData is ExportLogsServiceRequest on
// the wire; the Go package of the latter brings gRPC along.
func (l *Logs) export(ctx context.Context, items [][]byte) (Partial, error) {
	scope := &logspb.ScopeLogs{Scope: &commonpb.InstrumentationScope{Name: l.options.Name}}
	for _, item := range items {
		record := &logspb.LogRecord{}
		if err := proto.Unmarshal(item, record); err != nil {
			return Partial{}, &outbox.Failure{Reason: outbox.Rejected, Err: fmt.Errorf("the queue has a record that is damaged: %w", err)}
		}
		scope.LogRecords = append(scope.LogRecords, record)
	}
	request, err := proto.Marshal(&logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{Resource: l.resource, ScopeLogs: []*logspb.ScopeLogs{scope}}}})
	if err != nil {
		return Partial{}, err
	}
	return l.client.Post(ctx, request)
}

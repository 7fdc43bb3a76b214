package deliver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"go.opentelemetry.io/otel/log"
	"google.golang.org/protobuf/proto"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
)

const (
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
	*Sender
	options  OTLPOptions
	resource *resourcepb.Resource
}

// NewLogs returns a sender of log records, whose instrumentation scope is its name.
// [Logs.Validate] reports invalid options.
func NewLogs(options OTLPOptions) *Logs {
	l := &Logs{options: options, resource: resourceOf(options.Resource)}
	l.Sender = options.sender("/v1/logs", l.request)
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

// Validate returns an error that names the wrong option, if there is one. It does not read
// the files.
func (l *Logs) Validate() error {
	if err := l.options.Validate(); err != nil {
		return err
	}
	if len(l.options.Resource) > maxAttributes {
		return fmt.Errorf("Resource has %d attributes; it can have %d", len(l.options.Resource), maxAttributes)
	}
	for key, value := range l.options.Resource {
		if key == "" || len(key)+len(value) > maxAttribute {
			return fmt.Errorf("Resource: the attribute %.40q must have a name, and at most %d bytes", key, maxAttribute)
		}
	}
	return l.Sender.options.validate()
}

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
	return l.send(ctx, id, item)
}

// request makes one request of encoded records. LogsData is ExportLogsServiceRequest on
// the wire; the Go package of the latter brings gRPC along.
func (l *Logs) request(items [][]byte) ([]byte, error) {
	scope := &logspb.ScopeLogs{Scope: &commonpb.InstrumentationScope{Name: l.options.Name}}
	for _, item := range items {
		record := &logspb.LogRecord{}
		if err := proto.Unmarshal(item, record); err != nil {
			return nil, &failure{reason: rejected, err: fmt.Errorf("the queue has a record that is damaged: %w", err)}
		}
		scope.LogRecords = append(scope.LogRecords, record)
	}
	return proto.Marshal(&logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{Resource: l.resource, ScopeLogs: []*logspb.ScopeLogs{scope}}}})
}

// Package cloudevents is the audit sink "cloudevents": records go to an HTTP
// endpoint as CloudEvents, through package extension/cloudevents.
package cloudevents

import (
	"context"
	"encoding/json"

	"github.com/admitkit/admitkit/extension/cloudevents"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

const (
	// Type is the type of the events.
	Type = "dev.admitkit.audit.record.v1alpha1"
	// DefaultSource is the source of the events unless Options name another.
	DefaultSource = "admitkit.dev/audit"

	name = "cloudevents"
)

// Options are the options of [New]. Only URL is required here.
type Options = cloudevents.Options

// adapter turns records into events. It is also extension.Hosted and
// [sink.Validated], as the sender is.
type adapter struct{ *cloudevents.Sender }

var _ sink.Validated = adapter{}

// New returns the sink "cloudevents": each record becomes an event with the
// record's ID, the record as its data, and the Pod's path as its subject. With
// Options.Dir a record counts as kept once it is in the queue. Dry runs are not
// sent.
func New(options Options) sink.Sink {
	if options.Name == "" {
		options.Name = "audit"
	}
	if options.Source == "" {
		options.Source = DefaultSource
	}
	told := options.Rejected
	options.Rejected = func(event json.RawMessage) {
		sink.CountLost(name)
		if told != nil {
			told(event)
		}
	}
	return adapter{cloudevents.New(options)}
}

// Name is "cloudevents".
func (adapter) Name() string { return name }

// Write sends the record, or puts it into the queue.
func (a adapter) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun {
		return nil
	}
	event := cloudevents.Event{ID: r.ID, Type: Type, Time: r.Time.Time, Data: r}
	if r.Pod != "" {
		event.Subject = "/api/v1/namespaces/" + r.Namespace + "/pods/" + r.Pod
	}
	if r.Cluster != "" {
		event.Extensions = map[string]string{"cluster": r.Cluster}
	}
	return a.Send(ctx, event)
}

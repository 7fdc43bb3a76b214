// Package deliver has the audit sinks that send records to a server outside the cluster,
// through package extension/deliver: [NewCloudEvents] to any HTTP endpoint, and [NewOTLP]
// to an OpenTelemetry collector. With Options.Dir a record counts as kept once it is in the
// queue. Dry runs are not sent.
package deliver

import (
	"cmp"
	"context"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

const (
	// Type is the type of the CloudEvents.
	Type = "dev.admitkit.audit.record.v1alpha1"
	// DefaultSource is the source of the CloudEvents unless the options name another.
	DefaultSource = "admitkit.dev/audit"
)

type (
	// Options are the options that both sinks have. Only URL is required here.
	Options = deliver.Options
	// EventOptions are the options of [NewCloudEvents].
	EventOptions = deliver.EventOptions
	// OTLPOptions are the options of [NewOTLP].
	OTLPOptions = deliver.OTLPOptions
)

// cloudEvents turns records into events. It is also extension.Hosted and
// [sink.Validated], as the sender is.
type cloudEvents struct{ *deliver.Events }

var _ sink.Validated = cloudEvents{}

// NewCloudEvents returns the sink "cloudevents": each record becomes an event with the
// record's ID, the record as its data, and the Pod's path as its subject.
func NewCloudEvents(options EventOptions) sink.Sink {
	s := cloudEvents{}
	options.Options = counted(s, options.Options)
	options.Source = cmp.Or(options.Source, DefaultSource)
	s.Events = deliver.NewEvents(options)
	return s
}

// counted names a sender audit by default, and counts what the server rejects as lost.
func counted(s sink.Sink, o Options) Options {
	o.Name = cmp.Or(o.Name, "audit")
	told := o.Rejected
	o.Rejected = func(item []byte) {
		sink.CountLost(s.Name())
		if told != nil {
			told(item)
		}
	}
	return o
}

// Name is "cloudevents".
func (cloudEvents) Name() string { return "cloudevents" }

// Write sends the record, or puts it into the queue.
func (s cloudEvents) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun {
		return nil
	}
	event := deliver.Event{ID: r.ID, Type: Type, Time: r.Time.Time, Data: r}
	if r.Pod != "" {
		event.Subject = "/api/v1/namespaces/" + r.Namespace + "/pods/" + r.Pod
	}
	if r.Cluster != "" {
		event.Extensions = map[string]string{"cluster": r.Cluster}
	}
	return s.Send(ctx, event)
}

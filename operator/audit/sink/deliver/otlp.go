package deliver

import (
	"context"
	"encoding/json"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

// Event is the event name of the log records.
const Event = "admitkit.audit.record"

// otlp turns records into log records. It is also extension.Hosted and
// [sink.Validated], as the sender is.
type otlp struct{ *deliver.Logs }

var _ sink.Validated = otlp{}

// NewOTLP returns the sink "otlp": each record becomes a log record, with the record as JSON
// in its body and the attributes of operator/docs/audit/sinks.md.
func NewOTLP(options OTLPOptions) sink.Sink {
	s := otlp{}
	options.Options = counted(s, options.Options)
	s.Logs = deliver.NewLogs(options)
	return s
}

// Name is "otlp".
func (otlp) Name() string { return "otlp" }

// Write sends the record, or puts it into the queue.
func (s otlp) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun {
		return nil
	}
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var of log.Record
	of.SetEventName(Event)
	of.SetTimestamp(r.Time.Time)
	of.SetSeverity(log.SeverityInfo)
	of.SetSeverityText("INFO")
	if r.Decision == v1alpha1.AuditDenied || slices.Contains(r.Flags, v1alpha1.FlagBreakGlass) {
		of.SetSeverity(log.SeverityWarn)
		of.SetSeverityText("WARN")
	}
	of.SetBody(attribute.StringValue(string(body)))
	of.AddAttributes(attributes(r)...)
	return s.Send(ctx, r.ID, of)
}

// attributes returns what one searches by: OpenTelemetry's semantic conventions where they
// have a name for it.
func attributes(r *v1alpha1.AuditRecord) (all []attribute.KeyValue) {
	text := func(key, value string) {
		if value != "" {
			all = append(all, attribute.String(key, value))
		}
	}
	list := func(key string, values []string) {
		if len(values) > 0 {
			all = append(all, attribute.StringSlice(key, values))
		}
	}
	text("user.name", r.User.Username)
	text("user.id", r.User.UID)
	list("admitkit.user.groups", r.User.Groups)
	text("k8s.cluster.name", r.Cluster)
	text("k8s.namespace.name", r.Namespace)
	text("k8s.pod.name", r.Pod)
	text("k8s.pod.uid", string(r.PodUID))
	text("k8s.service.name", r.Service)
	text("k8s.node.name", r.Node)
	text("k8s.container.name", r.Container)
	list("process.command_args", r.Command)
	text("admitkit.audit.way", string(r.Way))
	text("admitkit.audit.verb", r.Verb)
	text("admitkit.audit.decision", string(r.Decision))
	text("admitkit.audit.rule", r.Rule)
	text("admitkit.audit.reason", r.Reason)
	text("admitkit.audit.amends", r.Amends)
	if of := r.Object; of != nil {
		text("admitkit.audit.object", of.Kind+"/"+of.Name)
	}
	if by := r.AccessRequest; by != nil {
		text("admitkit.audit.access_request", by.Kind+"/"+by.Name)
	}
	flags := make([]string, 0, len(r.Flags))
	for _, flag := range r.Flags {
		flags = append(flags, string(flag))
	}
	list("admitkit.audit.flags", flags)
	return all
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
)

// auditFlags are the flags of the audit extension.
type auditFlags struct {
	closed        []string
	required      bool
	allNamespaces bool
	log, event    bool
	objects       bool
	object        auditevent.Options
	file          sink.FileOptions
	cloudEvents   deliver.EventOptions
	otlp          deliver.OTLPOptions
	flags         *pflag.FlagSet
	redact        []string
	clusterName   string
	imageUpdaters []string
	nodeProxy     bool
}

func (f *auditFlags) bind(flags *pflag.FlagSet) {
	f.flags = flags
	flags.BoolVar(&f.required, "audit-required", false, "make every audit sink Closed: refuse sessions that cannot be recorded, and all sessions while the webhook is down")
	flags.StringSliceVar(&f.closed, "audit-closed", nil, "audit sinks that are Closed: log, event, auditevent, file, cloudevents, otlp; the others are Open")
	flags.BoolVar(&f.allNamespaces, "audit-all-namespaces", false, "audit kube-system and the manager's own namespace too, whatever --namespace says")
	flags.StringVar(&f.clusterName, "cluster-name", "", "name of this cluster, which every audit record then has as its field cluster")
	flags.BoolVar(&f.log, "audit-log", true, "record sessions in the log")
	flags.BoolVar(&f.event, "audit-event", true, "record sessions as Events on the Pods")
	flags.BoolVar(&f.objects, "audit-objects", false, "record sessions as AuditEvents; needs the CRDs of operator/config/crd")
	flags.DurationVar(&f.object.Retention, "audit-retention", auditevent.DefaultRetention, "how long AuditEvents and rotated files are kept")
	flags.IntVar(&f.object.FoldAfter, "audit-fold-after", auditevent.DefaultFoldAfter, "AuditEvents that a user can cause in a namespace in a minute before they are folded; -1 folds none")
	flags.IntVar(&f.object.FoldUserAfter, "audit-fold-user-after", auditevent.DefaultFoldUserAfter, "AuditEvents that a user can cause in a day before those of an hour are folded into one")
	flags.IntVar(&f.object.FoldAllAfter, "audit-fold-all-after", auditevent.DefaultFoldAllAfter, "AuditEvents that all users can cause in a day before those of each user in an hour are folded into one")
	flags.StringSliceVar(&f.object.DeletableBy, "audit-deletable-by", nil, "users who may delete AuditEvents before the end of their retention")
	flags.StringVar(&f.file.Path, "audit-file", "", "record sessions in this file, as JSON Lines")
	flags.Int64Var(&f.file.MaxSize, "audit-file-max-size", sink.DefaultMaxSize, "rotate the file at this size, in bytes")
	flags.DurationVar(&f.file.MaxAge, "audit-file-max-age", sink.DefaultMaxAge, "rotate the file at this age")
	bindCloudEvents(flags, cloudEventsPrefix, "records to this HTTPS endpoint as CloudEvents", deliver.DefaultSource, "records are sent at once", &f.cloudEvents)
	flags.BoolVar(&f.nodeProxy, "audit-node-proxy", true, "record sessions through nodes/proxy, and with --enforce refuse them; false for platforms that let no webhook match nodes")
	bindCollector(flags, otlpPrefix, "records", &f.otlp)
	flags.StringVar(&f.otlp.Dir, otlpPrefix+"-dir", "", "folder of the queue on disk; by default records are sent at once")
	flags.StringToStringVar(&f.otlp.Resource, otlpPrefix+"-resource", nil, "attributes of every record, such as deployment.environment.name=prod")
	flags.StringArrayVar(&f.imageUpdaters, "audit-image-updater", nil, "a user who may change the images of running Pods without a record or an access request, such as system:serviceaccount:NAMESPACE:NAME; repeatable")
	flags.StringSliceVar(&f.redact, "audit-redact", audit.DefaultRedact, "patterns for the names of flags and variables whose values are redacted; empty for none")
}

// options returns the options of the extension.
func (f *auditFlags) options(cmd *cobra.Command) (audit.Options, error) {
	options := audit.Options{Redact: append([]string{}, f.redact...), ImageUpdaters: f.imageUpdaters, ClusterName: f.clusterName, WithoutNodeProxy: !f.nodeProxy}
	if f.allNamespaces {
		options.NamespaceSelector = extension.EveryNamespace()
	}
	var sinks []sink.Sink
	if f.log {
		sinks = append(sinks, sink.NewLog())
	}
	if f.event {
		sinks = append(sinks, sink.NewEvent())
	}
	if f.objects {
		sinks = append(sinks, auditevent.New(f.object))
	}
	if f.file.Path != "" {
		f.file.Retention = f.object.Retention
		sinks = append(sinks, sink.NewFile(f.file))
	}
	if f.cloudEvents.URL != "" {
		if err := checkFiles(cloudEventsPrefix, &f.cloudEvents.Options); err != nil {
			return options, err
		}
		sinks = append(sinks, deliver.NewCloudEvents(f.cloudEvents))
	}
	if err := checkCollector(f.flags, otlpPrefix, &f.otlp, "dir", "resource"); err != nil {
		return options, err
	}
	if f.otlp.URL != "" {
		sinks = append(sinks, deliver.NewOTLP(f.otlp))
	}
	if len(sinks) == 0 {
		return options, fmt.Errorf("%s: every audit sink is off; enable one", cmd.Name())
	}
	closed := map[string]bool{}
	for _, name := range f.closed {
		closed[name] = true
	}
	for _, sink := range sinks {
		policy := audit.Open
		if f.required || closed[sink.Name()] {
			policy = audit.Closed
		}
		delete(closed, sink.Name())
		options.Sinks = append(options.Sinks, audit.SinkOptions{Sink: sink, FailurePolicy: policy})
	}
	for name := range closed {
		return options, fmt.Errorf("--audit-closed: the sink %q is not on", name)
	}
	return options, nil
}

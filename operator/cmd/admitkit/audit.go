package main

import (
	"errors"
	"fmt"

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
	on            bool
	rules         ruleFlags
}

func (f *auditFlags) part() part {
	return part{
		bind: f.bind, on: func() bool { return f.on }, flags: []string{"audit-", "cluster-name", "enforce", "mark-touched-pods", "evict-"}, off: "with --audit=false",
		options: map[string]string{"sink otlp: ": otlpPrefix, "sink cloudevents: ": cloudEventsPrefix, "sink file: ": "audit-file", "sink auditevent: ": "audit"},
		enabled: "audit.enabled",
		values: map[string]string{
			"audit": "audit.enabled", "cluster-name": "clusterName", "audit-all-namespaces": "audit.allNamespaces", "audit-required": "audit.required",
			"audit-log": "audit.log.enabled", "audit-event": "audit.event.enabled", "audit-objects": "audit.objects.enabled",
			"audit-retention": "audit.retention", "audit-node-proxy": "audit.nodeProxy", "audit-redact": "audit.redact", "audit-image-updater": "audit.imageUpdaters",
			"audit-fold-after": "audit.objects.foldAfter", "audit-fold-user-after": "audit.objects.foldUserAfter", "audit-fold-all-after": "audit.objects.foldAllAfter",
			"audit-deletable-by": "audit.objects.deletableBy", "audit-file-max-size": "audit.file.maxSize", "audit-file-max-age": "audit.file.maxAge",
			"audit-cloudevents-url": "audit.cloudEvents.url", "audit-cloudevents-source": "audit.cloudEvents.source",
			"audit-otlp-endpoint": "audit.otlp.endpoint", "audit-otlp-insecure": "audit.otlp.insecure", "audit-otlp-resource": "audit.otlp.resource",
			"enforce": "audit.enforcement.enabled", "enforce-mode": "audit.enforcement.mode", "enforce-namespaces": "audit.enforcement.namespaces", "enforce-exempt-user": "audit.enforcement.exemptUsers",
			"enforce-exempt-group": "audit.enforcement.exemptGroups", "enforce-command": "audit.enforcement.commands",
			"enforce-no-tty": "audit.enforcement.forbidTTY", "enforce-no-stdin": "audit.enforcement.forbidStdin",
			"mark-touched-pods": "audit.touchedPods.mark", "evict-touched-pods-after": "audit.touchedPods.evictAfter",
			"evict-touched-pods-max": "audit.touchedPods.maxEvictAfter", "evict-unmanaged-pods": "audit.touchedPods.evictUnmanaged",
		},
	}
}

func (f *auditFlags) bind(flags *pflag.FlagSet) {
	f.flags = flags
	flags.BoolVar(&f.on, "audit", true, "record who accessed which Pod, by exec and every other way")
	f.rules.bind(flags)
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
func (f *auditFlags) options(withAccess bool) (audit.Options, error) {
	options := audit.Options{AccessRequests: withAccess, Redact: append([]string{}, f.redact...), ImageUpdaters: f.imageUpdaters, ClusterName: f.clusterName, WithoutNodeProxy: !f.nodeProxy}
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
	if err := checkCollector(f.flags, otlpPrefix, "sink otlp", &f.otlp, "dir", "resource"); err != nil {
		return options, err
	}
	if f.otlp.URL != "" {
		sinks = append(sinks, deliver.NewOTLP(f.otlp))
	}
	if len(sinks) == 0 {
		return options, errors.New("--audit: every audit sink is off; enable one")
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
	return options, f.rules.complete(&options)
}

// ruleFlags are the flags for what the audit extension does besides recording.
type ruleFlags struct {
	enforce     bool
	enforcement audit.Enforcement
	commands    []string
	mark        bool
	touched     audit.TouchedPods
}

func (r *ruleFlags) bind(flags *pflag.FlagSet) {
	e, t := &r.enforcement, &r.touched
	flags.BoolVar(&r.enforce, "enforce", false, "refuse sessions without an active access request, in namespaces labelled "+audit.LabelEnforce+"=true; needs --access")
	flags.TextVar(&e.Mode, "enforce-mode", extension.Mode(""), "enforce; warn, which refuses nothing, but records what it would refuse and says so to the user; or observe, which only records it (default enforce)")
	flags.StringSliceVar(&e.Namespaces, "enforce-namespaces", nil, "enforce in these namespaces instead of those with the label")
	flags.StringArrayVar(&e.ExemptUsers, "enforce-exempt-user", nil, "a user to whom no rule applies; each use is recorded (break-glass); repeatable")
	flags.StringArrayVar(&e.ExemptGroups, "enforce-exempt-group", nil, "a group to whose members no rule applies (break-glass); repeatable")
	flags.StringArrayVar(&r.commands, "enforce-command", nil, "a command that sessions may run, such as \"ls -l\", \"tar cf - ...\" with any further arguments, or a JSON array; repeatable (default any)")
	flags.BoolVar(&e.ForbidTTY, "enforce-no-tty", false, "refuse sessions with a terminal")
	flags.BoolVar(&e.ForbidStdin, "enforce-no-stdin", false, "refuse sessions with standard input")
	flags.BoolVar(&r.mark, "mark-touched-pods", false, "label the Pods of interactive sessions")
	flags.DurationVar(&t.EvictAfter, "evict-touched-pods-after", 0, "evict the Pods of interactive sessions this long after the last one began (default never)")
	flags.DurationVar(&t.MaxEvictAfter, "evict-touched-pods-max", 0, "latest eviction that the annotation "+audit.AnnotationEvictAfter+" can request (default 24h)")
	flags.BoolVar(&t.Unmanaged, "evict-unmanaged-pods", false, "also evict Pods that no controller replaces")
}

// complete sets the options from the flags.
func (r *ruleFlags) complete(options *audit.Options) error {
	e := &r.enforcement
	if !r.enforce && (len(e.Namespaces)+len(e.ExemptUsers)+len(e.ExemptGroups)+len(r.commands)+len(e.Mode) > 0 || e.ForbidTTY || e.ForbidStdin) {
		return errors.New("flags that begin with --enforce- need --enforce")
	}
	if r.enforce {
		if !options.AccessRequests {
			return errors.New("--enforce needs --access: without it nobody could request a session")
		}
		e.Commands = nil
		for _, text := range r.commands {
			c, err := audit.ParseCommand(text)
			if err != nil {
				return fmt.Errorf("--enforce-command: %w", err)
			}
			e.Commands = append(e.Commands, c)
		}
		options.Enforcement = e
	}
	if r.mark || r.touched.EvictAfter > 0 {
		options.TouchedPods = &r.touched
	}
	return nil
}

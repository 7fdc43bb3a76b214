package audit

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// query selects records.
type query struct {
	*cli.Base
	user, pod, request, decision string
	since, until                 string
	everywhere, watch            bool
	file                         string
	output                       *cli.Output

	cli.Span
}

// Command returns the command that shows audit records.
func Command(c *cli.Base) *cobra.Command {
	q := &query{Base: c}
	cmd := &cobra.Command{
		Use: "audit", Short: "List who accessed which Pod, and the decisions",
		Long: `List the AuditEvents: every exec, attach, port-forward, proxy and debug that
somebody took or wanted to take, the oldest first. --since and --until take a
duration such as 24h or 7d, which is that long ago, or a time such as
2026-11-21T09:00:00Z.

--compare holds the API server's own audit log, as JSON lines, against the records,
and lists the acts that went through without one. Its policy must log them:
pods/exec, pods/attach, pods/portforward, pods/proxy, services/proxy, nodes/proxy and
pods/ephemeralcontainers at level Metadata. It exits with 1 if something is missing.`,
		Example: "  # What alice did in the last day, anywhere\n  kubectl access audit --user alice --since 24h -A\n\n  # What is refused from now on\n  kubectl access audit --decision Denied --since 0s -A -w\n\n  # What went past the records in the last day\n  kubectl access audit --compare /var/log/kubernetes/audit.log --since 24h -A",
		Args:    cli.Exactly(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return q.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&q.user, "user", "", "only acts of this user")
	flags.StringVar(&q.pod, "pod", "", "only acts in this Pod")
	flags.StringVar(&q.request, "request", "", "only the story of this access request, and the acts under it")
	flags.StringVar(&q.decision, "decision", "", "only acts that were Allowed, or Denied")
	flags.StringVar(&q.since, "since", "", "only acts since this time")
	flags.StringVar(&q.until, "until", "", "only acts before this time")
	flags.BoolVarP(&q.everywhere, "all-namespaces", "A", false, "acts in all namespaces, and in none")
	flags.BoolVarP(&q.watch, "watch", "w", false, "continue with new acts")
	flags.StringVar(&q.file, "compare", "", "list the acts in this audit log of the API server that have no record, and the records of acts that it does not have; - is standard input")
	q.output = c.AddOutputFlags(cmd, auditColumns)
	_ = cmd.RegisterFlagCompletionFunc("pod", c.CompletePods)
	_ = cmd.RegisterFlagCompletionFunc("decision", cobra.FixedCompletions([]string{string(v1alpha1.AuditAllowed), string(v1alpha1.AuditDenied)}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (q *query) run(ctx context.Context) error {
	var err error
	if q.Span, err = cli.NewSpan(q.since, q.until); err != nil {
		return err
	}
	if d := v1alpha1.AuditDecision(q.decision); d != "" && d != v1alpha1.AuditAllowed && d != v1alpha1.AuditDenied {
		return cli.Exitf(cli.CodeUsage, "--decision %q: must be Allowed or Denied", q.decision)
	}
	if q.file != "" {
		return q.compare(ctx)
	}
	printing := q.output.ListPrinter
	if q.watch {
		printing = q.output.Printer
	}
	show, err := printing(q.everywhere)
	if err != nil {
		return err
	}
	cl, namespace, err := q.Connect()
	if err != nil {
		return err
	}
	selector := q.labels(namespace)
	events, version, err := q.list(ctx, cl, selector, namespace)
	if err != nil {
		return q.explained(ctx, err)
	}
	if len(events) == 0 && !q.watch {
		q.Sayf("no records found%s", cli.InNamespace(namespace, q.everywhere))
	}
	if err := show(events...); err != nil || !q.watch {
		return err
	}
	return q.follow(ctx, cl, selector, namespace, version, show)
}

// list returns the records that there are, the oldest first.
func (q *query) list(ctx context.Context, cl client.Client, selector client.ListOption, namespace string) (events []client.Object, version string, err error) {
	var list, folds v1alpha1.AuditEventList
	if err := cl.List(ctx, &list, selector); err != nil {
		return nil, "", err
	}
	// The acts of a fold can be in several Pods and namespaces.
	if err := cl.List(ctx, &folds, client.MatchingLabels{auditevent.LabelFolded: "true"}); err != nil {
		return nil, "", err
	}
	list.Items = slices.DeleteFunc(list.Items, func(e v1alpha1.AuditEvent) bool { return e.Spec.Folded })
	for _, event := range slices.Concat(list.Items, folds.Items) {
		if q.matches(&event, namespace) {
			events = append(events, &event)
		}
	}
	slices.SortStableFunc(events, func(a, b client.Object) int {
		return a.(*v1alpha1.AuditEvent).Spec.Time.Compare(b.(*v1alpha1.AuditEvent).Spec.Time.Time)
	})
	return events, list.ResourceVersion, nil
}

// explained distinguishes a cluster without records from one without admitkit.
func (q *query) explained(ctx context.Context, err error) error {
	if !meta.IsNoMatchError(err) {
		return cli.Explained(err)
	}
	config, configErr := q.Flags.ToRESTConfig()
	if configErr != nil {
		return configErr
	}
	server, clientErr := discovery.NewDiscoveryClientForConfig(config)
	if clientErr != nil {
		return clientErr
	}
	if _, unknown := server.ServerResourcesForGroupVersionWithContext(ctx, v1alpha1.GroupVersion.String()); unknown != nil {
		return cli.Explained(err)
	}
	return cli.Exitf(cli.CodeNotFound, "in this cluster sessions are not recorded as objects: the API server knows admitkit, and no AuditEvents. The chart's value audit.objects.enabled switches them on, or the package's auditevent.New")
}

// follow shows new records until it is interrupted.
func (q *query) follow(ctx context.Context, cl client.WithWatch, selector client.ListOption, namespace, from string, show cli.Printer) error {
	events := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		options := &client.ListOptions{Raw: &o}
		selector.ApplyToList(options)
		return cl.Watch(ctx, &v1alpha1.AuditEventList{}, options)
	}}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, from, events)
	if err != nil {
		return cli.Explained(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		switch record := event.Object.(type) {
		case *v1alpha1.AuditEvent:
			if event.Type == watch.Deleted || !q.matches(record, namespace) {
				continue
			}
			if err := show(record); err != nil {
				return err
			}
		case *metav1.Status:
			return cli.Explained(apierrors.FromObject(record))
		}
	}
	return cli.Exitf(cli.CodeInterrupted, "interrupted")
}

// labels selects at the server as far as labels can.
func (q *query) labels(namespace string) client.MatchingLabels {
	selector := client.MatchingLabels{}
	set := func(label, value string) {
		if value != "" {
			selector[label] = auditevent.LabelValue(value)
		}
	}
	set(auditevent.LabelUser, q.user)
	set(auditevent.LabelPod, q.pod)
	set(auditevent.LabelRequest, q.request)
	set(auditevent.LabelDecision, q.decision)
	if !q.everywhere {
		set(auditevent.LabelNamespace, namespace)
	}
	return selector
}

// matches checks the record itself, because labels can be changed.
func (q *query) matches(event *v1alpha1.AuditEvent, namespace string) bool {
	r := &event.Spec
	last := r.Time.Time
	if event.Status.LastTime != nil {
		last = event.Status.LastTime.Time
	}
	if q.user != "" && q.user != r.User.Username || !q.From.IsZero() && last.Before(q.From) || !q.To.IsZero() && !r.Time.Time.Before(q.To) {
		return false
	}
	if by := r.AccessRequest; q.request != "" && (by == nil || by.Name != q.request) {
		return false
	}
	is := func(act v1alpha1.AuditFold) bool { return q.isAbout(act, namespace) }
	return is(v1alpha1.AuditFold{Namespace: r.Namespace, Pod: r.Pod, Decision: r.Decision}) ||
		slices.ContainsFunc(event.Status.Acts, is) || q.canHave(event, namespace)
}

func (q *query) isAbout(act v1alpha1.AuditFold, namespace string) bool {
	return (q.everywhere || act.Namespace == namespace) && (q.pod == "" || act.Pod == q.pod) && (q.decision == "" || q.decision == string(act.Decision))
}

// canHave reports whether a fold can have an act that the query is about, but does not
// list it.
func (q *query) canHave(event *v1alpha1.AuditEvent, namespace string) bool {
	return event.Status.Unlisted > 0 && (q.everywhere || event.Spec.Namespace == namespace || event.Labels[auditevent.LabelNamespace] == "")
}

func ofRecord(f func(*v1alpha1.AuditEvent) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(*v1alpha1.AuditEvent)) }
}

var auditColumns = []cli.Column{
	{Name: "TIME", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Time.Local().Format(time.DateTime) })},
	{Name: "USER", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.User.Username })},
	{Name: "WAY", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return string(e.Spec.Way) })},
	{Name: "NAMESPACE", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Namespace })},
	{Name: "POD", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Pod })},
	{Name: "COMMAND", Of: ofRecord(func(e *v1alpha1.AuditEvent) string {
		if e.Spec.Object != nil { // the decision of an extension
			return e.Spec.Verb + " " + e.Spec.Object.Name
		}
		return cli.CommandLine(e.Spec.Command)
	})},
	{Name: "DECISION", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return string(e.Spec.Decision) })},
	{Name: "COUNT", Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return strconv.FormatInt(max(e.Status.Count, 1), 10) })},
	{Name: "CONTAINER", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Container })},
	{Name: "NODE", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Node })},
	{Name: "REQUEST", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string {
		if by := e.Spec.AccessRequest; by != nil {
			return by.Name
		}
		return ""
	})},
	{Name: "FLAGS", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string {
		flags := make([]string, len(e.Spec.Flags))
		for i, flag := range e.Spec.Flags {
			flags[i] = string(flag)
		}
		return strings.Join(flags, ",")
	})},
	{Name: "REASON", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.Reason })},
	{Name: "ID", Wide: true, Of: ofRecord(func(e *v1alpha1.AuditEvent) string { return e.Spec.ID })},
}

package facts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// Proxied is what names and BrokerPolicies make of a run: it has a proxy, and with policies credentials.
type Proxied struct {
	Mode v1alpha1.InterceptionMode
	// Hosts are the names beyond which the proxy lets nothing through, none for no such bound. Without a broker they are all.
	Hosts []v1alpha1.EgressName
	// Broker is what the proxy asks, nil if no policy applies.
	Broker *v1alpha1.EgressBroker
	// How says how connections come to the proxy, and what that does not hold.
	How string
	// InContainer are the credentials that the container gets, sorted.
	InContainer []string
}

// labelPodSecurity is the label of a namespace by which Pod Security refuses Pods.
const labelPodSecurity = "pod-security.kubernetes.io/enforce"

// readProxied reads what applies to the template, and what that makes of the run.
func (r *Reader) readProxied(ctx context.Context, f *Facts) error {
	run, template := f.Run, f.Run.Spec.TemplateRef.Name
	apply, others, err := brokerpolicy.ForTemplate(ctx, r.Cached, run.Namespace, template)
	if err != nil {
		return err
	}
	of := r.governed(run, f.Plan, apply)
	if of == nil {
		return nil
	}
	decided := run.Status.Egress != nil
	switch {
	case of.asks && r.Broker == nil:
		f.Unproxied = &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerNotConfigured, Message: brokerpolicy.NotConfigured, Fatal: true}
		return nil
	case !r.Proxies:
		f.Unproxied = unavailable(v1alpha1.InterceptionNotConfigured, workload.NoProxies)
		return nil
	case of.changed:
		f.Unproxied = unavailable(v1alpha1.InterceptionChanged, "BrokerPolicies or the template have changed since the egress of the run was decided: make another run")
		return nil
	case time.Duration(f.Plan.Timeout)*time.Second > workload.MaxProxied:
		f.Unproxied = unavailable(v1alpha1.InterceptionTooLong, fmt.Sprintf("timeoutSeconds, or maxLifetimeSeconds, is %d, and a run with a proxy has at most %.0f, since its certificate authority lives for %s",
			f.Plan.Timeout, workload.MaxProxied.Seconds(), runca.RunLife))
		return nil
	}
	if problem := brokerpolicy.ClosedBy(run.Spec.Mode, template, apply); problem != "" && run.Spec.Mode == v1alpha1.SandboxInteractive {
		f.Unproxied = &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: v1alpha1.SandboxRunTemplateForbids, Message: problem}
		return nil
	}
	if problem := brokerpolicy.Shortfall(run.Namespace, brokerpolicy.OfTemplate(template), f.Plan.Requires, apply, others); problem != "" {
		f.Unproxied = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.CredentialsNotGranted, Message: problem}
		return nil
	}
	p := &Proxied{Mode: run.Status.Interception, Hosts: of.hosts, InContainer: delivered(f.Plan.Requires, apply)}
	if of.asks {
		p.Broker = r.Broker
	}
	if !decided {
		p.Mode = ModeOf(apply)
		if f.Unproxied, err = r.Permits(ctx, run.Namespace, p.Mode, len(apply) > 0); err != nil || f.Unproxied != nil {
			return err
		}
	}
	p.How = howOf(p.Mode, apply)
	f.Proxied = p
	f.Plan.Egress.DNS, f.Plan.Egress.Internet = new(true), true // for the proxy
	return nil
}

// governed is by what the proxy of a run goes.
type governed struct {
	hosts []v1alpha1.EgressName
	// asks says that it asks the broker, and changed that this is not as it was decided.
	asks, changed bool
}

// governed returns nil for a run without a proxy. What was decided stays.
func (r *Reader) governed(run *v1alpha1.SandboxRun, plan *workload.Plan, apply []v1alpha1.BrokerPolicy) *governed {
	of := &governed{hosts: plan.Hosts, asks: len(apply) > 0 || len(plan.Requires) > 0}
	if decided := run.Status.Egress; decided != nil {
		of.hosts, of.changed = decided.Hosts, of.asks && decided.Broker == nil
		of.asks = of.asks || decided.Broker != nil
	}
	if run.Status.Interception == "" && !of.asks && len(of.hosts) == 0 {
		return nil
	}
	return of
}

func unavailable(reason, message string) *conditions.Obstacle {
	return &conditions.Obstacle{Condition: v1alpha1.ConditionInterceptionUnavailable, Reason: reason, Message: message, Fatal: true}
}

// delivered returns which of the credentials the container gets. Each is granted by one policy.
func delivered(requires []string, apply []v1alpha1.BrokerPolicy) (names []string) {
	for _, name := range requires {
		for i := range apply {
			if grant := apply[i].Credential(name); grant != nil && grant.Delivery.InContainer != nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ModeOf is transparent, unless every policy accepts in words that it is not.
func ModeOf(apply []v1alpha1.BrokerPolicy) v1alpha1.InterceptionMode {
	if len(apply) == 0 || slices.ContainsFunc(apply, func(p v1alpha1.BrokerPolicy) bool {
		accepted := p.Spec.Interception.CooperativeAccepted
		return accepted == nil || !accepted.Accepted
	}) {
		return v1alpha1.InterceptionTransparent
	}
	return v1alpha1.InterceptionCooperative
}

// Permits says what keeps the namespace from a mode, nil if nothing does: the redirect takes a container with
// NET_ADMIN, which Pod Security refuses but for privileged.
func (r *Reader) Permits(ctx context.Context, name string, mode v1alpha1.InterceptionMode, policies bool) (*conditions.Obstacle, error) {
	if mode == v1alpha1.InterceptionCooperative {
		return nil, nil //nolint:nilnil // nothing does
	}
	namespace := &corev1.Namespace{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return nil, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	level := namespace.Labels[labelPodSecurity]
	if level == "" || level == "privileged" {
		return nil, nil //nolint:nilnil // nothing does
	}
	message := fmt.Sprintf("namespace %s has %s=%s, which forbids the init container with NET_ADMIN that redirects connections to the proxy: have runs in a namespace of their own with privileged",
		name, labelPodSecurity, level)
	if policies {
		message += ", or let every BrokerPolicy that applies set spec.interception.cooperativeAccepted"
	}
	return unavailable(v1alpha1.InterceptionPodSecurity, message), nil
}

// howOf says how connections come to the proxy.
func howOf(mode v1alpha1.InterceptionMode, apply []v1alpha1.BrokerPolicy) string {
	if mode == v1alpha1.InterceptionTransparent {
		return "the kernel redirects connections to ports 443 and 80 to the proxy, and refuses those to the port of the broker"
	}
	var names []string
	for i := range apply {
		names = append(names, apply[i].Name)
	}
	return "work that ignores HTTPS_PROXY reaches every public address at ports 443 and 80 without the proxy, which is accepted by BrokerPolicies: " + strings.Join(names, ", ")
}

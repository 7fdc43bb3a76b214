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
	of := governedBy(run.Status.Egress, run.Status.Interception, f.Plan.Hosts, len(apply) > 0 || len(f.Plan.Requires) > 0)
	if of == nil {
		return nil
	}
	if f.Unproxied = r.refuses(of, "run"); f.Unproxied != nil {
		return nil //nolint:nilerr // the facts say it
	}
	if time.Duration(f.Plan.Timeout)*time.Second > workload.MaxProxied {
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
	p, blocked, err := r.proxied(ctx, of, run.Namespace, run.Status.Interception, apply)
	if f.Unproxied = blocked; err != nil || blocked != nil {
		return err
	}
	p.InContainer = delivered(f.Plan.Requires, apply)
	f.Proxied = p
	p.Open(&f.Plan.Egress)
	return nil
}

// Open opens what the proxy needs.
func (*Proxied) Open(e *v1alpha1.Egress) { e.DNS, e.Internet = new(true), true }

// Seed returns what names and BrokerPolicies make of the seed of a Workspace, nil if it has neither, or why it waits for them.
func (r *Reader) Seed(ctx context.Context, ws *v1alpha1.Workspace) (*Proxied, *conditions.Obstacle, error) {
	seed, wanted := ws.Spec.Seed, workload.SeedCredentials(ws.Spec.Seed)
	apply, problem, err := brokerpolicy.ForSeed(ctx, r.Cached, ws.Namespace, ws.Name, wanted)
	if err != nil {
		return nil, nil, err
	}
	var hosts []v1alpha1.EgressName
	if seed.Egress != nil {
		hosts = seed.Egress.Hosts
	}
	of := governedBy(ws.Status.Egress, ws.Status.Interception, hosts, len(apply) > 0 || len(wanted) > 0)
	if of == nil {
		return nil, nil, nil
	}
	if blocked := r.refuses(of, "Workspace"); blocked != nil {
		return nil, blocked, nil
	}
	switch {
	case problem != "":
		return nil, &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.CredentialsNotGranted, Message: problem}, nil
	case seed.CAFrom != nil:
		return nil, unavailable(v1alpha1.WorkspaceSeedRejected, "spec.seed."+workload.CAFromOfProxied), nil
	}
	return r.proxied(ctx, of, ws.Namespace, ws.Status.Interception, apply)
}

// refuses says why there can be no proxy, nil if there can be one.
func (r *Reader) refuses(of *governed, kind string) *conditions.Obstacle {
	switch {
	case of.asks && r.Broker == nil:
		return &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerNotConfigured, Message: brokerpolicy.NotConfigured, Fatal: true}
	case !r.Proxies:
		return unavailable(v1alpha1.InterceptionNotConfigured, workload.NoProxies)
	case of.changed:
		return unavailable(v1alpha1.InterceptionChanged, fmt.Sprintf("BrokerPolicies or the template have changed since the egress of the %s was decided: make another %[1]s", kind))
	}
	return nil
}

// proxied is the proxy that follows. How connections come to it is decided once.
func (r *Reader) proxied(ctx context.Context, of *governed, namespace string, was v1alpha1.InterceptionMode, apply []v1alpha1.BrokerPolicy) (*Proxied, *conditions.Obstacle, error) {
	p := &Proxied{Mode: was, Hosts: of.hosts}
	if of.asks {
		p.Broker = r.Broker
	}
	if !of.decided {
		p.Mode = modeOf(apply)
		if blocked, err := r.permits(ctx, namespace, p.Mode, len(apply) > 0); err != nil || blocked != nil {
			return nil, blocked, err
		}
	}
	p.How = howOf(p.Mode, apply)
	return p, nil, nil
}

// governed is by what a proxy goes.
type governed struct {
	hosts []v1alpha1.EgressName
	// asks says that it asks the broker, decided that all of this is decided, and changed that it would be another decision now.
	asks, decided, changed bool
}

// governedBy returns nil for what has no proxy. What was decided stays.
func governedBy(decided *v1alpha1.EgressDecision, was v1alpha1.InterceptionMode, hosts []v1alpha1.EgressName, asks bool) *governed {
	of := &governed{hosts: hosts, asks: asks}
	if decided != nil {
		of.decided, of.hosts, of.changed = true, decided.Hosts, asks && decided.Broker == nil
		of.asks = asks || decided.Broker != nil
	}
	if was == "" && !of.asks && len(of.hosts) == 0 {
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

// modeOf is transparent, unless every policy accepts in words that it is not.
func modeOf(apply []v1alpha1.BrokerPolicy) v1alpha1.InterceptionMode {
	if len(apply) == 0 || slices.ContainsFunc(apply, func(p v1alpha1.BrokerPolicy) bool {
		accepted := p.Spec.Interception.CooperativeAccepted
		return accepted == nil || !accepted.Accepted
	}) {
		return v1alpha1.InterceptionTransparent
	}
	return v1alpha1.InterceptionCooperative
}

// permits says what keeps the namespace from a mode, nil if nothing does: the redirect takes a container with
// NET_ADMIN, which Pod Security refuses but for privileged.
func (r *Reader) permits(ctx context.Context, name string, mode v1alpha1.InterceptionMode, policies bool) (*conditions.Obstacle, error) {
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

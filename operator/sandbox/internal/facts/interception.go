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

// Brokered is what BrokerPolicies make of a run: it has a proxy, and credentials.
type Brokered struct {
	Mode v1alpha1.InterceptionMode
	// How says how connections come to the proxy, and what that does not hold.
	How string
	// InContainer are the credentials that the container gets, sorted.
	InContainer []string
}

// labelPodSecurity is the label of a namespace by which Pod Security refuses Pods.
const labelPodSecurity = "pod-security.kubernetes.io/enforce"

// readBrokered reads what applies to the template, and what that makes of the run.
func (r *Reader) readBrokered(ctx context.Context, f *Facts) error {
	run, template := f.Run, f.Run.Spec.TemplateRef.Name
	apply, others, err := brokerpolicy.ForTemplate(ctx, r.Cached, run.Namespace, template)
	if err != nil {
		return err
	}
	decided := run.Status.Egress != nil
	if run.Status.Interception == "" && len(apply) == 0 && len(f.Plan.Requires) == 0 {
		return nil
	}
	switch {
	case r.Broker == nil:
		f.Unbrokered = &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerNotConfigured, Message: brokerpolicy.NotConfigured, Fatal: true}
		return nil
	case decided && run.Status.Interception == "":
		f.Unbrokered = unavailable(v1alpha1.InterceptionChanged, "BrokerPolicies or the template have changed since the egress of the run was decided: make another run")
		return nil
	case time.Duration(f.Plan.Timeout)*time.Second > workload.MaxProxied:
		f.Unbrokered = unavailable(v1alpha1.InterceptionTooLong, fmt.Sprintf("timeoutSeconds, or maxLifetimeSeconds, is %d, and a run with a proxy has at most %.0f, since its certificate authority lives for %s",
			f.Plan.Timeout, workload.MaxProxied.Seconds(), runca.RunLife))
		return nil
	}
	if problem := brokerpolicy.ClosedBy(run.Spec.Mode, template, apply); problem != "" && run.Spec.Mode == v1alpha1.SandboxInteractive {
		f.Unbrokered = &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: v1alpha1.SandboxRunTemplateForbids, Message: problem}
		return nil
	}
	if problem := brokerpolicy.Shortfall(run.Namespace, brokerpolicy.OfTemplate(template), f.Plan.Requires, apply, others); problem != "" {
		f.Unbrokered = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.CredentialsNotGranted, Message: problem}
		return nil
	}
	b := &Brokered{Mode: run.Status.Interception, InContainer: delivered(f.Plan.Requires, apply)}
	if !decided {
		b.Mode = modeOf(apply)
		if f.Unbrokered, err = r.permits(ctx, run.Namespace, b.Mode); err != nil || f.Unbrokered != nil {
			return err
		}
	}
	b.How = howOf(b.Mode, apply)
	f.Brokered = b
	f.Plan.Egress.DNS, f.Plan.Egress.Internet = new(true), true // for the proxy
	return nil
}

// brokerOf is the broker that the Pods of a run may reach, nil if they have no proxy.
func (r *Reader) brokerOf(f *Facts) *v1alpha1.EgressBroker {
	if f.Brokered == nil {
		return nil
	}
	return r.Broker
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
func (r *Reader) permits(ctx context.Context, name string, mode v1alpha1.InterceptionMode) (*conditions.Obstacle, error) {
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
	return unavailable(v1alpha1.InterceptionPodSecurity, fmt.Sprintf("namespace %s has %s=%s, which forbids the init container with NET_ADMIN that redirects connections to the proxy: "+
		"have runs in a namespace of their own with privileged, or let every BrokerPolicy that applies set spec.interception.cooperativeAccepted", name, labelPodSecurity, level)), nil
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

package admission

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/permission"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Options say what is admitted where.
type Options struct {
	// Namespaces are those in which runs run, and Egress says how Pods are held to the egress of their template.
	Namespaces []string
	Egress     *egress.Options
	// Interactive lets runs be Interactive, Broker says that there is one of credentials, and Proxy that there are proxies.
	Interactive, Broker, Proxy bool
	// SeedImage is that of seeds that name none, if there is one.
	SeedImage string
}

// gate is what the parts have in common.
type gate struct {
	Options
	// asker asks the API server.
	asker *controller.Asker
}

// Parts are the parts that answer admissions. All have failure policy Fail. Those about
// our own kinds are for every namespace: a run where nothing would run it is refused, and
// not ignored.
func Parts(options Options) []any {
	g := &gate{options, &controller.Asker{}}
	create, update := admissionregistrationv1.Create, admissionregistrationv1.Update
	ours := func(name, resource string, ops ...admissionregistrationv1.OperationType) extension.Scope {
		return scope(name, extension.EveryNamespace(), extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, []string{resource}, ops...))
	}
	pods, jobs := g.ownerScopes()
	parts := []any{
		extension.Mutating(&author{}, ours("sandbox-author", "sandboxruns", create, update)),
		extension.Validating(&runRules{admitted{g}}, ours("sandbox-run", "sandboxruns", create, update)),
		extension.Validating(&report{admitted{g}}, ours("sandbox-report", "sandboxruns/status", update)),
		extension.Validating(&templateRules{admitted{g}}, ours("sandbox-template", "sandboxruntemplates", create, update)),
		extension.Validating(&clusterTemplateRules{admitted{g}}, ours("sandbox-cluster-template", "clustersandboxruntemplates", create, update)),
		extension.Validating(&workspaceRules{admitted{g}}, ours("sandbox-workspace", "workspaces", create, update)),
		extension.Validating(&workspaceReport{admitted{g}}, ours("sandbox-workspace-report", "workspaces/status", update)),
		extension.Validating(&podGuard{admitted{g}}, g.podScope()),
		extension.Validating(&graceGuard{admitted{g}}, cluster.GracePeriodScope("sandbox-pod-grace", g.selector(), owned.PrefixRun, owned.PrefixWorkspace)),
		extension.Validating(&execGuard{admitted{g}}, g.execScope()),
		extension.Validating(&podOwnerGuard{admitted{g}}, pods),
		extension.Validating(&jobOwnerGuard{admitted{g}}, jobs),
		egress.GuardBindings("sandbox-pod-binding", g.selector(), ourLabels, owned.PrefixRun, owned.PrefixWorkspace),
	}
	if g.Egress.On() {
		parts = append(parts, extension.Validating(&policyGuard{admitted{g}}, g.policyScope()))
	}
	return parts
}

func scope(name string, namespaces *metav1.LabelSelector, rules []admissionregistrationv1.RuleWithOperations, conditions ...admissionregistrationv1.MatchCondition) extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: namespaces, Rules: rules, MatchConditions: conditions}
}

// selector selects the namespaces in which runs run.
func (g *gate) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: g.Namespaces,
	}}}
}

// admitted is what a part that asks the API server embeds.
type admitted struct{ *gate }

// Register connects to the cluster.
func (a *admitted) Register(mgr extension.Manager) error { return a.asker.Connect(mgr) }

// runsIn reports whether runs run in a namespace.
func (g *gate) runsIn(namespace string) bool { return slices.Contains(g.Namespaces, namespace) }

var deniedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_sandbox_denied_total", Help: "What the sandbox denied at admission.",
}, []string{"kind"})

func init() { metrics.Registry.MustRegister(deniedTotal) }

// denied counts a denial.
func denied(kind string, format string, args ...any) error {
	deniedTotal.WithLabelValues(kind).Inc()
	return extension.Denyf(format, args...)
}

// may asks the API server what the user of a request may do.
func (a *admitted) may(ctx context.Context, req *extension.Request, verb, group, version, resource, name string) (bool, error) {
	return permission.May(ctx, a.asker, req.User(), authorizationv1.ResourceAttributes{Namespace: req.Namespace, Verb: verb, Group: group, Version: version, Resource: resource, Name: name})
}

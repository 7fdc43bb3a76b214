package sandbox

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// admissions are the parts that answer admissions. All have failure policy Fail. Those about
// our own kinds are for every namespace: a run where nothing would run it is refused, and
// not ignored.
func (s *shared) admissions() []any {
	create, update := admissionregistrationv1.Create, admissionregistrationv1.Update
	ours := func(name, resource string, ops ...admissionregistrationv1.OperationType) extension.Scope {
		return scope(name, extension.EveryNamespace(), extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, []string{resource}, ops...))
	}
	pods, jobs := s.ownerScopes()
	parts := []any{
		extension.Mutating(&author{}, ours("sandbox-author", "sandboxruns", create, update)),
		extension.Validating(&runRules{admitted{s}}, ours("sandbox-run", "sandboxruns", create, update)),
		extension.Validating(&report{admitted{s}}, ours("sandbox-report", "sandboxruns/status", update)),
		extension.Validating(&templateRules{admitted{s}}, ours("sandbox-template", "sandboxruntemplates", create, update)),
		extension.Validating(&clusterTemplateRules{admitted{s}}, ours("sandbox-cluster-template", "clustersandboxruntemplates", create, update)),
		extension.Validating(&workspaceRules{admitted{s}}, ours("sandbox-workspace", "workspaces", create, update)),
		extension.Validating(&workspaceReport{admitted{s}}, ours("sandbox-workspace-report", "workspaces/status", update)),
		extension.Validating(&podGuard{admitted{s}}, s.podScope()),
		extension.Validating(&graceGuard{admitted{s}}, cluster.GracePeriodScope("sandbox-pod-grace", s.selector(), owned.PrefixRun, owned.PrefixWorkspace)),
		extension.Validating(&execGuard{admitted{s}}, s.execScope()),
		extension.Validating(&podOwnerGuard{admitted{s}}, pods),
		extension.Validating(&jobOwnerGuard{admitted{s}}, jobs),
	}
	if s.options.Egress.On() {
		parts = append(parts, extension.Validating(&policyGuard{admitted{s}}, s.policyScope()))
	}
	return parts
}

func scope(name string, namespaces *metav1.LabelSelector, rules []admissionregistrationv1.RuleWithOperations, conditions ...admissionregistrationv1.MatchCondition) extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{Name: name, FailurePolicy: &fail, NamespaceSelector: namespaces, Rules: rules, MatchConditions: conditions}
}

// selector selects the namespaces in which runs run.
func (s *shared) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: s.namespaces,
	}}}
}

// admitted is what a part that asks the API server embeds.
type admitted struct{ *shared }

// Register connects to the cluster.
func (a *admitted) Register(mgr extension.Manager) error { return a.asker.Connect(mgr) }

// denied counts a denial.
func denied(kind string, format string, args ...any) error {
	deniedTotal.WithLabelValues(kind).Inc()
	return extension.Denyf(format, args...)
}

// author writes into a run who makes it. What names somebody else stays, and runRules refuses it:
// a backup that is restored would otherwise run in the name of whoever restores it.
type author struct{}

// Mutate stamps a new run, and puts back what was stamped: a manifest that is applied again lacks it.
func (*author) Mutate(_ context.Context, run *v1alpha1.SandboxRun, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		old, err := extension.Old[*v1alpha1.SandboxRun](req)
		if err == nil && run.Spec.Author == nil {
			run.Spec.Author = old.Spec.Author
		}
		return err
	}
	if a := run.Spec.Author; a == nil || a.Username == "" || a.Username == req.User().Username {
		run.Spec.Author = v1alpha1.AuthorOf(req.User())
	}
	return nil
}

// report lets only the manager write the status, in which the decision about egress is.
type report struct{ admitted }

// Validate denies what the manager does not write.
func (r *report) Validate(ctx context.Context, _ *v1alpha1.SandboxRun, req *extension.Request) error {
	me, err := r.asker.Reconciler(ctx)
	if err == nil && req.User().Username != me {
		err = denied("SandboxRun", "status: only admitkit writes it, as %s", me)
	}
	return err
}

// templateRules judges templates of a namespace.
type templateRules struct{ admitted }

// Validate refuses what no run could use.
func (r *templateRules) Validate(ctx context.Context, template *v1alpha1.SandboxRunTemplate, req *extension.Request) error {
	base, err := workload.Base(ctx, r.asker, &template.Spec)
	if err != nil {
		return err
	}
	if ref := template.Spec.BaseTemplateRef; ref != nil && base == nil {
		req.Warnf("spec.baseTemplateRef: there is no ClusterSandboxRunTemplate %s: runs wait for it", ref.Name)
		return r.check("SandboxRunTemplate", &template.Spec, nil, req)
	}
	return r.check("SandboxRunTemplate", &template.Spec, base, req)
}

// clusterTemplateRules judges those of the cluster.
type clusterTemplateRules struct{ admitted }

// Validate refuses what no run could use.
func (r *clusterTemplateRules) Validate(_ context.Context, template *v1alpha1.ClusterSandboxRunTemplate, req *extension.Request) error {
	return r.check("ClusterSandboxRunTemplate", &template.Spec, nil, req)
}

// check judges a template.
func (s *shared) check(kind string, template, base *v1alpha1.SandboxRunTemplateSpec, req *extension.Request) error {
	if base == nil && template.BaseTemplateRef != nil {
		if err := workload.CheckEnv(template.Env, "env"); err != nil {
			return denied(kind, "spec.%w", err)
		}
		return nil
	}
	p, err := workload.Of(template, base)
	if err != nil {
		return denied(kind, "spec.%w", err)
	}
	if err := egress.Check(&p.Egress, &s.options.Egress); err != nil {
		return denied(kind, "spec.egress.%w", err)
	}
	for _, warning := range egress.Warnings(&p.Egress, &s.options.Egress) {
		req.Warnf("spec.egress.%s", warning)
	}
	if p.Interactive != nil && !s.options.Interactive {
		req.Warnf("spec.interactive: Interactive runs are off: let the operator set --sandbox-interactive")
	}
	if len(p.Requires) > 0 && !s.options.Broker.on() {
		req.Warnf("spec.requires: runs fail: %s", brokerpolicy.NotConfigured)
	}
	if !egress.IsDigestPinned(p.Image) {
		req.Warnf("spec.image: %.80s names no digest: what runs can change; it is pulled always", p.Image)
	}
	return nil
}

// runRules judges runs.
type runRules struct{ admitted }

// Validate refuses a run that could not run, and changes.
func (r *runRules) Validate(ctx context.Context, run *v1alpha1.SandboxRun, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		return r.validateUpdate(ctx, run, req)
	}
	spec, user := &run.Spec, req.User()
	switch {
	case !r.runsIn(req.Namespace):
		return denied("SandboxRun", "namespace %s: nothing runs SandboxRuns there; let the operator add it to --sandbox-namespaces", req.Namespace)
	case !spec.Author.Is(user):
		return denied("SandboxRun", "spec.author: the server sets it; user %q cannot make a run in the name of another: leave it out", user.Username)
	case spec.Mode == v1alpha1.SandboxInteractive && !r.options.Interactive:
		return denied("SandboxRun", "spec.mode: Interactive runs are off: let the operator set --sandbox-interactive, or use Batch")
	case (spec.Prompt != "") == (spec.PromptFrom != nil):
		return denied("SandboxRun", "spec: exactly one of prompt and promptFrom must be set")
	case len(spec.Prompt) > v1alpha1.MaxPromptBytes:
		return denied("SandboxRun", "spec.prompt: %d bytes, at most %d are allowed; put it into a ConfigMap, and name that in promptFrom", len(spec.Prompt), v1alpha1.MaxPromptBytes)
	}
	if err := workload.CheckEnv(spec.ExtraEnv, "extraEnv"); err != nil {
		return denied("SandboxRun", "spec.%w", err)
	}
	if err := r.checkPromptFrom(ctx, spec.PromptFrom, req); err != nil {
		return err
	}
	if err := r.checkWorkspace(ctx, spec, req); err != nil {
		return err
	}
	return r.checkTemplate(ctx, spec, req)
}

// validateUpdate lets a run be cancelled, and nothing else of its spec change, nor while it is being
// deleted. It loses its finalizers then: ours when its Pods are gone, since their policy goes
// with the run.
func (r *runRules) validateUpdate(ctx context.Context, run *v1alpha1.SandboxRun, req *extension.Request) error {
	old, err := extension.Old[*v1alpha1.SandboxRun](req)
	if err != nil {
		return err
	}
	if owned.HasFinalizer(old) && !owned.HasFinalizer(run) && r.runsIn(req.Namespace) {
		pods := owned.PodsOfRun(old)
		pod, err := pods.One(ctx, r.asker, false)
		if err != nil {
			return err
		}
		if pod != "" {
			return denied("SandboxRun", "metadata.finalizers: %s stays until Pod %s is gone: the network policy of the Pod goes with the run", v1alpha1.FinalizerSandboxRun, pod)
		}
	}
	if old.Spec.Cancelled && !run.Spec.Cancelled {
		return denied("SandboxRun", "spec.cancelled cannot be taken back; make another run")
	}
	if !sameButCancelled(&old.Spec, &run.Spec) {
		return denied("SandboxRun", "spec cannot be changed, but for cancelled; make another run")
	}
	return nil
}

// checkTemplate refuses a run that asks for more than its template allows. One that has no template yet
// waits for it, and is judged then.
func (r *runRules) checkTemplate(ctx context.Context, spec *v1alpha1.SandboxRunSpec, req *extension.Request) error {
	template, missing, err := workload.Find(ctx, r.asker, req.Namespace, spec.TemplateRef)
	if err != nil {
		return err
	}
	if missing != "" {
		req.Warnf("spec.templateRef: %s: the run waits for it", missing)
		return nil
	}
	if _, err := template.With(spec); err != nil {
		return denied("SandboxRun", "spec.%w", err)
	}
	return r.checkRequires(ctx, req.Namespace, spec, template.Requires)
}

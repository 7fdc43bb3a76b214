package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

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
	case spec.Mode == v1alpha1.SandboxInteractive && !r.Interactive:
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

// checkPromptFrom refuses a prompt that its author may not read: the run would read it for
// them. Nobody here reads it: the kubelet mounts it.
func (r *runRules) checkPromptFrom(ctx context.Context, from *v1alpha1.SandboxPromptSource, req *extension.Request) error {
	resource, field, key := "secrets", "secretKeyRef", (*v1alpha1.SandboxKey)(nil)
	switch {
	case from == nil:
		return nil
	case from.ConfigMapKeyRef != nil:
		resource, field, key = "configmaps", "configMapKeyRef", from.ConfigMapKeyRef
	case from.SecretKeyRef != nil:
		key = from.SecretKeyRef
	default:
		return denied("SandboxRun", "spec.promptFrom: exactly one of configMapKeyRef and secretKeyRef must be set")
	}
	may, err := r.may(ctx, req, "get", "", "v1", resource, key.Name)
	if err == nil && !may {
		err = denied("SandboxRun", "spec.promptFrom.%s: user %q has not the right to get %s %s/%s, which the run would read for them", field, req.User().Username, resource, req.Namespace, key.Name)
	}
	return err
}

// checkWorkspace refuses a run in a Workspace that its author may not get. One that is not there yet is waited for.
func (r *runRules) checkWorkspace(ctx context.Context, spec *v1alpha1.SandboxRunSpec, req *extension.Request) error {
	if spec.WorkspaceRef == nil {
		return nil
	}
	may, err := r.may(ctx, req, "get", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "workspaces", spec.WorkspaceRef.Name)
	if err == nil && !may {
		err = denied("SandboxRun", "spec.workspaceRef: user %q has not the right to get workspaces %s/%s, which the run would read and write for them", req.User().Username, req.Namespace, spec.WorkspaceRef.Name)
	}
	if err != nil {
		return err
	}
	var list v1alpha1.WorkspaceList // by its name: a server may list Workspaces, and not get one
	if err := r.asker.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingFields{metav1.ObjectNameField: spec.WorkspaceRef.Name}); err != nil {
		return fmt.Errorf("reading Workspace %s/%s: %w", req.Namespace, spec.WorkspaceRef.Name, err)
	}
	if len(list.Items) == 0 {
		req.Warnf("spec.workspaceRef: there is no Workspace %s: the run waits for it", spec.WorkspaceRef.Name)
	}
	return nil
}

// checkRequires refuses a run whose template requires what nobody grants, or that no broker would serve.
func (r *runRules) checkRequires(ctx context.Context, namespace string, spec *v1alpha1.SandboxRunSpec, requires []string) error {
	template := spec.TemplateRef.Name
	apply, others, err := brokerpolicy.ForTemplate(ctx, r.asker, namespace, template)
	switch {
	case err != nil:
		return err
	case len(apply) == 0 && len(requires) == 0:
		return nil
	case !r.Broker:
		return denied("SandboxRun", "spec.templateRef: template %s requires credentials, or a BrokerPolicy applies to it, and %s", template, brokerpolicy.NotConfigured)
	}
	if problem := brokerpolicy.ClosedBy(spec.Mode, template, apply); problem != "" && spec.Mode == v1alpha1.SandboxInteractive {
		return denied("SandboxRun", "spec.mode: %s", problem)
	}
	if problem := brokerpolicy.Shortfall(namespace, brokerpolicy.OfTemplate(template), requires, apply, others); problem != "" {
		return denied("SandboxRun", "spec.templateRef: template %s requires credentials: %s", template, problem)
	}
	return nil
}

func sameButCancelled(old, spec *v1alpha1.SandboxRunSpec) bool {
	before, after := *old, *spec
	before.Cancelled, after.Cancelled = false, false
	return apiequality.Semantic.DeepEqual(before, after)
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

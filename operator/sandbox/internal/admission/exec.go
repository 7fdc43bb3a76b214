package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// execGuard says who gets into Pods of runs, besides having the right to: into the container that does the work, of runs
// that may be entered, and nowhere else. The proxy beside it has a token and an authority, and whoever reaches its port
// uses the credentials of the run.
type execGuard struct{ admitted }

// entryScope covers the ways into Pods where runs run. The requests say nothing of the Pod but its name.
func (g *gate) execScope() extension.Scope {
	return scope("sandbox-entry", g.selector(), extension.Connect("pods/exec", "pods/attach", "pods/portforward", "pods/proxy"))
}

// Validate refuses a way into a Pod of a run.
func (g *execGuard) Validate(ctx context.Context, options runtime.Object, req *extension.Request) error {
	pod := &corev1.Pod{}
	if err := g.asker.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: req.Name}, pod); err != nil {
		return client.IgnoreNotFound(err) // the API server says that it is not there
	}
	run, of := pod.Labels[v1alpha1.LabelSandboxRun]
	if _, seed := pod.Labels[v1alpha1.LabelWorkspace]; seed && owned.IsOurs(pod) {
		return denied("Pod", "Pod %s fetches the repositories of a Workspace: nobody gets in, since it has their credentials; look at its log", pod.Name)
	}
	if !of || !owned.IsOurs(pod) {
		return nil
	}
	in := ""
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		in = o.Container
	case *corev1.PodAttachOptions:
		in = o.Container
	default:
		return denied("Pod", "Pod %s belongs to SandboxRun %s: what can connect to it could use its proxy, and so the credentials of the run: exec into an Interactive run instead", pod.Name, run)
	}
	if in != "" && in != workload.Container {
		return denied("Pod", "container: %.63s of Pod %s belongs to the sandbox itself: only container %s of SandboxRun %s can be entered", in, pod.Name, workload.Container, run)
	}
	return g.enter(ctx, req, run)
}

// enter refuses a run that its mode, or a policy, lets nobody enter.
func (g *execGuard) enter(ctx context.Context, req *extension.Request, name string) error {
	run := &v1alpha1.SandboxRun{}
	err := g.asker.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: name}, run)
	if apierrors.IsNotFound(err) {
		return denied("Pod", "there is no SandboxRun %s any more", name)
	}
	if err != nil {
		return err
	}
	apply, _, err := brokerpolicy.ForTemplate(ctx, g.asker, req.Namespace, run.Spec.TemplateRef.Name)
	if err != nil {
		return err
	}
	if problem := brokerpolicy.ClosedBy(run.Spec.Mode, run.Spec.TemplateRef.Name, apply); problem != "" {
		return denied("Pod", "SandboxRun %s: %s", name, problem)
	}
	return nil
}

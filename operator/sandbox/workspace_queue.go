package sandbox

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
)

// Who has a Workspace is in its status, and only the reconciler of Workspaces writes that: it gives a
// Workspace to the first run that waits, and takes it back once the API server says that the
// run has ended and its Pods are gone. So a restart changes nothing, and a run that was
// deleted keeps nothing.

// ofWorkspace finds the runs that wait for a Workspace.
func (r *runs) ofWorkspace() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, ws client.Object) []reconcile.Request {
		return r.which(ctx, ws.GetNamespace(), func(run *v1alpha1.SandboxRun) bool {
			return facts.Startable(run) && run.Spec.WorkspaceRef != nil && run.Spec.WorkspaceRef.Name == ws.GetName()
		})
	})
}

// ofRuns finds the Workspace of a run, and ofHolder that which the run of a Job or Pod has.
func (w *workspaces) ofRuns() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		run, ok := object.(*v1alpha1.SandboxRun)
		if !ok || run.Spec.WorkspaceRef == nil {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: run.Namespace, Name: run.Spec.WorkspaceRef.Name}}}
	})
}

func (w *workspaces) ofHolder() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) (found []reconcile.Request) {
		labels := object.GetLabels()
		if name := labels[v1alpha1.LabelWorkspace]; name != "" {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
		}
		var list v1alpha1.WorkspaceList
		if err := w.cached.List(ctx, &list, &client.ListOptions{Namespace: object.GetNamespace(), UnsafeDisableDeepCopy: new(true)}); err != nil {
			return nil
		}
		for i := range list.Items {
			if h := list.Items[i].Status.ActiveRun; h != nil && h.Name == labels[v1alpha1.LabelSandboxRun] {
				found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return found
	})
}

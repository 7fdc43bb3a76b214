package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// workspaces reconciles Workspaces: their volume, their seed, and whose turn it is. It
// shares the connection of runs, which is registered before it.
type workspaces struct{ *runs }

var (
	_ extension.Reconciler        = (*workspaces)(nil)
	_ extension.NamespaceEntitled = (*workspaces)(nil)
	_ extension.Remover           = (*workspaces)(nil)
)

func newWorkspaces(r *runs) *workspaces { return &workspaces{r} }

// NamespaceRights implements [extension.NamespaceEntitled], besides what runs take.
func (w *workspaces) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return w.each(
		rule(ourGroup, []string{"workspaces"}, "get", "list", "watch", "patch"),
		rule(ourGroup, []string{"workspaces/status"}, "patch"),
		rule(ourGroup, []string{"workspaces/finalizers"}, "update"),
		rule(coreGroup, []string{"persistentvolumeclaims"}, "get", "list", "watch", "create"))
}

// ClusterRights implements [extension.ClusterEntitled]: none.
func (w *workspaces) ClusterRights() []rbacv1.PolicyRule { return nil }

// Register makes the controller.
func (w *workspaces) Register(mgr extension.Manager) error {
	watches := map[client.Object]handler.EventHandler{
		&v1alpha1.Workspace{}: &handler.EnqueueRequestForObject{}, &v1alpha1.SandboxRun{}: w.ofRuns(),
		&batchv1.Job{}: w.ofHolder(), &corev1.Pod{}: w.ofHolder(), &corev1.PersistentVolumeClaim{}: w.ofHolder(), &v1alpha1.BrokerPolicy{}: w.ofPolicy(),
	}
	for _, kind := range w.holder.Kinds {
		watches[egress.NewPolicy(kind)] = w.ofHolder()
	}
	if _, err := controller.New(mgr, "workspaces", w, w.options.Workers, w.cluster.GetCache(), watches); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	return nil
}

// Reconcile brings a Workspace into the state that it should be in now.
func (w *workspaces) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	of, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	key := types.NamespacedName{Namespace: item.Namespace, Name: v1alpha1.LabelWorkspace + "/" + item.Name} // apart from runs
	again, err := w.attempt(of, item.NamespacedName)
	switch {
	case ctx.Err() != nil:
		return reconcile.Result{}, nil
	case err != nil:
		return w.retry(key, zap.Stringer("workspace", item.NamespacedName), err), nil
	}
	w.failures.Forget(key)
	return reconcile.Result{RequeueAfter: again}, nil
}

// attempt returns when to look again if nothing happens, zero is never.
func (w *workspaces) attempt(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	ws := &v1alpha1.Workspace{}
	if err := w.cached.Get(ctx, key, ws); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	mine := slices.Contains(ws.Finalizers, v1alpha1.FinalizerWorkspace)
	deleted := !ws.DeletionTimestamp.IsZero()
	if deleted && !mine {
		return 0, nil
	}
	if !mine {
		if err := w.setFinalizers(ctx, ws, append(ws.Finalizers, v1alpha1.FinalizerWorkspace)); err != nil {
			return 0, err
		}
	}
	a := &workspaceAttempt{workspaces: w, ws: ws, status: ws.Status.DeepCopy()}
	a.status.ObservedGeneration = ws.Generation
	if deleted {
		err = a.end(ctx)
		return a.again(), err
	}
	err = a.prepare(ctx)
	if err == nil {
		err = a.closeProxy(ctx)
	}
	if err == nil {
		err = a.turn(ctx)
	}
	if err != nil {
		return 0, err
	}
	return a.again(), a.write(ctx)
}

// workspaceAttempt is one attempt.
type workspaceAttempt struct {
	*workspaces
	ws     *v1alpha1.Workspace
	status *v1alpha1.WorkspaceStatus
	// proxied is the proxy of the seed, nil if it has none, once it is known, which intercepted says.
	proxied     *facts.Proxied
	intercepted bool
	// poll says that it waits for something that is not watched.
	poll bool
	// took is how long the seed took, if it has ended.
	took time.Duration
}

// again is when to look again, zero is never.
func (a *workspaceAttempt) again() time.Duration {
	if a.poll {
		return facts.PollAfter
	}
	return 0
}

// ref is how what belongs to the Workspace refers to it.
func (a *workspaceAttempt) ref() metav1.OwnerReference {
	return owned.WorkspaceMeta(a.ws).OwnerReferences[0]
}

// object is what records and Events about the Workspace name.
func (a *workspaceAttempt) object() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Workspace", Namespace: a.ws.Namespace, Name: a.ws.Name, UID: a.ws.UID}
}

func (a *workspaceAttempt) set(condition string, is bool, reason, message string) {
	conditions.Set(&a.status.Conditions, a.ws.Generation, condition, is, reason, message, a.options.Clock.Now())
}

// write writes the status, if it changed, and says what is new in it. It does not write over what somebody else wrote.
func (a *workspaceAttempt) write(ctx context.Context) error {
	before := a.ws.DeepCopy()
	if apiequality.Semantic.DeepEqual(&before.Status, a.status) {
		return nil
	}
	a.ws.Status = *a.status.DeepCopy()
	if err := a.writer.Status().Patch(ctx, a.ws, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	a.tellWorkspace(ctx, before)
	return nil
}

// tellWorkspace records what is new.
func (a *workspaceAttempt) tellWorkspace(ctx context.Context, before *v1alpha1.Workspace) {
	ready, was := meta.FindStatusCondition(a.status.Conditions, v1alpha1.ConditionWorkspaceReady), meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionWorkspaceReady)
	changed := ready != nil && (was == nil || was.Reason != ready.Reason || was.Message != ready.Message)
	object := a.object()
	if changed && ready.Reason == v1alpha1.WorkspaceDeletionBlocked {
		a.events.Eventf(&object, nil, corev1.EventTypeNormal, ready.Reason, "Delete", "%s", truncate.Text(ready.Message, maxNote))
	}
	if before.Status.Phase == a.status.Phase || a.status.Phase != v1alpha1.WorkspaceActive && a.status.Phase != v1alpha1.WorkspaceFailed {
		return
	}
	if a.took > 0 {
		seedSeconds.WithLabelValues(string(a.status.Phase)).Observe(a.took.Seconds())
	}
	action, kind := "workspace-ready", corev1.EventTypeNormal
	if a.status.Phase == v1alpha1.WorkspaceFailed {
		action, kind = "workspace-failed", corev1.EventTypeWarning
	}
	record := extension.Record{ID: string(a.ws.UID) + "-" + action, Action: action, Reason: truncate.Text(ready.Reason+": "+ready.Message, maxNote), Object: object}
	a.tell(ctx, &record)
	a.events.Eventf(&object, nil, kind, string(a.status.Phase), "Seed", "%s", record.Reason)
}

// turn takes the Workspace back from a run that has ended, and gives it to the first that waits.
func (a *workspaceAttempt) turn(ctx context.Context) error {
	if h := a.status.ActiveRun; h != nil {
		what, err := a.facts.Uses(ctx, a.ws.Namespace, h)
		if err != nil || what != "" {
			a.poll = what != ""
			return err
		}
		a.status.ActiveRun = nil
	}
	if a.status.Phase != v1alpha1.WorkspaceActive {
		return nil
	}
	waiting, err := a.facts.Waiting(ctx, a.ws)
	if err != nil || len(waiting) == 0 || waiting[0].Status.Phase == "" { // then its first attempt comes, and its turn with it
		return err
	}
	a.status.ActiveRun = &v1alpha1.WorkspaceHolder{Name: waiting[0].Name, UID: string(waiting[0].UID)}
	a.status.TotalRuns++
	return nil
}

// end lets a Workspace go that nothing uses.
func (a *workspaceAttempt) end(ctx context.Context) (err error) {
	a.status.Phase = v1alpha1.WorkspaceTerminating
	what := ""
	if h := a.status.ActiveRun; h != nil {
		if what, err = a.facts.Uses(ctx, a.ws.Namespace, h); err != nil {
			return err
		}
	}
	if what == "" {
		a.status.ActiveRun = nil
		what, err = a.endSeed(ctx)
	}
	if err == nil && what == "" {
		err = a.revokeSeed(ctx)
	}
	if err != nil {
		return err
	}
	if what == "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout) // that may have taken its time
		defer cancel()
		return a.dropFinalizer(ctx, a.ws, v1alpha1.FinalizerWorkspace)
	}
	a.poll = true
	a.set(v1alpha1.ConditionWorkspaceReady, false, v1alpha1.WorkspaceDeletionBlocked, "the Workspace is deleted when "+what+" has ended, which uses it")
	return a.write(ctx)
}

// endSeed deletes the Job of the seed, and says what is left of it.
func (a *workspaceAttempt) endSeed(ctx context.Context) (what string, err error) {
	job := &batchv1.Job{}
	err = a.live.Get(ctx, owned.WorkspaceName(a.ws), job)
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	if err == nil && owned.Is(job, a.ref()) {
		a.status.SeedJobUID = string(job.UID)
		if job.DeletionTimestamp.IsZero() {
			if err := a.runs.end(ctx, job); err != nil {
				return "", err
			}
		}
		return "Job " + job.Name, nil
	}
	left, err := a.clear(ctx, owned.PodsOfSeed(a.ws), "", func(pod *corev1.Pod) { a.tellOrphan(ctx, pod) })
	if left != "" {
		left = "Pod " + left
	}
	return left, err
}

// Remove implements [extension.Remover]: nobody else takes our finalizer away. Volumes stay as long as
// their Workspaces do. Runs, which are removed before, and seeds have ended then.
func (w *workspaces) Remove(ctx context.Context, mgr extension.Manager) error {
	uncached, err := w.remover(mgr)
	if err != nil {
		return err
	}
	remover := newWorkspaces(uncached)
	for _, namespace := range w.namespaces {
		var list v1alpha1.WorkspaceList
		if err := uncached.listIn(ctx, namespace, &list); err != nil {
			return fmt.Errorf("sandbox: listing Workspaces: %w", err)
		}
		for i := range list.Items {
			if err := remover.removeOne(ctx, &list.Items[i]); err != nil {
				return fmt.Errorf("sandbox: Workspace %s/%s: %w", namespace, list.Items[i].Name, err)
			}
		}
	}
	return uncached.endLeases(ctx, v1alpha1.LeaseOfWorkspace)
}

func (w *workspaces) removeOne(ctx context.Context, ws *v1alpha1.Workspace) error {
	if !slices.Contains(ws.Finalizers, v1alpha1.FinalizerWorkspace) {
		return nil
	}
	a := &workspaceAttempt{workspaces: w, ws: ws, status: ws.Status.DeepCopy()}
	for {
		what, err := a.endSeed(ctx)
		if err != nil {
			return err
		}
		if what == "" {
			if err := a.discardProxy(ctx); err != nil {
				return err
			}
			if err := a.writeUninstalled(ctx); err != nil {
				return err
			}
			return w.dropFinalizer(ctx, ws, v1alpha1.FinalizerWorkspace)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), what)
		case <-time.After(lookAgain):
		}
	}
}

// writeUninstalled says of a seed with leases that the uninstall has ended it: the broker keeps some for as long as a seed
// may use them. One without leases is fetched again by the next installation.
func (a *workspaceAttempt) writeUninstalled(ctx context.Context) error {
	if a.status.Phase != v1alpha1.WorkspaceSeeding || !a.asksBroker() {
		return nil
	}
	before := a.ws.DeepCopy()
	a.failed(v1alpha1.SandboxUninstalled, "admitkit was uninstalled while its seed fetched: delete the Workspace, and make another")
	a.ws.Status = *a.status.DeepCopy()
	return client.IgnoreNotFound(a.writer.Status().Patch(ctx, a.ws, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/sandbox/internal/decision"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

var _ extension.Remover = (*runs)(nil)

// lookAgain is how long to wait for Pods to end.
const lookAgain = 500 * time.Millisecond

// Remove implements [extension.Remover]: it ends what runs, since nobody would keep its policy in force, and takes our
// finalizer away, which nobody else would. The runs stay, as records. Their leases are revoked while the broker is there.
func (r *runs) Remove(ctx context.Context, mgr extension.Manager) error {
	remover, err := r.remover(mgr)
	if err != nil {
		return err
	}
	for {
		var left []error
		for _, namespace := range r.namespaces {
			left = append(left, remover.removeIn(ctx, namespace))
		}
		err := errors.Join(left...)
		if err == nil {
			return remover.endLeases(ctx, v1alpha1.LeaseOfRun)
		}
		if !onlyWaits(left) { // a webhook that nobody serves any more: it goes next, and this is tried again
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandbox: %w", err)
		case <-time.After(lookAgain):
		}
	}
}

// remover returns runs that are read and written without a cache.
func (r *runs) remover(mgr extension.Manager) (*runs, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	live, err := cluster.NewClient(mgr, scheme)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	remover := &runs{shared: r.shared, live: live, writer: live}
	remover.lender = remover.lends()
	return remover, nil
}

// listIn lists the objects of a namespace. It finds none if the namespace is gone, and all in it.
func (r *runs) listIn(ctx context.Context, namespace string, list client.ObjectList) error {
	err := r.live.List(ctx, list, client.InNamespace(namespace))
	if apierrors.IsForbidden(err) && apierrors.IsNotFound(r.live.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{})) {
		return nil
	}
	return err
}

// errWaits says that Pods have not ended yet.
var errWaits = errors.New("waits for the end of its Pods")

// onlyWaits reports whether there are errors, and all of them are errWaits.
func onlyWaits(errs []error) bool {
	waits := false
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			if !onlyWaits(joined.Unwrap()) {
				return false
			}
			waits = true
			continue
		}
		if err != nil && !errors.Is(err, errWaits) {
			return false
		}
		waits = waits || err != nil
	}
	return waits
}

// removeIn ends the runs of a namespace. The error says what is left.
func (r *runs) removeIn(ctx context.Context, namespace string) error {
	var list v1alpha1.SandboxRunList
	if err := r.listIn(ctx, namespace, &list); err != nil {
		return fmt.Errorf("listing SandboxRuns: %w", err)
	}
	var left []error
	for i := range list.Items {
		if run := &list.Items[i]; owned.HasFinalizer(run) {
			left = append(left, r.endForGood(ctx, run))
		}
	}
	return errors.Join(left...)
}

// endForGood deletes the Job of a run that has not ended, and releases a run without Pods that run.
func (r *runs) endForGood(ctx context.Context, run *v1alpha1.SandboxRun) error {
	job := &batchv1.Job{}
	err := r.live.Get(ctx, owned.Name(run), job)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case owned.Is(job, owned.ByRun(run)) && !owned.IsFinished(job):
		if err := r.end(ctx, job); err != nil {
			return err
		}
		return fmt.Errorf("SandboxRun %s/%s: %w", run.Namespace, run.Name, errWaits)
	}
	if !owned.Is(job, owned.ByRun(run)) { // else its Pods have ended, and stay for their logs
		_, err := r.clear(ctx, owned.PodsOfRun(run), "", func(*corev1.Pod) {}) // an orphan ends for nobody else
		if err == nil {
			err = r.isFree(ctx, run)
		}
		if err != nil {
			return err
		}
	}
	if err := r.writeUninstalled(ctx, run); err != nil {
		return err
	}
	return r.dropFinalizer(ctx, run, v1alpha1.FinalizerSandboxRun)
}

// writeUninstalled says of a run that has begun that the uninstall has ended it, and deletes its Secrets: a record that it
// runs would be wrong, and the broker keeps some leases for as long as their run may use them.
func (r *runs) writeUninstalled(ctx context.Context, run *v1alpha1.SandboxRun) error {
	if run.Status.Phase.Terminal() || run.Status.JobUID == "" && len(run.Status.Credentials) == 0 {
		return nil
	}
	d := decision.Decision{Status: *run.Status.DeepCopy()}
	d.Finish(v1alpha1.SandboxCancelled, v1alpha1.SandboxUninstalled, "admitkit was uninstalled before the end of the run was known", r.options.Clock.Now())
	if err := r.discardSecrets(ctx, run, &d.Status); err != nil {
		return err
	}
	before := run.DeepCopy()
	run.Status = d.Status
	return client.IgnoreNotFound(r.writer.Status().Patch(ctx, run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// leaseBudget is how long an uninstall waits for the broker to revoke what runs and seeds had.
const leaseBudget = 20 * time.Second

// endLeases deletes the leases of what has ended, and waits until the broker has revoked them: when that is gone, too,
// nobody would, and their finalizers would keep its namespace.
func (r *runs) endLeases(ctx context.Context, kind v1alpha1.LeaseKind) error {
	if !r.options.Broker.on() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseBudget)
	defer cancel()
	var left []string
	for {
		now, err := r.deleteLeases(ctx, kind)
		switch {
		case err == nil && len(now) == 0:
			return nil
		case err == nil:
			left = now
		case ctx.Err() == nil:
			return fmt.Errorf("sandbox: leases in namespace %s: %w", r.options.Broker.Namespace, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandbox: %d leases are not revoked yet: see that the broker in namespace %s runs, and what it logs, and repeat this: %s",
				len(left), r.options.Broker.Namespace, strings.Join(left[:min(len(left), 10)], ", "))
		case <-time.After(lookAgain):
		}
	}
}

// deleteLeases deletes the leases of a kind that are of our namespaces, and returns what is left of them.
func (r *runs) deleteLeases(ctx context.Context, kind v1alpha1.LeaseKind) (left []string, err error) {
	var list v1alpha1.CredentialLeaseList
	if err := r.listIn(ctx, r.options.Broker.Namespace, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		lease := &list.Items[i]
		if of := lease.Spec.Run; cmp.Or(of.Kind, v1alpha1.LeaseOfRun) != kind || !r.runsIn(of.Namespace) {
			continue
		}
		left = append(left, lease.Name)
		if lease.DeletionTimestamp != nil {
			continue
		}
		if err := r.writer.Delete(ctx, lease, client.Preconditions{UID: &lease.UID}); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return left, nil
}

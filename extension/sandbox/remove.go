package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
)

var _ extension.Remover = (*runs)(nil)

// lookAgain is how long to wait for Pods to end.
const lookAgain = 500 * time.Millisecond

// Remove implements [extension.Remover]: it ends what runs, since nobody would keep its policy in force, and takes our
// finalizer away, which nobody else would. The runs stay, as records.
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
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	live, err := cluster.NewClient(mgr, scheme)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return &runs{shared: r.shared, live: live, writer: live}, nil
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
	var list v1alpha1.HarnessRunList
	if err := r.listIn(ctx, namespace, &list); err != nil {
		return fmt.Errorf("listing HarnessRuns: %w", err)
	}
	var left []error
	for i := range list.Items {
		if run := &list.Items[i]; hasFinalizer(run) {
			left = append(left, r.endForGood(ctx, run))
		}
	}
	return errors.Join(left...)
}

// endForGood deletes the Job of a run that has not ended, and releases a run without Pods that run.
func (r *runs) endForGood(ctx context.Context, run *v1alpha1.HarnessRun) error {
	job := &batchv1.Job{}
	err := r.live.Get(ctx, nameOf(run), job)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case isOf(job, ownedBy(run)) && !isFinished(job):
		if err := r.end(ctx, job); err != nil {
			return err
		}
		return fmt.Errorf("HarnessRun %s/%s: %w", run.Namespace, run.Name, errWaits)
	case isOf(job, ownedBy(run)): // its Pods have ended, and stay for their logs
		return r.dropFinalizer(ctx, run, v1alpha1.FinalizerHarnessRun)
	}
	if _, err := r.clear(ctx, podsOfRun(run), "", func(*corev1.Pod) {}); err != nil { // an orphan ends for nobody else
		return err
	}
	return r.release(ctx, run)
}

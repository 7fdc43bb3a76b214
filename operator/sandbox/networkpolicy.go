package sandbox

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
)

// restore writes a policy as it was, and says so.
func (r *runs) restore(ctx context.Context, f *facts.Facts, of *egress.Restoration) error {
	written, err := r.holder.Write(ctx, of)
	if err != nil {
		return fmt.Errorf("restoring %s: %w", of.Name(), err)
	}
	if of.Was == egress.Behind {
		return nil
	}
	restoredTotal.WithLabelValues(of.Was).Inc()
	record := recordOf(f.Run, actionRestored, fmt.Sprintf("%s was %s, and holds the Pods of the run again: what they reached meanwhile is not known", of.Name(), of.Was))
	record.ID += "-" + strings.ToLower(string(written.GetUID())) + "-" + written.GetResourceVersion()
	r.tell(ctx, &record)
	r.event(f.Run, corev1.EventTypeWarning, "EgressRestored", "Hold", record.Reason)
	return nil
}

// hold makes the policy of a run that has none. One that is there, and is not as it is to be, is somebody's who made it
// ahead: it is written over before there is a Job.
func (r *runs) hold(ctx context.Context, f *facts.Facts) error {
	if f.Run.Status.Egress.Policy == "" {
		return nil
	}
	there := f.Policy
	if there == nil {
		made, err := f.PolicyOf().Compose(f.APIServer)
		if err != nil {
			return err
		}
		if err := r.writer.Create(ctx, made); !apierrors.IsAlreadyExists(err) {
			return err
		}
		there = egress.NewPolicy(made.GroupVersionKind())
		if err := r.adopt(ctx, f.Run, there.GetKind(), there); err != nil {
			return err
		}
	}
	of, err := f.PolicyOf().Restore(there, f.APIServer)
	if err != nil || of == nil {
		return err
	}
	return r.restore(ctx, f, of)
}

package sandbox

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// policyOf returns what the policy of a run is made of.
func (f *facts) policyOf() *egress.Held {
	return &egress.Held{ObjectMeta: owned.Meta(f.run), Label: f.run.UID, Decision: f.run.Status.Egress, Options: f.options}
}

// restores says what there is to restore of a run that has a Job or Pods, nil for nothing. The Job is made after the policy, so
// a policy that is not there was withdrawn; before that it is only not made yet.
func (f *facts) restores() (*egress.Restoration, error) {
	e := f.run.Status.Egress
	if e == nil || e.Policy == "" || !f.options.On() {
		return nil, nil
	}
	return f.policyOf().Restore(f.policy, f.apiServer)
}

// restore writes a policy as it was, and says so.
func (r *runs) restore(ctx context.Context, f *facts, of *egress.Restoration) error {
	written, err := r.holder.Write(ctx, of)
	if err != nil {
		return fmt.Errorf("restoring %s: %w", of.Name(), err)
	}
	if of.Was == egress.Behind {
		return nil
	}
	restoredTotal.WithLabelValues(of.Was).Inc()
	record := recordOf(f.run, actionRestored, fmt.Sprintf("%s was %s, and holds the Pods of the run again: what they reached meanwhile is not known", of.Name(), of.Was))
	record.ID += "-" + strings.ToLower(string(written.GetUID())) + "-" + written.GetResourceVersion()
	r.tell(ctx, &record)
	r.event(f.run, corev1.EventTypeWarning, "EgressRestored", "Hold", record.Reason)
	return nil
}

// hold makes the policy of a run that has none. One that is there, and is not as it is to be, is somebody's who made it
// ahead: it is written over before there is a Job.
func (r *runs) hold(ctx context.Context, f *facts) error {
	if f.run.Status.Egress.Policy == "" {
		return nil
	}
	there := f.policy
	if there == nil {
		made, err := f.policyOf().Compose(f.apiServer)
		if err != nil {
			return err
		}
		if err := r.writer.Create(ctx, made); !apierrors.IsAlreadyExists(err) {
			return err
		}
		there = egress.NewPolicy(made.GroupVersionKind())
		if err := r.adopt(ctx, f.run, there.GetKind(), there); err != nil {
			return err
		}
	}
	of, err := f.policyOf().Restore(there, f.apiServer)
	if err != nil || of == nil {
		return err
	}
	return r.restore(ctx, f, of)
}

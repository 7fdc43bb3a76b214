package workload

import (
	"fmt"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Defaults of the limits of Interactive runs, in seconds.
const (
	defaultIdle        = 30 * 60
	defaultDetachIdle  = 15 * 60
	defaultDetach      = 5 * 60
	defaultMaxLifetime = 24 * 3600
)

// limitsOf replaces limits, those of from or the defaults, as far as they are set, if bounded by no more than they are.
func limitsOf(from, with *v1alpha1.InteractiveLimits, bounded bool, field string) (*v1alpha1.InteractiveLimits, error) {
	of := &v1alpha1.InteractiveLimits{
		IdleSeconds: new(int64(defaultIdle)), DetachIdleSeconds: new(int64(defaultDetachIdle)), DetachSeconds: new(int64(defaultDetach)), MaxLifetimeSeconds: new(int64(defaultMaxLifetime)),
	}
	if from != nil {
		of = from.DeepCopy()
	}
	if with == nil {
		return of, nil
	}
	for _, limit := range []struct {
		value, with *int64
		name        string
	}{
		{of.IdleSeconds, with.IdleSeconds, ".idleSeconds"},
		{of.DetachIdleSeconds, with.DetachIdleSeconds, ".detachIdleSeconds"},
		{of.DetachSeconds, with.DetachSeconds, ".detachSeconds"},
		{of.MaxLifetimeSeconds, with.MaxLifetimeSeconds, ".maxLifetimeSeconds"},
	} {
		if err := less(limit.value, limit.with, bounded, field+limit.name); err != nil {
			return nil, err
		}
	}
	// What was left out cannot be more than what it depends on.
	*of.IdleSeconds, *of.DetachSeconds = min(*of.IdleSeconds, *of.MaxLifetimeSeconds), min(*of.DetachSeconds, *of.MaxLifetimeSeconds)
	*of.DetachIdleSeconds = min(*of.DetachIdleSeconds, *of.IdleSeconds)
	return of, nil
}

// Live makes a plan that of an Interactive run with these limits. The Job ends it, too, when its life is over, so that
// nobody need be there for that.
func (p *Plan) Live(limits *v1alpha1.InteractiveLimits) {
	p.Interactive, p.Timeout = limits, *limits.MaxLifetimeSeconds
}

// withMode makes the plan that of the mode of a run.
func (p *Plan) withMode(spec *v1alpha1.SandboxRunSpec) error {
	if spec.Mode != v1alpha1.SandboxInteractive {
		p.Interactive = nil
		if spec.Interactive != nil {
			return fmt.Errorf("interactive: needs mode Interactive")
		}
		return nil
	}
	switch {
	case p.Interactive == nil:
		return fmt.Errorf("mode: the template is not for Interactive runs: let its author set spec.interactive there")
	case spec.TimeoutSeconds != nil:
		return fmt.Errorf("timeoutSeconds: an Interactive run has none: set interactive.maxLifetimeSeconds")
	case spec.Retries > 0:
		return fmt.Errorf("retries: an Interactive run is not tried again: leave it out")
	}
	limits, err := limitsOf(p.Interactive, spec.Interactive, true, "interactive")
	if err == nil {
		p.Live(limits)
	}
	return err
}

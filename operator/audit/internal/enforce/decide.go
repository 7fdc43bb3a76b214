package enforce

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// Enforcer decides about acts.
type Enforcer struct {
	options Options
	grants  *grants
}

// New returns an Enforcer. The client must read from the API server, and not
// from a cache.
func New(options Options, c client.Client, clock clock.PassiveClock) *Enforcer {
	options.beginCounts()
	return &Enforcer{options: options, grants: &grants{client: c, clock: clock}}
}

// Decide decides about an act where enforcement is on. It denies what it cannot
// decide. An act that it allows uses up a request for a single use.
func (e *Enforcer) Decide(ctx context.Context, a *act.Act) act.Decision {
	if a.Record.Way == v1alpha1.WayNodeProxy {
		return e.verdict(a, e.kubeletRule(ctx, a))
	}
	broken, req := e.check(ctx, a)
	d := e.verdict(a, broken)
	d.AccessRequest = referTo(req)
	return d
}

// Refer allows an act where enforcement is off, and names the access request
// that covers it, if there is one.
func (e *Enforcer) Refer(ctx context.Context, a *act.Act) (act.Decision, error) {
	r := &a.Record
	if r.Pod == "" || r.Verb == "create" || r.Way == v1alpha1.WayNodeProxy {
		return act.Decision{}, nil
	}
	found, _, err := e.grants.covering(ctx, a)
	if err != nil || len(found) == 0 {
		return act.Decision{}, err
	}
	return act.Decision{AccessRequest: referTo(found[0])}, nil
}

// check returns the rule that an act breaks, or nil and the request that covers
// the act.
func (e *Enforcer) check(ctx context.Context, a *act.Act) (*violation, v1alpha1.Request) {
	if broken := e.options.staticRules(a); broken != nil {
		return broken, nil
	}
	found, whyNot, err := e.grants.covering(ctx, a)
	if err != nil {
		return undecided(err), nil
	}
	for _, req := range found {
		if !req.GetRequestSpec().SingleUse || a.Record.DryRun {
			return nil, req
		}
		err := e.grants.claim(ctx, req, a)
		switch {
		case err == nil:
			return nil, req
		case errors.Is(err, errUsed), apierrors.IsNotFound(err):
			whyNot = append(whyNot, "request "+req.GetName()+" was for a single use, and another session was first")
		default:
			return undecided(fmt.Errorf("marking request %s as used, which is for a single use: %w", req.GetName(), err)), nil
		}
	}
	rule := RuleRequest
	if len(found) > 0 {
		rule = RuleSingleUse
	}
	return violates(rule, "%s needs a live access request here. %s", a.Record.User.Username, e.grants.advice(ctx, a, whyNot)), nil
}

func undecided(err error) *violation {
	return violates(RuleUndecided, "cannot determine whether an access request covers it; try again: %v", err)
}

// verdict turns the broken rule, if any, into a decision.
func (e *Enforcer) verdict(a *act.Act, broken *violation) act.Decision {
	if broken == nil {
		return act.Decision{}
	}
	d := act.Decision{Rule: string(broken.rule), Reason: broken.text(a)}
	if by := e.options.exemption(&a.Record.User); by != "" {
		d.BreakGlass = true
		a.Request.Warnf("break-glass: %s is exempt from rule %s; this is recorded", by, broken.rule)
		exempted.WithLabelValues(string(a.Record.Way), d.Rule).Inc()
		return d
	}
	if e.options.Mode.Enforced() {
		d.Denied = true
		enforced.WithLabelValues(string(a.Record.Way), d.Rule).Inc()
		return d
	}
	d.WouldDeny = true
	wouldDeny.WithLabelValues(string(a.Record.Way), d.Rule).Inc()
	a.Request.AddAuditAnnotation("would-deny", d.Reason)
	if e.options.Mode == extension.Warn {
		a.Request.Warnf("this would be denied once enforcement is in force: %s", d.Reason)
	}
	return d
}

package audit

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// gate is the auditor in one of its scopes: a request does not say by which
// webhook it came.
type gate struct {
	*auditor
	enforced bool
}

var _ extension.Validator[runtime.Object] = (*gate)(nil)

// Validate decides about an act, records it, and lets it through or not.
func (g *gate) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	return g.admit(ctx, obj, req, g.enforced)
}

// scopeSessions is the name of the scope of sessions and debugging.
const scopeSessions = "audit"

// entries are the scopes of the auditor, divided where enforcement is on.
func (a *Audit) entries() []entry {
	var entries []entry
	for _, scope := range a.scopes() {
		if a.options.Enforcement != nil && scope.Name == scopeSessions {
			entries = append(entries, a.options.Enforcement.entries(scope)...)
			continue
		}
		entries = append(entries, entry{Scope: scope})
	}
	return entries
}

// setRules checks the options of enforcement and of touched Pods, and fills in
// their defaults.
func (o *Options) setRules() error {
	if o.Enforcement != nil {
		if err := o.Enforcement.validate(); err != nil {
			return err
		}
		if o.Namespace != "" && o.NamespaceSelector == nil {
			o.NamespaceSelector = named(o.Namespace)
		}
	}
	if o.TouchedPods == nil {
		return nil
	}
	touched := *o.TouchedPods
	o.TouchedPods = &touched
	return touched.setDefaults()
}

// registerRules connects what decides about acts, and what follows from them.
func (a *auditor) registerRules(mgr extension.Manager) error {
	o := a.options
	if o.Enforcement == nil && o.TouchedPods == nil && !o.AccessRequests {
		return nil
	}
	c, err := newClient(mgr)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	grants := &grants{client: c, clock: o.Clock}
	enforcer := &enforcer{o.Enforcement, grants}
	a.decide = func(ctx context.Context, act *act) decision {
		switch {
		case act.enforced:
			return enforcer.decide(ctx, act)
		case o.AccessRequests:
			return a.refer(ctx, grants, act)
		}
		return decision{}
	}
	if o.TouchedPods == nil {
		return nil
	}
	toucher := &toucher{TouchedPods: o.TouchedPods, client: c, clock: o.Clock}
	a.admitted = func(ctx context.Context, act *act) {
		if !interactive(act) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, touchTimeout)
		defer cancel()
		if err := toucher.touch(ctx, act); err != nil {
			a.log.Error("the session begins, but its Pod is not labelled, and so not evicted", zap.String("record", act.record.ID), zap.Error(err))
		}
	}
	return nil
}

// touchTimeout bounds how long a session waits for its Pod's label.
const touchTimeout = 2 * time.Second

// refer finds the request that covers an act which needs none.
func (a *auditor) refer(ctx context.Context, grants *grants, act *act) decision {
	if act.record.Pod == "" || act.record.Way == v1alpha1.WayPod || act.record.Way == v1alpha1.WayNodeProxy {
		return decision{}
	}
	found, _, err := grants.covering(ctx, act)
	if err != nil {
		a.log.Warn("it cannot be told which access request covers an act", zap.String("record", act.record.ID), zap.Error(err))
	}
	if len(found) == 0 {
		return decision{}
	}
	return decision{accessRequest: referTo(found[0])}
}

// evictor returns what evicts touched Pods, if that is wanted.
func (a *auditor) evictor() *evictor {
	if t := a.options.TouchedPods; t != nil && t.EvictAfter > 0 {
		return &evictor{TouchedPods: t, namespace: a.options.Namespace, clock: a.options.Clock}
	}
	return nil
}

package audit

import (
	"context"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// gate is the auditor in one of its scopes: a request does not say which webhook
// it came through.
type gate struct {
	*auditor
	enforced bool
}

var (
	_ extension.Validator[runtime.Object] = (*gate)(nil)
	_ extension.Witness                   = (*gate)(nil)
)

// ruleTooLarge is the rule of acts that are denied because nobody can read them.
const ruleTooLarge = "too-large"

// Unseen implements [extension.Witness]: an act that is too large to be read is denied,
// and on record like any denial.
func (g *gate) Unseen(ctx context.Context, req *extension.Request, reason string) {
	a := act.Unseen(req)
	if record, refusal := g.record(ctx, a, act.Decision{Denied: true, Rule: ruleTooLarge, Reason: reason}); refusal != nil {
		g.log.Error("an act that is too large to be read was denied without a record", zap.String("record", record.ID), zap.Error(refusal))
	}
}

// Validate decides about an act, records it, and lets it through or refuses it.
func (g *gate) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	a, err := act.Read(obj, req, g.commands)
	if err != nil || a == nil {
		return err
	}
	if err := a.Identify(ctx, g.pods); err != nil {
		g.log.Debug("the record lacks its Pod", zap.String("record", a.Record.ID), zap.Error(err))
	}
	record, refusal := g.record(ctx, a, g.decide(ctx, a))
	switch {
	case refusal != nil:
		return refusal
	case record.Decision == v1alpha1.AuditDenied:
		return extension.Deny(record.Reason)
	}
	g.touch(ctx, a)
	return nil
}

// record keeps the record of an act about which the decision is made. refusal says that
// the act may not go on without a record that could not be kept.
func (g *gate) record(ctx context.Context, a *act.Act, d act.Decision) (record *v1alpha1.AuditRecord, refusal error) {
	a.Settle(d)
	a.Request.AddAuditAnnotation("record", a.Record.ID)
	record = act.Redact(g.redactor, a)
	refusal = g.pipeline.keep(ctx, record)
	records.WithLabelValues(string(record.Way), string(record.Decision)).Inc()
	return record, refusal
}

// decide asks the enforcer. Without one, every act is allowed.
func (g *gate) decide(ctx context.Context, a *act.Act) act.Decision {
	switch {
	case g.enforced:
		return g.enforcer.Decide(ctx, a)
	case g.options.AccessRequests:
		decision, err := g.enforcer.Refer(ctx, a)
		if err != nil {
			g.log.Warn("cannot determine which access request covers an act", zap.String("record", a.Record.ID), zap.Error(err))
		}
		return decision
	}
	return act.Decision{}
}

// touch marks the Pod of an interactive session.
func (g *gate) touch(ctx context.Context, a *act.Act) {
	if g.toucher == nil || !a.Interactive() {
		return
	}
	if err := g.toucher.Touch(ctx, a); err != nil {
		g.log.Error("the session begins although its Pod is not marked, and so will not be evicted", zap.String("record", a.Record.ID), zap.Error(err))
	}
}

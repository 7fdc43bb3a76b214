// Package audit records the ways into a container that lead through the API server,
// each once: who, where, what, under which access request, and what was decided.
//
//	err := mgr.AddExtension(audit.New(audit.Options{}))
//
// An exec passes these functions, in this order, and none twice:
//
//   - gate.Validate (gate.go) receives the admission request;
//   - act.Read (internal/act) reads the act from it;
//   - Act.Identify adds the Pod, its node and the image;
//   - Enforcer.Decide (internal/enforce) decides, where enforcement is on;
//   - act.Redact removes secrets from the record;
//   - pipeline.keep (pipeline.go) hands the record to the sinks, to Closed sinks
//     before the act goes on, and to Open sinks behind it;
//   - outlet.begin (outlet.go) gives each sink its deadline;
//   - Sink.Write (package sink) keeps the record;
//   - Toucher.Touch (internal/touch) marks the Pod of an interactive session.
//
// # What is recorded
//
// The record is made when the API server asks for admission, after it has
// authorized the request. Another webhook may still refuse the act, and the act
// ends at once if the container does not run; the record remains. What somebody
// types into a session is not recorded.
package audit

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/audit/internal/touch"
)

// Audit is the extension. Make one with [New].
type Audit struct{ options Options }

var _ extension.Composite = (*Audit)(nil)

// New returns the extension. AddExtension reports invalid options.
func New(options Options) *Audit { return &Audit{options} }

// Parts implements [extension.Composite]: the recorder of other extensions' decisions, the
// gate of each scope, the controller that evicts touched Pods, and the sinks that consist
// of parts themselves.
func (a *Audit) Parts(mgr extension.Manager) ([]any, error) {
	auditor, err := newAuditor(a.options, mgr.GetNamespaces())
	if err != nil {
		return nil, fmt.Errorf("audit options: %w", err)
	}
	options := &auditor.options
	parts := []any{&recorder{auditor}}
	for _, entry := range options.scopes() {
		parts = append(parts, extension.Validating[runtime.Object](&gate{auditor, entry.Enforced}, entry.Scope))
	}
	if options.TouchedPods != nil {
		parts = append(parts, extension.Validating(touch.Guard{}, touch.Guard{}.Scope(options.NamespaceSelector)))
	}
	if t := options.TouchedPods; t != nil && t.EvictAfter > 0 {
		parts = append(parts, touch.NewEvictor(t.options(), options.Clock))
	}
	for _, each := range options.Sinks {
		if _, ok := each.Sink.(extension.Composite); ok {
			parts = append(parts, each.Sink)
		}
	}
	return parts, nil
}

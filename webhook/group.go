package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// Defaults are the values of the fields that a Scope leaves empty.
type Defaults struct {
	// Namespaces are the watched namespaces, where a scope without NamespaceSelector applies; none
	// means everywhere.
	Namespaces []string
	// PodSelector is the ObjectSelector of a scope on Pods that has none.
	PodSelector *metav1.LabelSelector
	// FailurePolicy is Fail when it is empty.
	FailurePolicy admissionregistrationv1.FailurePolicyType
	// Protected are the namespaces that a webhook with failure policy Fail must
	// not reach unless its scope, or Namespaces, names them.
	Protected []string
	// Excluded are namespaces that no webhook reaches, but one whose scope selects
	// [extension.EveryNamespace]. A scope that names one of them is an error.
	Excluded []string
	// Modes set the modes of the handlers. The first rule that holds counts; without one,
	// the scope's Mode does.
	Modes []ModeRule
}

// Webhook is one endpoint: the handlers that share a scope.
type Webhook struct {
	// Name is the scope's name. Webhooks of one name and kind differ in their modes, or in
	// the namespaces.
	Name string
	// Mutating is true for a mutating webhook, false for a validating one.
	Mutating bool
	// Mode is that of all its handlers. Unless it is Enforce, the webhook is a validating
	// one, whatever the handlers are, and allows everything.
	Mode extension.Mode
	// Scope has every default filled in.
	Scope extension.Scope
	// Handlers run in this order.
	Handlers []*extension.Handler

	content  []byte   // the scope, as its author named it, in JSON
	segments []string // of the path, one for each handler
	// Unless the Mode is Enforce: observes reports whether the handlers mutate, and patience
	// and policy are the time and the failure policy of their scope.
	observes bool
	patience time.Duration
	policy   *admissionregistrationv1.FailurePolicyType
	part     int // of the namespaces, from 0
}

// The paths of the two kinds of webhooks begin with these, those of webhooks that only
// observe with the other two.
const (
	MutatingPath   = "/mutate/"
	ValidatingPath = "/validate/"
	WarnPath       = "/warn/"
	ObservePath    = "/observe/"
)

// Path is the path at which the webhook is served: that of its kind, its name, and
// the name of each handler. From these a replica of another revision learns which
// handlers to run; see [OtherRevisions].
func (w *Webhook) Path() string {
	return strings.Join(append([]string{w.kindPath() + w.Name}, w.segments...), "/")
}

// label names the webhook in metrics and traces.
func (w *Webhook) label() string { return strings.TrimPrefix(w.kindPath(), "/") + w.Name }

// Mutates reports whether its handlers may change an object, were they in force.
func (w *Webhook) Mutates() bool { return w.Mutating || w.observes }

// Observes reports whether it denies and changes nothing.
func (w *Webhook) Observes() bool { return !w.Mode.Enforced() }

// RegisteredName is unique among the webhooks of a configuration.
func (w *Webhook) RegisteredName() string {
	name := w.Name
	if w.part > 0 {
		name += "." + strconv.Itoa(w.part+1)
	}
	if mode, kind, observes := strings.Cut(strings.Trim(w.kindPath(), "/"), "/"); observes {
		name += "." + kind + "." + mode
	}
	return name
}

// Extensions returns the names of the handlers, as logs and metrics have them.
func (w *Webhook) Extensions() []string {
	names := make([]string, len(w.Handlers))
	for i, h := range w.Handlers {
		names[i] = host.Open(h).Name
	}
	return names
}

// kindPath returns the beginning of the path.
func (w *Webhook) kindPath() string {
	return modePath(w.Mode) + strings.TrimPrefix(kindPath(w.Mutates()), "/")
}

// modePath returns the beginning of the paths of a mode.
func modePath(mode extension.Mode) string {
	switch mode {
	case extension.Warn:
		return WarnPath
	case extension.Observe:
		return ObservePath
	}
	return "/"
}

func kindPath(mutating bool) string {
	if mutating {
		return MutatingPath
	}
	return ValidatingPath
}

// Group makes webhooks of handlers: those of one kind with equal scopes become
// one, in their order. An error names the handler and the field.
func Group(handlers []*extension.Handler, defaults Defaults) ([]*Webhook, error) {
	if i := slices.Index(handlers, nil); i >= 0 {
		return nil, fmt.Errorf("handler %d is nil", i)
	}
	var webhooks []*Webhook
	if err := modes(defaults.Modes).check(handlers); err != nil {
		return nil, fmt.Errorf("modes%w", err)
	}
	segments := segmentsOf(handlers)
	for n, handler := range handlers {
		h := host.Open(handler)
		scope, err := resolve(h, defaults)
		if err != nil {
			return nil, fmt.Errorf("scope of %s: %w", h.Name, err)
		}
		scope.Mode, scope.Modes = "", nil // they do not divide a webhook
		content, err := json.Marshal(scope)
		if err != nil {
			return nil, fmt.Errorf("scope of %s: %w", h.Name, err)
		}
		if scope.Name == "" {
			scope.Name = contentName(scope, content)
		}
		i := slices.IndexFunc(webhooks, func(w *Webhook) bool { return w.Mutating == h.Mutates && w.Name == scope.Name })
		if i < 0 {
			i = len(webhooks)
			webhooks = append(webhooks, &Webhook{Name: scope.Name, Mutating: h.Mutates, Mode: extension.Enforce, Scope: scope, content: content})
		}
		w := webhooks[i]
		if !bytes.Equal(w.content, content) {
			return nil, fmt.Errorf("scope of %s: Name: %q is already the name of a different scope, that of %s", h.Name, scope.Name, host.Open(w.Handlers[0]).Name)
		}
		w.Handlers, w.segments = append(w.Handlers, handler), append(w.segments, segments[n])
	}
	var split []*Webhook
	for _, w := range webhooks {
		parts, err := modes(defaults.Modes).split(w)
		if err != nil {
			return nil, err
		}
		split = append(split, parts...)
	}
	return split, nil
}

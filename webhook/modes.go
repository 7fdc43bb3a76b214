package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// ModeRule sets the mode of extensions, everywhere or in some namespaces.
type ModeRule struct {
	// Extensions are the names that logs and metrics have, such as noexec.Guard; "*"
	// stands for each that may have the mode.
	Extensions []string `json:"extensions"`
	// NamespaceSelector selects the namespaces. Default: every one, and the objects that
	// are in none.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Mode is Enforce, Warn or Observe.
	Mode extension.Mode `json:"mode"`
}

// CheckModes returns an error for each rule that the handlers cannot follow. It begins
// with the index of the rule and the field.
func CheckModes(handlers []*extension.Handler, rules []ModeRule) error {
	return modes(rules).check(handlers)
}

// modes are the rules that say the mode of each handler. The first one that holds counts.
type modes []ModeRule

// check returns an error for each rule that cannot be followed. It names the rule by its
// index, and the field.
func (m modes) check(handlers []*extension.Handler) error {
	var errs []error
	for i, rule := range m {
		if !slices.Contains(allModes, rule.Mode) {
			errs = append(errs, fmt.Errorf("[%d].mode: %q: must be Enforce, Warn or Observe", i, rule.Mode))
			continue
		}
		if len(rule.Extensions) == 0 {
			errs = append(errs, fmt.Errorf(`[%d].extensions: required: name extensions, or "*" for each that may have the mode`, i))
		}
		if _, err := metav1.LabelSelectorAsSelector(rule.NamespaceSelector); err != nil {
			errs = append(errs, fmt.Errorf("[%d].namespaceSelector: %w", i, err))
		}
		for _, name := range rule.Extensions {
			if err := eachNamed(handlers, name, func(s extension.Scope) error { return allows(s, rule.Mode) }); err != nil {
				errs = append(errs, fmt.Errorf("[%d].extensions: %w", i, err))
			}
		}
	}
	return errors.Join(errs...)
}

var allModes = []extension.Mode{extension.Enforce, extension.Warn, extension.Observe}

// eachNamed returns an error unless extensions of a name exist, and all pass a check.
func eachNamed(handlers []*extension.Handler, name string, check func(extension.Scope) error) error {
	if name == "*" {
		return nil
	}
	var known []string
	found := false
	for _, handler := range handlers {
		h := host.Open(handler)
		if h.Name == name {
			found = true
			if err := check(h.Scope); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if !slices.Contains(known, h.Name) {
			known = append(known, h.Name)
		}
	}
	if !found {
		return fmt.Errorf("no extension %q answers admissions; there are %s", name, strings.Join(known, ", "))
	}
	return nil
}

// allows returns an error unless a scope allows a mode.
func allows(s extension.Scope, mode extension.Mode) error {
	effects := s.SideEffects != nil && *s.SideEffects != admissionregistrationv1.SideEffectClassNone
	switch {
	case len(s.Modes) > 0 && !slices.Contains(s.Modes, mode):
		return fmt.Errorf("it cannot be in %s: its Scope.Modes are %v", mode, s.Modes)
	case len(s.Modes) == 0 && effects && mode != extension.Enforce:
		return fmt.Errorf("it cannot be in %s: it has side effects, and does not say that it leaves them out: heed Request.Mode, and name the mode in Scope.Modes", mode)
	}
	return nil
}

// checkMode checks the modes of a scope.
func checkMode(s extension.Scope) error {
	for i, mode := range s.Modes {
		if !slices.Contains(allModes, mode) {
			return fmt.Errorf("Modes[%d]: %q: must be Enforce, Warn or Observe", i, mode)
		}
	}
	if s.Mode != "" && !slices.Contains(allModes, s.Mode) {
		return fmt.Errorf("Mode: %q: must be Enforce, Warn or Observe", s.Mode)
	}
	if err := allows(s, cmp.Or(s.Mode, extension.Enforce)); err != nil {
		return fmt.Errorf("Mode: %w", err)
	}
	return nil
}

// about reports whether a rule is about a handler.
func (r *ModeRule) about(h *host.Handler) bool {
	return slices.Contains(r.Extensions, h.Name) || slices.Contains(r.Extensions, "*") && allows(h.Scope, r.Mode) == nil
}

// everywhere reports whether a rule holds in every namespace.
func (r *ModeRule) everywhere() bool {
	return r.NamespaceSelector == nil || len(r.NamespaceSelector.MatchLabels)+len(r.NamespaceSelector.MatchExpressions) == 0
}

// of returns the mode of a handler where the rules hold that do not depend on the
// namespace, and those that holds names.
func (m modes) of(h *host.Handler, holds map[int]bool) extension.Mode {
	for i := range m {
		if rule := &m[i]; rule.about(h) && (rule.everywhere() || holds[i]) {
			return rule.Mode
		}
	}
	return cmp.Or(h.Scope.Mode, extension.Enforce)
}

// depend returns the rules on which the mode of one of the handlers depends in some
// namespace, by their indexes.
func (m modes) depend(handlers []*host.Handler) []int {
	depends := map[int]bool{}
	for _, h := range handlers {
		for i := range m {
			if !m[i].about(h) {
				continue
			}
			if m[i].everywhere() {
				break
			}
			depends[i] = true
		}
	}
	var all []int
	for i := range m {
		if depends[i] {
			all = append(all, i)
		}
	}
	return all
}

// maxParts is how many webhooks the modes may make of one.
const maxParts = 32

// split returns the webhooks that a webhook becomes by the modes of its handlers: one for
// those in force, and one for each other mode, in each part of the namespaces where the
// modes differ. A request meets the webhooks of one part only.
func (m modes) split(w *Webhook) ([]*Webhook, error) {
	handlers := make([]*host.Handler, len(w.Handlers))
	for i, h := range w.Handlers {
		handlers[i] = host.Open(h)
	}
	parts := []part{{selector: w.Scope.NamespaceSelector, rest: true}}
	for _, i := range m.depend(handlers) {
		if parts = divide(parts, m[i].NamespaceSelector, i); len(parts) > maxParts {
			return nil, fmt.Errorf("modes: the namespace selectors would make more than %d webhooks of %s: select by kubernetes.io/metadata.name, or by fewer labels", maxParts, w.Name)
		}
	}
	var webhooks []*Webhook
	for n, p := range parts {
		scope := w.Scope
		scope.NamespaceSelector = p.selector
		if !p.rest {
			scope.Rules = inNamespaces(scope.Rules)
		}
		if len(scope.Rules) == 0 {
			continue
		}
		for _, mode := range allModes {
			made := &Webhook{Name: w.Name, Mutating: w.Mutating, Scope: scope, Mode: mode, content: w.content, part: n}
			for i, h := range handlers {
				if m.of(h, p.holds) == mode {
					made.Handlers, made.segments = append(made.Handlers, w.Handlers[i]), append(made.segments, w.segments[i])
				}
			}
			if len(made.Handlers) > 0 {
				webhooks = append(webhooks, made.asRegistered())
			}
		}
	}
	return webhooks, nil
}

// observedTimeout is how long an API server waits for a webhook that only observes: as
// short as it can be.
const observedTimeout = time.Second

// asRegistered turns a webhook that only observes into a validating one that cannot fail a
// request. Validating webhooks see what the mutating ones leave, and are called at the
// same time.
func (w *Webhook) asRegistered() *Webhook {
	if !w.Observes() {
		return w
	}
	w.observes, w.patience, w.policy, w.Mutating = w.Mutating, w.Scope.Timeout, w.Scope.FailurePolicy, false
	w.Scope.FailurePolicy, w.Scope.Timeout = new(admissionregistrationv1.Ignore), observedTimeout
	return w
}

// inNamespaces returns the rules without objects that are in no namespace. A Namespace
// remains, since it is selected by its own labels.
func inNamespaces(rules []admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.RuleWithOperations {
	var all []admissionregistrationv1.RuleWithOperations
	for _, rule := range rules {
		all = append(all, namespacesOf(rule)...)
		if rule.Scope != nil && *rule.Scope == admissionregistrationv1.ClusterScope {
			continue
		}
		rule.Scope = new(admissionregistrationv1.NamespacedScope)
		all = append(all, rule)
	}
	return all
}

// namespacesOf returns the part of a rule that is about Namespaces, if it has one.
func namespacesOf(rule admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.RuleWithOperations {
	if rule.Scope != nil && *rule.Scope == admissionregistrationv1.NamespacedScope || !slices.Contains(rule.APIGroups, "") && !slices.Contains(rule.APIGroups, "*") {
		return nil
	}
	var resources []string
	for _, resource := range rule.Resources {
		name, sub, is := strings.Cut(resource, "/")
		switch {
		case name != "*" && name != "namespaces":
		case is:
			resources = append(resources, "namespaces/"+sub)
		default:
			resources = append(resources, "namespaces")
		}
		if resource == "*/*" {
			resources = append(resources, "namespaces")
		}
	}
	if len(resources) == 0 {
		return nil
	}
	rule.APIGroups, rule.Resources = []string{""}, resources
	rule.Scope = nil
	return []admissionregistrationv1.RuleWithOperations{rule}
}

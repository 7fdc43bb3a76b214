package webhook

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
)

// Exemption lets requests pass extensions unseen until it ends. A request is exempt if all
// conditions that are set hold; one at least is required.
type Exemption struct {
	// Name names it in audit annotations, metrics and logs: a DNS label (RFC 1123). Required.
	Name string `json:"name"`
	// Extensions are the names that logs and metrics have, such as noexec.Guard; "*"
	// stands for each that allows exemptions. Required.
	Extensions []string `json:"extensions"`
	// Namespaces are names, not patterns.
	Namespaces []string `json:"namespaces,omitempty"`
	// Users and Groups have who makes the request: one of the users, or somebody in one of
	// the groups.
	Users  []string `json:"users,omitempty"`
	Groups []string `json:"groups,omitempty"`
	// Names are names of objects; web-* stands for all that begin with web-. An object whose
	// name the API server generates has none yet in a mutating webhook.
	Names []string `json:"names,omitempty"`
	// ObjectSelector selects objects by their labels, before and after an update. Everyone
	// who may write an object chooses its labels.
	ObjectSelector *metav1.LabelSelector `json:"objectSelector,omitempty"`
	// Until is its end. Required.
	Until metav1.Time `json:"until"`
	// Reason is for those who read audit logs. Required.
	Reason string `json:"reason"`
}

// CheckExemptions returns an error for each exemption that is not complete, or about an
// extension that allows none: one whose Scope.Modes have Enforce alone. It begins with the
// index of the exemption and the field.
func CheckExemptions(handlers []*extension.Handler, all []Exemption) error {
	var errs []error
	for i, x := range all {
		problems := x.problems(handlers)
		for _, field := range slices.Sorted(maps.Keys(problems)) {
			for _, err := range problems[field] {
				errs = append(errs, fmt.Errorf("[%d].%s: %w", i, field, err))
			}
		}
		if slices.ContainsFunc(all[:i], func(other Exemption) bool { return other.Name == x.Name }) {
			errs = append(errs, fmt.Errorf("[%d].name: %q is there twice", i, x.Name))
		}
	}
	return errors.Join(errs...)
}

func (x *Exemption) problems(handlers []*extension.Handler) map[string][]error {
	problems := map[string][]error{}
	add := func(field string, err error) { problems[field] = append(problems[field], err) }
	if text := validation.IsDNS1123Label(x.Name); len(text) > 0 {
		add("name", fmt.Errorf("%q: %s", x.Name, strings.Join(text, ", ")))
	}
	if len(x.Extensions) == 0 {
		add("extensions", errors.New(`required: name extensions, or "*" for each that allows exemptions`))
	}
	for _, name := range x.Extensions {
		if err := eachNamed(handlers, name, exemptable); err != nil {
			add("extensions", err)
		}
	}
	if x.Until.IsZero() {
		add("until", errors.New("required: an exemption has an end, such as 2027-01-31T00:00:00Z"))
	}
	if x.Reason == "" {
		add("reason", errors.New("required: say why to those who read the audit log"))
	}
	if selector := x.ObjectSelector; len(x.Namespaces)+len(x.Users)+len(x.Groups)+len(x.Names) == 0 && (selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0) {
		add("namespaces", errors.New("it has no condition: set one, or use a mode, which holds for everybody"))
	}
	for field, values := range map[string][]string{"namespaces": x.Namespaces, "users": x.Users, "groups": x.Groups, "names": x.Names} {
		for _, value := range values {
			if err := literal(value, field == "names"); err != nil {
				add(field, err)
			}
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(x.ObjectSelector); err != nil {
		add("objectSelector", err)
	}
	return problems
}

// literal returns an error for a value that no request has, as a pattern has none where
// patterns do not count.
func literal(value string, isPattern bool) error {
	switch {
	case value == "":
		return errors.New("a value is empty: remove it")
	case !isPattern && strings.Contains(value, "*"):
		return fmt.Errorf("%q: only names may be patterns: list each, or use another condition", value)
	case isPattern && strings.Contains(strings.TrimSuffix(value, "*"), "*"):
		return fmt.Errorf("%q: a * may only be at the end", value)
	}
	return nil
}

// exemptable returns an error unless a scope allows exemptions.
func exemptable(s extension.Scope) error {
	if guards(s) {
		return errors.New("it allows no exemption, since a right or a record depends on it (its Scope.Modes have Enforce alone)")
	}
	return nil
}

// guards reports whether a right or a record depends on an extension.
func guards(s extension.Scope) bool {
	return len(s.Modes) > 0 && !slices.ContainsFunc(s.Modes, func(mode extension.Mode) bool { return mode != extension.Enforce })
}

// Exemptions are the exemptions of a process. They may change while it serves.
type Exemptions struct {
	clock clock.PassiveClock
	all   atomic.Pointer[[]exemption]
}

// exemption is an Exemption with its selector.
type exemption struct {
	Exemption
	selector labels.Selector
}

// NewExemptions returns Exemptions, of which there are none yet.
func NewExemptions(clock clock.PassiveClock) *Exemptions { return &Exemptions{clock: clock} }

// Set replaces them. They have passed CheckExemptions.
func (x *Exemptions) Set(all []Exemption) {
	made := make([]exemption, len(all))
	for i, e := range all {
		selector, _ := metav1.LabelSelectorAsSelector(e.ObjectSelector)
		made[i] = exemption{e, selector}
		exemptionUntil.WithLabelValues(e.Name).Set(float64(e.Until.Unix()))
		for _, name := range e.Extensions { // an alert wants to know of those that nobody uses
			exemptionUses.WithLabelValues(e.Name, name)
		}
	}
	before := x.all.Swap(&made)
	if before == nil {
		return
	}
	for _, e := range *before {
		if !slices.ContainsFunc(all, func(other Exemption) bool { return other.Name == e.Name }) {
			exemptionUntil.DeleteLabelValues(e.Name)
			exemptionUses.DeletePartialMatch(prometheus.Labels{"exemption": e.Name})
		}
	}
}

// All returns them, those that have ended included.
func (x *Exemptions) All() []Exemption {
	var all []Exemption
	if made := x.all.Load(); made != nil {
		for _, e := range *made {
			all = append(all, e.Exemption)
		}
	}
	return all
}

// of returns the exemption of a request, whose objects have some labels, from a handler,
// nil for none.
func (x *Exemptions) of(h *host.Handler, request *admissionv1.AdmissionRequest, has *objectLabels) *Exemption {
	if x == nil {
		return nil
	}
	all := x.all.Load()
	if all == nil || len(*all) == 0 || guards(h.Scope) {
		return nil
	}
	now := x.clock.Now()
	for i := range *all {
		e := &(*all)[i]
		if now.Before(e.Until.Time) && (slices.Contains(e.Extensions, h.Name) || slices.Contains(e.Extensions, "*")) && e.holds(request, has) {
			return &e.Exemption
		}
	}
	return nil
}

// holds reports whether all conditions hold.
func (e *exemption) holds(request *admissionv1.AdmissionRequest, has *objectLabels) bool {
	user := &request.UserInfo
	switch {
	case len(e.Namespaces) > 0 && !slices.Contains(e.Namespaces, request.Namespace):
		return false
	case len(e.Users)+len(e.Groups) > 0 && !slices.Contains(e.Users, user.Username) && !slices.ContainsFunc(user.Groups, func(g string) bool { return slices.Contains(e.Groups, g) }):
		return false
	case len(e.Names) > 0 && !slices.ContainsFunc(e.Names, func(pattern string) bool { return matchesName(pattern, request.Name) }):
		return false
	}
	return e.ObjectSelector == nil || has.all(request, e.selector)
}

func matchesName(pattern, name string) bool {
	if prefix, isPattern := strings.CutSuffix(pattern, "*"); isPattern {
		return name != "" && strings.HasPrefix(name, prefix)
	}
	return name == pattern
}

// objectLabels are the labels of the objects of a request, decoded once for all exemptions.
type objectLabels struct {
	decoded bool
	sets    []labels.Set // none if they are not known
}

// all reports whether a selector selects each object of a request. Options of a connection
// have no labels.
func (l *objectLabels) all(request *admissionv1.AdmissionRequest, selector labels.Selector) bool {
	if !l.decoded {
		l.decoded, l.sets = true, labelsOf(request)
	}
	return len(l.sets) > 0 && !slices.ContainsFunc(l.sets, func(set labels.Set) bool { return !selector.Matches(set) })
}

func labelsOf(request *admissionv1.AdmissionRequest) []labels.Set {
	if request.Operation == admissionv1.Connect {
		return nil
	}
	var sets []labels.Set
	for _, raw := range [][]byte{request.Object.Raw, request.OldObject.Raw} {
		if len(raw) == 0 {
			continue
		}
		var object metav1.PartialObjectMetadata
		if err := wire.Decode(raw, &object); err != nil {
			return nil
		}
		sets = append(sets, object.Labels)
	}
	return sets
}

// exempt reports whether the request is exempt from a handler, and tells of it.
func (p *passage) exempt(i int) bool {
	handler, request := p.handlers[i], p.object.request
	x := p.exemptions.of(handler, request, &p.labels)
	if x == nil {
		return false
	}
	exemptionUses.WithLabelValues(x.Name, handler.Name).Inc()
	p.report(handler, nil, map[string]string{"exempted": x.Name + ": " + x.Reason})
	if p.onStep != nil {
		_ = p.tell(&Step{Extension: handler.Name, Result: "exempted", Reason: x.Name + ": " + x.Reason, Object: slices.Clone(p.object.document.Raw)})
	}
	p.sampled.Info("a request is exempt from an extension", append(about(request), zap.String("extension", handler.Name), zap.String("exemption", x.Name))...)
	return true
}

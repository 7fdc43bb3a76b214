package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// Defaults are what a zero value in a Scope stands for.
type Defaults struct {
	// Namespace is where a scope without NamespaceSelector applies; empty means
	// everywhere.
	Namespace string
	// PodSelector is the ObjectSelector of a scope on Pods that has none.
	PodSelector *metav1.LabelSelector
	// FailurePolicy is Fail when it is empty.
	FailurePolicy admissionregistrationv1.FailurePolicyType
	// Protected are the namespaces that a webhook with failure policy Fail must
	// not reach unless its scope, or Namespace, names them.
	Protected []string
}

// Webhook is one endpoint: the handlers that share a scope.
type Webhook struct {
	// Name is the scope's name, unique among the webhooks of its kind.
	Name string
	// Mutating tells the two kinds apart.
	Mutating bool
	// Scope has every default filled in.
	Scope extension.Scope
	// Handlers run in this order.
	Handlers []*extension.Handler

	segments []string // of the path, one for each handler
}

// Under these paths are the webhooks of the two kinds.
const (
	MutatingPath   = "/mutate/"
	ValidatingPath = "/validate/"
)

// Path is where the webhook is served: under the path of its kind its name, and
// then that of each handler, from which a replica of another revision learns what
// to run; see [OtherRevisions].
func (w *Webhook) Path() string {
	return strings.Join(append([]string{kindPath(w.Mutating) + w.Name}, w.segments...), "/")
}

// label names the webhook in metrics and traces.
func (w *Webhook) label() string { return strings.TrimPrefix(kindPath(w.Mutating), "/") + w.Name }

func kindPath(mutating bool) string {
	if mutating {
		return MutatingPath
	}
	return ValidatingPath
}

// The range in which the API server accepts a timeout, and what it defaults to.
const (
	defaultTimeout = 10 * time.Second
	minTimeout     = time.Second
	maxTimeout     = 30 * time.Second
)

// Group makes webhooks of handlers: those of one kind with equal scopes become
// one, in the order in which they came. An error names the handler and the field.
func Group(handlers []*extension.Handler, defaults Defaults) ([]*Webhook, error) {
	type key struct {
		mutating bool
		name     string
	}
	var webhooks []*Webhook
	contents := map[key]string{}
	segments := segmentsOf(handlers)
	for n, h := range handlers {
		a := host.Open(h)
		scope, err := resolve(a, defaults)
		if err != nil {
			return nil, fmt.Errorf("scope of %s: %w", a.Name, err)
		}
		content, err := json.Marshal(scope)
		if err != nil {
			return nil, fmt.Errorf("scope of %s: %w", a.Name, err)
		}
		if scope.Name == "" {
			scope.Name = contentName(scope, content)
		}
		k := key{a.Mutates, scope.Name}
		known, found := contents[k]
		if !found {
			contents[k] = string(content)
			webhooks = append(webhooks, &Webhook{Name: scope.Name, Mutating: a.Mutates, Scope: scope, Handlers: []*extension.Handler{h}, segments: []string{segments[n]}})
			continue
		}
		i := slices.IndexFunc(webhooks, func(w *Webhook) bool { return w.Mutating == k.mutating && w.Name == k.name })
		if known != string(content) {
			return nil, fmt.Errorf("scope of %s: Name: %q is already the name of a different scope, that of %s", a.Name, scope.Name, host.Open(webhooks[i].Handlers[0]).Name)
		}
		webhooks[i].Handlers = append(webhooks[i].Handlers, h)
		webhooks[i].segments = append(webhooks[i].segments, segments[n])
	}
	return webhooks, nil
}

// resolve fills in the defaults and checks what the API server would refuse
// later, and with a less helpful message.
func resolve(a *host.Handler, defaults Defaults) (extension.Scope, error) {
	s := a.Scope
	if s.Name != "" {
		if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 {
			return s, fmt.Errorf("Name: %q: %s", s.Name, strings.Join(problems, ", "))
		}
	}
	if len(s.Rules) == 0 {
		s.Rules = extension.Pods()
	}
	for i, rule := range s.Rules {
		if len(rule.Operations) == 0 || len(rule.Resources) == 0 || len(rule.APIGroups) == 0 || len(rule.APIVersions) == 0 {
			return s, fmt.Errorf("Rules[%d]: needs operations, API groups, API versions and resources", i)
		}
		if a.Respond != nil && !onlyPods(rule.Rule) {
			return s, fmt.Errorf("Rules[%d]: an Extension takes Pods, not %s; use a Mutator or a Validator", i, strings.Join(rule.Resources, ", "))
		}
	}
	if s.FailurePolicy == nil {
		policy := defaults.FailurePolicy
		if policy == "" {
			policy = admissionregistrationv1.Fail
		}
		s.FailurePolicy = &policy
	}
	if s.SideEffects == nil {
		none := admissionregistrationv1.SideEffectClassNone
		s.SideEffects = &none
	}
	if *s.SideEffects != admissionregistrationv1.SideEffectClassNone && *s.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun {
		return s, fmt.Errorf("SideEffects: %q: admissionregistration.k8s.io/v1 accepts None and NoneOnDryRun", *s.SideEffects)
	}
	if s.Timeout == 0 {
		s.Timeout = defaultTimeout
	}
	if s.Timeout < minTimeout || s.Timeout > maxTimeout || s.Timeout%time.Second != 0 {
		return s, fmt.Errorf("Timeout: %s: must be whole seconds from %s to %s", s.Timeout, minTimeout, maxTimeout)
	}
	if s.MatchPolicy == nil {
		equivalent := admissionregistrationv1.Equivalent
		s.MatchPolicy = &equivalent
	}
	if s.ReinvocationPolicy == nil {
		never := admissionregistrationv1.NeverReinvocationPolicy
		s.ReinvocationPolicy = &never
	}
	if s.ObjectSelector == nil && !slices.ContainsFunc(s.Rules, func(r admissionregistrationv1.RuleWithOperations) bool { return !onlyPods(r.Rule) }) {
		s.ObjectSelector = defaults.PodSelector
	}
	s.NamespaceSelector = namespaceSelector(s, defaults)
	return s, nil
}

// namespaceSelector selects by kubernetes.io/metadata.name, the label that the
// API server itself keeps on every namespace and lets nobody change, rather
// than by a label of ours: it needs no right to write namespaces, cannot be
// removed by who wants to escape admission, and leaves nothing behind.
func namespaceSelector(s extension.Scope, defaults Defaults) *metav1.LabelSelector {
	if s.NamespaceSelector == nil && defaults.Namespace != "" {
		return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: defaults.Namespace}}
	}
	selector := &metav1.LabelSelector{}
	if s.NamespaceSelector != nil {
		selector = s.NamespaceSelector.DeepCopy()
	}
	if *s.FailurePolicy == admissionregistrationv1.Fail && len(defaults.Protected) > 0 && !namesNamespace(selector) {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: defaults.Protected,
		})
	}
	return selector
}

// namesNamespace reports whether a selector says by name which namespaces it
// wants: some, or all that have a name.
func namesNamespace(selector *metav1.LabelSelector) bool {
	if _, found := selector.MatchLabels[corev1.LabelMetadataName]; found {
		return true
	}
	return slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == corev1.LabelMetadataName && (r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpExists)
	})
}

// podResources are the resources whose admission carries a Pod.
var podResources = []string{"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"}

func onlyPods(rule admissionregistrationv1.Rule) bool {
	return slices.Equal(rule.APIGroups, []string{""}) &&
		!slices.ContainsFunc(rule.Resources, func(r string) bool { return !slices.Contains(podResources, r) })
}

// contentName names a scope that has no name: what it is about, for people, and
// a digest of all of it, so that every process that builds the same scope comes
// to the same name.
func contentName(s extension.Scope, content []byte) string {
	digest := sha256.Sum256(content)
	suffix := hex.EncodeToString(digest[:4])
	about := strings.NewReplacer("/", "-", "*", "all", ".", "-").Replace(strings.ToLower(s.Rules[0].Resources[0]))
	if limit := validation.DNS1123LabelMaxLength - len(suffix) - 1; len(about) > limit {
		about = about[:limit]
	}
	return strings.Trim(about, "-") + "-" + suffix
}

package host

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
)

// Outside is a part that gets admissions outside the watched namespaces, where its Rights
// are not granted.
type Outside struct {
	// Name is the part's Go type.
	Name string
	// Selector is the one of its scope.
	Selector *metav1.LabelSelector
}

// selectorsOf returns the NamespaceSelectors of handlers that have one of their own.
func selectorsOf(handlers []*extension.Handler) []*metav1.LabelSelector {
	var all []*metav1.LabelSelector
	for _, h := range handlers {
		if selector := inside.Scope(h).NamespaceSelector; selector != nil {
			all = append(all, selector)
		}
	}
	return all
}

// grant adds the Rights of a part where it gets admissions: in the namespaces that its
// scope names, else in the watched ones. A scope that selects others by their labels does
// not widen them: that would be a right in every namespace, which nobody asked for.
func (r *Rights) grant(e entitled, rules []rbacv1.PolicyRule) {
	if len(rules) == 0 {
		return
	}
	composite := e.serves && e.reconciles
	if len(e.selectors) == 1 && !composite {
		if names, named := NamespacesOf(e.selectors[0]); named {
			for _, name := range names {
				r.Namespaces[name] = AppendNew(r.Namespaces[name], rules...)
			}
			return
		}
	}
	r.Watched = AppendNew(r.Watched, rules...)
	if saysWhere(e.part) {
		return
	}
	for _, selector := range e.selectors {
		r.Outside = append(r.Outside, Outside{fmt.Sprintf("%T", e.part), selector})
	}
}

// Beyond returns the selectors that select more than the watched namespaces.
func Beyond(watched []string, selectors []*metav1.LabelSelector) []*metav1.LabelSelector {
	return slices.DeleteFunc(slices.Clone(selectors), func(selector *metav1.LabelSelector) bool {
		names, named := NamespacesOf(selector)
		return named && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(watched, name) })
	})
}

// saysWhere reports whether a part chooses where it has rights.
func saysWhere(part any) bool {
	_, named := part.(extension.NamespaceEntitled)
	_, everywhere := part.(extension.ClusterEntitled)
	return named || everywhere
}

// NamespacesOf returns the only namespaces that a selector can select, if it names them. nil
// selects all.
func NamespacesOf(selector *metav1.LabelSelector) (names []string, named bool) {
	if selector == nil {
		return nil, false
	}
	narrow := func(to []string) {
		if !named {
			names, named = slices.Clone(to), true
			return
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(to, name) })
	}
	if name, ok := selector.MatchLabels[corev1.LabelMetadataName]; ok {
		narrow([]string{name})
	}
	for _, r := range selector.MatchExpressions {
		if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpIn {
			narrow(r.Values)
		}
	}
	return names, named
}

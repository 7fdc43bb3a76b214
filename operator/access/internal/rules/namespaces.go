package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// AllNamespaces stands, alone in Options.Namespaces, for every namespace but those of
// the control plane and of admitkit itself, and those that are excluded from its webhooks.
const AllNamespaces = "*"

// Namespaces has the namespaces in which access is granted.
type Namespaces struct {
	// watched are the manager's, named are others by their names. Neither means all.
	watched, named []string
	// own is the manager's own namespace, and excluded are those that its webhooks do not receive.
	own      string
	excluded []string
}

// NewNamespaces returns the namespaces of the options.
func NewNamespaces(namespaces []string, mgr extension.Manager) (Namespaces, error) {
	p := Namespaces{own: mgr.GetWebhookNamespace(), excluded: mgr.GetExcludedNamespaces()}
	switch {
	case len(namespaces) == 0 && len(mgr.GetNamespaces()) == 0:
		return p, errors.New("Namespaces: required, because the manager watches every namespace: name those in which access may be granted, or say " +
			AllNamespaces + " for all. Whoever takes the reconciler over can do there what an administrator can; with all, that is the cluster")
	case len(namespaces) == 0:
		p.watched = mgr.GetNamespaces()
		var errs []error
		for _, name := range p.watched {
			errs = append(errs, p.check(name))
		}
		return p, errors.Join(errs...)
	case slices.Contains(namespaces, AllNamespaces):
		if len(namespaces) > 1 {
			return p, fmt.Errorf("Namespaces: %s stands for all, and must be alone", AllNamespaces)
		}
		return p, nil
	}
	p.named = slices.Compact(slices.Sorted(slices.Values(namespaces)))
	for _, name := range p.named {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return p, fmt.Errorf("Namespaces: %q: %s", name, strings.Join(problems, ", "))
		}
		if name == p.own {
			return p, fmt.Errorf("Namespaces: %q is the manager's own namespace: who gets into its Pods could grant themselves anything", name)
		}
		if err := p.check(name); err != nil {
			return p, err
		}
	}
	return p, nil
}

// ofControlPlane are namespaces in whose Pods one could take the cluster over.
var ofControlPlane = []string{metav1.NamespaceSystem, corev1.NamespaceNodeLease}

func (p *Namespaces) check(name string) error {
	if slices.Contains(ofControlPlane, name) {
		return fmt.Errorf("Namespaces: %q is a namespace of the control plane: who gets into its Pods could grant themselves anything", name)
	}
	return nil
}

// All reports whether access is granted in every namespace that is not closed.
func (p *Namespaces) All() bool { return len(p.Names()) == 0 }

// Names returns the namespaces, none for all.
func (p *Namespaces) Names() []string { return slices.Concat(p.watched, p.named) }

// Each returns the namespaces for a client or a cache, which take "" for all.
func (p *Namespaces) Each() []string {
	if p.All() {
		return []string{metav1.NamespaceAll}
	}
	return p.Names()
}

// include reports whether access is granted in a namespace.
func (p *Namespaces) include(namespace string) bool {
	if p.All() {
		return p.Closed(namespace) == nil
	}
	return slices.Contains(p.Names(), namespace)
}

// Closed refuses to grant access in a namespace that AllNamespaces does not stand for.
func (p *Namespaces) Closed(namespace string) *Refusal {
	if p.All() && (namespace == p.own || p.check(namespace) != nil) {
		return Refuse(v1alpha1.ReasonNotAllowed, "no access is granted in namespace %s, which is the control plane's or the manager's own: who gets into its Pods could grant themselves anything", namespace)
	}
	if p.All() && slices.Contains(p.excluded, namespace) {
		return Refuse(v1alpha1.ReasonNotAllowed, "no access is granted in namespace %s, which --exclude-namespaces excludes from the webhooks: nothing would keep its Pods to their templates", namespace)
	}
	return nil
}

// Selector selects the namespaces that requests are granted in, and if that is all, even
// those that webhooks with Fail leave out by default: a request that no webhook has seen
// could name anybody as its requester. No Pod waits for these webhooks, so nothing can
// lock itself out. The watched namespaces need no selector.
func (p *Namespaces) Selector() *metav1.LabelSelector {
	if p.All() {
		return extension.EveryNamespace()
	}
	return p.SelectorOfPods()
}

// SelectorOfPods is the same for webhooks for which Pods wait: if that is all, the
// manager's default leaves out what could lock itself out.
func (p *Namespaces) SelectorOfPods() *metav1.LabelSelector {
	if len(p.named) == 0 {
		return nil
	}
	return extension.InNamespaces(p.named...)
}

// WatchedRules returns the rules if access is granted in the watched namespaces alone.
func (p *Namespaces) WatchedRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if len(p.watched) == 0 {
		return nil
	}
	return rules
}

// NamedRules returns the rules for each namespace that is named.
func (p *Namespaces) NamedRules(rules []rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	each := make(map[string][]rbacv1.PolicyRule, len(p.named))
	for _, name := range p.named {
		each[name] = rules
	}
	return each
}

// AllRules returns the rules if access is granted in every namespace.
func (p *Namespaces) AllRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if !p.All() {
		return nil
	}
	return rules
}

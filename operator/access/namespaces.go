package access

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
// the control plane and of admitkit itself.
const AllNamespaces = "*"

// namespaceSet has the namespaces in which access is granted.
type namespaceSet struct {
	// watched is the manager's, named are others by their names. Neither means all.
	watched string
	named   []string
	// own is the manager's own namespace.
	own string
}

// newNamespaceSet returns the namespaces of the options.
func newNamespaceSet(namespaces []string, mgr extension.Manager) (namespaceSet, error) {
	p := namespaceSet{own: mgr.GetWebhookNamespace()}
	switch {
	case len(namespaces) == 0 && mgr.GetNamespace() == "":
		return p, errors.New("Namespaces: required, because the manager watches every namespace: name those in which access may be granted, or say " +
			AllNamespaces + " for all. Whoever takes the reconciler over can do there what an administrator can; with all, that is the cluster")
	case len(namespaces) == 0:
		p.watched = mgr.GetNamespace()
		return p, p.check(p.watched)
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

func (p *namespaceSet) check(name string) error {
	if slices.Contains(ofControlPlane, name) {
		return fmt.Errorf("Namespaces: %q is a namespace of the control plane: who gets into its Pods could grant themselves anything", name)
	}
	return nil
}

// all reports whether access is granted in every namespace that is not closed.
func (p *namespaceSet) all() bool { return p.watched == "" && len(p.named) == 0 }

// each returns the namespaces for a client or a cache, which take "" for all.
func (p *namespaceSet) each() []string {
	if len(p.named) > 0 {
		return p.named
	}
	return []string{p.watched}
}

// include reports whether access is granted in a namespace.
func (p *namespaceSet) include(namespace string) bool {
	if p.all() {
		return p.closed(namespace) == nil
	}
	return namespace == p.watched || slices.Contains(p.named, namespace)
}

// closed refuses to grant access in a namespace that AllNamespaces does not stand for.
func (p *namespaceSet) closed(namespace string) *refusal {
	if p.all() && (namespace == p.own || p.check(namespace) != nil) {
		return refuse(v1alpha1.ReasonNotAllowed, "no access is granted in namespace %s, which is the control plane's or the manager's own: who gets into its Pods could grant themselves anything", namespace)
	}
	return nil
}

// selector selects the namespaces that requests are granted in, and if that is all, even
// those that webhooks with Fail leave out by default: a request that no webhook has seen
// could name anybody as its requester. No Pod waits for these webhooks, so nothing can
// lock itself out. The watched namespace needs no selector.
func (p *namespaceSet) selector() *metav1.LabelSelector {
	if p.all() {
		return extension.EveryNamespace()
	}
	return p.selectorOfPods()
}

// selectorOfPods is the same for webhooks for which Pods wait: if that is all, the
// manager's default leaves out what could lock itself out.
func (p *namespaceSet) selectorOfPods() *metav1.LabelSelector {
	if len(p.named) == 0 {
		return nil
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: p.named,
	}}}
}

// watchedRules, namedRules and allRules return the rules for the one of them that the
// namespaces are.
func (p *namespaceSet) watchedRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if p.watched == "" {
		return nil
	}
	return rules
}

func (p *namespaceSet) namedRules(rules []rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	each := make(map[string][]rbacv1.PolicyRule, len(p.named))
	for _, name := range p.named {
		each[name] = rules
	}
	return each
}

func (p *namespaceSet) allRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if !p.all() {
		return nil
	}
	return rules
}

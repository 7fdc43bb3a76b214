package memcluster

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Rights are what RBAC grants to a program. The zero value grants nothing.
type Rights struct {
	// byNamespace has the rules of a namespace, and those of every one under "".
	byNamespace map[string][]rbacv1.PolicyRule
}

// Grant adds rules that hold in a namespace; "" means in all, and for objects without
// one.
func (r *Rights) Grant(namespace string, rules ...rbacv1.PolicyRule) {
	if r.byNamespace == nil {
		r.byNamespace = map[string][]rbacv1.PolicyRule{}
	}
	r.byNamespace[namespace] = append(r.byNamespace[namespace], rules...)
}

// right is what one call needs.
type right struct{ verb, group, resource, subresource, namespace, name string }

// allow follows RuleAllows of RBAC (k8s.io/component-helpers/auth/rbac/validation).
func (r *Rights) allow(need right) bool {
	rules := r.byNamespace[""]
	if need.namespace != "" {
		rules = slices.Concat(rules, r.byNamespace[need.namespace])
	}
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return matches(rule.Verbs, need.verb) && matches(rule.APIGroups, need.group) &&
			slices.ContainsFunc(rule.Resources, need.isFor) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, need.name))
	})
}

func (n right) isFor(pattern string) bool {
	if n.subresource == "" || pattern == rbacv1.ResourceAll {
		return pattern == rbacv1.ResourceAll || pattern == n.resource
	}
	return pattern == n.resource+"/"+n.subresource || pattern == "*/"+n.subresource
}

// String is the API server's text.
func (n right) String() string {
	where := "at the cluster scope"
	if n.namespace != "" {
		where = fmt.Sprintf("in the namespace %q", n.namespace)
	}
	return fmt.Sprintf("cannot %s resource %q in API group %q %s", n.verb, n.path(), n.group, where)
}

func (n right) path() string {
	return strings.TrimSuffix(n.resource+"/"+n.subresource, "/")
}

// needs returns what a call needs, as an API server reads it from the request.
func (c *Cluster) needs(p *call) []right {
	need := right{group: p.resource.Group, resource: p.resource.Resource, subresource: p.subresource, namespace: p.namespace, name: p.name}
	if p.resource.Group == "" && p.resource.Resource == "namespaces" {
		need.namespace = p.name
	}
	verbs := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete", http.MethodGet: "get"}
	need.verb = verbs[p.Method]
	if p.name == "" {
		switch {
		case p.isWatch():
			need.verb, need.name = "watch", p.nameInSelector()
		case p.Method == http.MethodGet:
			need.verb, need.name = "list", p.nameInSelector()
		case p.Method == http.MethodDelete:
			need.verb = "deletecollection"
		}
	}
	all := []right{need}
	if c.mayCreate(p) && c.objects[p.collection+"/"+p.name] == nil {
		created := need
		created.verb = "create"
		all = append(all, created)
	}
	return all
}

// authorize returns the API server's error for a call without the right, and records it.
func (c *Cluster) authorize(p *call, rights *Rights) error {
	if rights == nil || p.isAboutSelf() {
		return nil
	}
	for _, need := range c.needs(p) {
		if rights.allow(need) {
			continue
		}
		c.forbidden = append(c.forbidden, need.String())
		resource := p.resource.GroupResource()
		resource.Resource = need.path()
		return apierrors.NewForbidden(resource, need.name, errors.New("the extensions "+need.String()+
			": they do not ask for it by Reads(), Rights(), NamespaceRights() or ClusterRights()"))
	}
	return nil
}

// isAboutSelf reports whether a call is a review that every user may make: see the
// ClusterRole system:basic-user.
func (p *call) isAboutSelf() bool {
	return slices.Contains([]string{"authentication.k8s.io", "authorization.k8s.io"}, p.resource.Group) && strings.HasPrefix(p.resource.Resource, "selfsubject")
}

// Account is the client of a Cluster that has the rights of a program. It implements
// http.RoundTripper. It may do everything until [Account.Restrict].
type Account struct {
	cluster *Cluster
	mu      sync.Mutex
	rights  *Rights
	refusal string
}

// NewAccount returns an account of the cluster.
func (c *Cluster) NewAccount() *Account { return &Account{cluster: c} }

// Restrict restricts the account to these rights. A call without the right fails as an
// API server's does, and is recorded: see [Cluster.TakeForbidden].
func (a *Account) Restrict(rights *Rights) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rights = rights
}

// Refuse makes every call fail for this reason except discovery, which clients need
// before they do anything else, and calls without the right, which fail as such.
func (a *Account) Refuse(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal = reason
}

// RoundTrip implements http.RoundTripper.
func (a *Account) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	rights, refusal := a.rights, a.refusal
	a.mu.Unlock()
	return a.cluster.serve(req, rights, refusal)
}

// matches reports whether a rule's patterns have a value, or a * for all.
func matches(patterns []string, value string) bool {
	return slices.Contains(patterns, rbacv1.ResourceAll) || slices.Contains(patterns, value)
}

package binding

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
)

// bindable is what the operator lets be bound.
type bindable struct {
	// namespaces has, for each namespace in which anything may be bound, what.
	namespaces map[string]*bindableIn
	// clusterWide are the ClusterRoles that may be bound in the whole cluster.
	clusterWide []string
}

// bindableIn is what may be bound in a namespace, sorted.
type bindableIn struct{ roles, clusterRoles []string }

// newBindable reads the options.
func newBindable(o *Options, mgr extension.Manager) (bindable, error) {
	b := bindable{namespaces: map[string]*bindableIn{}}
	if len(o.BindableRoles)+len(o.BindableClusterRoles)+len(o.BindableClusterWide) == 0 {
		return b, errors.New("BindableRoles, BindableClusterRoles and BindableClusterWide: name each role that may be bound; without any there is nothing to do")
	}
	for _, text := range o.BindableRoles {
		role, err := cluster.ParseRole(text)
		if err != nil {
			return b, fmt.Errorf("BindableRoles: %w", err)
		}
		if err := checkNamespace(role.Namespace, mgr); err != nil {
			return b, fmt.Errorf("BindableRoles: %q: %w", text, err)
		}
		in := b.in(role.Namespace)
		in.roles = append(in.roles, role.Name)
	}
	if err := b.addClusterRoles(o, mgr); err != nil {
		return b, err
	}
	for _, name := range o.BindableClusterWide {
		if err := cluster.CheckClusterRole(name); err != nil {
			return b, fmt.Errorf("BindableClusterWide: %w", err)
		}
		b.clusterWide = append(b.clusterWide, name)
	}
	b.clusterWide = sorted(b.clusterWide)
	for _, in := range b.namespaces {
		in.roles, in.clusterRoles = sorted(in.roles), sorted(in.clusterRoles)
	}
	return b, nil
}

// addClusterRoles adds the ClusterRoles that may be bound in namespaces.
func (b *bindable) addClusterRoles(o *Options, mgr extension.Manager) error {
	namespaces := o.Namespaces
	switch {
	case len(o.BindableClusterRoles) == 0 && len(namespaces) > 0:
		return errors.New("Namespaces: they are those in which BindableClusterRoles may be bound, and there are none of these; a Role of BindableRoles has its own")
	case len(o.BindableClusterRoles) == 0:
		return nil
	case len(namespaces) == 0 && len(mgr.GetNamespaces()) == 0:
		return errors.New("Namespaces: required with BindableClusterRoles, because the manager watches every namespace: name those in which they may be bound")
	case len(namespaces) == 0:
		namespaces = mgr.GetNamespaces()
	}
	for _, name := range o.BindableClusterRoles {
		if err := cluster.CheckClusterRole(name); err != nil {
			return fmt.Errorf("BindableClusterRoles: %w", err)
		}
	}
	for _, namespace := range namespaces {
		if err := checkNamespace(namespace, mgr); err != nil {
			return fmt.Errorf("Namespaces: %w", err)
		}
		in := b.in(namespace)
		in.clusterRoles = append(in.clusterRoles, o.BindableClusterRoles...)
	}
	return nil
}

// checkNamespace refuses namespaces in which a binding could take the cluster over.
func checkNamespace(name string, mgr extension.Manager) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("%q is not the name of a namespace: %s; name each", name, strings.Join(problems, ", "))
	}
	switch name {
	case mgr.GetWebhookNamespace():
		return fmt.Errorf("%q is the manager's own namespace: who gets a right there could grant themselves anything", name)
	case metav1.NamespaceSystem, corev1.NamespaceNodeLease:
		return fmt.Errorf("%q is a namespace of the control plane: who gets a right there could grant themselves anything", name)
	}
	return nil
}

func (b *bindable) in(namespace string) *bindableIn {
	if b.namespaces[namespace] == nil {
		b.namespaces[namespace] = &bindableIn{}
	}
	return b.namespaces[namespace]
}

func sorted(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// each returns the namespaces for a cache.
func (b *bindable) each() []string {
	return slices.Sorted(maps.Keys(b.namespaces))
}

// hasClusterRoles reports whether any ClusterRole may be bound.
func (b *bindable) hasClusterRoles() bool {
	if len(b.clusterWide) > 0 {
		return true
	}
	for _, in := range b.namespaces {
		if len(in.clusterRoles) > 0 {
			return true
		}
	}
	return false
}

// has reports whether a role may be bound in a namespace, or if that is "" in the whole
// cluster.
func (b *bindable) has(ref rbacv1.RoleRef, namespace string) bool {
	names := b.clusterWide
	if in := b.namespaces[namespace]; namespace != "" {
		switch {
		case in == nil:
			return false
		case ref.Kind == "Role":
			names = in.roles
		default:
			names = in.clusterRoles
		}
	}
	return slices.Contains(names, ref.Name)
}

// refuses says why a role may not be bound, "" if it may.
func (b *bindable) refuses(ref rbacv1.RoleRef, namespace string) string {
	switch {
	case b.has(ref, namespace):
		return ""
	case namespace == "" && len(b.clusterWide) == 0:
		return "the operator lets no ClusterRole be bound in the whole cluster: TransientClusterRoleBindings are off" + ask("--bindable-cluster-wide="+ref.Name, "binding.clusterWide")
	case namespace == "":
		return fmt.Sprintf("the operator does not let ClusterRole %s be bound in the whole cluster", ref.Name) + ask("--bindable-cluster-wide="+ref.Name, "binding.clusterWide")
	case ref.Kind == "Role":
		return fmt.Sprintf("the operator does not let %s be bound", cluster.Role(ref, namespace)) + ask("--bindable-role="+namespace+"/"+ref.Name, "binding.roles")
	}
	return fmt.Sprintf("the operator does not let ClusterRole %s be bound in namespace %s", ref.Name, namespace) +
		ask("--bindable-cluster-role="+ref.Name+" and --binding-namespaces="+namespace, "binding.clusterRoles and binding.namespaces")
}

// ask says what the operator has to name.
func ask(flags, values string) string {
	return fmt.Sprintf("; it may with %s (%s of the chart)", flags, values)
}

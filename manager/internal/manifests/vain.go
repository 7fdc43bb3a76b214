package manifests

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
)

// checkRights returns an error for a rule that an extension asks for and that grants
// nothing: an API server accepts most of them.
func (i *installer) checkRights() error {
	return i.Parts.EachRight(func(asked host.Right) error {
		err := checkRule(asked.Rule)
		if err == nil && (asked.Method == "NamespaceRights" || asked.Method == "Rights" && len(i.Namespaces) > 0) {
			err = i.checkNamespaced(asked)
		}
		if err != nil {
			return fmt.Errorf("%s: %s()[%d]: %w", asked.Part, asked.Method, asked.Index, err)
		}
		return nil
	})
}

func checkRule(rule rbacv1.PolicyRule) error {
	if len(rule.Verbs) == 0 || len(rule.NonResourceURLs) == 0 && (len(rule.APIGroups) == 0 || len(rule.Resources) == 0) {
		return errors.New(`needs APIGroups ("" is the core group), Resources and Verbs`)
	}
	for _, group := range rule.APIGroups {
		name, _, versioned := strings.Cut(group, "/")
		switch {
		case group == "v1" || group == "core":
			return fmt.Errorf(`APIGroups: %q: the core group is ""`, group)
		case versioned:
			return fmt.Errorf("APIGroups: %q: must be a group without a version, %q", group, name)
		}
	}
	for _, verb := range rule.Verbs {
		if meant := misnamed[verb]; meant != "" {
			return fmt.Errorf("Verbs: %q: is %s", verb, meant)
		}
		if verb != strings.ToLower(verb) {
			return fmt.Errorf("Verbs: %q: verbs are in lower case", verb)
		}
	}
	for _, resource := range rule.Resources {
		if near := nearest(rule.APIGroups, resource); near != "" {
			return fmt.Errorf("Kubernetes has no resource %s, but %s", schema.GroupResource{Group: rule.APIGroups[0], Resource: resource}, near)
		}
	}
	return nil
}

// misnamed are the verbs of people, and of HTTP.
var misnamed = map[string]string{
	"read": "get, list or watch", "write": "create, update or patch", "post": "create", "put": "update", "all": "*",
}

// nearest returns the resource of Kubernetes that is meant by one that none of its groups
// has, "" if that is unknown: API servers may be newer, and have names for RBAC alone.
func nearest(groups []string, resource string) string {
	resource, _, _ = strings.Cut(resource, "/")
	all := kinds.Builtin()
	ofKubernetes := func(group string) bool {
		for known := range all {
			if known.Group == group {
				return true
			}
		}
		return false
	}
	var near []string
	for _, group := range groups {
		if _, known := all[schema.GroupResource{Group: group, Resource: resource}]; known || !ofKubernetes(group) {
			return ""
		}
	}
	for known, kind := range all {
		if known.Resource == resource || slices.Contains(groups, known.Group) && strings.EqualFold(kind.Kind, resource) {
			near = append(near, known.String())
		}
	}
	slices.Sort(near)
	return strings.Join(near, ", ")
}

// requested are the verbs of requests for a resource itself. Others are asked about in a
// namespace, too: bind of a ClusterRole, when somebody makes a RoleBinding.
var requested = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// checkNamespaced returns an error for a resource that a Role cannot grant. It can grant the
// Namespace in which it is.
func (i *installer) checkNamespaced(asked host.Right) error {
	if len(asked.Rule.NonResourceURLs) > 0 {
		return fmt.Errorf("NonResourceURLs: no Role grants %s: ask by ClusterRights", strings.Join(asked.Rule.NonResourceURLs, ", "))
	}
	if !slices.ContainsFunc(asked.Rule.Verbs, func(verb string) bool { return slices.Contains(requested, verb) }) {
		return nil
	}
	for _, resource := range asked.Rule.Resources {
		resource, _, _ = strings.Cut(resource, "/")
		for _, group := range asked.Rule.APIGroups {
			kind, known := i.kinds.Of(schema.GroupResource{Group: group, Resource: resource})
			if known && !i.kinds.Namespaced(kind.GroupKind()) && kind.GroupKind() != (schema.GroupKind{Kind: "Namespace"}) {
				return fmt.Errorf("%s have no namespace, and %s grant only what is in one: ask by ClusterRights", resource, asked.Method)
			}
		}
	}
	return nil
}

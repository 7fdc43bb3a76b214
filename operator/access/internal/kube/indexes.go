package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The indexes of the cache.
const (
	// indexPod finds the Roles of the grants that are about a Pod.
	indexPod = "pod"
	// indexAsker finds the requests of a user by a template.
	indexAsker = "asker"
	// indexDecided finds the decisions about a request by its UID.
	indexDecided = "decided"
)

// Index adds the indexes, by which the methods of Connection list.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	errs := []error{
		indexer.IndexField(ctx, &rbacv1.Role{}, indexPod, func(obj client.Object) []string {
			return []string{grant.ChoiceOf(obj.(*rbacv1.Role)).Name}
		}),
		indexer.IndexField(ctx, &v1alpha1.AccessDecision{}, indexDecided, func(obj client.Object) []string {
			return []string{obj.(*v1alpha1.AccessDecision).Spec.Request.UID}
		}),
	}
	for _, kind := range grant.Kinds {
		errs = append(errs, indexer.IndexField(ctx, kind.NewRequest(), indexAsker, askers))
	}
	return errors.Join(errs...)
}

// RolesOf returns the Roles of the grants that are about a Pod.
func (c *Connection) RolesOf(ctx context.Context, pod types.NamespacedName) ([]rbacv1.Role, error) {
	var roles rbacv1.RoleList
	err := c.Cached.List(ctx, &roles, client.InNamespace(pod.Namespace), client.MatchingFields{indexPod: pod.Name})
	return roles.Items, err
}

// askers returns by what a request is found.
func askers(obj client.Object) []string {
	spec := obj.(v1alpha1.Request).GetRequestSpec()
	keys := []string{inNamespace(spec)}
	for _, user := range grant.Users(spec) {
		keys = append(keys, asker(spec, user))
	}
	return keys
}

// asker names a user and a template. No name of a template has a slash.
func asker(spec *v1alpha1.RequestSpec, user string) string { return spec.TemplateName + "/" + user }

// inNamespace names a user and no template.
func inNamespace(spec *v1alpha1.RequestSpec) string {
	if spec.Requester == nil {
		return ""
	}
	return "/" + spec.Requester.Username
}

// OthersWaiting returns the names of the other requests of the same user that wait for
// their templates, or have only just been made.
func (c *Connection) OthersWaiting(ctx context.Context, k grant.Kind, req v1alpha1.Request) (names []string, err error) {
	list := k.NewRequestList()
	if err := c.Cached.List(ctx, list, client.InNamespace(req.GetNamespace()), client.MatchingFields{indexAsker: inNamespace(req.GetRequestSpec())}); err != nil {
		return nil, fmt.Errorf("listing the requests of %s: %w", inNamespace(req.GetRequestSpec()), err)
	}
	now := c.Clock.Now()
	grant.EachRequest(list, func(other v1alpha1.Request) {
		found := meta.IsStatusConditionTrue(other.GetRequestStatus().Conditions, v1alpha1.ConditionTargetTemplateExists)
		if other.GetUID() != req.GetUID() && !found && other.GetDeletionTimestamp().IsZero() && !v1alpha1.Over(other, now) {
			names = append(names, other.GetName())
		}
	})
	slices.Sort(names)
	return names, nil
}

// OthersOpen returns the other open requests of the same users by the same template
// that which selects, sorted by name.
func (c *Connection) OthersOpen(ctx context.Context, k grant.Kind, req v1alpha1.Request, which func(v1alpha1.Request) bool) ([]v1alpha1.Request, error) {
	now := c.Clock.Now()
	var open []v1alpha1.Request
	for _, user := range grant.Users(req.GetRequestSpec()) {
		list, key := k.NewRequestList(), asker(req.GetRequestSpec(), user)
		if err := c.Cached.List(ctx, list, client.InNamespace(req.GetNamespace()), client.MatchingFields{indexAsker: key}); err != nil {
			return nil, fmt.Errorf("listing the requests of %s: %w", key, err)
		}
		grant.EachRequest(list, func(other v1alpha1.Request) {
			if other.GetUID() != req.GetUID() && k.IsOpen(other) && !v1alpha1.Over(other, now) && which(other) {
				open = append(open, other)
			}
		})
	}
	slices.SortFunc(open, func(x, y v1alpha1.Request) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return slices.CompactFunc(open, func(x, y v1alpha1.Request) bool { return x.GetUID() == y.GetUID() }), nil
}

// DecisionsAbout returns the decisions about a request.
func (c *Connection) DecisionsAbout(ctx context.Context, namespace, uid string) ([]v1alpha1.AccessDecision, error) {
	var list v1alpha1.AccessDecisionList
	if err := c.Cached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{indexDecided: uid}); err != nil {
		return nil, fmt.Errorf("listing the decisions about the request: %w", err)
	}
	return list.Items, nil
}

package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// listCommand returns the command that lists requests.
func (c *commands) listCommand() *cobra.Command {
	var mine, waiting, forMe bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls", "get"}, Short: "List requests and their remaining time",
	}
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you made")
	cmd.Flags().BoolVar(&waiting, "pending", false, "only those that wait for approval")
	cmd.Flags().BoolVar(&forMe, "for-me", false, "only those that wait for your approval")
	cmd.MarkFlagsMutuallyExclusive("mine", "for-me")
	return c.Listing(cmd, "requests", requestColumns, func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		objects, err := c.list(ctx, cl, scope, requestsOf)
		if waiting {
			objects = slices.DeleteFunc(objects, func(object client.Object) bool { return !pending(object.(request)) })
		}
		switch {
		case err != nil:
			return nil, err
		case mine:
			return ofMine(ctx, cl, objects)
		case forMe:
			return ofMyDecision(ctx, cl, objects)
		}
		return objects, nil
	})
}

// templatesCommand returns the command that lists templates.
func (c *commands) templatesCommand() *cobra.Command {
	var mine bool
	cmd := &cobra.Command{
		Use: "templates", Short: "List what you can request, who may request it, and for how long",
		Long: `List the templates: what can be requested, who may request it, and for how long.
--mine lists those that name you or one of your groups, where you may make the
request.`,
	}
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you may use")
	return c.Listing(cmd, "templates", templateColumns, func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		objects, err := c.list(ctx, cl, scope, func(k *kind) client.ObjectList { return k.templates() })
		if err != nil || !mine {
			return objects, err
		}
		return usable(ctx, cl, objects, "")
	})
}

func requestsOf(k *kind) client.ObjectList { return k.newList() }

// list returns the objects of all kinds, sorted by namespace, kind and name.
func (c *commands) list(ctx context.Context, cl client.Client, scope client.InNamespace, newList func(*kind) client.ObjectList) ([]client.Object, error) {
	var objects []client.Object
	for _, k := range kinds {
		found, err := cli.List(ctx, cl, newList(k), string(scope))
		if k.mayLack(err) {
			if apierrors.IsForbidden(err) {
				c.Sayf("%s are not listed: you have no right to list them", k.resource)
			}
			continue
		}
		if err != nil {
			return nil, cli.Explained(err)
		}
		objects = append(objects, found...)
	}
	slices.SortStableFunc(objects, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"\x00"+a.GetName(), b.GetNamespace()+"\x00"+b.GetName())
	})
	return objects, nil
}

// ofMine keeps the requests that the current user made, or that were made for them.
func ofMine(ctx context.Context, cl client.Client, objects []client.Object) ([]client.Object, error) {
	me, err := cli.WhoAmI(ctx, cl)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(objects, func(object client.Object) bool {
		spec := object.(request).GetRequestSpec()
		return spec.Grantee() != me.Username && (spec.Requester == nil || spec.Requester.Username != me.Username)
	}), nil
}

// usable keeps the templates that the current user may use, for the user onBehalf if that
// is not "": those that name the user or one of their groups, where RBAC lets them make
// the request.
func usable(ctx context.Context, cl client.Client, templates []client.Object, onBehalf string) ([]client.Object, error) {
	me, err := cli.WhoAmI(ctx, cl)
	if err != nil {
		return nil, err
	}
	type place struct {
		namespace string
		kind      *kind
	}
	may := map[place]bool{}
	var found []client.Object
	for _, object := range templates {
		if !mayUse(object.(v1alpha1.Template).GetAccessConfig(), me, onBehalf) {
			continue
		}
		at := place{object.GetNamespace(), kindOf(object)}
		if _, known := may[at]; !known {
			if may[at], err = mayCreate(ctx, cl, at.kind.resource, at.namespace); err != nil {
				return nil, cli.Explained(err)
			}
		}
		if may[at] {
			found = append(found, object)
		}
	}
	return found, nil
}

// mayUse reports whether a template lets a user ask, for the user onBehalf if that is
// not "".
func mayUse(config *v1alpha1.AccessConfig, me authenticationv1.UserInfo, onBehalf string) bool {
	users, groups := config.AllowedUsers, config.AllowedGroups
	if onBehalf != "" {
		if config.AskFor == nil || !slices.Contains(config.AllowedUsers, onBehalf) {
			return false
		}
		users, groups = config.AskFor.Users, config.AskFor.Groups
	}
	return slices.Contains(users, me.Username) || slices.ContainsFunc(me.Groups, func(group string) bool { return slices.Contains(groups, group) })
}

// mayCreate asks the API server whether the current user may create objects of a resource
// of ours.
func mayCreate(ctx context.Context, cl client.Client, resource, namespace string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "create", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: resource,
		},
	}}
	err := cl.Create(ctx, review)
	return review.Status.Allowed, err
}

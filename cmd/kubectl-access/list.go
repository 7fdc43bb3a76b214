package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listCommand returns the command that lists requests.
func (c *cli) listCommand() *cobra.Command {
	var mine bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls", "get"}, Short: "List requests and their remaining time",
	}
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you made")
	return c.listing(cmd, "requests", func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		objects, err := c.list(ctx, cl, scope, requestsOf)
		if err != nil || !mine {
			return objects, err
		}
		return ofMine(ctx, cl, objects)
	})
}

// templatesCommand returns the command that lists templates.
func (c *cli) templatesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "templates", Short: "List what you can request, who may request it, and for how long"}
	return c.listing(cmd, "templates", func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		return c.list(ctx, cl, scope, func(k *kind) client.ObjectList { return k.templates() })
	})
}

// listing makes a command that prints the objects that find returns.
func (c *cli) listing(cmd *cobra.Command, what string, find func(context.Context, client.Client, client.InNamespace) ([]client.Object, error)) *cobra.Command {
	var everywhere bool
	out := c.addOutputFlags(cmd)
	cmd.Args = exactly()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		show, err := out.listPrinter(everywhere)
		if err != nil {
			return err
		}
		cl, namespace, err := c.connect()
		if err != nil {
			return err
		}
		objects, err := find(cmd.Context(), cl, scope(namespace, everywhere))
		if err != nil {
			return err
		}
		if len(objects) == 0 {
			c.sayf("no %s found%s", what, in(namespace, everywhere))
		}
		return show(objects...)
	}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "of all namespaces")
	return cmd
}

func requestsOf(k *kind) client.ObjectList { return k.newList() }

func scope(namespace string, everywhere bool) client.InNamespace {
	if everywhere {
		return ""
	}
	return client.InNamespace(namespace)
}

func in(namespace string, everywhere bool) string {
	if everywhere {
		return ""
	}
	return " in namespace " + namespace
}

// list returns the objects of both kinds, sorted by namespace, kind and name.
func (c *cli) list(ctx context.Context, cl client.Client, scope client.InNamespace, newList func(*kind) client.ObjectList) ([]client.Object, error) {
	var objects []client.Object
	for _, k := range kinds {
		list := newList(k)
		if err := cl.List(ctx, list, scope); err != nil {
			return nil, explained(err)
		}
		each(list, func(object client.Object) { objects = append(objects, object) })
	}
	slices.SortStableFunc(objects, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"\x00"+a.GetName(), b.GetNamespace()+"\x00"+b.GetName())
	})
	return objects, nil
}

// ofMine keeps the requests of the current user.
func ofMine(ctx context.Context, cl client.Client, objects []client.Object) ([]client.Object, error) {
	review := &authenticationv1.SelfSubjectReview{}
	if err := cl.Create(ctx, review); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, explained(err)
	}
	return slices.DeleteFunc(objects, func(object client.Object) bool {
		by := object.(request).GetRequestSpec().Requester
		return by == nil || by.Username != review.Status.UserInfo.Username
	}), nil
}

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
	var everywhere, mine bool
	var output string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls", "get"}, Short: "List requests, and until when they give access",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, err := c.printer(output, everywhere)
			if err != nil {
				return err
			}
			cl, namespace, err := c.connect()
			if err != nil {
				return err
			}
			objects, err := c.list(cmd.Context(), cl, scope(namespace, everywhere), (*kind).requests)
			if err != nil {
				return err
			}
			if mine {
				if objects, err = ofMine(cmd.Context(), cl, objects); err != nil {
					return err
				}
			}
			if len(objects) == 0 {
				c.sayf("no requests found%s", in(namespace, everywhere))
			}
			return show(objects...)
		},
	}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "of all namespaces")
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you made")
	c.addOutputFlag(cmd, &output)
	return cmd
}

// templatesCommand returns the command that lists templates.
func (c *cli) templatesCommand() *cobra.Command {
	var everywhere bool
	var output string
	cmd := &cobra.Command{
		Use: "templates", Short: "List what may be asked for, by whom and for how long",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, err := c.printer(output, everywhere)
			if err != nil {
				return err
			}
			cl, namespace, err := c.connect()
			if err != nil {
				return err
			}
			objects, err := c.list(cmd.Context(), cl, scope(namespace, everywhere), func(k *kind) client.ObjectList { return k.templates() })
			if err != nil {
				return err
			}
			if len(objects) == 0 {
				c.sayf("no templates found%s", in(namespace, everywhere))
			}
			return show(objects...)
		},
	}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "of all namespaces")
	c.addOutputFlag(cmd, &output)
	return cmd
}

func (k *kind) requests() client.ObjectList { return k.newList() }

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

// ofMine keeps the requests of who asks.
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

package main

import (
	"context"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing makes a command that prints the objects that find returns.
func (c *cli) listing(cmd *cobra.Command, what string, columns []column, find func(context.Context, client.Client, client.InNamespace) ([]client.Object, error)) *cobra.Command {
	var everywhere bool
	out := c.addOutputFlags(cmd, columns)
	cmd.Args, cmd.ValidArgsFunction = exactly(), cobra.NoFileCompletions
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

// whoAmI returns the user that the API server takes the current one for.
func whoAmI(ctx context.Context, cl client.Client) (authenticationv1.UserInfo, error) {
	review := &authenticationv1.SelfSubjectReview{}
	err := cl.Create(ctx, review)
	return review.Status.UserInfo, explained(err)
}

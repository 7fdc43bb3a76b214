package cli

import (
	"context"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Listing makes a command that prints the objects that find returns.
func (c *Base) Listing(cmd *cobra.Command, what string, columns []Column, find func(context.Context, client.Client, client.InNamespace) ([]client.Object, error)) *cobra.Command {
	var everywhere bool
	out := c.AddOutputFlags(cmd, columns)
	cmd.Args, cmd.ValidArgsFunction = Exactly(), cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		show, err := out.ListPrinter(everywhere)
		if err != nil {
			return err
		}
		cl, namespace, err := c.Connect()
		if err != nil {
			return err
		}
		objects, err := find(cmd.Context(), cl, scope(namespace, everywhere))
		if err != nil {
			return err
		}
		if len(objects) == 0 {
			c.Sayf("no %s found%s", what, InNamespace(namespace, everywhere))
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

// InNamespace says where a command has looked.
func InNamespace(namespace string, everywhere bool) string {
	if everywhere {
		return ""
	}
	return " in namespace " + namespace
}

// WhoAmI returns the user that the API server takes the current one for.
func WhoAmI(ctx context.Context, cl client.Client) (authenticationv1.UserInfo, error) {
	review := &authenticationv1.SelfSubjectReview{}
	err := cl.Create(ctx, review)
	return review.Status.UserInfo, Explained(err)
}

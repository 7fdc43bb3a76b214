package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// completeTemplates completes the name of a template.
func (c *commands) completeTemplates(k *kind) cobra.CompletionFunc {
	return cli.FirstArgument(c.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		templates, err := cli.List(ctx, cl, k.templates(), namespace)
		return cli.Names(templates), err
	}))
}

// completeRequests completes the name of a request whose access has not ended.
func (c *commands) completeRequests(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return cli.FirstArgument(c.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		requests, err := c.list(ctx, cl, client.InNamespace(namespace), requestsOf)
		return cli.Names(slices.DeleteFunc(requests, func(object client.Object) bool { return v1alpha1.Over(object.(request), time.Now()) })), err
	}))(cmd, args, word)
}

// completeTargetPods completes the name of a Pod of the template's workload. Pods have
// names that begin with that of their workload.
func (a *ask) completeTargetPods(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.Completion(func(ctx context.Context, cl client.Client, namespace string, args []string) ([]string, error) {
		pods, err := cli.NamesOf(ctx, cl, "Pod", namespace)
		if err != nil || len(args) == 0 {
			return pods, err
		}
		_, workload, found := strings.Cut(args[0], "/")
		if !found {
			t := a.kind.newTemplate()
			if err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: args[0]}, t); err != nil {
				return pods, client.IgnoreNotFound(err)
			}
			workload = t.GetTargetRef().Name // which templates for exec have
		}
		return slices.DeleteFunc(pods, func(pod string) bool { return pod != workload && !strings.HasPrefix(pod, workload+"-") }), nil
	})(cmd, args, word)
}

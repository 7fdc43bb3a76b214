package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// completion returns the function that completes a word by what find returns. Who
// may not read that gets no completion.
func (c *cli) completion(find func(ctx context.Context, cl client.Client, namespace string, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl, namespace, err := c.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names, err := find(cmd.Context(), cl, namespace, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// first completes only the first argument.
func first(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, word)
	}
}

// completeTemplates completes the name of a template.
func (c *cli) completeTemplates(k *kind) cobra.CompletionFunc {
	return first(c.completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		templates, err := listOf(ctx, cl, k.templates(), namespace)
		return names(templates), err
	}))
}

// completeRequests completes the name of a request whose access has not ended.
func (c *cli) completeRequests(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return first(c.completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		requests, err := c.list(ctx, cl, client.InNamespace(namespace), requestsOf)
		return names(slices.DeleteFunc(requests, func(object client.Object) bool { return v1alpha1.Over(object.(request), time.Now()) })), err
	}))(cmd, args, word)
}

// completePods completes the name of a Pod.
func (c *cli) completePods(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		return namesOf(ctx, cl, "Pod", namespace)
	})(cmd, args, word)
}

// completeTargetPods completes the name of a Pod of the template's workload. Pods have
// names that begin with that of their workload.
func (a *ask) completeTargetPods(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completion(func(ctx context.Context, cl client.Client, namespace string, args []string) ([]string, error) {
		pods, err := namesOf(ctx, cl, "Pod", namespace)
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

// completeGlobal completes kubectl's own flags as kubectl does.
func (c *cli) completeGlobal(root *cobra.Command) {
	of := func(flag string, names func(clientcmdapi.Config) []string) {
		_ = root.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return names(config), cobra.ShellCompDirectiveNoFileComp
		})
	}
	of("context", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.Contexts)) })
	of("cluster", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.Clusters)) })
	of("user", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.AuthInfos)) })
	_ = root.RegisterFlagCompletionFunc("namespace", c.completion(func(ctx context.Context, cl client.Client, _ string, _ []string) ([]string, error) {
		return namesOf(ctx, cl, "Namespace", "")
	}))
}

// namesOf returns the names of the objects of a core kind.
func namesOf(ctx context.Context, cl client.Client, kind, namespace string) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
	objects, err := listOf(ctx, cl, list, namespace)
	return names(objects), err
}

// listOf returns the objects of a list in a namespace.
func listOf(ctx context.Context, cl client.Client, list client.ObjectList, namespace string) ([]client.Object, error) {
	if err := cl.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var objects []client.Object
	each(list, func(object client.Object) { objects = append(objects, object) })
	return objects, nil
}

// names returns the sorted names of objects.
func names(objects []client.Object) []string {
	all := make([]string, len(objects))
	for i, object := range objects {
		all[i] = object.GetName()
	}
	slices.Sort(all)
	return all
}

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Completion returns the function that completes a word by what find returns. Who
// may not read that gets no completion.
func (c *Base) Completion(find func(ctx context.Context, cl client.Client, namespace string, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl, namespace, err := c.Connect()
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

// FirstArgument completes only the first argument.
func FirstArgument(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, word)
	}
}

// CompletePods completes the name of a Pod.
func (c *Base) CompletePods(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		return NamesOf(ctx, cl, "Pod", namespace)
	})(cmd, args, word)
}

// completeGlobal completes kubectl's own flags as kubectl does.
func (c *Base) completeGlobal(root *cobra.Command) {
	of := func(flag string, names func(clientcmdapi.Config) []string) {
		_ = root.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			config, err := c.Flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return names(config), cobra.ShellCompDirectiveNoFileComp
		})
	}
	of("context", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.Contexts)) })
	of("cluster", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.Clusters)) })
	of("user", func(config clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(config.AuthInfos)) })
	_ = root.RegisterFlagCompletionFunc("namespace", c.Completion(func(ctx context.Context, cl client.Client, _ string, _ []string) ([]string, error) {
		return NamesOf(ctx, cl, "Namespace", "")
	}))
}

// NamesOf returns the names of the objects of a core kind.
func NamesOf(ctx context.Context, cl client.Client, kind, namespace string) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
	objects, err := List(ctx, cl, list, namespace)
	return Names(objects), err
}

// List returns the objects of a list in a namespace.
func List(ctx context.Context, cl client.Client, list client.ObjectList, namespace string) ([]client.Object, error) {
	if err := cl.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var objects []client.Object
	each(list, func(object client.Object) { objects = append(objects, object) })
	return objects, nil
}

// Names returns the sorted names of objects.
func Names(objects []client.Object) []string {
	all := make([]string, len(objects))
	for i, object := range objects {
		all[i] = object.GetName()
	}
	slices.Sort(all)
	return all
}

// each calls visit for every object of a list.
func each[T any](list client.ObjectList, visit func(T)) {
	_ = meta.EachListItem(list, func(object runtime.Object) error {
		item, ok := any(object).(T)
		if !ok {
			return fmt.Errorf("%T", object)
		}
		visit(item)
		return nil
	})
}

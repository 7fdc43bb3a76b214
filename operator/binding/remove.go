package binding

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

var _ extension.Remover = (*bindings)(nil)

// Remove implements [extension.Remover]: it deletes all bindings of its kind, since nobody
// would end them. The objects stay. An installation that comes later makes the bindings
// again whose time is not over, if their authors may bind the roles still.
func (r *bindings) Remove(ctx context.Context, mgr extension.Manager) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	live, err := cluster.NewClient(mgr, scheme)
	if err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	remover := newBindings(&shared{options: r.options, list: r.list, writer: live, live: live}, r.kind)
	if r.kind.name == inCluster.name {
		return remover.removeIn(ctx, "")
	}
	var errs []error
	for _, namespace := range r.list.each() {
		errs = append(errs, remover.removeIn(ctx, namespace))
	}
	return errors.Join(errs...)
}

// removeIn deletes the bindings in a namespace, "" for those in the whole cluster.
func (r *bindings) removeIn(ctx context.Context, namespace string) error {
	bindings, err := r.listOurs(ctx, namespace)
	if apierrors.IsForbidden(err) && namespace != "" && apierrors.IsNotFound(r.live.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{})) {
		return nil // the namespace is gone, and all in it
	}
	if err != nil {
		return fmt.Errorf("binding: listing what to remove: %w", err)
	}
	var errs []error
	for _, binding := range bindings {
		if isOurs(binding, nil) {
			errs = append(errs, r.remove(ctx, types.NamespacedName{Namespace: namespace, Name: binding.GetName()}, binding))
		}
	}
	return errors.Join(errs...)
}

// listOurs lists what carries our label.
func (r *bindings) listOurs(ctx context.Context, namespace string) (found []client.Object, err error) {
	labelled := client.MatchingLabels{v1alpha1.LabelManagedBy: managedBy}
	if r.kind.name == inCluster.name {
		var list rbacv1.ClusterRoleBindingList
		err = r.live.List(ctx, &list, labelled)
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, err
	}
	var list rbacv1.RoleBindingList
	err = r.live.List(ctx, &list, labelled, client.InNamespace(namespace))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, err
}

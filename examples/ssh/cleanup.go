package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
)

// Cleanup deletes keys that no Pod has. eirini-ssh had a Watcher for this, which does not know of the
// Pods that were deleted while it was down.
type Cleanup struct {
	host     extension.Manager
	patience time.Duration
}

// Register says that keys and Pods matter, of which only the metadata is kept.
func (c *Cleanup) Register(mgr extension.Manager) error {
	c.host = mgr
	toKey := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		name := object.GetLabels()[keyLabel]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
	})
	return builder.ControllerManagedBy(mgr.GetKubeManager()).Named("ssh-keys").
		WatchesMetadata(&corev1.Secret{}, toKey).WatchesMetadata(&corev1.Pod{}, toKey).Complete(c)
}

// Rights are those of the process that reconciles.
func (*Cleanup) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list", "watch", "delete"}},
	}
}

// Reconcile deletes one key if no Pod has it. Anyone can write a label on a Pod, so a Secret is ours
// only if it has the label itself.
func (c *Cleanup) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	kube := c.host.GetKubeManager()
	key := &metav1.PartialObjectMetadata{}
	key.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := kube.GetClient().Get(ctx, req.NamespacedName, key); err != nil || key.Labels[keyLabel] != key.Name {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// Until then its Pod may still be on its way.
	if wait := c.patience - c.host.GetClock().Since(key.CreationTimestamp.Time); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// The cache may not know of a Pod yet that the API server has.
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := kube.GetAPIReader().List(ctx, pods, client.InNamespace(req.Namespace), client.MatchingLabels{keyLabel: key.Name}, client.Limit(1)); err != nil || len(pods.Items) > 0 {
		return reconcile.Result{}, err
	}
	c.host.GetLogger().Infow("deleting the key of a Pod that is gone", "namespace", req.Namespace, "secret", req.Name)
	return reconcile.Result{}, client.IgnoreNotFound(kube.GetClient().Delete(ctx, key, client.Preconditions{UID: &key.UID}))
}

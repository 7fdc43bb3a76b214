// Command service keeps a Service for each app: one named as the label
// app.kubernetes.io/name of the Pods says, with the ports that these name, as
// long as there is a Pod.
package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const (
	app     = "app.kubernetes.io/name"
	managed = "app.kubernetes.io/managed-by"
)

// services is a Reconciler. Its requests name an app, not a Pod.
type services struct {
	client client.Client
}

// Register says which changes matter: of Pods, and of the Services themselves.
func (s *services) Register(mgr extension.Manager) error {
	kube := mgr.GetKubeManager()
	s.client = kube.GetClient()
	ofApp := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		name := object.GetLabels()[app]
		if len(validation.IsDNS1035Label(name)) > 0 {
			return nil // no name for a Service
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
	})
	return builder.ControllerManagedBy(kube).Named("service").Watches(&corev1.Pod{}, ofApp).Watches(&corev1.Service{}, ofApp).Complete(s)
}

// Rights are what `service manifests` asks for.
func (*services) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch", "create", "update", "delete"}},
	}
}

// Reconcile makes one app's Service as it should be, whatever was before.
func (s *services) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pods corev1.PodList
	if err := s.client.List(ctx, &pods, client.InNamespace(req.Namespace), client.MatchingLabels{app: req.Name}); err != nil {
		return reconcile.Result{}, err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	err := s.client.Get(ctx, req.NamespacedName, service)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	exists := err == nil
	if exists && service.Labels[managed] != "service" {
		return reconcile.Result{}, nil // somebody else's
	}
	ports := portsOf(pods.Items)
	switch {
	case len(ports) == 0 && !exists:
		return reconcile.Result{}, nil
	case len(ports) == 0:
		return reconcile.Result{}, client.IgnoreNotFound(s.client.Delete(ctx, service))
	}
	_, err = controllerutil.CreateOrUpdate(ctx, s.client, service, func() error {
		service.Labels = map[string]string{app: req.Name, managed: "service"}
		service.Spec.Selector = map[string]string{app: req.Name}
		service.Spec.Ports = ports
		return nil
	})
	return reconcile.Result{}, err
}

// portsOf returns the TCP ports that Pods name, in order.
func portsOf(pods []corev1.Pod) []corev1.ServicePort {
	ports := map[int32]corev1.ServicePort{}
	for _, pod := range pods {
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				if port.Protocol == corev1.ProtocolTCP {
					name := cmp.Or(port.Name, fmt.Sprintf("tcp-%d", port.ContainerPort))
					ports[port.ContainerPort] = corev1.ServicePort{
						Name: name, Protocol: corev1.ProtocolTCP, Port: port.ContainerPort, TargetPort: intstr.FromInt32(port.ContainerPort),
					}
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(ports), func(a, b corev1.ServicePort) int { return cmp.Compare(a.Port, b.Port) })
}

func main() {
	command.Main(command.New("service", func(mgr *manager.Manager) error {
		return mgr.AddExtension(&services{})
	}))
}

// Command annotator is a Reconciler: it annotates every Pod in a namespace with
// the number of its containers, also those that were there before it.
//
//	annotator start --namespace apps
package main

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const annotation = "example.admitkit.dev/containers"

// Annotator keeps an annotation on Pods.
type Annotator struct {
	client client.Client
}

// Register says what is watched: Pods, through the manager's cache.
func (a *Annotator) Register(mgr extension.Manager) error {
	kube := mgr.GetKubeManager()
	a.client = kube.GetClient()
	return builder.ControllerManagedBy(kube).Named("annotator").For(&corev1.Pod{}).Complete(a)
}

// Reconcile makes one Pod as it should be.
func (a *Annotator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := a.client.Get(ctx, req.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	want := strconv.Itoa(len(pod.Spec.Containers))
	if pod.Annotations[annotation] == want {
		return reconcile.Result{}, nil
	}
	before := client.MergeFrom(pod.DeepCopy())
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, want)
	return reconcile.Result{}, client.IgnoreNotFound(a.client.Patch(ctx, &pod, before))
}

// Rights are what `annotator manifests` asks for.
func (*Annotator) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "patch"}}}
}

func main() {
	command.Main(command.New("annotator", func(mgr *manager.Manager) error { return mgr.AddExtension(&Annotator{}) }))
}

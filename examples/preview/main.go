// Command preview runs preview environments: a Deployment for each PreviewEnvironment, a
// kind of its own (v1/types.go), until the environment's time to live is over.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/admitkit/admitkit/examples/preview/v1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const group, maxTTL = "preview.example.com", 72 * time.Hour

// setDefaults sets what no schema can know, too: who created it.
func setDefaults(_ context.Context, env *v1.PreviewEnvironment, req *extension.Request) error {
	env.Spec.TTL = cmp.Or(env.Spec.TTL, &metav1.Duration{Duration: 8 * time.Hour})
	env.Spec.RequestedBy = cmp.Or(env.Spec.RequestedBy, req.User().Username)
	return nil
}

func validate(_ context.Context, env *v1.PreviewEnvironment, req *extension.Request) error {
	if ttl := env.Spec.TTL.Duration; ttl <= 0 || ttl > maxTTL {
		return extension.Denyf("spec.ttl: %s: must be more than 0s and at most %s", ttl, maxTTL)
	}
	if creator := req.User().Username; req.Operation == "CREATE" && env.Spec.RequestedBy != creator {
		return extension.Denyf("spec.requestedBy: %q: must be you, %q", env.Spec.RequestedBy, creator)
	}
	return nil
}

// previews is the Reconciler.
type previews struct{ mgr extension.Manager }

// Register says which changes matter: of environments, and of what they own.
func (p *previews) Register(mgr extension.Manager) error {
	p.mgr = mgr
	return builder.ControllerManagedBy(mgr.GetKubeManager()).For(&v1.PreviewEnvironment{}).Owns(&appsv1.Deployment{}).Complete(p)
}

// Rights are those of the process that reconciles, and of no other.
func (*previews) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{"previewenvironments"}, Verbs: []string{"list", "watch", "delete"}},
		{APIGroups: []string{group}, Resources: []string{"previewenvironments/finalizers"}, Verbs: []string{"update"}}, // to own what is in it
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"list", "watch", "create", "update"}},
	}
}

// Reconcile runs an environment, and comes back for its end, by the API server's clock.
func (p *previews) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	kube, env := p.mgr.GetKubeManager().GetClient(), &v1.PreviewEnvironment{}
	err := kube.Get(ctx, req.NamespacedName, env)
	if err != nil || env.DeletionTimestamp != nil || env.Spec.TTL == nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	left := env.CreationTimestamp.Add(env.Spec.TTL.Duration).Sub(p.mgr.GetClock().Now())
	if left <= 0 { // unless somebody has just given it more time
		return reconcile.Result{}, client.IgnoreNotFound(kube.Delete(ctx, env, client.Preconditions{ResourceVersion: &env.ResourceVersion}))
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: env.Name}}
	_, err = controllerutil.CreateOrUpdate(ctx, kube, deployment, func() error {
		if deployment.UID != "" && !metav1.IsControlledBy(deployment, env) {
			return fmt.Errorf("Deployment %s: it is somebody else's", req)
		}
		template := &deployment.Spec.Template
		template.Labels = map[string]string{group + "/environment": env.Name}
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: template.Labels}
		template.Spec.Containers = append(template.Spec.Containers, corev1.Container{})[:1] // keeps its defaults
		template.Spec.Containers[0].Name, template.Spec.Containers[0].Image = "preview", env.Spec.Image
		return controllerutil.SetControllerReference(env, deployment, kube.Scheme()) // it goes with env
	})
	return reconcile.Result{RequeueAfter: left}, err
}

func admissions() (defaults, rules *extension.Handler) {
	scope := extension.Scope{Name: "preview", Rules: extension.Resources(group, "v1", []string{"previewenvironments"}, admissionregistrationv1.Create, admissionregistrationv1.Update)}
	return extension.MutatingFunc(setDefaults, scope), extension.ValidatingFunc(validate, scope)
}

func build(mgr *manager.Manager) error {
	defaults, rules := admissions()
	return errors.Join(mgr.AddExtension(defaults), mgr.AddExtension(rules), mgr.AddExtension(&previews{}))
}

// The manager's default scheme is client-go's, which has the built-in kinds.
func init() {
	clientgoscheme.Scheme.AddKnownTypes(v1.GroupVersion, &v1.PreviewEnvironment{}, &v1.PreviewEnvironmentList{})
	metav1.AddToGroupVersion(clientgoscheme.Scheme, v1.GroupVersion)
}

func main() { command.Main(command.New("preview", build)) }

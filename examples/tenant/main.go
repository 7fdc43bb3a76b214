// Command tenant writes the tenant of a namespace, and who pays for it, onto its Pods and
// PersistentVolumeClaims. A Pod in a namespace without a tenant is denied, and not
// admitted while the program is down. A claim is admitted in any case. A metric counts the
// Pods of each tenant.
//
//	tenant start --webhook-namespace tenant-system ...
package main

import (
	"context"
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// The Namespace has a label and an annotation, which its objects get.
const (
	tenant     = "example.admitkit.dev/tenant"
	costCentre = "example.admitkit.dev/cost-centre"
)

// tenants knows the Namespaces.
type tenants struct{ cache, live client.Reader }

var _ extension.Hosted = (*tenants)(nil)

// Reads says what the cache has to hold: here only the metadata.
func (t *tenants) Reads() []client.Object { return []client.Object{newNamespace()} }

// Register is called once, before the first admission.
func (t *tenants) Register(mgr extension.Manager) error {
	t.cache, t.live = mgr.GetKubeManager().GetClient(), mgr.GetKubeManager().GetAPIReader()
	return nil
}

func newNamespace() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

// mark writes the tenant onto an object. It reports whether the namespace has one.
func (t *tenants) mark(ctx context.Context, object client.Object, req *extension.Request) (bool, error) {
	namespace, key := newNamespace(), client.ObjectKey{Name: req.Namespace}
	err := t.cache.Get(ctx, key, namespace)
	if apierrors.IsNotFound(err) { // it was created a moment ago, and the cache is behind
		err = t.live.Get(ctx, key, namespace)
	}
	if err != nil || namespace.Labels[tenant] == "" {
		return false, err
	}
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[tenant] = namespace.Labels[tenant]
	if centre := namespace.Annotations[costCentre]; centre != "" {
		annotations[costCentre] = centre
	}
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
	return true, nil
}

// pods is the Mutator of Pods.
type pods struct{ *tenants }

func (p pods) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	marked, err := p.mark(ctx, pod, req)
	if err == nil && !marked {
		return extension.Denyf("namespace %s has no tenant: ask its owner to set the label %s", req.Namespace, tenant)
	}
	return err
}

// claims is the Mutator of PersistentVolumeClaims.
type claims struct{ *tenants }

func (c claims) Mutate(ctx context.Context, claim *corev1.PersistentVolumeClaim, req *extension.Request) error {
	marked, err := c.mark(ctx, claim, req)
	if err == nil && !marked {
		req.Warnf("namespace %s has no tenant: nobody pays for this claim", req.Namespace)
	}
	return err
}

var running = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tenant_pods", Help: "Pods by tenant."}, []string{"tenant"})

// counter is the Watcher. It gets one event at a time.
type counter struct{ tenantOf map[types.UID]string }

func (c *counter) Handle(_ context.Context, _ extension.Manager, event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return
	}
	before, counted := c.tenantOf[pod.UID]
	if counted {
		running.WithLabelValues(before).Dec()
		delete(c.tenantOf, pod.UID)
	}
	if now := pod.Labels[tenant]; event.Type != watch.Deleted && now != "" {
		running.WithLabelValues(now).Inc()
		c.tenantOf[pod.UID] = now
	}
}

var register = sync.OnceValue(func() error { return metrics.Registry.Register(running) })

func admissions() (ofPods, ofClaims *extension.Handler) {
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	t := &tenants{}
	return extension.Mutating(pods{t}, extension.Scope{Name: "pods", FailurePolicy: &fail}),
		extension.Mutating(claims{t}, extension.Scope{
			Name: "claims", FailurePolicy: &ignore,
			Rules: extension.Resources("", "v1", []string{"persistentvolumeclaims"}, admissionregistrationv1.Create),
		})
}

func build(mgr *manager.Manager) error {
	ofPods, ofClaims := admissions()
	return errors.Join(register(), mgr.AddExtension(ofPods), mgr.AddExtension(ofClaims), mgr.AddExtension(&counter{tenantOf: map[types.UID]string{}}))
}

func main() { command.Main(command.New("tenant", build)) }

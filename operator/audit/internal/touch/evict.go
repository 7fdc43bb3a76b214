package touch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Evictor evicts marked Pods when their time has come. It runs in the replica
// that leads, remembers nothing, and watches only Pods with the mark.
type Evictor struct {
	options Options
	clock   clock.PassiveClock

	// The following are set by Register.
	log    *zap.Logger
	events events.EventRecorder
	cached client.Reader
	writer client.Client
}

var _ extension.Reconciler = (*Evictor)(nil)

// NewEvictor returns an Evictor.
func NewEvictor(options Options, clock clock.PassiveClock) *Evictor {
	return &Evictor{options: options, clock: clock}
}

// Rights implements [extension.Entitled].
func (*Evictor) Rights() []rbacv1.PolicyRule {
	right := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	return []rbacv1.PolicyRule{
		right("", "pods", "get", "list", "watch"), right("", "pods/eviction", "create"), right("events.k8s.io", "events", "create", "patch"),
	}
}

// Register makes the controller, and a cache of marked Pods.
func (e *Evictor) Register(mgr extension.Manager) error {
	isTouched, err := labels.NewRequirement(Label, selection.Exists, nil)
	if err != nil {
		return err
	}
	own, err := cluster.New(mgr, cluster.Options{Name: "audit", ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: labels.NewSelector().Add(*isTouched), Transform: cluster.TrimPod},
	}})
	if err != nil {
		return err
	}
	kube := mgr.GetKubeManager()
	e.log = mgr.GetLogger().Desugar().Named("audit")
	e.events, e.cached, e.writer = kube.GetEventRecorder("admitkit-audit"), own.GetCache(), own.GetClient()
	c, err := controller.New("audit-touched-pods", kube, controller.Options{Reconciler: e})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return c.Watch(source.Kind[client.Object](own.GetCache(), &corev1.Pod{}, &handler.EnqueueRequestForObject{}))
}

// When an eviction is tried again.
const (
	// evictInterval applies when a PodDisruptionBudget puts it off.
	evictInterval = 10 * time.Second
	// staleInterval applies when the Pod has changed since it was read. The cache
	// is about to see the change.
	staleInterval = 100 * time.Millisecond
)

// Reconcile evicts a Pod that is due, and asks to be called again when another is.
func (e *Evictor) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := e.cached.Get(ctx, key.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if cluster.Ends(&pod) || ended || !e.evicts(&pod) {
		return reconcile.Result{}, nil
	}
	due, problem := e.options.due(&pod.ObjectMeta, e.clock.Now())
	if problem != "" {
		e.events.Eventf(&pod, nil, corev1.EventTypeWarning, "EvictionTime", "Evict", "%s; the Pod is evicted at %s", problem, due.UTC().Format(time.RFC3339))
	}
	if wait := due.Sub(e.clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return e.evict(ctx, &pod)
}

// evicts reports whether Pods like this one are evicted.
func (e *Evictor) evicts(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return e.options.Unmanaged
	}
	// An access Pod exists to be touched, and ends with its request.
	return owner.APIVersion != v1alpha1.GroupVersion.String()
}

// evict evicts the Pod exactly as it was read: when a user has just put its
// eviction off, its resource version has changed.
func (e *Evictor) evict(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, evictInterval)
	defer cancel()
	by := pod.Annotations[AnnotationTouchedBy]
	err := cluster.Evict(ctx, e.writer, pod)
	switch {
	case err == nil:
		evicted.Inc()
		e.log.Info("touched Pod evicted", zap.String("pod", pod.Namespace+"/"+pod.Name), zap.String("touchedBy", by))
		e.events.Eventf(pod, nil, corev1.EventTypeNormal, "TouchedPodEvicted", "Evict", "evicted after the session of %s", by)
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: staleInterval}, nil
	case errors.Is(err, cluster.ErrPutOff):
		putOff.Inc()
		e.events.Eventf(pod, nil, corev1.EventTypeWarning, "EvictionPutOff", "Evict", "a PodDisruptionBudget puts off the eviction after the session of %s", by)
		return reconcile.Result{RequeueAfter: evictInterval}, nil
	}
	return reconcile.Result{}, err
}

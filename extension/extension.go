package extension

import (
	"context"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Extension answers Pod admissions.
//
// Handle returns a response: usually mgr.PatchFromPod(req, pod) after changing
// the pod, or admission.Allowed, admission.Denied, admission.Errored. The zero
// response allows the Pod as it is. pod is the Pod with the changes of every
// extension that ran before, and never nil; on DELETE it is the Pod that is
// about to go. Extensions with the same scope run one after the other, those
// after a denial not at all.
type Extension interface {
	Handle(ctx context.Context, mgr Manager, pod *corev1.Pod, req admission.Request) admission.Response
}

// Watcher sees every event of the Pods in the manager's namespace that the
// manager's PodSelector selects: first an ADDED event for each Pod that already
// exists, then what happens to them. The events of a Pod come in order, from one
// ADDED to one DELETED. After a lost connection, a restart of the API server or
// an expired resource version nothing is lost but the states between: the next
// event of a Pod carries its present state, and a Pod that is gone is DELETED.
//
// Each Watcher gets events one at a time, and a slow one, or one that panics,
// delays no other: it has a queue of its own, and when that is full, it is told
// later what came of the rest. Handle should return when its context ends. The
// object of an event is shared between Watchers: copy before changing it.
type Watcher interface {
	Handle(ctx context.Context, mgr Manager, event watch.Event)
}

// LeaderElected is what a Watcher implements to say whether one replica is to
// watch, the one that leader election chooses, or each of them. Default: one,
// where the manager has leader election; a replica that is elected sees every Pod
// as ADDED, whatever the one before it has seen.
type LeaderElected interface {
	NeedLeaderElection() bool
}

// Reconciler is a controller. The manager calls Register once, when it starts
// and before anything runs; Register says what is to be watched, usually by
// ctrl.NewControllerManagedBy(mgr.GetKubeManager()).
type Reconciler interface {
	reconcile.Reconciler
	Hosted
}

// Hosted is what an extension of any form implements to learn its host
// before the first admission: Register is called once when the manager starts,
// and an error from it ends the start.
type Hosted interface {
	Register(mgr Manager) error
}

// Mutator changes obj in place; the library makes the patch. A Mutator sees the
// changes of those that ran before it, and may be called twice for the same
// object (reinvocation, a client's retry), so it must be idempotent. On DELETE
// obj is the object that is about to go, and a change to it is an error.
//
// T is a pointer to the type of the objects, for example *corev1.Pod or
// *unstructured.Unstructured. With *metav1.PartialObjectMetadata only the
// metadata is decoded. With runtime.Object each object is decoded into the Go
// type that the manager's scheme has for its kind, and into
// *unstructured.Unstructured when it has none.
type Mutator[T runtime.Object] interface {
	Mutate(ctx context.Context, obj T, req *Request) error
}

// Validator accepts an object by returning nil and denies it by returning
// [Deny]. On CONNECT obj is the options object, such as *corev1.PodExecOptions;
// on DELETE it is the object that is about to go. For T see [Mutator]. obj must
// not be changed.
type Validator[T runtime.Object] interface {
	Validate(ctx context.Context, obj T, req *Request) error
}

// MutatorFunc makes a function a [Mutator].
type MutatorFunc[T runtime.Object] func(ctx context.Context, obj T, req *Request) error

// Mutate calls f.
func (f MutatorFunc[T]) Mutate(ctx context.Context, obj T, req *Request) error {
	return f(ctx, obj, req)
}

// ValidatorFunc makes a function a [Validator].
type ValidatorFunc[T runtime.Object] func(ctx context.Context, obj T, req *Request) error

// Validate calls f.
func (f ValidatorFunc[T]) Validate(ctx context.Context, obj T, req *Request) error {
	return f(ctx, obj, req)
}

// Manager is what an extension may ask of its host.
type Manager interface {
	// GetContext returns the context of the manager's run. It ends when the
	// manager stops; before the start it is the context of the options.
	GetContext() context.Context
	// GetKubeManager returns the controller-runtime manager behind the
	// reconcilers, with its cache and client. It is nil before the start.
	GetKubeManager() manager.Manager
	// GetKubeConnection returns a copy of the connection's configuration.
	GetKubeConnection() (*rest.Config, error)
	// GetKubeClient returns a client that reads from the API server, uncached.
	GetKubeClient() (corev1client.CoreV1Interface, error)
	// GetLogger returns the manager's logger.
	GetLogger() *zap.SugaredLogger
	// GetNamespace returns the namespace that extensions apply to; empty means
	// every namespace.
	GetNamespace() string
	// GetWebhookNamespace returns the namespace that the manager itself is in.
	GetWebhookNamespace() string
	// GetFingerprint returns what tells this installation from others in its
	// namespace: a DNS label.
	GetFingerprint() string
	// PatchFromPod returns the response that turns the Pod of the request into
	// pod. Fields that the compiled API types do not know stay as they are.
	PatchFromPod(req admission.Request, pod *corev1.Pod) admission.Response
}

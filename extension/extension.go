package extension

import (
	"context"
	"crypto/tls"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Extension answers Pod admissions.
//
// Handle returns a response: usually mgr.PatchFromPod(req, pod) after changing
// the pod, or admission.Allowed, admission.Denied, admission.Errored. The zero
// response allows the Pod as it is. pod has the changes of every extension that
// ran before, and is never nil; on DELETE it is the Pod that is about to be
// deleted. Extensions with the same scope run one after the other. After a denial
// the rest do not run.
//
// An Extension that has a method Scope ([Scoped]) chooses its admissions;
// otherwise it gets Pods, on CREATE, in the watched namespaces.
type Extension interface {
	Handle(ctx context.Context, mgr Manager, pod *corev1.Pod, req admission.Request) admission.Response
}

// Watcher sees every event of the Pods in the watched namespaces that the
// manager's PodSelector selects: first an ADDED event for each Pod that already
// exists, then what happens to them. The events of a Pod come in order, from one
// ADDED to one DELETED. A lost connection, a restart of the API server or an
// expired resource version loses only the states in between: the next event of a
// Pod carries its present state, and a Pod that is gone is DELETED.
//
// Each Watcher gets one event at a time from a queue of its own, so that a slow
// one, or one that panics, delays no other. While its queue is full, events are
// dropped; afterwards the Watcher gets the difference between what it has seen and
// what there is. Handle should return when its context ends. Watchers share the
// object of an event: copy it before you change it.
//
// Handle is also the method of an [Extension], with other parameters. A type that
// wants both roles is a [Composite] of two parts. For objects of other kinds, or with
// another selector, use [WatcherOf].
type Watcher interface {
	Handle(ctx context.Context, mgr Manager, event watch.Event)
}

// LeaderElected is implemented by a Watcher to choose where it runs: in the
// replica that leader election chooses, or in each replica. Default: in the
// elected one, if the manager has leader election. A newly elected replica sees
// every Pod as ADDED, whatever its predecessor has seen.
type LeaderElected interface {
	NeedLeaderElection() bool
}

// Reconciler is a controller. The manager calls Register once, when it starts
// and before anything runs. Register says what to watch, usually by
// ctrl.NewControllerManagedBy(mgr.GetKubeManager()).
type Reconciler interface {
	reconcile.Reconciler
	Hosted
}

// Hosted is implemented by an extension of any form that wants to know its host
// before the first admission or event. The manager calls Register when it starts, in the
// process in which the extension runs, and once for each value, however many handlers are
// made of it; only a [Reconciler] is registered anew when leader election begins anew. An
// error ends the start.
type Hosted interface {
	Register(mgr Manager) error
}

// Mutator changes obj in place; the library makes the patch. Another object that it assigns
// to its parameter, such as obj.DeepCopy(), changes nothing. A Mutator sees the
// changes of those that ran before it, and may be called twice for the same
// object (reinvocation, a client's retry), so it must be idempotent. On DELETE
// obj is the object that is about to be deleted, and changing it is an error.
//
// T is a pointer to the type of the objects, for example *corev1.Pod or
// *unstructured.Unstructured. With *metav1.PartialObjectMetadata only the
// metadata is decoded. With runtime.Object each object is decoded into the Go type
// that the manager's scheme has for its kind, or into *unstructured.Unstructured
// if the scheme has none.
type Mutator[T runtime.Object] interface {
	Mutate(ctx context.Context, obj T, req *Request) error
}

// Validator accepts an object by returning nil and denies it by returning
// [Deny]. On CONNECT obj is the options object, such as *corev1.PodExecOptions;
// on DELETE it is the object that is about to be deleted. For T see [Mutator]. Do
// not change obj.
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
	// GetContext returns the context of the manager's run, which ends when the
	// manager stops. Before the start it is context.Background, or the context of
	// the options.
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
	// GetNamespaces returns the watched namespaces, sorted, which are those that extensions
	// apply to; none means every namespace.
	GetNamespaces() []string
	// GetWebhookNamespace returns the manager's own namespace.
	GetWebhookNamespace() string
	// GetExcludedNamespaces returns the namespaces that webhooks do not receive, but for
	// those whose scope selects [EveryNamespace]: do not act there.
	GetExcludedNamespaces() []string
	// GetFingerprint returns what tells this installation from others in the
	// manager's own namespace: a DNS label.
	GetFingerprint() string
	// GetRecorder returns what keeps the records of extensions: all extensions of this
	// manager that are a [Recorder]. Without one it keeps nothing.
	GetRecorder() Recorder
	// GetUnwrapper returns what finds the command that a user gave to an exec: it asks all
	// extensions of this manager that are an [Unwrapper]. Without one, no command is wrapped.
	GetUnwrapper() Unwrapper
	// GetReconcilerUser returns the user as which the reconcilers write, if they run in
	// another process of this installation, such as
	// system:serviceaccount:my-system:my-ext-reconciler. That process itself may return its
	// own user. It is empty if nobody is named: then they run as this process.
	GetReconcilerUser() string
	// GetServingCertificate returns a function for tls.Config.GetCertificate, with
	// which an extension serves a port of its own. The certificate is valid for the
	// hosts, which are DNS names and IP addresses, and verifies against the caBundle
	// of the webhook configurations. It is an error if the manager neither has a CA
	// to sign with nor a certificate that covers the hosts.
	GetServingCertificate(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error)
	// GetServingCA returns the certificates, in PEM, by which a client verifies that
	// certificate. It changes when the CA is rotated, and is an error before the manager
	// has a certificate and in a process that does not answer admissions.
	GetServingCA() ([]byte, error)
	// GetClock returns the time as the API server tells it, as far as its answers
	// show: to a second, and often better. Creation times are the API server's. So
	// whatever ends at a certain time after its creation should end by this clock:
	// this machine's may be wrong. Until the first answer it is this machine's.
	GetClock() clock.PassiveClock
	// PatchFromPod returns the response that turns the Pod of the request into
	// pod. Fields that the compiled API types do not know stay as they are.
	PatchFromPod(req admission.Request, pod *corev1.Pod) admission.Response
}

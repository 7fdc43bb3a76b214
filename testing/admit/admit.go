// Package admit runs extensions on objects with no cluster, for the unit tests of
// those who write them:
//
//	func TestEveryPodGetsAnOwner(t *testing.T) {
//		result := admit.New(t, stamp).As("alice").Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
//		if owner := result.Pod().Annotations["owner"]; owner != "alice" {
//			t.Errorf("the owner is %q", owner)
//		}
//	}
//
// A request takes the way that it has in a cluster: the scope decides whether an
// extension is called at all, the object travels as the JSON of an
// AdmissionReview, the extensions run one after the other, their patch is
// applied. What comes of it is the [Result].
//
// # The law
//
// Besides, each request checks what Kubernetes asks of every webhook
// (https://kubernetes.io/docs/concepts/cluster-administration/admission-webhooks-good-practices/),
// and fails the test by [testing.TB.Errorf] with the extension's name and the
// difference:
//
//   - called again with what came of the first call, an extension changes
//     nothing more, and denies nothing;
//   - it does nothing outside the object if its scope's SideEffects is None, and
//     nothing on a dry run if it is NoneOnDryRun, as far as it uses the clients
//     of its host;
//   - it leaves alone what says which object it is (metadata.name, namespace,
//     uid...), and on an UPDATE what the API server lets nobody change, such as
//     most of a Pod's spec;
//   - it sets no field that the kind does not have.
//
// So each request is sent three times: as it is, once more on the outcome, and as
// a dry run.
//
// # What is not here
//
// There are no defaults: a Pod that does not say its restartPolicy has none.
// Match conditions, which are CEL, count as true. For the rest of an API server
// see testing/controlplane, which starts a real one.
package admit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook"
)

// DefaultNamespace is where objects are that name no namespace.
const DefaultNamespace = "default"

// Client is someone who sends requests to an API server that has the extensions
// and nothing else. Make one with [New]; As, DryRun and the like return another
// one, which shares the extensions.
type Client struct {
	*server
	user            authenticationv1.UserInfo
	dryRun          bool
	namespace       string
	namespaceLabels map[string]string
}

// server is what clients share.
type server struct {
	t          testing.TB
	extensions []any
	scheme     *runtime.Scheme
	cluster    *cluster

	once   sync.Once
	host   *standIn
	engine *offline.Engine
}

// New returns a client of the extensions: each an [extension.Extension] or what
// [extension.Mutating] and [extension.Validating] make. They run in this order.
// The user is a member of system:masters.
func New(t testing.TB, extensions ...any) *Client {
	scheme := clientgoscheme.Scheme
	return &Client{
		server:    &server{t: t, extensions: extensions, scheme: scheme, cluster: newCluster(scheme)},
		user:      authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}},
		namespace: DefaultNamespace,
	}
}

// As returns a client of another user, who is in these groups, and in
// system:authenticated.
func (c *Client) As(user string, groups ...string) *Client {
	other := *c
	other.user = authenticationv1.UserInfo{Username: user, Groups: append(slices.Clone(groups), "system:authenticated")}
	return &other
}

// DryRun returns a client whose requests are dry runs.
func (c *Client) DryRun() *Client {
	other := *c
	other.dryRun = true
	return &other
}

// In returns a client for a namespace, with its labels if a scope selects by
// them. Objects that name no namespace are there.
func (c *Client) In(namespace string, labels map[string]string) *Client {
	other := *c
	other.namespace, other.namespaceLabels = namespace, maps.Clone(labels)
	return &other
}

// With puts objects into the cluster that the extensions find when they ask their
// host for a client. It is kept in memory, and knows create, get, list, update,
// patch and delete.
func (c *Client) With(objects ...runtime.Object) *Client {
	c.t.Helper()
	for _, object := range objects {
		encoded, err := c.encode(object)
		if err == nil {
			err = c.cluster.add(encoded)
		}
		if err != nil {
			c.t.Fatalf("admit: %v", err)
		}
	}
	return c
}

// WithScheme sets the Go types of kinds that are not built in. It has to come
// before the first request.
func (c *Client) WithScheme(scheme *runtime.Scheme) *Client {
	c.scheme = scheme
	c.cluster.setScheme(scheme)
	return c
}

// Manager returns the host of the extensions, for a look at what they did with
// its clients.
func (c *Client) Manager() extension.Manager {
	c.t.Helper()
	c.start()
	return c.host
}

// Create asks for the creation of an object.
func (c *Client) Create(object runtime.Object) *Result {
	c.t.Helper()
	return c.send(admissionv1.Create, object, nil)
}

// Update asks for an update of old to object.
func (c *Client) Update(old, object runtime.Object) *Result {
	c.t.Helper()
	return c.send(admissionv1.Update, object, old)
}

// Delete asks for the deletion of an object.
func (c *Client) Delete(object runtime.Object) *Result {
	c.t.Helper()
	return c.send(admissionv1.Delete, object, nil)
}

// Connect asks for a connection to the Pod, Service or Node of that name. The
// options say which: a *corev1.PodExecOptions is an exec.
func (c *Client) Connect(name string, options runtime.Object) *Result {
	c.t.Helper()
	object, err := c.encode(options)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	object.SetName(name)
	return c.sendEncoded(admissionv1.Connect, object, nil, options)
}

func (c *Client) send(operation admissionv1.Operation, object, old runtime.Object) *Result {
	c.t.Helper()
	encoded, err := c.encode(object)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	var encodedOld *unstructured.Unstructured
	if old != nil {
		if encodedOld, err = c.encode(old); err != nil {
			c.t.Fatalf("admit: %v", err)
		}
	}
	return c.sendEncoded(operation, encoded, encodedOld, object)
}

func (c *Client) sendEncoded(operation admissionv1.Operation, object, old *unstructured.Unstructured, like runtime.Object) *Result {
	c.t.Helper()
	c.start()
	req, err := offline.NewRequest(operation, object, old, c.namespace)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	req.User, req.DryRun, req.NamespaceLabels = c.user, c.dryRun, c.namespaceLabels
	out, err := c.engine.Admit(c.t.Context(), req)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	result, err := newResult(req, out, like)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	breaches, err := c.engine.Check(c.t.Context(), req, out, c.scheme)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	for _, breach := range breaches {
		c.t.Errorf("%s %s %s: extension %s", req.Operation, req.Kind.Kind, req.Name, breach)
	}
	return result
}

// encode returns an object as an API server would have it, with its kind.
func (c *Client) encode(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	encoded := &unstructured.Unstructured{Object: content}
	if encoded.GetKind() == "" {
		kind, err := apiutil.GVKForObject(object, c.scheme)
		if err != nil {
			return nil, err
		}
		encoded.SetGroupVersionKind(kind)
	}
	return encoded, nil
}

// start registers the extensions with their host, once.
func (s *server) start() {
	s.t.Helper()
	s.once.Do(func() {
		s.t.Helper()
		var err error
		if s.host, err = newHost(s.t, s.cluster, s.scheme); err != nil {
			s.t.Fatalf("admit: %v", err)
		}
		var parts host.Parts
		for _, x := range s.extensions {
			p, err := host.PartsOf(x, s.host)
			if err == nil && len(p.Handlers) == 0 {
				err = fmt.Errorf("%T answers no admissions", x)
			}
			if err != nil {
				s.t.Fatalf("admit: %v", err)
			}
			parts.Append(p)
		}
		if err := parts.Register(s.host); err != nil {
			s.t.Fatalf("admit: %v", err)
		}
		webhooks, err := webhook.Group(parts.Handlers, webhook.Defaults{})
		if err != nil {
			s.t.Fatalf("admit: %v", err)
		}
		s.engine = offline.New(webhooks, offline.Options{
			Webhook: webhook.HandlerOptions{Scheme: s.scheme, Logger: s.host.logger},
			Effects: s.cluster.takeWrites,
		})
	})
}

// Result is what became of a request.
type Result struct {
	// Allowed reports whether the request is admitted.
	Allowed bool
	// Reason is why not, as the user sees it.
	Reason string
	// Err is what went wrong in an extension. The failure policy decides whether
	// the request is admitted all the same.
	Err error
	// Object is the object after all changes, of the type of the one that was
	// sent; on a DELETE it is the one that was sent.
	Object runtime.Object
	// Diff is what the extensions changed, as a unified diff of YAML.
	Diff string
	// Called are the names of the extensions that were called, in order.
	Called []string
	// Warnings are what the user is warned of, and AuditAnnotations what goes to
	// the audit log, by WEBHOOK/EXTENSION.KEY.
	Warnings         []string
	AuditAnnotations map[string]string
}

// Pod returns the Pod after all changes. It panics if no Pod was sent.
func (r *Result) Pod() *corev1.Pod { return r.Object.(*corev1.Pod) }

func newResult(req *offline.Request, out *offline.Outcome, like runtime.Object) (*Result, error) {
	r := &Result{Allowed: out.Allowed, Warnings: out.Warnings, AuditAnnotations: out.AuditAnnotations, Object: like.DeepCopyObject()}
	if out.Status != nil {
		r.Reason = out.Status.Message
	}
	var errs []error
	for _, step := range out.Steps {
		r.Called = append(r.Called, step.Extension)
		errs = append(errs, step.Err)
	}
	r.Err = errors.Join(errs...)
	if req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
		return r, nil
	}
	r.Object = newLike(like)
	if err := wire.Decode(out.Object, r.Object); err != nil {
		return nil, err
	}
	var err error
	r.Diff, err = offline.Diff(req.Object, out.Object)
	return r, err
}

// Package admit runs extensions without a cluster, for unit tests:
//
//	func TestEveryPodGetsAnOwner(t *testing.T) {
//		result := admit.New(t, stamp).As("alice").Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
//		if owner := result.Pod().Annotations["owner"]; owner != "alice" {
//			t.Errorf("the owner is %q", owner)
//		}
//	}
//
// A request is handled as in a cluster: the scopes decide which extensions are
// called, the object travels as the JSON of an AdmissionReview, the extensions run
// in order, and their patch is applied. The [Result] has the outcome.
//
// # The law
//
// Each request also checks what Kubernetes asks of every webhook
// (https://kubernetes.io/docs/concepts/cluster-administration/admission-webhooks-good-practices/).
// For each breach, it calls [testing.TB.Errorf] with the name of the extension and
// the difference. An extension
//
//   - changes nothing more and denies nothing when it is called again with the
//     object that it changed;
//   - has no side effects if its scope's SideEffects is None, and none on a dry run
//     if it is NoneOnDryRun, as far as it uses the clients of its manager;
//   - does not change what identifies the object (metadata.name, namespace,
//     uid...) nor, on an UPDATE, what an API server refuses to change, such as most of
//     a Pod's spec, or ignores, such as its status, nor, on a CREATE, the status of a
//     custom kind that has the subresource;
//   - sets no field that the kind does not have, and keeps those that its Go types do
//     not have, because the API server may be newer;
//   - does not panic;
//   - changes nothing in vain, as a Validator does, and an [extension.Extension] that
//     changes the Pod but returns no patch;
//   - calls the API only with the rights that it asks for ([extension.Entitled],
//     [extension.NamespaceEntitled], [extension.ClusterEntitled], [extension.Reader]). A call without the right fails as
//     an API server's.
//
// Each request is therefore sent three times: as it is, with the resulting object,
// and as a dry run with fields that no type has.
//
// # Which extensions are called
//
// [Result.Called] has the extensions that were called, and [Result.NotCalled] says why
// the others were not. If nobody is called, the log of the test says why; after
// [Client.Strict] it is a failure. A scope that no request can ever match ends the test.
//
// # Caches
//
// The client of the manager, and a cache that an extension makes with
// extension/cluster.New, return what is in the cluster when they are read, so no test
// waits for them. Such a cache holds what its options select, has the indexes that the
// extension adds, and fails without an index as a cache does in a cluster. Reading it
// needs the rights list and watch. A selection by a field by which an API server does not
// select ends the test.
//
// # The cluster
//
// The API of the cluster answers as an API server does, which a test of this package
// compares: the fields that a list, a watch or a deletion may select by, deletions with
// preconditions and finalizers, dry runs, conflicts of UIDs and resource versions, the
// metadata that the API server sets, names and labels that it refuses, a status that only
// the subresource status changes, the events of a watch with a selector, and reviews of
// rights.
//
// # What is missing
//
// No event handler of a cache is called, because no controller runs.
//
// The cluster stores what it gets: an object may be in a namespace that does not exist, and
// its spec may be invalid. Nothing has a default, so a selection by spec.restartPolicy
// finds a Pod only if the object sets that. The phase of an object given by [Client.With]
// is what the test sets. Whether a custom kind has the subresource status, and by what it
// can be selected, is known once [Client.With] gets its CustomResourceDefinition.
//
// A deleted Pod is gone at once, without a grace period, and an eviction minds no
// disruption budget. A deletion ignores its propagation policy and takes no dependents
// with it, nor the objects of a Namespace. There are no field owners: a server-side apply
// is a merge patch, which replaces lists. Stored objects are not converted to other versions, and
// Events of v1 and of events.k8s.io are different ones. A list ignores its resource
// version. A request for the subresources scale, binding, log and token fails. No admission
// plugin and no extension sees the calls of extensions.
//
// admit sets no defaults: a Pod without a restartPolicy stays without one. It cannot
// determine everything by which an API server decides whether to call an extension,
// and never guesses silently: a test ends, with the remedy, if that depends on a
// match condition (see [Client.MatchConditions]), on a custom kind whose plural no rule
// names (see [Client.With]), or on the conversion of an object to another version. If you
// need the rest of an API server, testing/managertest runs extensions on a real one.
//
// # Recorded admissions
//
// [Client.Replay] sends admissions that a server recorded to the extensions, and fails the test
// if they answer differently.
//
// # Reconcilers
//
// A test of a Reconciler registers it with [Client.Manager], adds objects with
// [Client.With], and calls Reconcile itself: see the example of [Client.Manager]. No
// controller runs, and nothing reconciles by itself.
package admit

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/offline/memcluster"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook"
)

// DefaultNamespace is the namespace of objects that set none.
const DefaultNamespace = "default"

// Client sends requests to an API server that has the extensions and nothing else.
// [New] returns one. As, DryRun and In return another client with the same
// extensions and the same cluster.
type Client struct {
	*server
	user            authenticationv1.UserInfo
	dryRun          bool
	namespace       string
	namespaceLabels map[string]string
	conditions      map[string]bool
	subresource     string
	strict          bool
	chosen          bool // whether In chose the namespace
	used            *atomic.Bool
}

// server has what the clients of one New share.
type server struct {
	t          testing.TB
	extensions []any
	scheme     *runtime.Scheme
	cluster    *memcluster.Cluster

	mu      sync.Mutex
	started bool
	// host has the rights of the extensions, tests has all.
	host, tests *standIn
	engine      *offline.Engine
	webhooks    []*webhook.Webhook // of the engine
}

// New returns a client of the extensions. They run in this order. Each one is an
// [extension.Extension], an [extension.Handler] from [extension.Mutating] or
// [extension.Validating], or an [extension.Composite] of these. An [extension.Converter]
// converts objects for those whose rules name another version. The user is "admin"
// in the group system:masters. A value that answers no admissions ends the test at
// the first request. A client by which no request is sent, neither this one nor one made of it,
// fails the test at its end.
func New(t testing.TB, extensions ...any) *Client {
	t.Helper()
	scheme := clientgoscheme.Scheme
	c := &Client{
		server:    &server{t: t, extensions: extensions, scheme: scheme, cluster: memcluster.New(scheme)},
		user:      authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}},
		namespace: DefaultNamespace,
	}
	c.mustBeUsed("New", "so nothing is tested")
	return c
}

// mustBeUsed fails a test at whose end a client has neither sent a request nor made another
// client. A test that failed, or that -run restricts to a part, may not have come so far.
func (c *Client) mustBeUsed(maker, why string) {
	c.t.Helper()
	used := &atomic.Bool{}
	c.used = used
	c.t.Cleanup(func() {
		run := flag.Lookup("test.run")
		if used.Load() || c.t.Failed() || c.t.Skipped() || run != nil && strings.Contains(run.Value.String(), "/") {
			return
		}
		c.t.Errorf("admit: the client that %s returns sends no request: %s", maker, why)
	})
}

// another returns a copy of a client, which the method of this name changes.
func (c *Client) another(method string) *Client {
	c.t.Helper()
	c.used.Store(true)
	other := *c
	other.mustBeUsed(method, "it returns another client, and does not change its own")
	return &other
}

// As returns a client that acts as another user, who is a member of the groups and
// of system:authenticated.
func (c *Client) As(user string, groups ...string) *Client {
	c.t.Helper()
	if user == "" {
		c.t.Fatalf("admit: As: the user has no name")
	}
	other := c.another("As")
	other.user = authenticationv1.UserInfo{Username: user, Groups: append(slices.Clone(groups), "system:authenticated")}
	return other
}

// DryRun returns a client whose requests are dry runs.
func (c *Client) DryRun() *Client {
	c.t.Helper()
	other := c.another("DryRun")
	other.dryRun = true
	return other
}

// In returns a client that puts objects without a namespace into this one. As for kubectl,
// an object of another namespace is an error. The
// labels of the namespace matter to scopes with a NamespaceSelector. nil means those
// of the Namespace that With added, or none but its name.
func (c *Client) In(namespace string, labels map[string]string) *Client {
	c.t.Helper()
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		c.t.Fatalf("admit: In: %q: %s", namespace, strings.Join(problems, ", "))
	}
	other := c.another("In")
	other.namespace, other.namespaceLabels, other.chosen = namespace, maps.Clone(labels), true
	return other
}

// MatchConditions returns a client for whose requests the match conditions with these names
// evaluate to these results. It is for those that only a cluster can evaluate, because they
// ask the authorizer, or read the UID or extra of the user or the options of the client: a
// request that depends on one of them ends the test, and so does a name that no scope has.
// admit evaluates the others as an API server does.
func (c *Client) MatchConditions(results map[string]bool) *Client {
	c.t.Helper()
	other := c.another("MatchConditions")
	other.conditions = maps.Clone(results)
	return other
}

// Subresource returns a client whose Create and Update are requests for a subresource of
// the object, such as "status", "ephemeralcontainers", "scale" or "eviction". The
// extensions of "scale" get the Scale of the object that the test gives, and of
// "eviction" its Eviction. To give a Scale itself, name what it scales:
// "deployments.apps/scale". For exec and the like see [Client.Connect].
func (c *Client) Subresource(name string) *Client {
	c.t.Helper()
	other := c.another("Subresource")
	other.subresource = name
	return other
}

// Strict returns a client for which a request that reaches no extension is a failure of
// the test.
func (c *Client) Strict() *Client {
	c.t.Helper()
	other := c.another("Strict")
	other.strict = true
	return other
}

// With adds objects to the cluster that the extensions see through the clients of
// their manager. The clients of one New share this cluster. It is in memory and
// supports create, get, list, watch, update, patch and delete. A
// CustomResourceDefinition says which resource its kind is and whether that has a
// namespace, which admit knows only of the kinds of Kubernetes. With returns c.
func (c *Client) With(objects ...runtime.Object) *Client {
	c.t.Helper()
	for _, object := range objects {
		encoded, err := c.encode(object)
		if err == nil {
			err = c.cluster.Add(encoded)
		}
		if err != nil {
			c.t.Fatalf("admit: %v", err)
		}
	}
	return c
}

// WithScheme sets the scheme, for kinds that are not built in. Call it before the
// first request. Default: the scheme of client-go. The clients of one New share the
// scheme. WithScheme returns c.
func (c *Client) WithScheme(scheme *runtime.Scheme) *Client {
	c.t.Helper()
	switch {
	case scheme == nil:
		c.t.Fatalf("admit: WithScheme: the scheme is nil")
	case c.isStarted():
		c.t.Fatalf("admit: WithScheme: after the first request: call it before")
	}
	c.scheme = scheme
	c.cluster.SetScheme(scheme)
	return c
}

// Authorize sets who may do what, for the SubjectAccessReviews and
// LocalSubjectAccessReviews that extensions make. A SelfSubjectAccessReview is answered by
// the rights of the extensions. The function must not use the cluster. Default: nobody may
// do anything. The clients of one New share it. Authorize returns c.
func (c *Client) Authorize(may func(authorizationv1.SubjectAccessReviewSpec) bool) *Client {
	c.cluster.SetAuthorizer(may)
	return c
}

// Manager returns a manager like that of the extensions, with all rights. Use its clients
// to see what the extensions did in the cluster.
func (c *Client) Manager() extension.Manager {
	c.t.Helper()
	c.used.Store(true)
	c.start()
	return c.tests
}

// Create requests the creation of an object.
func (c *Client) Create(object runtime.Object) *Result {
	c.t.Helper()
	return c.send(admissionv1.Create, object, nil)
}

// Update requests an update of old to object.
func (c *Client) Update(old, object runtime.Object) *Result {
	c.t.Helper()
	c.used.Store(true)
	if old == nil {
		c.t.Fatalf("admit: the old object of an UPDATE is nil")
	}
	if old == object {
		c.t.Fatalf("admit: the old and the new object of an UPDATE are one: change a DeepCopy of it")
	}
	return c.send(admissionv1.Update, object, old)
}

// Delete requests the deletion of an object.
func (c *Client) Delete(object runtime.Object) *Result {
	c.t.Helper()
	return c.send(admissionv1.Delete, object, nil)
}

// Connect requests a connection to the Pod, Service or Node with this name. The type
// of the options decides which connection: *corev1.PodExecOptions is an exec.
func (c *Client) Connect(name string, options runtime.Object) *Result {
	c.t.Helper()
	c.used.Store(true)
	object, err := c.encode(options)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	object.SetName(name)
	return c.sendEncoded(admissionv1.Connect, object, nil, options)
}

func (c *Client) send(operation admissionv1.Operation, object, old runtime.Object) *Result {
	c.t.Helper()
	c.used.Store(true)
	if object == nil {
		c.t.Fatalf("admit: the object of a %s is nil", operation)
	}
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
	if c.chosen && object.GetNamespace() != "" && object.GetNamespace() != c.namespace {
		c.t.Fatalf("admit: the %s is in the namespace %s, and the client in %s", object.GetKind(), object.GetNamespace(), c.namespace)
	}
	c.start()
	if unknown := c.engine.UnknownConditions(slices.Sorted(maps.Keys(c.conditions))); len(unknown) > 0 {
		c.t.Fatalf("admit: MatchConditions: no scope has the match condition %s", strings.Join(unknown, ", "))
	}
	known := offline.KindsOf(c.cluster.Kinds)
	newRequest := known.NewRequest
	if c.subresource != "" && operation != admissionv1.Connect {
		newRequest = func(operation admissionv1.Operation, object, old *unstructured.Unstructured, namespace string) (*offline.Request, error) {
			return known.NewSubresourceRequest(operation, c.subresource, object, old, namespace)
		}
	}
	req, err := newRequest(operation, object, old, c.namespace)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	req.User, req.DryRun, req.MatchConditions = c.user, c.dryRun, c.conditions
	if req.NamespaceLabels = c.namespaceLabels; req.NamespaceLabels == nil {
		req.NamespaceLabels = c.cluster.NamespaceLabels(req.Namespace)
	}
	if req.NamespaceLabels == nil {
		req.NamespaceLabels = map[string]string{}
	}
	out, err := c.engine.Admit(c.t.Context(), req)
	if err != nil {
		c.t.Fatalf("admit: %v", remedied(err))
	}
	result, err := newResult(req, out, like)
	if err != nil {
		c.t.Fatalf("admit: %v", err)
	}
	breaches, err := c.engine.Check(c.t.Context(), req, out, c.scheme)
	if err != nil {
		c.t.Fatalf("admit: %v", remedied(err))
	}
	for _, breach := range breaches {
		c.t.Errorf("%s %s %s: extension %s", req.Operation, req.Kind.Kind, req.Name, breach)
	}
	c.tellNobodyCalled(req, out)
	return result
}

// tellNobodyCalled says why no extension was called, if so.
func (c *Client) tellNobodyCalled(req *offline.Request, out *offline.Outcome) {
	c.t.Helper()
	if len(out.Steps) > 0 {
		return
	}
	tell := c.t.Logf
	if c.strict {
		tell = c.t.Errorf
	}
	if len(out.NotCalled) == 0 {
		c.t.Errorf("%s %s %s: there is no extension that answers admissions: give one to New", req.Operation, req.Kind.Kind, req.Name)
	}
	for _, not := range out.NotCalled {
		tell("%s %s %s: extension %s is not called: %s", req.Operation, req.Kind.Kind, req.Name, not.Webhook.Name, not.Reason)
	}
}

// remedies say where a test gives what the engine does not know.
var remedies = map[offline.Fact]string{
	offline.TheKind:       "add its CustomResourceDefinition by With",
	offline.TheVersion:    "send the object in a version that the rules name, or name this one, too",
	offline.TheConditions: "give its result by MatchConditions",
}

// remedied adds the remedy to an error that has one.
func remedied(err error) error {
	if unknown, ok := errors.AsType[*offline.Unknown](err); ok {
		return fmt.Errorf("%w: %s", err, remedies[unknown.Fact])
	}
	return err
}

// encode returns an object as an API server sees it, with its kind.
func (c *Client) encode(object runtime.Object) (*unstructured.Unstructured, error) {
	if object == nil {
		return nil, errors.New("an object is nil")
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	encoded := &unstructured.Unstructured{Object: content}
	if encoded.GetKind() == "" {
		kind, err := apiutil.GVKForObject(object, c.scheme)
		if runtime.IsNotRegisteredError(err) {
			return nil, fmt.Errorf("%w: give its scheme by WithScheme, or set the object's apiVersion and kind", err)
		}
		if err != nil {
			return nil, err
		}
		encoded.SetGroupVersionKind(kind)
	}
	return encoded, nil
}

func (s *server) isStarted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// start registers the extensions with their manager, once.
func (s *server) start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return
	}
	s.started = true
	if err := s.makeEngine(); err != nil {
		s.t.Fatalf("admit: %v", err)
	}
}

func (s *server) makeEngine() (err error) {
	account := s.cluster.NewAccount()
	if s.host, err = newHost(s.t, account, s.cluster.Kinds, s.scheme); err != nil {
		return err
	}
	if s.tests, err = newHost(s.t, s.cluster, s.cluster.Kinds, s.scheme); err != nil {
		return err
	}
	var parts host.Parts
	for _, x := range s.extensions {
		p, err := host.PartsOf(x, s.host)
		if err == nil && len(p.Handlers)+len(p.Converters) == 0 {
			err = fmt.Errorf("%T answers no admissions", x)
		}
		if err != nil {
			return err
		}
		parts.Append(p)
	}
	if err := parts.Check(); err != nil {
		return err
	}
	if err := s.restrict(account, &parts); err != nil {
		return err
	}
	err = parts.Register(s.host)
	for _, w := range parts.Watchers {
		err = errors.Join(err, parts.RegisterWatcher(s.host, w))
	}
	if err != nil {
		return err
	}
	webhooks, err := webhook.Group(parts.Handlers, webhook.Defaults{Protected: deadlock.Namespaces(s.host.GetWebhookNamespace())})
	if err == nil {
		err = offline.KindsOf(s.cluster.Kinds).Check(webhooks)
	}
	s.webhooks = webhooks
	s.engine = offline.New(webhooks, offline.Options{
		Webhook: webhook.HandlerOptions{Scheme: s.scheme, Logger: s.host.logger},
		Effects: s.cluster.TakeWrites, Forbidden: s.cluster.TakeForbidden, Converters: parts.Converters,
	})
	return err
}

// restrict restricts an account, and what can be read by the client of the manager, to those
// of the process that answers admissions. The manager has no namespace, so the rights in the
// watched namespace are in the whole cluster.
func (s *server) restrict(account *memcluster.Account, parts *host.Parts) error {
	reads, err := parts.Reads(s.scheme, host.Serves)
	if err != nil {
		return err
	}
	s.host.guard.Declare(reads)
	asked, rights := parts.ServerRights(), &memcluster.Rights{}
	for _, read := range reads {
		rule, _, known := s.cluster.Kinds.ReadRule(read.Kind.GroupKind())
		if !known {
			return fmt.Errorf("Reads of %s: the plural of %s is not known: %s", read.Part, read.Kind.GroupKind(), remedies[offline.TheKind])
		}
		rights.Grant("", rule)
	}
	rights.Grant("", slices.Concat(asked.Watched, asked.Cluster)...)
	for namespace, rules := range asked.Namespaces {
		rights.Grant(namespace, rules...)
	}
	account.Restrict(rights)
	return nil
}

// Result is the outcome of a request.
type Result struct {
	// Allowed reports whether the request was allowed.
	Allowed bool
	// Reason says why the request was refused, as the user sees it.
	Reason string
	// Err joins the errors of the extensions. The failure policies decide whether the
	// request was allowed in spite of them.
	Err error
	// Object is the object after all changes, with the type of the object that was
	// sent, or a *autoscalingv1.Scale for the subresource scale. On a DELETE, a CONNECT and
	// an eviction it is a copy of what was sent.
	Object runtime.Object
	// Diff shows what the extensions changed, as a unified diff of YAML.
	Diff string
	// Called has the names of the extensions that were called, in order.
	Called []string
	// NotCalled says why the API server does not call the other webhooks, by the name of
	// the webhook, which is that of its scope.
	NotCalled map[string]string
	// Warnings are the warnings that the user sees.
	Warnings []string
	// AuditAnnotations go to the audit log. Their keys are WEBHOOK/EXTENSION.KEY.
	AuditAnnotations map[string]string
}

// Pod returns Object as a Pod. It panics if Object is not a Pod.
func (r *Result) Pod() *corev1.Pod { return r.Object.(*corev1.Pod) }

func newResult(req *offline.Request, out *offline.Outcome, like runtime.Object) (*Result, error) {
	r := &Result{
		Allowed: out.Allowed, Warnings: out.Warnings, AuditAnnotations: out.AuditAnnotations, Object: like.DeepCopyObject(),
		NotCalled: map[string]string{},
	}
	for _, not := range out.NotCalled {
		r.NotCalled[not.Webhook.RegisteredName()] = not.Reason
	}
	if out.Status != nil {
		r.Reason = out.Status.Message
	}
	var errs []error
	for _, step := range out.Steps {
		r.Called = append(r.Called, step.Extension)
		errs = append(errs, step.Err)
	}
	r.Err = errors.Join(errs...)
	isObject := req.SubResource == "" && req.Operation == admissionv1.Create || req.Operation == admissionv1.Update
	if !isObject {
		return r, nil
	}
	r.Object = newLike(like)
	if _, untyped := like.(runtime.Unstructured); !untyped && req.SubResource == "scale" {
		r.Object = &autoscalingv1.Scale{}
	}
	if err := wire.Decode(out.Object, r.Object); err != nil {
		return nil, err
	}
	var err error
	r.Diff, err = offline.Diff(req.Object, out.Object)
	return r, err
}

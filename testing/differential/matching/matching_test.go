// Package matching compares the decision of internal/offline, whether an API server
// calls a webhook, with that of k8s.io/apiserver itself, for random webhooks and
// admissions. It is a test in a module of its own: the admission plugin for webhooks is
// more of k8s.io/apiserver than users of admitkit should have to compile.
package matching_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/authentication/user"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
)

// The test draws batches: so many webhooks times so many admissions.
const (
	hooksOfABatch      = 50
	admissionsOfABatch = 50
	shortBatches       = 8
	longBatches        = 480
)

// server is the admission plugin of k8s.io/apiserver for webhooks. Its dispatcher
// asks which webhooks to call, and calls none.
type server struct {
	*generic.Webhook
	hooks   []webhook.WebhookAccessor
	verdict []*generic.WebhookInvocation
	errs    []error
}

func (s *server) Webhooks() []webhook.WebhookAccessor { return s.hooks }
func (s *server) HasSynced() bool                     { return true }

// Dispatch implements generic.Dispatcher.
func (s *server) Dispatch(ctx context.Context, attr admission.Attributes, o admission.ObjectInterfaces, hooks []webhook.WebhookAccessor) error {
	for i, h := range hooks {
		invocation, err := s.ShouldCallHook(ctx, h, attr, o, asIs{attr, o})
		s.verdict[i] = invocation
		if err != nil {
			s.errs[i] = err
		}
	}
	return nil
}

// asIs gives match conditions the object in the version of the request: only an API server
// can convert it. See readsVersion.
type asIs struct {
	attr admission.Attributes
	o    admission.ObjectInterfaces
}

func (a asIs) VersionedAttribute(schema.GroupVersionKind) (*admission.VersionedAttributes, error) {
	return admission.NewVersionedAttributes(a.attr, a.attr.GetKind(), a.o)
}

// newServer starts the plugin in a cluster with these namespaces.
func newServer(t *testing.T, namespaces map[string]map[string]string) *server {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://nobody.invalid"})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{verdict: make([]*generic.WebhookInvocation, hooksOfABatch), errs: make([]error, hooksOfABatch)}
	s.Webhook, err = generic.NewWebhook(
		admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect), nil,
		func(informers.SharedInformerFactory, sets.Set[schema.GroupResource]) generic.Source { return s },
		func(*webhookutil.ClientManager) generic.Dispatcher { return s })
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	s.SetExternalKubeClientSet(client)
	s.SetExternalKubeInformerFactory(factory)
	s.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	// The list of k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion.
	s.SetExcludedAdmissionResources([]schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	})
	for name, labels := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if err := factory.Core().V1().Namespaces().Informer().GetIndexer().Add(namespace); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	s.SetReadyFunc(func() bool { return true }) // the informer has its namespaces
	return s
}

// ask returns for each webhook whether the API server calls it, and as what.
func (s *server) ask(t *testing.T, attr admission.Attributes, o admission.ObjectInterfaces) {
	t.Helper()
	clear(s.verdict)
	clear(s.errs)
	if err := s.Webhook.Dispatch(t.Context(), attr, o); err != nil {
		t.Fatal(err)
	}
}

// interfaces are what an API server with all these kinds gives its plugins.
type interfaces struct {
	admission.ObjectInterfaces
	mapper runtime.EquivalentResourceMapper
}

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return i.mapper }

func newInterfaces(kinds []kind) interfaces {
	// In kube-apiserver the key is the place in etcd: both kinds of events have one.
	registry := runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string {
		if resource.Resource == "events" && (resource.Group == "" || resource.Group == "events.k8s.io") {
			return "events"
		}
		return ""
	})
	for _, k := range kinds {
		registry.RegisterKindFor(k.gvr(), k.subresource, k.gvk)
	}
	return interfaces{admission.NewObjectInterfacesFromScheme(clientgoscheme.Scheme), registry}
}

// conditions are match conditions about everything that offline tells k8s.io/apiserver of a
// request. Some fail for some requests.
var conditions = []string{
	"true",
	"false",
	"request.operation == 'CREATE'",
	"!has(request.subResource) || request.subResource != 'exec'",
	"request.userInfo.username == 'alice'",
	"!('system:masters' in request.userInfo.groups) || !has(request.namespace) || request.namespace != 'kube-system'",
	"request.name == 'web' && !request.dryRun",
	"request.resource.resource in ['pods', 'namespaces', 'gateways'] || request.requestKind.version == 'v1' && request.requestKind.group != ''",
	"request.kind == request.requestKind",
	"object != null && oldObject == null",
	"has(object.status)",
	"object.metadata.labels.team == 'a'",
	"oldObject.metadata.name == 'db'",
	"object == oldObject",
	"object.kind != 'Pod' || object.apiVersion == 'v1'",
}

// readsVersion reports whether a condition of a scope depends on the version of the object.
func readsVersion(scope extension.Scope) bool {
	return slices.ContainsFunc(scope.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
		return strings.Contains(strings.ToLower(c.Expression), "object") || strings.Contains(c.Expression, "request.kind")
	})
}

// arrival is an admission as the API server gets it.
type arrival struct {
	kind            kind
	operation       admissionv1.Operation
	namespace, name string
	user            string
	object, old     *unstructured.Unstructured
	// sent is the manifest, which may leave the namespace out.
	sent *unstructured.Unstructured
}

// drawer draws what the test compares.
type drawer struct {
	*rand.Rand
	kinds      []kind
	namespaces map[string]map[string]string
}

func pick[T any](d *drawer, values ...T) T { return values[d.IntN(len(values))] }

func (d *drawer) chance(percent int) bool { return d.IntN(100) < percent }

func (d *drawer) labels() map[string]string {
	if d.chance(25) {
		return nil
	}
	set := map[string]string{}
	for _, key := range []string{"app", "team", "env"} {
		if d.chance(50) {
			set[key] = pick(d, "a", "b", "")
		}
	}
	return set
}

func (d *drawer) selector(keys ...string) *metav1.LabelSelector {
	switch d.IntN(10) {
	case 0, 1, 2, 3:
		return nil
	case 4:
		return &metav1.LabelSelector{}
	}
	selector := &metav1.LabelSelector{}
	value := func(key string) string {
		if key == corev1.LabelMetadataName {
			return pick(d, slices.Sorted(maps.Keys(d.namespaces))...)
		}
		return pick(d, "a", "b", "")
	}
	for range d.IntN(3) {
		key := pick(d, keys...)
		r := metav1.LabelSelectorRequirement{Key: key, Operator: pick(d,
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + d.IntN(2) {
				r.Values = append(r.Values, value(key))
			}
		}
		selector.MatchExpressions = append(selector.MatchExpressions, r)
	}
	if len(selector.MatchExpressions) == 0 || d.chance(25) {
		key := pick(d, keys...)
		selector.MatchLabels = map[string]string{key: value(key)}
	}
	return selector
}

// some returns a wildcard, or a few of the values.
func some[T ~string](d *drawer, wildcard int, values ...T) []T {
	if d.chance(wildcard) {
		return []T{"*"}
	}
	var all []T
	for range 1 + d.IntN(2) {
		all = append(all, pick(d, values...))
	}
	return all
}

func (d *drawer) rule() admissionregistrationv1.RuleWithOperations {
	topic, other := pick(d, d.kinds...), pick(d, d.kinds...)
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: some(d, 60, admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete, admissionregistrationv1.Connect),
		Rule: admissionregistrationv1.Rule{
			APIGroups:   some(d, 40, topic.gvk.Group, topic.gvk.Group, other.gvk.Group),
			APIVersions: some(d, 40, topic.gvk.Version, topic.gvk.Version, "v1", "v1beta1", "v2"),
			Scope: pick(d, nil, nil, new(admissionregistrationv1.AllScopes),
				new(admissionregistrationv1.ClusterScope), new(admissionregistrationv1.NamespacedScope)),
		},
	}
	for range 1 + d.IntN(2) {
		name := pick(d, topic.resource, topic.resource, other.resource, "*", "*")
		subresource := pick(d, "", "/*", "/"+topic.subresource, "/"+topic.subresource, "/status", "/exec")
		rule.Resources = append(rule.Resources, strings.TrimSuffix(name+subresource, "/"))
	}
	return rule
}

func (d *drawer) scope(name string) extension.Scope {
	scope := extension.Scope{
		Name:              name,
		NamespaceSelector: d.selector("app", "team", "env", corev1.LabelMetadataName, corev1.LabelMetadataName),
		ObjectSelector:    d.selector("app", "team", "env"),
		FailurePolicy:     new(pick(d, admissionregistrationv1.Fail, admissionregistrationv1.Ignore)),
		MatchPolicy:       new(pick(d, admissionregistrationv1.Exact, admissionregistrationv1.Equivalent)),
	}
	for range 1 + d.IntN(3) {
		scope.Rules = append(scope.Rules, d.rule())
	}
	if d.chance(15) {
		for i := range 1 + d.IntN(2) {
			n := d.IntN(len(conditions))
			scope.MatchConditions = append(scope.MatchConditions,
				admissionregistrationv1.MatchCondition{Name: fmt.Sprintf("%d-%d", n, i), Expression: conditions[n]})
		}
	}
	return scope
}

// registered is the webhook of a scope, with the defaults of the API server.
func (d *drawer) registered(scope extension.Scope) webhook.WebhookAccessor {
	selector := func(s *metav1.LabelSelector) *metav1.LabelSelector {
		if s == nil {
			return &metav1.LabelSelector{}
		}
		return s
	}
	if d.chance(50) {
		return webhook.NewMutatingWebhookAccessor(scope.Name, "c", &admissionregistrationv1.MutatingWebhook{
			Name: scope.Name, Rules: scope.Rules, NamespaceSelector: selector(scope.NamespaceSelector), ObjectSelector: selector(scope.ObjectSelector),
			MatchPolicy: scope.MatchPolicy, FailurePolicy: scope.FailurePolicy, MatchConditions: scope.MatchConditions,
		})
	}
	return webhook.NewValidatingWebhookAccessor(scope.Name, "c", &admissionregistrationv1.ValidatingWebhook{
		Name: scope.Name, Rules: scope.Rules, NamespaceSelector: selector(scope.NamespaceSelector), ObjectSelector: selector(scope.ObjectSelector),
		MatchPolicy: scope.MatchPolicy, FailurePolicy: scope.FailurePolicy, MatchConditions: scope.MatchConditions,
	})
}

func (d *drawer) object(k kind, namespace, name string, labels map[string]string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(k.gvk)
	object.SetName(name)
	object.SetNamespace(namespace)
	if labels != nil {
		object.SetLabels(labels)
	}
	return object
}

func (d *drawer) arrival() *arrival {
	a := &arrival{kind: pick(d, d.kinds...), name: pick(d, "web", "db"), user: pick(d, "alice", "admin")}
	k := a.kind
	a.operation = pick(d, admissionv1.Create, admissionv1.Update, admissionv1.Delete)
	inNamespace := pick(d, slices.Sorted(maps.Keys(d.namespaces))...)
	labels, oldLabels := d.labels(), d.labels()
	if k.gvk == corev1.SchemeGroupVersion.WithKind("Namespace") {
		// It is in the cluster already, and the API server sets the label of its name.
		a.name, a.namespace = inNamespace, inNamespace
		oldLabels = d.namespaces[a.name]
		if a.operation == admissionv1.Delete {
			labels = oldLabels
		}
		labels = maps.Clone(labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[corev1.LabelMetadataName] = a.name
	} else if k.namespaced {
		a.namespace = inNamespace
	}
	if k.subresource != "" {
		a.operation = admissionv1.Connect
		a.sent = d.object(k, a.namespace, a.name, nil)
		a.object = a.sent.DeepCopy()
		delete(a.object.Object, "metadata")
		return a
	}
	manifest := d.object(k, "", a.name, labels)
	if k.namespaced {
		manifest.SetNamespace(a.namespace)
	}
	a.sent = manifest.DeepCopy()
	if d.chance(50) { // as a manifest is written
		a.sent.SetNamespace("")
		set := a.sent.GetLabels()
		delete(set, corev1.LabelMetadataName)
		a.sent.SetLabels(set)
	}
	if !k.namespaced && d.chance(10) {
		a.sent.SetNamespace("default") // the API server clears it
	}
	switch a.operation {
	case admissionv1.Update:
		a.object, a.old = manifest, d.object(k, manifest.GetNamespace(), a.name, oldLabels)
	case admissionv1.Delete:
		a.old = manifest
	default:
		a.object = manifest
	}
	return a
}

// attributes are those with which kube-apiserver calls its plugins: with typed
// objects, and none where there is none.
func (a *arrival) attributes(t *testing.T) admission.Attributes {
	t.Helper()
	typed := func(object *unstructured.Unstructured) runtime.Object {
		if object == nil {
			return nil
		}
		if a.kind.custom {
			return object
		}
		into, err := clientgoscheme.Scheme.New(a.kind.gvk)
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
		}
		if err != nil {
			t.Fatal(err)
		}
		return into
	}
	return admission.NewAttributesRecord(typed(a.object), typed(a.old), a.kind.gvk, a.namespace, a.name, a.kind.gvr(), a.kind.subresource,
		admission.Operation(a.operation), nil, false, &user.DefaultInfo{Name: a.user, Groups: a.groups()})
}

func (a *arrival) groups() []string {
	if a.user == "admin" {
		return []string{"system:authenticated", "system:masters"}
	}
	return []string{"system:authenticated"}
}

// request is the same admission, as internal/offline makes it of a manifest. Some of
// what an API server knows is left out if partial is set.
func (a *arrival) request(t *testing.T, d *drawer, known *offline.Kinds, partial bool) *offline.Request {
	t.Helper()
	namespace := a.namespace
	if !a.kind.namespaced {
		namespace = "default"
	}
	withheld := d.IntN(2)
	if partial && withheld == 0 {
		known = offline.KindsOf(&kinds.Table{})
	}
	req, err := known.NewRequest(a.operation, a.sent, a.old, namespace)
	if err != nil {
		t.Fatalf("%s: %v", a.kind.gvk, err)
	}
	if !partial || withheld != 1 {
		req.NamespaceLabels = map[string]string{}
		maps.Copy(req.NamespaceLabels, d.namespaces[a.namespace])
	}
	req.User = authenticationv1.UserInfo{Username: a.user, Groups: a.groups()}
	return req
}

// agree compares the two decisions.
func agree(scope extension.Scope, called bool, err error, invocation *generic.WebhookInvocation, serverErr error, attr admission.Attributes) bool {
	converted := invocation != nil && invocation.Resource != attr.GetResource()
	if fact := factOf(err); fact == offline.TheVersion {
		// It says that the webhook is called, with an object that only an API server can make.
		return converted || readsVersion(scope)
	}
	if serverErr != nil {
		_, failed := errors.AsType[*offline.Failed](err)
		return failed
	}
	return err == nil && called == (invocation != nil) && !converted
}

// factOf returns what our decision lacks, if anything.
func factOf(err error) offline.Fact {
	if unknown, ok := errors.AsType[*offline.Unknown](err); ok {
		return unknown.Fact
	}
	return ""
}

func TestTheSameWebhooksAreCalledAsByTheAPIServer(t *testing.T) {
	batches := longBatches
	if testing.Short() {
		batches = shortBatches
	}
	seed := uint64(15)
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 37)), namespaces: map[string]map[string]string{}}
	for _, name := range []string{"apps", "default", "kube-system", "a", "b", "c", "d", "e"} {
		labels := d.labels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[corev1.LabelMetadataName] = name
		d.namespaces[name] = labels
	}
	all := slices.Concat(builtin(t), custom(), connections())
	server, o := newServer(t, d.namespaces), newInterfaces(all)
	known := offline.KindsOf(&kinds.Table{})
	for _, c := range customs {
		if err := known.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	c := count{classes: map[string]int{}}
	for range batches {
		d.kinds = d.pool(all)
		c.batch(t, d, server, o, known)
	}
	t.Logf("%d cases: %d called, %d in another version, %d undecided until all was known, %d refused by a condition that fails, %d wrong: %v",
		c.cases, c.called, c.converted, c.undecided, c.failed, c.wrong, c.classes)
	fmt.Printf("FIGURE engine.match_cases=%d cases\nFIGURE engine.match_wrong=%d cases\n", c.cases, c.wrong)
	if c.called < c.cases/20 || c.converted == 0 || c.undecided == 0 || c.failed == 0 || c.cases != batches*hooksOfABatch*admissionsOfABatch {
		t.Error("the cases are not what they should be")
	}
}

// pool returns the kinds of a batch: few enough that rules and admissions meet, and
// always some of those that are special.
func (d *drawer) pool(all []kind) []kind {
	special := slices.DeleteFunc(slices.Clone(all), func(k kind) bool {
		return !k.custom && k.subresource == "" && k.resource != "namespaces" && k.resource != "events" &&
			k.gvk.Group != "admissionregistration.k8s.io" && k.gvk.Group != "authorization.k8s.io" && k.gvk.Group != "autoscaling"
	})
	pool := []kind{pick(d, connections()...), pick(d, custom()...), pick(d, all...), pick(d, special...)}
	// Another version of one of them, which is called with matchPolicy Equivalent.
	for _, k := range all {
		if k.gvk.GroupKind() == pool[d.IntN(len(pool))].gvk.GroupKind() && k.subresource == "" {
			pool = append(pool, k)
		}
	}
	return pool
}

// count is what was compared.
type count struct {
	cases, called, converted, undecided, failed, wrong int
	classes                                            map[string]int
}

// batch compares the decisions about some webhooks and admissions.
func (c *count) batch(t *testing.T, d *drawer, server *server, o interfaces, known *offline.Kinds) {
	t.Helper()
	scopes := make([]extension.Scope, hooksOfABatch)
	server.hooks = make([]webhook.WebhookAccessor, hooksOfABatch)
	for i := range scopes {
		scopes[i] = d.scope(fmt.Sprintf("w%d", i))
		server.hooks[i] = d.registered(scopes[i])
	}
	for range admissionsOfABatch {
		a := d.arrival()
		attr := a.attributes(t)
		server.ask(t, attr, o)
		whole := a.request(t, d, known, false)
		req := whole
		if d.chance(30) {
			req = a.request(t, d, known, true)
		}
		for i, scope := range scopes {
			c.compare(t, a, scope, attr, req, whole, server.verdict[i], server.errs[i])
		}
	}
}

// compare compares one case: with what the request says, and if that is not enough
// for a decision, with the whole.
func (c *count) compare(t *testing.T, a *arrival, scope extension.Scope, attr admission.Attributes, req, whole *offline.Request, invocation *generic.WebhookInvocation, serverErr error) {
	t.Helper()
	c.cases++
	if serverErr != nil {
		c.failed++
	}
	if invocation != nil {
		c.called++
		if invocation.Resource != attr.GetResource() {
			c.converted++
		}
	}
	called, err := req.Matches(scope)
	if req != whole && factOf(err) != "" {
		c.undecided++
		called, err = whole.Matches(scope)
	}
	if agree(scope, called, err, invocation, serverErr, attr) {
		return
	}
	c.wrong++
	class := classOf(a, scope, invocation, attr)
	if c.classes[class]++; c.classes[class] <= 3 {
		t.Errorf("%s: %s %s %s/%s: the API server calls it: %v, %v; ours: %v, %v\nobject %v\nold %v\nscope %+v",
			class, a.operation, a.kind.gvk, a.namespace, a.name, invocation != nil, serverErr, called, err, a.object, a.old, scope)
	}
}

// classOf names what a difference is about.
func classOf(a *arrival, scope extension.Scope, invocation *generic.WebhookInvocation, attr admission.Attributes) string {
	scoped := slices.ContainsFunc(scope.Rules, func(r admissionregistrationv1.RuleWithOperations) bool {
		return r.Scope != nil && *r.Scope != admissionregistrationv1.AllScopes
	})
	switch {
	case a.kind.gvk.Group == "admissionregistration.k8s.io":
		return "exempt configuration"
	case strings.HasSuffix(a.kind.resource, "reviews"):
		return "virtual resource"
	case invocation != nil && invocation.Resource != attr.GetResource():
		return "matchPolicy Equivalent"
	case len(scope.MatchConditions) > 0 && invocation == nil:
		return "match conditions"
	case a.operation == admissionv1.Connect && scope.ObjectSelector != nil:
		return "objectSelector on CONNECT"
	case a.kind.resource == "namespaces":
		return "namespaces"
	case a.kind.custom:
		return "custom kind"
	case scoped:
		return "Rule.Scope"
	case !a.kind.namespaced:
		return "cluster-scoped kind"
	}
	return "other"
}

package offline_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/webhook"
)

// scopes are webhooks of which each goes wrong if one rule of the API server is
// missed.
var scopes = map[string]extension.Scope{
	"exec":               {Rules: extension.Connect("pods/exec")},
	"exec-doesnotexist":  {Rules: extension.Resources("", "v1", []string{"pods/exec"}, "*"), ObjectSelector: where("trusted", metav1.LabelSelectorOpDoesNotExist)},
	"exec-notin":         {Rules: extension.Resources("", "v1", []string{"pods/exec"}, "*"), ObjectSelector: where("trusted", metav1.LabelSelectorOpNotIn, "yes")},
	"everything":         {Rules: everything},
	"cluster-scoped":     {Rules: only("Cluster")},
	"namespaced":         {Rules: only("Namespaced")},
	"team-namespaces":    {Rules: everything, NamespaceSelector: where("team", metav1.LabelSelectorOpExists)},
	"teamless":           {Rules: everything, NamespaceSelector: where("team", metav1.LabelSelectorOpDoesNotExist)},
	"by-name":            {Rules: everything, NamespaceSelector: where(corev1.LabelMetadataName, metav1.LabelSelectorOpIn, "x", "apps")},
	"team-objects":       {Rules: everything, ObjectSelector: where("team", metav1.LabelSelectorOpExists)},
	"scale":              {Rules: extension.Resources("apps", "v1", []string{"deployments/scale"}, "*")},
	"status":             {Rules: extension.Resources("apps", "v1", []string{"*/status"}, "*")},
	"gateways":           {Rules: extension.Resources("example.com", "v1", []string{"gateways"}, "*")},
	"gateways-v1beta1":   {Rules: extension.Resources("example.com", "v1beta1", []string{"gateways"}, "*")},
	"given":              {Rules: everything, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "given", Expression: "authorizer.path('/healthz').check('get').allowed()"}}},
	"team-by-condition":  whereCEL("object != null && has(object.metadata.labels) && 'team' in object.metadata.labels"),
	"no-old-object":      whereCEL("oldObject == null"),
	"with-status":        whereCEL("has(object.status)"),
	"by-the-user":        whereCEL("request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups && request.dryRun"),
	"by-the-request":     whereCEL("request.name == 'x' && request.?namespace.orValue('') in ['apps', 'shop'] && !has(request.subResource)"),
	"by-the-kind":        whereCEL("object.kind in ['Gateway', 'Scale', 'PodExecOptions'] && request.kind.kind == object.kind"),
	"fails-but-for-one":  whereCEL("object.spec.replicas == 1"),
	"fails":              whereCEL("object.spec.nodeName == 'n'"),
	"left-out":           underFail(everything),
	"nodes-by-name":      underFail(append(extension.Resources("", "v1", []string{"nodes"}, "*"), everything...)),
	"events-other-group": {Rules: extension.Resources("events.k8s.io", "v1", []string{"events"}, "*")},
}

// whereCEL returns a scope for everything that meets a match condition.
func whereCEL(expression string) extension.Scope {
	ignore := admissionregistrationv1.Ignore
	return extension.Scope{Rules: everything, FailurePolicy: &ignore, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}}}
}

// underFail returns a scope for every namespace with failure policy Fail, as it is registered.
func underFail(rules []admissionregistrationv1.RuleWithOperations) extension.Scope {
	handler := extension.Validating(extension.ValidatorFunc[runtime.Object](nil), extension.Scope{Rules: rules, NamespaceSelector: extension.EveryNamespace()})
	webhooks, err := webhook.Group([]*extension.Handler{handler}, webhook.Defaults{})
	if err != nil {
		panic(err)
	}
	return webhooks[0].Scope
}

// calls records which webhooks the API server calls for the administrator.
type calls struct {
	mu    sync.Mutex
	names []string
}

func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names
	c.names = nil
	return names
}

func (c *calls) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
}

func (c *calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	if review.Request.UserInfo.Username == "admin" {
		c.add(strings.TrimPrefix(r.URL.Path, "/"))
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server would report it
}

func TestTheRealAPIServerCallsTheSameWebhooks(t *testing.T) {
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Stop() //nolint:errcheck // the test is over
	client := kubernetes.NewForConfigOrDie(cluster.Config())
	t.Run("discovery", func(t *testing.T) { testDiscovery(t, client.Discovery()) })
	for name, labels := range map[string]map[string]string{"apps": nil, "shop": teamA} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	known := offline.KindsOf(&kinds.Table{})
	if err := known.Add(gateways); err != nil {
		t.Fatal(err)
	}
	for name, test := range chains() {
		t.Run(name, func(t *testing.T) { testChain(t, client, test) })
	}
	d := dynamic.NewForConfigOrDie(cluster.Config())
	establish(t, d)
	seen := &calls{}
	register(t, client, seen)

	tryRequest := func(name string, newRequest func() (*offline.Request, error), do func() error) {
		t.Run(name, func(t *testing.T) {
			seen.take()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			called := seen.take()
			slices.Sort(called)
			req, err := newRequest()
			if err != nil {
				t.Fatal(err)
			}
			req.User = authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}}
			req.DryRun = req.Operation != admissionv1.Connect
			req.MatchConditions = map[string]bool{"given": true}
			if req.NamespaceLabels = map[string]string{}; req.Namespace == "shop" {
				req.NamespaceLabels = teamA
			}
			var answers []string
			for webhook, scope := range scopes {
				matches, err := req.Matches(scope)
				var unknown *offline.Unknown
				if errors.As(err, &unknown) && unknown.Fact == offline.TheVersion {
					matches = true // it says so, and that only the API server can make the object
				} else if err != nil {
					t.Error(err)
				}
				if matches {
					answers = append(answers, webhook)
				}
			}
			if slices.Sort(answers); !slices.Equal(answers, called) {
				t.Errorf("the API server calls\n%v, offline says\n%v", called, answers)
			}
		})
	}
	try := func(name string, operation admissionv1.Operation, o *unstructured.Unstructured, namespace string, do func() error) {
		tryRequest(name, func() (*offline.Request, error) { return known.NewRequest(operation, o, nil, namespace) }, do)
	}
	create := func(name string, o *unstructured.Unstructured, namespace string) {
		try(name, admissionv1.Create, o, namespace, func() error {
			resource := d.Resource(known.Resource(o.GroupVersionKind()))
			options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
			var err error
			if namespace == "" {
				_, err = resource.Create(t.Context(), o, options)
			} else {
				_, err = resource.Namespace(namespace).Create(t.Context(), o, options)
			}
			return err
		})
	}
	exec := object("v1", "PodExecOptions", nil)
	try("an exec", admissionv1.Connect, exec, "apps", func() error {
		err := client.CoreV1().RESTClient().Post().Namespace("apps").Resource("pods").Name("x").SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Command: []string{"sh"}, Stdout: true}, clientgoscheme.ParameterCodec).Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "not found") {
			return err
		}
		return nil // admission comes before the look at the Pod
	})
	create("a ConfigMap", object("v1", "ConfigMap", nil), "apps")
	create("a ConfigMap with labels, in a namespace with labels", object("v1", "ConfigMap", teamA), "shop")
	create("a Namespace", object("v1", "Namespace", nil), "")
	create("a Namespace with labels", object("v1", "Namespace", teamA), "")
	create("a Node", object("v1", "Node", nil), "")
	node := object("storage.k8s.io/v1", "CSINode", nil)
	node.Object["spec"] = map[string]any{"drivers": []any{}}
	create("a CSINode", node, "")
	create("a ClusterRole", object("rbac.authorization.k8s.io/v1", "ClusterRole", nil), "")
	attributes := object("storage.k8s.io/v1", "VolumeAttributesClass", teamA)
	attributes.Object["driverName"], attributes.Object["parameters"] = "driver.example.com", map[string]any{"iops": "10"}
	create("a VolumeAttributesClass", attributes, "")
	create("a webhook configuration", object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", nil), "")
	review := object("authorization.k8s.io/v1", "SelfSubjectAccessReview", nil)
	review.SetName("")
	review.Object["spec"] = map[string]any{"resourceAttributes": map[string]any{"verb": "get", "resource": "pods"}}
	create("a question to the API server", review, "")
	event := object("v1", "Event", nil)
	event.Object["involvedObject"] = map[string]any{"kind": "Pod", "namespace": "apps", "name": "x"}
	create("an event of the core group", event, "apps")
	create("a Gateway", object("example.com/v1", "Gateway", teamA), "apps")
	deployment := object("apps/v1", "Deployment", teamA)
	deployment.Object["spec"] = map[string]any{
		"replicas": int64(1), "selector": map[string]any{"matchLabels": unstructuredTeamA()},
		"template": map[string]any{"metadata": map[string]any{"labels": unstructuredTeamA()}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example.com/c"}}}},
	}
	deployments := d.Resource(known.Resource(deployment.GroupVersionKind())).Namespace("apps")
	deployment, err = deployments.Create(t.Context(), deployment, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, subresource := range []string{"scale", "status"} {
		tryRequest("the "+subresource+" of a Deployment", func() (*offline.Request, error) {
			return known.NewSubresourceRequest("", subresource, deployment, nil, "apps")
		}, func() error {
			o, err := deployments.Get(t.Context(), "x", metav1.GetOptions{}, subresource)
			if err != nil {
				return err
			}
			_, err = deployments.Update(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}, subresource)
			return err
		})
	}
	shop := object("v1", "Namespace", teamA)
	shop.SetName("shop")
	try("the deletion of a Namespace with labels", admissionv1.Delete, shop, "", func() error {
		return client.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	})
}

// unstructuredTeamA returns the labels of team A as they are in an unstructured object.
func unstructuredTeamA() map[string]any { return map[string]any{"team": "a"} }

// testChain sends a ConfigMap through the handlers by way of the API server.
func testChain(t *testing.T, client kubernetes.Interface, test chain) {
	webhooks, err := webhook.Group(test.handlers, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	seen, mux := &calls{}, http.NewServeMux()
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "chain"}}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "chain"}}
	for _, w := range webhooks {
		handler := w.Handler(webhook.HandlerOptions{Scheme: clientgoscheme.Scheme})
		mux.HandleFunc(w.Path(), func(rw http.ResponseWriter, r *http.Request) {
			seen.add(w.Name)
			handler.ServeHTTP(rw, r)
		})
		entry := entryOf(server, w.Name, w.Path(), w.Scope)
		if !w.Mutating {
			validating.Webhooks = append(validating.Webhooks, entry)
			continue
		}
		mutating.Webhooks = append(mutating.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: entry.Name, ClientConfig: entry.ClientConfig, Rules: entry.Rules, NamespaceSelector: entry.NamespaceSelector, ObjectSelector: entry.ObjectSelector,
			SideEffects: entry.SideEffects, AdmissionReviewVersions: entry.AdmissionReviewVersions, FailurePolicy: entry.FailurePolicy,
			ReinvocationPolicy: w.Scope.ReinvocationPolicy, MatchConditions: entry.MatchConditions,
		})
	}
	api := client.AdmissionregistrationV1()
	if _, err := api.ValidatingWebhookConfigurations().Create(t.Context(), validating, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.MutatingWebhookConfigurations().Create(t.Context(), mutating, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	send := func(ctx context.Context) []string {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		if _, err := client.CoreV1().ConfigMaps("apps").Create(ctx, configMap, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Error(err)
		}
		return seen.take()
	}
	// The API server learns of the two configurations one after the other.
	last := test.called[len(test.called)-1]
	until(t, "the API server to call the webhooks", func(ctx context.Context) bool { return slices.Contains(send(ctx), last) })
	if called := send(t.Context()); !slices.Equal(called, test.called) {
		t.Errorf("the API server calls %v, offline %v", called, test.called)
	}
	for _, err := range []error{
		api.ValidatingWebhookConfigurations().Delete(t.Context(), "chain", metav1.DeleteOptions{}),
		api.MutatingWebhookConfigurations().Delete(t.Context(), "chain", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	until(t, "the webhooks to be gone", func(ctx context.Context) bool { return len(send(ctx)) == 0 })
}

// entryOf is the webhook of a scope at this server.
func entryOf(server *httptest.Server, name, path string, scope extension.Scope) admissionregistrationv1.ValidatingWebhook {
	url := server.URL + path
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return admissionregistrationv1.ValidatingWebhook{
		Name: name + ".offline.test", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle},
		Rules: scope.Rules, NamespaceSelector: scope.NamespaceSelector, ObjectSelector: scope.ObjectSelector, MatchConditions: scope.MatchConditions,
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		FailurePolicy: new(admissionregistrationv1.Ignore),
	}
}

// testDiscovery compares what is known about kinds with what the API server says.
func testDiscovery(t *testing.T, client discovery.DiscoveryInterface) {
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, list := range lists {
		for _, resource := range list.APIResources {
			if strings.Contains(resource.Name, "/") {
				testSubresource(t, list.GroupVersion, &resource)
				compared++
				continue
			}
			o := object(list.GroupVersion, resource.Kind, nil)
			req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, o, nil, "apps")
			if err != nil || req.Resource.Resource != resource.Name || (req.Namespace == "apps") != resource.Namespaced {
				t.Errorf("%s %s: got %+v, %v; the API server has %s, namespaced %v", list.GroupVersion, resource.Kind, req, err, resource.Name, resource.Namespaced)
			}
			compared++
		}
	}
	if compared < 100 {
		t.Errorf("discovery has only %d resources", compared)
	}
}

// testSubresource compares what is known about a subresource with what the API server
// says of it.
func testSubresource(t *testing.T, groupVersion string, resource *metav1.APIResource) {
	group, _, found := strings.Cut(groupVersion, "/")
	if !found {
		group = ""
	}
	if len(resource.Verbs) == 1 && resource.Verbs[0] == "get" {
		return // admission never sees it
	}
	name, subresource, _ := strings.Cut(resource.Name, "/")
	version := metav1.GroupVersion{Group: resource.Group, Version: resource.Version}.String()
	if resource.Version == "" {
		version = groupVersion
	}
	o := object(version, resource.Kind, nil)
	known := offline.KindsOf(&kinds.Table{})
	var req *offline.Request
	var err error
	if strings.HasSuffix(resource.Kind, "Options") {
		req, err = known.NewRequest(admissionv1.Connect, o, nil, "apps")
	} else {
		req, err = known.NewSubresourceRequest("", schema.GroupResource{Group: group, Resource: name}.String()+"/"+subresource, o, nil, "apps")
	}
	if err != nil || req.Resource.Resource != name || req.Resource.Group != group || req.SubResource != subresource || req.Kind.Kind != resource.Kind ||
		(req.Namespace == "apps") != resource.Namespaced {
		t.Errorf("%s %s: got %+v, %v", groupVersion, resource.Name, req, err)
		return
	}
	verb := map[admissionv1.Operation]string{admissionv1.Create: "create", admissionv1.Update: "update", admissionv1.Connect: "get"}[req.Operation]
	if !slices.Contains(resource.Verbs, verb) {
		t.Errorf("%s %s: got %s, the API server has %v", groupVersion, resource.Name, req.Operation, resource.Verbs)
	}
}

// establish creates the CustomResourceDefinition and waits for its kind.
func establish(t *testing.T, d dynamic.Interface) {
	t.Helper()
	definition := gateways.DeepCopy()
	versions := definition.Object["spec"].(map[string]any)["versions"].([]any)
	for i := range versions {
		version := versions[i].(map[string]any)
		version["storage"] = i == 0
		version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}
	}
	known := offline.KindsOf(&kinds.Table{})
	if _, err := d.Resource(known.Resource(definition.GroupVersionKind())).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := known.Add(gateways); err != nil {
		t.Fatal(err)
	}
	until(t, "the CRD to be served", func(ctx context.Context) bool {
		_, err := d.Resource(known.Resource(object("example.com/v1", "Gateway", nil).GroupVersionKind())).List(ctx, metav1.ListOptions{})
		return err == nil
	})
}

// register registers the scopes as webhooks, and waits until the API server calls
// them.
func register(t *testing.T, client kubernetes.Interface, seen *calls) {
	t.Helper()
	server := httptest.NewTLSServer(seen)
	t.Cleanup(server.Close)
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "offline"}}
	for name, scope := range scopes {
		configuration.Webhooks = append(configuration.Webhooks, entryOf(server, name, "/"+name, scope))
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the webhooks to be called", func(ctx context.Context) bool {
		_, err := client.CoreV1().ConfigMaps("apps").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(seen.take()) > 0
	})
}

func until(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	}); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

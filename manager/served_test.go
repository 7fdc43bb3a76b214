package manager_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// judge allows every object of the resources.
func judge(name, group, version string, resources []string, operations ...admissionregistrationv1.OperationType) *extension.Handler {
	return extension.ValidatingFunc(func(context.Context, *unstructured.Unstructured, *extension.Request) error { return nil },
		extension.Scope{Name: name, Rules: extension.Resources(group, version, resources, operations...), NamespaceSelector: extension.EveryNamespace()})
}

func TestAMatchConditionThatDoesNotCompileNamesItsExtensionAndField(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, OperatorFingerprint: "typo"},
		mark("a", extension.Scope{Name: "right"}),
		extension.MutatingFunc(func(context.Context, *unstructured.Unstructured, *extension.Request) error { return nil }, extension.Scope{
			Name: "wrong", Rules: extension.Pods(), MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "fine", Expression: "request.operation == 'CREATE'"}, {Name: "sum", Expression: "1 + 'one' == 2"},
			},
		}))
	err := r.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "webhook wrong of wrong: Scope.MatchConditions[1].Expression: ") || !strings.Contains(err.Error(), "no matching overload") {
		t.Errorf("got %v", err)
	}
	if err := r.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
}

// toldUnserved returns what a manager has logged of resources that are not served.
func toldUnserved(r *running) map[string]string {
	told := map[string]string{}
	for _, entry := range r.logs.All() {
		if strings.HasPrefix(entry.Message, "no admission comes to a webhook") {
			fields := entry.ContextMap()
			told[fields["webhook"].(string)] += entry.Level.String() + " " + fields["resource"].(string) + " " + entry.Message
		}
	}
	return told
}

func TestAScopeThatTheAPIServerNeverServesIsToldAtTheStart(t *testing.T) { // alone: it is called for every update
	create, update, remove, connect := admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete, admissionregistrationv1.Connect
	rules := extension.Resources("", "v1", []string{"configmaps"}, create)
	scope := admissionregistrationv1.ClusterScope
	rules[0].Scope = &scope
	clusterScope := extension.ValidatingFunc(func(context.Context, *unstructured.Unstructured, *extension.Request) error { return nil },
		extension.Scope{Name: "scope", Rules: rules, NamespaceSelector: extension.EveryNamespace()})
	namespace := newNamespace(t)
	var mu sync.Mutex
	discoveries := 0
	config := watched(func(req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if req.URL.Path == "/apis" {
			discoveries++
		}
	})
	r := start(t, manager.Options{Namespaces: []string{namespace}, OperatorFingerprint: "unserved", RESTConfig: config},
		judge("kind", "example.com", "v1", []string{"gadgets"}, create),
		judge("version", "apps", "v7", []string{"deployments"}, create),
		judge("subresource", "", "v1", []string{"pods/scale"}, update),
		judge("operation", "authorization.k8s.io", "v1", []string{"subjectaccessreviews"}, remove),
		judge("connects", "", "v1", []string{"pods"}, connect),
		clusterScope,
		judge("fine", "", "v1", []string{"pods", "pods/status", "pods/*"}, update),
		judge("session", "", "v1", []string{"pods/exec"}, connect),
		judge("everything", "*", "*", []string{"*"}, update),
		judge("one-is-enough", "extensions", "v1beta1", []string{"ingresses"}, create),
	)
	want := map[string]string{
		"kind": "example.com/gadgets no admission", "version": "does not serve apps/deployments in version v7", "subresource": "pods/scale",
		"operation": "[DELETE] of subjectaccessreviews never comes", "connects": "[CONNECT] of pods never comes", "scope": "scope Cluster never matches configmaps",
		"one-is-enough": "extensions/ingresses",
	}
	var told map[string]string
	testkit.Eventually(t, "each is told", func(context.Context) bool {
		told = toldUnserved(r)
		return len(told) >= len(want)
	})
	for name, text := range told {
		if want[name] == "" || !strings.HasPrefix(text, "warn ") || !strings.Contains(text, want[name]) {
			t.Errorf("%s: got %q, want %q", name, text, want[name])
		}
	}
	if mu.Lock(); discoveries != 1 {
		t.Errorf("the API server was asked %d times which groups it has, want once", discoveries)
	}
	mu.Unlock()
	testkit.Eventually(t, "there is an Event", func(ctx context.Context) bool {
		events, err := clientset.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=NotServed"})
		return err == nil && len(events.Items) == len(want) && strings.Contains(events.Items[0].Message, "Scope.Rules[0]")
	})
}

// install installs the CustomResourceDefinition of a kind.
func install(t *testing.T, group, kind, plural string) {
	t.Helper()
	if err := testkit.Apply(t.Context(), cluster, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  names: {kind: %[2]s, plural: %[3]s}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`, group, kind, plural)); err != nil {
		t.Fatal(err)
	}
}

func TestAResourceThatIsServedLaterIsToldAndItsMetricEnds(t *testing.T) {
	t.Parallel()
	r := start(t, manager.Options{Namespaces: []string{newNamespace(t)}, OperatorFingerprint: "later"}, judge("chassis", "later.example.com", "v1", []string{"chassis"}, admissionregistrationv1.Create))
	testkit.Eventually(t, "the metric is there", func(context.Context) bool { return hasUnserved(t, "later.example.com/chassis") })
	install(t, "later.example.com", "Chassis", "chassis")
	testkit.Eventually(t, "it is told that the resource is served", func(context.Context) bool {
		return r.logs.FilterMessage("the API server serves the resource now").Len() == 1
	})
	if hasUnserved(t, "later.example.com/chassis") {
		t.Error("the metric has not ended")
	}
	if told := toldUnserved(r); strings.Count(told["chassis"], "warn") != 1 {
		t.Errorf("it was told more than once: %v", told)
	}
}

func TestAWatchedNamespaceThatDoesNotExistIsTold(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	missing := home + "-later"
	r := start(t, manager.Options{Namespaces: []string{home, missing}, WebhookNamespace: home, OperatorFingerprint: "no-namespace"}, mark("a", extension.Scope{}))
	testkit.Eventually(t, "it is told", func(ctx context.Context) bool {
		events, err := clientset.CoreV1().Events(home).List(ctx, metav1.ListOptions{FieldSelector: "reason=NamespaceNotFound"})
		return err == nil && len(events.Items) == 1 && events.Items[0].Type == corev1.EventTypeWarning && strings.HasPrefix(events.Items[0].Message, missing+": a watched namespace does not exist") &&
			r.logs.FilterMessageSnippet("a watched namespace does not exist").Len() == 1
	})
	if _, err := clientset.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: missing}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventuallyCalled(t, missing, "marked")
	testkit.Eventually(t, "it is told that it exists", func(context.Context) bool {
		return r.logs.FilterMessage("the watched namespace exists now").Len() == 1
	})
}

// hasUnserved reports whether the metric names a resource.
func hasUnserved(t *testing.T, resource string) bool {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "admitkit_scope_unserved_resources" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "resource" && label.GetValue() == resource && metric.GetGauge().GetValue() == 1 {
					return true
				}
			}
		}
	}
	return false
}

package offline_test

import (
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
)

// testing/differential compares the decisions with those of k8s.io/apiserver, case by
// case. The tests here say the rules.

func object(apiVersion, kind string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetName("x")
	o.SetLabels(labels)
	return o
}

func where(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

var (
	everything = extension.Resources("*", "*", []string{"*/*"}, "*")
	teamA      = map[string]string{"team": "a"}
	gateways   = crd("Namespaced")
)

func only(scope admissionregistrationv1.ScopeType) []admissionregistrationv1.RuleWithOperations {
	rules := extension.Resources("*", "*", []string{"*/*"}, "*")
	rules[0].Scope = &scope
	return rules
}

// crd defines a kind whose plural is not the one that most kinds would have.
func crd(scope string) *unstructured.Unstructured {
	o := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", nil)
	o.SetName("gateways.example.com")
	o.Object["spec"] = map[string]any{
		"group": "example.com", "scope": scope, "names": map[string]any{"kind": "Gateway", "plural": "gateways"},
		"versions": []any{map[string]any{"name": "v1", "served": true}, map[string]any{"name": "v1beta1", "served": true}, map[string]any{"name": "v1alpha1", "served": false}},
	}
	return o
}

func TestAWebhookIsCalledWhenTheAPIServerCallsIt(t *testing.T) {
	exec := object("v1", "PodExecOptions", nil)
	for name, test := range map[string]struct {
		scope  extension.Scope
		object *unstructured.Unstructured
		called bool
	}{
		"an exec has no labels, not even for DoesNotExist": {extension.Scope{Rules: everything, ObjectSelector: where("trusted", metav1.LabelSelectorOpDoesNotExist)}, exec, false},
		"an exec has no labels, not even for NotIn":        {extension.Scope{Rules: everything, ObjectSelector: where("trusted", metav1.LabelSelectorOpNotIn, "yes")}, exec, false},
		"an exec matches an empty selector":                {extension.Scope{Rules: everything, ObjectSelector: &metav1.LabelSelector{}}, exec, true},
		"a Pod without labels matches DoesNotExist":        {extension.Scope{Rules: everything, ObjectSelector: where("trusted", metav1.LabelSelectorOpDoesNotExist)}, object("v1", "Pod", nil), true},
		"a Pod is not cluster-scoped":                      {extension.Scope{Rules: only("Cluster")}, object("v1", "Pod", nil), false},
		"a Pod is namespaced":                              {extension.Scope{Rules: only("Namespaced")}, object("v1", "Pod", nil), true},
		"a Namespace is cluster-scoped":                    {extension.Scope{Rules: only("Cluster")}, object("v1", "Namespace", nil), true},
		"a Namespace is not namespaced":                    {extension.Scope{Rules: only("Namespaced")}, object("v1", "Namespace", nil), false},
		"a Namespace counts by its own labels":             {extension.Scope{Rules: everything, NamespaceSelector: where("team", metav1.LabelSelectorOpExists)}, object("v1", "Namespace", teamA), true},
		"a Namespace counts by its own name":               {extension.Scope{Rules: everything, NamespaceSelector: where("kubernetes.io/metadata.name", metav1.LabelSelectorOpIn, "x")}, object("v1", "Namespace", nil), true},
		"a Node is in no namespace that could exempt it":   {extension.Scope{Rules: everything, NamespaceSelector: where("team", metav1.LabelSelectorOpExists)}, object("v1", "Node", nil), true},
		"a VolumeAttributesClass is cluster-scoped":        {extension.Scope{Rules: only("Namespaced")}, object("storage.k8s.io/v1", "VolumeAttributesClass", nil), false},
		"a Node of another group may be namespaced":        {extension.Scope{Rules: everything}, object("metal.example.com/v1", "Node", nil), true},
		"webhook configurations are exempt":                {extension.Scope{Rules: everything}, object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", nil), false},
		"policies are exempt":                              {extension.Scope{Rules: everything}, object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", nil), false},
		"questions to the API server are exempt":           {extension.Scope{Rules: everything}, object("authorization.k8s.io/v1", "SubjectAccessReview", nil), false},
		"the plural comes from the CRD":                    {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateways"}, "*")}, object("example.com/v1", "Gateway", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			known := offline.KindsOf(&kinds.Table{})
			if err := known.Add(gateways); err != nil {
				t.Fatal(err)
			}
			req, err := known.NewRequest(admissionv1.Create, test.object, nil, "apps")
			if err != nil {
				t.Fatal(err)
			}
			req.NamespaceLabels = map[string]string{}
			if called, err := req.Matches(test.scope); called != test.called || err != nil {
				t.Errorf("got %v, %v", called, err)
			}
		})
	}
}

func TestWhatTheClusterDecidesIsAnErrorAndNotAnAnswer(t *testing.T) {
	condition := []admissionregistrationv1.MatchCondition{{Name: "known", Expression: "authorizer.path('/').check('get').allowed()"}, {Name: "open", Expression: "authorizer.path('/').check('put').allowed()"}}
	exact := admissionregistrationv1.Exact
	gateway, pod := object("example.com/v1", "Gateway", nil), object("v1", "Pod", nil)
	namedGateways := extension.Resources("example.com", "v1", []string{"gateways"}, "*")
	for name, test := range map[string]struct {
		scope  extension.Scope
		object *unstructured.Unstructured
		crd    *unstructured.Unstructured
		fact   offline.Fact // empty: it is decided
		called bool
	}{
		"a match condition without a result":         {extension.Scope{Rules: everything, MatchConditions: condition}, pod, nil, offline.TheConditions, false},
		"a match condition with a result":            {extension.Scope{Rules: everything, MatchConditions: condition[:1]}, pod, nil, "", true},
		"a match condition of a rule for others":     {extension.Scope{Rules: extension.Connect("pods/exec"), MatchConditions: condition}, pod, nil, "", false},
		"a selector by an unknown label":             {extension.Scope{Rules: everything, NamespaceSelector: where("team", metav1.LabelSelectorOpExists)}, pod, nil, offline.TheNamespace, false},
		"a selector by the name":                     {extension.Scope{Rules: everything, NamespaceSelector: where("kubernetes.io/metadata.name", metav1.LabelSelectorOpIn, "apps")}, pod, nil, "", true},
		"a selector by another name":                 {extension.Scope{Rules: everything, NamespaceSelector: where("kubernetes.io/metadata.name", metav1.LabelSelectorOpIn, "db")}, pod, nil, "", false},
		"a rule for the plural of an unknown kind":   {extension.Scope{Rules: namedGateways}, gateway, nil, "", true},
		"a rule for an irregular plural":             {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"indices"}, "*")}, object("example.com/v1", "Index", nil), nil, "", true},
		"a rule for a plural like the singular":      {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"chassis"}, "*")}, object("example.com/v1", "Chassis", nil), nil, "", true},
		"a rule for a name that is no plural":        {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gws"}, "*")}, gateway, nil, offline.TheKind, false},
		"a rule for another operation of the plural": {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateways"}, "DELETE")}, gateway, nil, "", false},
		"a rule for the singular":                    {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateway"}, "*")}, gateway, nil, offline.TheKind, false},
		"a rule for an unknown kind in no namespace": {extension.Scope{Rules: only("Cluster")}, gateway, nil, offline.TheKind, false},
		"a rule for another group":                   {extension.Scope{Rules: extension.Resources("other.io", "v1", []string{"gateways"}, "*")}, gateway, nil, "", false},
		"a rule that names the plural guessed":       {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"widgets"}, "*")}, object("example.com/v1", "Widget", nil), nil, "", true},
		"a rule for all of a group":                  {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"*"}, "*")}, gateway, nil, "", true},
		"a rule for the other version of a CRD":      {extension.Scope{Rules: extension.Resources("example.com", "v1beta1", []string{"gateways"}, "*")}, gateway, gateways, offline.TheVersion, false},
		"a rule for a version that is not served":    {extension.Scope{Rules: extension.Resources("example.com", "v1alpha1", []string{"gateways"}, "*")}, gateway, gateways, "", false},
		"matchPolicy Exact": {
			extension.Scope{Rules: extension.Resources("example.com", "v1beta1", []string{"gateways"}, "*"), MatchPolicy: &exact}, gateway, gateways, "", false,
		},
		"a rule for the other version of an autoscaler": {
			extension.Scope{Rules: extension.Resources("autoscaling", "v1", []string{"horizontalpodautoscalers"}, "*")},
			object("autoscaling/v2", "HorizontalPodAutoscaler", nil), nil, offline.TheVersion, false,
		},
		"a rule for events in their other group": {
			extension.Scope{Rules: extension.Resources("events.k8s.io", "v1", []string{"events"}, "*")}, object("v1", "Event", nil), nil, offline.TheVersion, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			known := offline.KindsOf(&kinds.Table{})
			if test.crd != nil {
				if err := known.Add(test.crd); err != nil {
					t.Fatal(err)
				}
			}
			req, err := known.NewRequest(admissionv1.Create, test.object, nil, "apps")
			if err != nil {
				t.Fatal(err)
			}
			req.MatchConditions = map[string]bool{"known": true}
			called, err := req.Matches(test.scope)
			var unknown *offline.Unknown
			if errors.As(err, &unknown) != (test.fact != "") || unknown != nil && unknown.Fact != test.fact || err != nil && unknown == nil || called != test.called {
				t.Errorf("got %v, %v, want %v and the unknown fact %q", called, err, test.called, test.fact)
			}
		})
	}
}

func TestACRDThatSaysTooLittleIsRefused(t *testing.T) {
	for _, scope := range []string{"", "Global"} {
		if err := offline.KindsOf(&kinds.Table{}).Add(crd(scope)); err == nil {
			t.Errorf("scope %q is taken", scope)
		}
	}
	empty := crd("Cluster")
	delete(empty.Object, "spec")
	if err := offline.KindsOf(&kinds.Table{}).Add(empty); err == nil {
		t.Error("a CRD without a spec is taken")
	}
}

func TestARequestForASubresourceHasItsObject(t *testing.T) {
	deployment := object("apps/v1", "Deployment", teamA)
	deployment.Object["spec"] = map[string]any{"replicas": int64(3), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}}
	scaled := crd("Namespaced")
	scaled.Object["spec"].(map[string]any)["versions"] = []any{map[string]any{"name": "v1", "served": true, "subresources": map[string]any{
		"status": map[string]any{}, "scale": map[string]any{"specReplicasPath": ".spec.size"},
	}}}
	gateway := object("example.com/v1", "Gateway", nil)
	gateway.Object["spec"] = map[string]any{"size": int64(5)}
	for name, test := range map[string]struct {
		subresource string
		object      *unstructured.Unstructured
		operation   admissionv1.Operation
		resource    string
		kind        string
		content     string
	}{
		"status":                      {"status", deployment, "UPDATE", "deployments", "Deployment", `"replicas":3`},
		"scale, from what it scales":  {"scale", deployment, "UPDATE", "deployments", "Scale", `"selector":"app=web"`},
		"scale, by itself":            {"deployments.apps/scale", object("autoscaling/v1", "Scale", nil), "UPDATE", "deployments", "Scale", `"kind":"Scale"`},
		"scale of a custom kind":      {"scale", gateway, "UPDATE", "gateways", "Scale", `"spec":{"replicas":5}`},
		"status of a custom kind":     {"status", gateway, "UPDATE", "gateways", "Gateway", `"size":5`},
		"ephemeral containers":        {"ephemeralcontainers", object("v1", "Pod", nil), "UPDATE", "pods", "Pod", `"kind":"Pod"`},
		"an eviction, from its Pod":   {"eviction", object("v1", "Pod", nil), "CREATE", "pods", "Eviction", `"apiVersion":"policy/v1"`},
		"an eviction, by itself":      {"", object("policy/v1", "Eviction", nil), "CREATE", "pods", "Eviction", `"name":"x"`},
		"a token":                     {"", object("authentication.k8s.io/v1", "TokenRequest", nil), "CREATE", "serviceaccounts", "TokenRequest", `"name":"x"`},
		"a binding that is asked for": {"binding", object("v1", "Binding", nil), "CREATE", "pods", "Binding", `"name":"x"`},
	} {
		t.Run(name, func(t *testing.T) {
			known := offline.KindsOf(&kinds.Table{})
			if err := known.Add(scaled); err != nil {
				t.Fatal(err)
			}
			newRequest := func() (*offline.Request, error) {
				if test.subresource == "" {
					return known.NewRequest(admissionv1.Create, test.object, nil, "apps")
				}
				return known.NewSubresourceRequest("", test.subresource, test.object, nil, "apps")
			}
			req, err := newRequest()
			if err != nil {
				t.Fatal(err)
			}
			_, subresource, named := strings.Cut(test.subresource, "/")
			if !named {
				subresource = test.subresource
			}
			if subresource != "" && req.SubResource != subresource || req.Operation != test.operation || req.Resource.Resource != test.resource || req.Kind.Kind != test.kind ||
				req.Namespace != "apps" || req.Name != "x" || !strings.Contains(string(req.Object), test.content) {
				t.Errorf("got %+v with the object %s", req, req.Object)
			}
			if hasOld := len(req.OldObject) > 0; hasOld != (test.operation == admissionv1.Update) {
				t.Errorf("it has an old object: %v", hasOld)
			}
		})
	}
}

func TestWhatIsNoSubresourceIsSaid(t *testing.T) {
	pod, deployment := object("v1", "Pod", nil), object("apps/v1", "Deployment", nil)
	for name, test := range map[string]struct {
		operation   admissionv1.Operation
		subresource string
		object      *unstructured.Unstructured
		want        string
	}{
		"a Scale of nobody":               {"", "scale", object("autoscaling/v1", "Scale", nil), "name the resource of the Scale, such as deployments.apps/scale"},
		"a Scale of something unknown":    {"", "webs.example.com/scale", object("autoscaling/v1", "Scale", nil), "resource webs.example.com is not known"},
		"a subresource that is not there": {"", "scale", pod, "a Pod has no subresource scale: it has attach, binding, ephemeralcontainers"},
		"one of another kind":             {"", "pods/status", deployment, "pods/status takes a Pod, not a Deployment"},
		"another operation":               {admissionv1.Create, "scale", deployment, "requests for the subresource scale are UPDATE"},
		"a connection":                    {"", "exec", pod, "give the options of the connection, such as a PodExecOptions"},
		"a token of nothing":              {"", "token", object("v1", "ServiceAccount", nil), "takes a TokenRequest, not a ServiceAccount"},
	} {
		if _, err := offline.KindsOf(&kinds.Table{}).NewSubresourceRequest(test.operation, test.subresource, test.object, nil, "apps"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	if _, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Update, object("autoscaling/v1", "Scale", nil), nil, "apps"); err == nil || !strings.Contains(err.Error(), "deployments.apps/scale") {
		t.Errorf("a Scale of nobody is taken: %v", err)
	}
}

package webhook_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

var noOpinion = extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil })

func TestAScopeThatSelectsConnectionsByLabelsIsRefused(t *testing.T) {
	all := admissionregistrationv1.OperationAll
	trusted := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "trusted", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	for name, test := range map[string]struct {
		scope   extension.Scope
		refused string
	}{
		"an exec noOpinion for Pods without a label": {extension.Scope{Rules: extension.Connect("pods/exec"), ObjectSelector: trusted}, "ObjectSelector: Rules[0] would never match"},
		"an exec noOpinion behind another rule": {
			extension.Scope{Rules: append(extension.Pods(), extension.Connect("pods/exec")...), ObjectSelector: trusted}, "ObjectSelector: Rules[1] would never match",
		},
		"an exec noOpinion for all Pods": {extension.Scope{Rules: extension.Connect("pods/exec")}, ""},
		"an operator in lower case": {
			extension.Scope{ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "in", Values: []string{"b"}}}}},
			"must be In, NotIn, Exists or DoesNotExist",
		},
		"an exec noOpinion with an empty selector": {extension.Scope{Rules: extension.Connect("pods/exec"), ObjectSelector: &metav1.LabelSelector{}}, ""},
		"Pods without a label":                     {extension.Scope{Rules: extension.Pods(), ObjectSelector: trusted}, ""},
		"every operation, CONNECT among them":      {extension.Scope{Rules: extension.Resources("", "v1", []string{"pods/*"}, all), ObjectSelector: trusted}, ""},
		"connections, with the manager's labels":   {extension.Scope{Rules: extension.Pods(admissionregistrationv1.Connect)}, ""},
		"a namespace that is excluded": {
			extension.Scope{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "cni"}}},
			"NamespaceSelector: names cni, which Registration.ExcludeNamespaces excludes from every webhook: remove it from one of them",
		},
		"namespaces of which one is excluded": {
			extension.Scope{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{"apps", "cni"}},
			}}},
			"NamespaceSelector: names cni",
		},
		"every namespace, though one is excluded": {extension.Scope{NamespaceSelector: extension.EveryNamespace()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := webhook.Group([]*extension.Handler{extension.Validating(noOpinion, test.scope)}, webhook.Defaults{PodSelector: trusted, Excluded: []string{"cni"}})
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

func TestAMatchConditionOnTheNamespaceIsRefused(t *testing.T) {
	const refused = "MatchConditions[1]: namespaceObject is always null"
	for expression, want := range map[string]string{
		`has(namespaceObject.metadata.labels) && namespaceObject.metadata.labels["env"] == "prod"`: refused,
		`"prod" in namespaceObject.metadata.labels`:                                                refused,
		`object.spec.namespaceObject == "x"`:                                                       "",
		`object.metadata.name == "the namespaceObject"`:                                            "",
		`object.metadata.namespaceObjects == 1`:                                                    "",
	} {
		t.Run(expression, func(t *testing.T) {
			scope := extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "any", Expression: "true"}, {Name: "namespace", Expression: expression}}}
			_, err := webhook.Group([]*extension.Handler{extension.Validating(noOpinion, scope)}, webhook.Defaults{})
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestAScopeWithAValueThatKubernetesDoesNotHaveIsRefused(t *testing.T) {
	rule := func(change func(*admissionregistrationv1.RuleWithOperations)) extension.Scope {
		rules := extension.Resources("example.com", "v1", []string{"sites"}, "CREATE")
		change(&rules[0])
		return extension.Scope{Rules: rules}
	}
	type ruled = admissionregistrationv1.RuleWithOperations
	for name, test := range map[string]struct {
		scope   extension.Scope
		refused string // empty: it is fine
	}{
		"an operation in lower case":      {rule(func(r *ruled) { r.Operations[0] = "create" }), `Rules[0].Operations: "create": must be CREATE, UPDATE, DELETE, CONNECT or *`},
		"a scope in lower case":           {rule(func(r *ruled) { r.Scope = new(admissionregistrationv1.ScopeType("namespaced")) }), `Rules[0].Scope: "namespaced": must be Namespaced, Cluster or *`},
		"a kind for a resource":           {rule(func(r *ruled) { r.Resources[0] = "Sites" }), `Rules[0].Resources: "Sites": must be the plural in lower case, as in the URL`},
		"a group with its version":        {rule(func(r *ruled) { r.APIGroups[0] = "example.com/v1" }), `Rules[0].APIGroups: "example.com/v1": must be a group without a version`},
		"no version":                      {rule(func(r *ruled) { r.APIVersions[0] = "" }), `Rules[0].APIVersions: "": must be a version, such as v1`},
		"a version in upper case":         {rule(func(r *ruled) { r.APIVersions[0] = "V1" }), `Rules[0].APIVersions: "V1"`},
		"every group, and one":            {rule(func(r *ruled) { r.APIGroups = []string{"*", "apps"} }), `Rules[0].APIGroups: "*" is all of them: leave the others out`},
		"every operation, and one":        {rule(func(r *ruled) { r.Operations = append(r.Operations, "*") }), `Rules[0].Operations: "*"`},
		"every resource, and one":         {rule(func(r *ruled) { r.Resources = []string{"*", "sites"} }), `Rules[0].Resources: "*"`},
		"every resource, and one's scale": {rule(func(r *ruled) { r.Resources = []string{"*", "sites/scale"} }), ""},
		"all, and one":                    {rule(func(r *ruled) { r.Resources = []string{"*/*", "sites"} }), `Rules[0].Resources: "*/*"`},
		"a scope":                         {rule(func(r *ruled) { r.Scope = new(admissionregistrationv1.AllScopes) }), ""},
		"a namespace in upper case":       {extension.Scope{NamespaceSelector: extension.InNamespaces("Shop")}, `NamespaceSelector: "Shop" is no name of a namespace: a lowercase RFC 1123 label`},
		"a label with a namespace":        {extension.Scope{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "my.shop"}}}, `NamespaceSelector: "my.shop"`},
		"a reinvocation of a Validator":   {extension.Scope{ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy)}, "ReinvocationPolicy: API servers never reinvoke a Validator: leave it out"},
	} {
		_, err := webhook.Group([]*extension.Handler{extension.Validating(noOpinion, test.scope)}, webhook.Defaults{})
		if said := fmt.Sprint(err); !strings.Contains(said, test.refused) || (err == nil) != (test.refused == "") {
			t.Errorf("%s: got %v, want %q", name, err, test.refused)
		}
	}
}

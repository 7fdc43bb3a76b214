package offline_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

func TestAScopeThatNoRequestCanMatchIsFound(t *testing.T) {
	condition := func(name, expression string) extension.Scope {
		return extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: name, Expression: expression}}}
	}
	inScope := func(scope admissionregistrationv1.ScopeType, rules []admissionregistrationv1.RuleWithOperations) extension.Scope {
		rules[0].Scope = &scope
		return extension.Scope{Rules: rules}
	}
	selector := func(requirements ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: requirements, MatchLabels: map[string]string{"team": "a"}}
	}
	for name, test := range map[string]struct {
		scope extension.Scope
		want  string // empty: it is fine
	}{
		"Pods":                                 {extension.Scope{}, ""},
		"everything":                           {extension.Scope{Rules: everything}, ""},
		"a kind of somebody else":              {extension.Scope{Rules: extension.Resources("other.io", "v1", []string{"widgets", "widgets/scale"}, "*")}, ""},
		"the plural of the CRD":                {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateways"}, "*")}, ""},
		"its singular":                         {extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateway"}, "*")}, "Rules[0]: there is no resource gateway.example.com: its CustomResourceDefinition says gateways"},
		"a version that the CRD does not have": {extension.Scope{Rules: extension.Resources("example.com", "v1alpha1", []string{"gateways"}, "*")}, "gateways.example.com has no version v1alpha1: it has v1, v1beta1"},
		"a singular":                           {extension.Scope{Rules: extension.Resources("apps", "v1", []string{"deployment"}, "*")}, "Kubernetes has no resource deployment.apps, but deployments.apps"},
		"another group":                        {extension.Scope{Rules: extension.Resources("", "v1", []string{"deployments"}, "*")}, "Kubernetes has no resource deployments, but deployments.apps"},
		"a version that never was":             {extension.Scope{Rules: extension.Resources("apps", "v3", []string{"deployments"}, "*")}, "deployments.apps has no version v3"},
		"one of several groups":                {extension.Scope{Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"*"}, Rule: admissionregistrationv1.Rule{APIGroups: []string{"", "apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments", "pods"}}}}}, ""},
		"the creation of an exec":              {extension.Scope{Rules: extension.Resources("", "v1", []string{"pods/exec"}, "CREATE")}, "[CREATE] of pods/exec never comes: its requests are [CONNECT]"},
		"a connection to Pods themselves":      {extension.Scope{Rules: extension.Connect("pods")}, "[CONNECT] of pods never comes"},
		"the creation of a scale":              {extension.Scope{Rules: extension.Resources("apps", "v1", []string{"deployments/scale"}, "CREATE")}, "[CREATE] of deployments.apps/scale never comes: its requests are [UPDATE]"},
		"an eviction":                          {extension.Scope{Rules: extension.Resources("", "v1", []string{"pods/eviction"}, "CREATE")}, ""},
		"any subresource":                      {extension.Scope{Rules: extension.Resources("", "v1", []string{"pods/*"}, "CONNECT")}, ""},
		"a subresource that is only read":      {extension.Scope{Rules: extension.Resources("", "v1", []string{"pods/log"}, "*")}, "pods has no subresource log"},
		"Pods without a namespace":             {inScope("Cluster", extension.Pods()), "scope Cluster never matches pods"},
		"Nodes in a namespace":                 {inScope("Namespaced", extension.Resources("", "v1", []string{"nodes"}, "*")), "scope Namespaced never matches nodes"},
		"webhook configurations":               {extension.Scope{Rules: extension.Resources("admissionregistration.k8s.io", "v1", []string{"mutatingwebhookconfigurations"}, "*")}, "API servers call no webhook for mutatingwebhookconfigurations.admissionregistration.k8s.io"},
		"a label with two values":              {extension.Scope{ObjectSelector: selector(metav1.LabelSelectorRequirement{Key: "team", Operator: "In", Values: []string{"b", "c"}})}, "ObjectSelector: team=a,team in (b,c) matches nothing"},
		"a label that must and must not be":    {extension.Scope{NamespaceSelector: selector(metav1.LabelSelectorRequirement{Key: "team", Operator: "DoesNotExist"})}, "NamespaceSelector: "},
		"a label without its value":            {extension.Scope{NamespaceSelector: selector(metav1.LabelSelectorRequirement{Key: "team", Operator: "NotIn", Values: []string{"a"}})}, "NamespaceSelector: "},
		"Nodes, which are in no namespace":     {extension.Scope{Rules: extension.Resources("", "v1", []string{"nodes"}, "*"), NamespaceSelector: selector(metav1.LabelSelectorRequirement{Key: "team", Operator: "DoesNotExist"})}, ""},
		"a selector that selects":              {extension.Scope{NamespaceSelector: selector(metav1.LabelSelectorRequirement{Key: "team", Operator: "NotIn", Values: []string{"b"}}), ObjectSelector: where("x", "NotIn", "a")}, ""},
		"an operator that is none":             {extension.Scope{ObjectSelector: where("team", "Like", "a")}, "ObjectSelector: "},
		"a condition":                          {condition("mine", "request.name == 'web'"), ""},
		"a condition that never holds":         {condition("never", "false"), "MatchConditions[0]: Expression: false: no request ever matches"},
		"a condition without a name":           {condition("", "true"), `MatchConditions[0]: Name: ""`},
		"a condition without an expression":    {condition("empty", " "), "MatchConditions[0]: Expression: it is empty"},
		"a condition that is no expression":    {condition("assigns", "request.name = 'web'"), `MatchConditions[0]: Expression: "request.name = 'web'": compilation failed: ERROR: <input>:1:14: Syntax error`},
		"a condition of another type":          {condition("text", "request.name"), "must evaluate to bool but got string"},
		"a function that does not exist":       {condition("new", "request.name.begins('x')"), "undeclared reference to 'begins'"},
		"a function for another type":          {condition("size", "request.dryRun.startsWith('x')"), "no matching overload for 'startsWith'"},
		"a variable that does not exist":       {condition("pod", "pod.metadata.name == 'x'"), "undeclared reference to 'pod'"},
		"a field that a request does not have": {condition("uid", "request.uid == 'x'"), "undefined field 'uid'"},
		"the authorizer":                       {condition("may", "authorizer.requestResource.check('delete').allowed()"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			known := offline.KindsOf(&kinds.Table{})
			if err := known.Add(gateways); err != nil {
				t.Fatal(err)
			}
			scope := test.scope
			if len(scope.Rules) == 0 {
				scope.Rules = extension.Pods()
			}
			err := known.Check([]*webhook.Webhook{{Name: "w", Scope: scope}})
			if test.want == "" && err != nil {
				t.Errorf("got %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "the scope of webhook w: ")) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

package offline_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// compile returns what Check says about a match condition.
func compile(expression string) error {
	return offline.KindsOf(&kinds.Table{}).Check([]*webhook.Webhook{{Name: "w", Scope: extension.Scope{
		Rules: extension.Pods(), MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}},
	}}})
}

func TestAMatchConditionThatCompilesIsTaken(t *testing.T) {
	// testing/differential compares with the compiler of an API server.
	for _, expression := range []string{
		"true",
		"request.name == 'web' && request.userInfo.username != \"system:node:a\"",
		"!('system:nodes' in request.userInfo.groups)",
		"!request.userInfo.groups.exists(g, g.startsWith('system:')) || request.dryRun",
		"has(object.metadata.labels) && object.metadata.labels['a/b'] == r'\\d'",
		"object.spec.containers.all(c, c.image.contains('@sha256:') ? true : false)",
		"object.spec.containers.map(c, c.name == 'x', c.image).size() > 0",
		"oldObject == null || object.metadata.?labels[?'team'].orValue('') != ''",
		"authorizer.group('').resource('pods').namespace(request.namespace).name('x').check('create').allowed()",
		"request.resource.group == \"apps\" && request.requestKind.kind == 'Deployment'",
		"[1, 2u, -3, 0x1F, 1.5e3, ].exists(i, v, i == v) || {'a': 1, 'b': 2,}['a'] == 1",
		"quantity(object.spec.size).isGreaterThan(quantity('1Gi')) // a comment\n",
		"type(object.spec.size) == int && '''it's''' != \"\"\"a \"quote\" \"\"\"",
		"b'\\x00' == b\"\\000\" && string(1) == \"\\u0041\"",
		"(object.spec.replicas + 1) * 2 - 1 >= 3 % 2 / 1",
	} {
		if err := compile(expression); err != nil {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func TestAMatchConditionThatDoesNotCompileIsRefused(t *testing.T) {
	for expression, want := range map[string]string{
		"request.name = 'web'":                           `at character 14: unexpected "="; to compare, write ==`,
		"request.dryRun and true":                        `unexpected "and"; write &&`,
		"request.dryRun & true":                          `unexpected "&"; write &&`,
		"(request.dryRun":                                "it ends too early",
		"request.dryRun)":                                `unexpected ")"`,
		"request.name == 'web":                           "at character 17: the string is not closed",
		`request.name == 'w\eb'`:                         `the escape \e`,
		"request.":                                       "it ends too early",
		"pod.metadata.name == 'x'":                       "there is no variable pod: match conditions have object, oldObject, request, authorizer",
		"variables.x":                                    "there is no variable variables",
		"object.spec.containers.all(c, d.image == '')":   "there is no variable d",
		"object.spec.containers.all(c, true) && c == ''": "there is no variable c",
		"request.user.username == 'x'":                   "request has no field user: it has kind",
		"request.userInfo.name == 'x'":                   "request.userInfo has no field name: it has username",
		"request.uid == ''":                              "request has no field uid",
		"object.metadata.labels[team] == ''":             "there is no variable team",
		"object..name":                                   `unexpected "."`,
		"if (true) { false }":                            "if is a reserved word",
		"request.name == 'a' 'b'":                        `unexpected "'"`,
		"true ? false":                                   "it ends too early",
		strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300): "nested more than 250 deep",
	} {
		if err := compile(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expression, err, want)
		}
	}
}

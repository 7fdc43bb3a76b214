package matching_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// seeds are match conditions that an API server compiles. The test breaks them.
var seeds = []string{
	"request.name == 'web' && request.userInfo.username != \"system:node:a\"",
	"!('system:nodes' in request.userInfo.groups) || request.?dryRun.orValue(false)",
	"!request.userInfo.groups.exists(g, g.startsWith('system:')) || request.dryRun",
	"has(object.metadata.labels) && object.metadata.labels['a/b'] == r'\\d'",
	"object.spec.containers.all(c, c.image.contains('@sha256:') ? true : false)",
	"object.spec.containers.map(c, c.name == 'x', c.image).size() > 0",
	"oldObject == null || object.metadata.?labels[?'team'].orValue('') != ''",
	"authorizer.group('').resource('pods').namespace(request.namespace).name('x').check('create').allowed()",
	"request.resource.group == \"apps\" && request.requestKind.kind == 'Deployment' && request.subResource == ''",
	"[1, 2, -3, 0x1F, ].exists(i, v, v == 2) || {'a': 1, 'b': 2,}['a'] == 1",
	"quantity(string(object.spec.size)).isGreaterThan(quantity('1Gi')) // a comment\n",
	"type(object.spec.size) == int && '''it's''' != \"\"\"a \"quote\" \"\"\"",
	"b'\\x00' == b\"\\000\" && string(1) == \"\\u0041\"",
	"(object.spec.replicas + 1) * 2 - 1 >= 3 % 2 / 1",
	"object.spec.parts.transformList(i, v, i + v).exists_one(x, x == 1) && format.named('dns1123Label').hasValue()",
	"sets.contains([1, 2], [1]) && isURL('https://x') && ip('::1').family() == 6",
}

// TestAMatchConditionThatIsRefusedDoesNotCompile breaks conditions by taking away, adding
// and exchanging characters and words. What offline refuses, an API server must refuse;
// offline may take more, because it knows neither types nor functions.
func TestAMatchConditionThatIsRefusedDoesNotCompile(t *testing.T) {
	compiler := plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	compiles := func(expression string) error {
		result := compiler.CompileCELExpression(&matchconditions.MatchCondition{Name: "c", Expression: expression},
			plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)
		if result.Error != nil {
			return result.Error
		}
		return nil
	}
	refuses := func(expression string) error {
		return offline.KindsOf(&kinds.Table{}).Check([]*webhook.Webhook{{Name: "w", Scope: extension.Scope{
			Rules: extension.Pods(), MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}},
		}}})
	}
	for _, seed := range seeds {
		if err := compiles(seed); err != nil {
			t.Errorf("an API server refuses %s: %v", seed, err)
		}
		if err := refuses(seed); err != nil {
			t.Errorf("offline refuses %s: %v", seed, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"(", ")", "[", "]", "{", "}", ".", ",", "'", "\"", "=", "==", "&", "&&", "|", "||", "!", "-", "?", ":", " ", "x", "1", "in", "object", "request", "r'", "\\", "//", "\n", "u", "`"}
	rounds := 20000
	if testing.Short() {
		rounds = 2000
	}
	refused, both := 0, 0
	for range rounds {
		broken := []byte(seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(2) {
			at := random.IntN(len(broken))
			piece := pieces[random.IntN(len(pieces))]
			switch random.IntN(3) {
			case 0:
				broken = append(broken[:at:at], broken[at+1:]...)
			case 1:
				broken = append(append(broken[:at:at], piece...), broken[at:]...)
			case 2:
				broken = append(append(broken[:at:at], piece...), broken[at+1:]...)
			}
		}
		expression := string(broken)
		if strings.TrimSpace(expression) == "" {
			continue
		}
		ours, theirs := refuses(expression), compiles(expression)
		if ours != nil && theirs == nil {
			t.Errorf("offline refuses, and an API server compiles:\n%s\n%v", expression, ours)
		}
		if theirs != nil {
			refused++
			if ours != nil {
				both++
			}
		}
	}
	t.Logf("an API server refuses %d of %d, offline %d of these", refused, rounds, both)
	if both < refused/2 {
		t.Errorf("offline finds %d of %d", both, refused)
	}
}

package offline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// conditional returns an engine with a webhook for everything that has these match
// conditions, with the names a, b and so on, and then one that has none.
func conditional(t *testing.T, policy admissionregistrationv1.FailurePolicyType, expressions ...string) *offline.Engine {
	t.Helper()
	scope := extension.Scope{Name: "conditional", Rules: everything, FailurePolicy: &policy, NamespaceSelector: extension.EveryNamespace()}
	for i, expression := range expressions {
		scope.MatchConditions = append(scope.MatchConditions, admissionregistrationv1.MatchCondition{Name: string(rune('a' + i)), Expression: expression})
	}
	nothing := extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil })
	other := extension.Scope{Name: "other", Rules: everything, NamespaceSelector: extension.EveryNamespace()}
	webhooks, err := webhook.Group([]*extension.Handler{extension.Validating(nothing, other), extension.Validating(nothing, scope)}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	return offline.New(webhooks, offline.Options{Webhook: webhook.HandlerOptions{Scheme: scheme.Scheme}})
}

// outcomeOf returns in words what came of a request.
func outcomeOf(t *testing.T, engine *offline.Engine, req *offline.Request) string {
	t.Helper()
	out, err := engine.Admit(t.Context(), req)
	switch {
	case err != nil:
		return err.Error()
	case !out.Allowed:
		reasons := ""
		for _, not := range out.NotCalled {
			reasons += "; " + not.Webhook.Name + ": " + not.Reason
		}
		return fmt.Sprintf("%d, %d called: %s%s", out.Status.Code, len(out.Steps), out.Status.Message, reasons)
	}
	for _, not := range out.NotCalled {
		if not.Webhook.Name == "conditional" {
			return not.Reason
		}
	}
	return "called"
}

func TestMatchConditions(t *testing.T) {
	const (
		fail, ignore = admissionregistrationv1.Fail, admissionregistrationv1.Ignore
		mayDelete    = "authorizer.group('').resource('pods').check('delete').allowed()"
		missing      = "object.spec.nodeName == 'n'"
		refused      = "403, 0 called: pods \"x\" is forbidden: webhook conditional: a match condition failed, and its failure policy is Fail: "
		onlyCluster  = "cannot determine whether the API server calls the webhook conditional: only a cluster can evaluate its match condition "
		called       = "called"
	)
	pod := object("v1", "Pod", teamA)
	pod.Object["spec"] = map[string]any{"priority": int64(3), "containers": []any{map[string]any{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "1"}}}}}
	exec := object("v1", "PodExecOptions", nil)
	exec.Object["command"] = []any{"sh", "-c"}
	gateway := object("example.com/v1", "Gateway", teamA)
	gateway.Object["spec"] = map[string]any{"size": int64(5), "share": 0.5}
	given := func(result bool) func(*offline.Request) {
		return func(req *offline.Request) { req.MatchConditions = map[string]bool{"a": result} }
	}
	ten := "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
	for name, test := range map[string]struct {
		policy     admissionregistrationv1.FailurePolicyType
		conditions []string
		object     *unstructured.Unstructured // a Pod
		operation  admissionv1.Operation      // a CREATE
		with       func(*offline.Request)
		want       string // the beginning
	}{
		"one that holds":                           {fail, []string{"object.metadata.labels['team'] == 'a'"}, nil, "", nil, called},
		"one that does not hold":                   {fail, []string{"true", "object.metadata.labels['team'] == 'b'"}, nil, "", nil, "its match condition b is false"},
		"numbers and quantities":                   {fail, []string{"object.spec.priority == 3", "quantity(object.spec.containers[0].resources.requests['cpu']) == quantity('1000m')"}, nil, "", nil, called},
		"numbers of a custom kind":                 {fail, []string{"object.spec.size + 1 == 6 && object.spec.share < 1.0 && object.kind == 'Gateway'"}, gateway, "", nil, called},
		"one that fails under Fail":                {fail, []string{missing}, nil, "", nil, refused + "a: expression '" + missing + "' resulted in error: no such key: nodeName; conditional: a match condition failed, and its failure policy is Fail: a: "},
		"one that fails under Ignore":              {ignore, []string{missing}, nil, "", nil, "a match condition failed, and its failure policy is Ignore: a: expression '" + missing + "' resulted in error: no such key: nodeName"},
		"one that fails, and one that is false":    {fail, []string{missing, "false || request.name == 'y'"}, nil, "", nil, "its match condition b is false"},
		"one that costs too much":                  {fail, []string{strings.Repeat(ten+".all(x, ", 6) + "true" + strings.Repeat(")", 6)}, nil, "", nil, refused + "a: "},
		"several that cost too much together":      {fail, append(slices.Repeat([]string{strings.Repeat(ten+".all(x, ", 5) + "true" + strings.Repeat(")", 5)}, 10), "request.name == 'y'"), nil, "", nil, refused},
		"one that does not compile":                {ignore, []string{"pod.metadata.name == 'x'"}, nil, "", nil, "a match condition failed, and its failure policy is Ignore: a: compilation error"},
		"the name, the resource and the operation": {fail, []string{"request.name == 'x' && request.namespace == 'apps' && request.resource.resource == 'pods' && request.requestKind.kind == 'Pod' && request.operation == 'CREATE' && !request.dryRun && !has(request.subResource)"}, nil, "", nil, called},
		"the user":                                    {fail, []string{"request.userInfo.username == 'alice' && 'developers' in request.userInfo.groups"}, nil, "", nil, called},
		"the old object of a CREATE":                  {fail, []string{"oldObject == null"}, nil, "", nil, called},
		"the object of a DELETE":                      {fail, []string{"object == null && oldObject.metadata.name == 'x'"}, nil, admissionv1.Delete, nil, called},
		"both objects of an UPDATE":                   {fail, []string{"object == oldObject"}, nil, admissionv1.Update, nil, called},
		"a connection":                                {fail, []string{"object.command == ['sh', '-c'] && request.subResource == 'exec' && object.kind == 'PodExecOptions'"}, exec, "", nil, called},
		"the authorizer":                              {fail, []string{mayDelete}, nil, "", nil, onlyCluster + "a (" + mayDelete + "), which reads the authorizer"},
		"the authorizer, given":                       {fail, []string{mayDelete}, nil, "", given(true), called},
		"the authorizer, given as false":              {fail, []string{mayDelete}, nil, "", given(false), "its match condition a is false, as given"},
		"the authorizer, which is not asked":          {fail, []string{"request.name == 'x' || " + mayDelete}, nil, "", nil, called},
		"the authorizer, and one that is false":       {fail, []string{mayDelete, "request.name == 'y'"}, nil, "", nil, "its match condition b is false"},
		"the authorizer, and one that fails":          {fail, []string{mayDelete, missing}, nil, "", nil, onlyCluster + "a "},
		"the authorizer, and a failure to be ignored": {ignore, []string{mayDelete, missing}, nil, "", nil, "a match condition failed, and its failure policy is Ignore: b: "},
		"a result that is given wins":                 {fail, []string{"request.name == 'y'"}, nil, "", given(true), called},
		"the UID of the user":                         {fail, []string{"request.userInfo.uid == 'u'"}, nil, "", nil, onlyCluster + "a (request.userInfo.uid == 'u'), which reads request.userInfo.uid"},
		"the UID of the user, known":                  {fail, []string{"request.userInfo.uid == 'u'"}, nil, "", func(req *offline.Request) { req.User.UID = "u" }, called},
		"what else is known of the user":              {fail, []string{"has(request.userInfo.extra) && 'k' in request.userInfo.extra"}, nil, "", nil, onlyCluster + "a "},
		"what else is known of the user, given":       {fail, []string{"'v' in request.userInfo.extra['k']"}, nil, "", func(req *offline.Request) { req.User.Extra = map[string]authenticationv1.ExtraValue{"k": {"v"}} }, called},
		"the user as a whole":                         {fail, []string{"[request.userInfo].exists(u, u.uid == '')"}, nil, "", nil, onlyCluster + "a "},
		"the options of the client":                   {fail, []string{"request.?options.?fieldManager.orValue('') == 'kubectl'"}, nil, "", nil, onlyCluster + "a (request.?options.?fieldManager.orValue('') == 'kubectl'), which reads request.options.fieldManager"},
		"the options in an object":                    {fail, []string{"!has(object.spec.options) && !has(object.spec.uid)"}, gateway, "", nil, called},
	} {
		t.Run(name, func(t *testing.T) {
			known := offline.KindsOf(&kinds.Table{})
			if err := known.Add(gateways); err != nil {
				t.Fatal(err)
			}
			if test.object == nil {
				test.object = pod
			}
			if test.operation == "" {
				test.operation = admissionv1.Create
			}
			req, err := known.NewRequest(test.operation, test.object, nil, "apps")
			if err != nil {
				t.Fatal(err)
			}
			req.User = authenticationv1.UserInfo{Username: "alice", Groups: []string{"developers"}}
			if test.with != nil {
				test.with(req)
			}
			if got := outcomeOf(t, conditional(t, test.policy, test.conditions...), req); !strings.HasPrefix(got, test.want) || test.want == called && got != called {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestAMatchConditionOfAKindWithUnknownResource(t *testing.T) {
	gateway := object("example.com/v1", "Gateway", nil)
	for expression, want := range map[string]string{
		"request.resource.resource == 'gateways'": "cannot determine",
		"object.kind == 'Gateway'":                "called",
		"request.namespace == 'apps'":             "cannot determine",
	} {
		req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, gateway, nil, "apps")
		if err != nil {
			t.Fatal(err)
		}
		if got := outcomeOf(t, conditional(t, admissionregistrationv1.Ignore, expression), req); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", expression, got, want)
		}
	}
}

func TestAMatchConditionOfAnotherVersion(t *testing.T) {
	known := offline.KindsOf(&kinds.Table{})
	if err := known.Add(gateways); err != nil {
		t.Fatal(err)
	}
	for expression, decided := range map[string]bool{
		"request.name == 'y'":                       true,
		"object.spec.size == 1":                     false,
		"request.kind.version == 'v1'":              false,
		"request.requestKind.version == 'v1alpha1'": true,
	} {
		req, err := known.NewRequest(admissionv1.Create, object("example.com/v1", "Gateway", nil), nil, "apps")
		if err != nil {
			t.Fatal(err)
		}
		called, err := req.Matches(extension.Scope{
			Rules:           extension.Resources("example.com", "v1beta1", []string{"gateways"}, "*"),
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}},
		})
		if called || (err == nil) != decided {
			t.Errorf("%s: got %v, %v", expression, called, err)
		}
	}
}

func TestOnlyAMatchConditionThatIsEvaluatedNeedsTheObject(t *testing.T) {
	for _, expression := range []string{"true", "authorizer.path('/').check('get').allowed()"} {
		req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, object("v1", "Pod", nil), nil, "apps")
		if err != nil {
			t.Fatal(err)
		}
		req.Object = []byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": []}`)
		scope := extension.Scope{Rules: everything, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}}}
		if _, err := req.Matches(scope); err == nil || !strings.Contains(err.Error(), "decoding Pod x: ") {
			t.Errorf("%s: got %v", expression, err)
		}
		req.MatchConditions = map[string]bool{"c": true}
		if called, err := req.Matches(scope); !called || err != nil {
			t.Errorf("%s, given: got %v, %v", expression, called, err)
		}
	}
}

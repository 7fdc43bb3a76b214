package deadlock_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
)

func TestGuards(t *testing.T) {
	const page = "../../docs/concepts.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range deadlock.Guards {
		t.Run(fmt.Sprintf("%s%s%s are documented", g.Namespace, g.User, g.Group), func(t *testing.T) {
			what := "namespace `" + g.Namespace + "`"
			switch {
			case g.Namespace == deadlock.Own:
				what = "the manager's own namespace"
			case g.User != "":
				what = "requests of the user `" + g.User + "`"
			case len(g.Resources) > 0:
				what = "`" + strings.Join(g.Resources, "`, `") + "`"
				if g.Group != "" {
					what += " of `" + g.Group + "`"
				}
			}
			if row := "| " + what + " | " + g.Breaks + " |\n"; !strings.Contains(string(text), row) {
				t.Errorf("%s lacks %s", page, row)
			}
		})
	}
}

func TestCondition(t *testing.T) {
	const every, write = admissionregistrationv1.OperationAll, admissionregistrationv1.Create
	nodes, reviews, requests := schema.GroupResource{Resource: "nodes"}, schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	everything := extension.Resources("*", "*", []string{"*/*"}, every)
	for name, test := range map[string]struct {
		rules   []admissionregistrationv1.RuleWithOperations
		needed  bool
		leftOut []schema.GroupResource
	}{
		"everything":                          {everything, true, []schema.GroupResource{nodes, reviews, requests}},
		"every resource, but no subresource":  {extension.Resources("*", "*", []string{"*"}, write), true, []schema.GroupResource{nodes, reviews, requests}},
		"every status":                        {extension.Resources("*", "*", []string{"*/status"}, write), true, []schema.GroupResource{nodes, reviews, requests}},
		"all of one group":                    {extension.Resources("", "v1", []string{"*"}, write), true, []schema.GroupResource{nodes}},
		"all of a group that nothing is from": {extension.Resources("apps", "v1", []string{"*"}, write), true, nil},
		"everything, and nodes by name":       {append(extension.Resources("", "v1", []string{"nodes"}, write), everything...), true, []schema.GroupResource{reviews, requests}},
		"everything, and a status by name":    {append(extension.Resources("", "v1", []string{"nodes/status"}, write), everything...), true, []schema.GroupResource{reviews, requests}},
		"everything, and nodes of others":     {append(extension.Resources("metrics.k8s.io", "v1", []string{"nodes"}, write), everything...), true, []schema.GroupResource{nodes, reviews, requests}},
		"nodes by name":                       {extension.Resources("", "v1", []string{"nodes", "nodes/status"}, every), false, nil},
		"Pods":                                {extension.Pods(), false, nil},
		"every connection":                    {extension.Connect("*/*"), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			condition, needed := deadlock.Condition(test.rules)
			if needed != test.needed {
				t.Fatalf("got %v, %q", needed, condition.Expression)
			}
			for _, resource := range []schema.GroupResource{nodes, reviews, requests} {
				want := slices.Contains(test.leftOut, resource)
				if left := deadlock.Of(test.rules, write, "alice", resource) != nil; left != want {
					t.Errorf("%s: left out: %v", resource, left)
				}
				if written := strings.Contains(condition.Expression, "'"+resource.Group+"/"+resource.Resource+"'"); written != want {
					t.Errorf("%s: the condition is %s", resource, condition.Expression)
				}
			}
			if deadlock.Of(test.rules, admissionregistrationv1.Connect, "system:apiserver", nodes) != nil {
				t.Error("a connection is left out")
			}
			if left := deadlock.Of(test.rules, write, "system:apiserver", schema.GroupResource{Resource: "pods"}) != nil; left != needed {
				t.Errorf("the API server's own request is left out: %v", left)
			}
		})
	}
}

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// odd has objects that the API server stores although Go's types, or a hook's author, do not
// take them: times that Go does not read, quantities that are none, and fields of a wrong type.
const odd = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: odd-timeout}
spec:
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings}
  hooks: {sync: {webhook: {url: "http://127.0.0.1:1", timeout: soon}}}
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: DecoratorController
metadata: {name: odd-unknown}
spec:
  resources: [{apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: none}}}]
  hooks: {sync: {webhook: {url: "http://127.0.0.1:1"}}}
  unknown: [1, {memory: 1e99Qi}]
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: ControllerRevision
metadata: {name: odd, namespace: apps}
parentPatch: {spec: 1, at: 2030-01-01t00:00:00z, n: 123456789012345678901234567890, metadata: []}
children: [{apiGroup: "", kind: ConfigMap, names: [odd]}]
---
{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: odd-string, namespace: apps, labels: {test: odd}}, spec: "no object", validFrom: 2030-01-01t00:00:00z, validUntil: -1}
---
{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: odd-selector, namespace: apps, labels: {test: odd}}, spec: {selector: [{matchLabels: 1}]}, memory: 1e99Qi, n: 1.7e308}
---
{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: odd-null, namespace: apps, labels: {test: odd}}, spec: null, "": {"a/b": [[[null]]]}, roleRef: true}
`

// The controller rolls, so that it lists ControllerRevisions, too.
const beside = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: beside-odd}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: odd}}}
  childResources: [{apiVersion: rbac.authorization.k8s.io/v1, resource: rolebindings, updateStrategy: {method: RollingRecreate}}]
  hooks:
    sync: {rego: {inline: "package controller\n\nstatus := {\"called\": true}\nchildren := []"}}
---
{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: even, namespace: apps, labels: {test: odd}}}
`

// called returns for how many parents of a test the hook has been called.
func called(ctx context.Context, t *testing.T, test string) (count int) {
	t.Helper()
	parents := &unstructured.UnstructuredList{}
	parents.SetAPIVersion("example.com/v1")
	parents.SetKind("TransientRoleBindingList")
	if err := admin.List(ctx, parents, client.InNamespace("apps"), client.MatchingLabels{"test": test}); err != nil {
		t.Error(err)
	}
	for _, each := range parents.Items {
		if status, ok := each.Object["status"].(map[string]any); ok && status["called"] == true {
			count++
		}
	}
	return count
}

func TestOddObjectsKeepNobodyElseFromTheirHooks(t *testing.T) {
	apply(t, odd)
	kubectl := func(args ...string) string {
		t.Helper()
		output, err := cluster.Kubectl(context.WithoutCancel(t.Context()), nil, args...).CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %q: %v: %s", args, err, output)
		}
		return string(output)
	}
	kubectl("patch", "compositecontroller", "odd-timeout", "--subresource=status", "--type=merge",
		`-p={"status":{"conditions":[{"type":"Ready","status":"True","reason":"A","message":"","lastTransitionTime":"2030-01-01t00:00:00z"}]}}`)
	kubectl("patch", "transientrolebinding", "odd-null", "-n", "apps", "--subresource=status", "--type=merge", `-p={"status":{"conditions":[1,{"type":[]}],"observedGeneration":"x"}}`)
	kubectl("patch", "transientrolebinding", "odd-string", "-n", "apps", "--subresource=status", "--type=merge", `-p={"status":"no object"}`)
	t.Cleanup(func() {
		kubectl("delete", "compositecontroller/odd-timeout", "compositecontroller/beside-odd", "decoratorcontroller/odd-unknown")
		kubectl("delete", "-n", "apps", "controllerrevisions.metacontroller.k8s.io/odd")
		kubectl("delete", "-n", "apps", "transientrolebinding", "-l", "test=odd")
	})
	run(t, "--hooks-kinds=transientrolebindings.example.com,rolebindings.rbac.authorization.k8s.io") // it lists what there is
	apply(t, beside)
	testkit.Eventually(t, "the hook is called for each, the odd ones too", func(ctx context.Context) bool { return called(ctx, t, "odd") == 4 })
	hasCondition(t, "CompositeController", "odd-timeout", "Ready", "False Invalid", "soon")
	hasCondition(t, "DecoratorController", "odd-unknown", "Honored", "False IgnoredFields", "unknown")
	hasCondition(t, "CompositeController", "beside-odd", "Converged", "True")
}

// bombed has a policy whose bad parents take far longer than the limit, in a builtin that cannot be interrupted.
const bombed = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: bombed}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: bombed}}}
  hooks: {sync: {rego: {inline: %q}}}
`

func TestBadParentsKeepNoOtherFromItsHook(t *testing.T) {
	testkit.OnlyLong(t)
	policy := "package controller\n\nchildren := []\nstatus := {\"called\": true} if not input.parent.bomb\nstatus := {\"called\": n > 0} if {\ninput.parent.bomb\nx0 := \"x\"\ny0 := 1\n"
	for i := range 26 {
		policy += fmt.Sprintf("x%[2]d := [x%[1]d, x%[1]d]\ny%[2]d := [y%[1]d, y%[1]d]\n", i, i+1)
	}
	policy += "n := count(sort([x26, y26]))\n}\n"
	apply(t, fmt.Sprintf(bombed, policy))
	for i := range 5 {
		apply(t, fmt.Sprintf("{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: bomb-%d, namespace: apps, labels: {test: bombed}}, bomb: true}", i))
	}
	run(t, "--hooks-kinds=transientrolebindings.example.com")
	hasCondition(t, "CompositeController", "bombed", "Converged", "False", "deadline exceeded")
	longest := time.Duration(0)
	for i := range 5 {
		began := time.Now()
		apply(t, fmt.Sprintf("{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: good-%d, namespace: apps, labels: {test: bombed}}}", i))
		testkit.Eventually(t, "the hook is called for who is good", func(ctx context.Context) bool { return called(ctx, t, "bombed") == i+1 })
		longest = max(longest, time.Since(began))
	}
	testkit.Figure("hooks.beside_bombs_max_s", longest.Seconds(), "s")
}

package review

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const example = "../../../examples/hooks-transient-binding/"

func read(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// transientBinding has the example's manifests, with the policy in its ConfigMap.
func transientBinding(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, name := range []string{"crd.yaml", "controllers.yaml", "binding.yaml"} {
		text, err := os.ReadFile(example + name)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, read(t, string(text))...)
	}
	policy, err := os.ReadFile(example + "policy/controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "transient-binding", "name": "policy"},
		"data": map[string]any{"controller.rego": string(policy)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(objects, read(t, string(data))...)
}

const binding = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: oncall, namespace: apps}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: NAME}
`

func TestAReviewPrintsWhatWouldBecomeOfAParent(t *testing.T) {
	for name, test := range map[string]struct {
		now   string
		exist string
		want  string
	}{
		"before its window nothing is made": {"2026-11-23T11:00:00Z", "", `
TransientRoleBinding apps/oncall, by CompositeController transient-rolebinding
update: status
--- is
+++ would be
@@ -0,0 +1 @@
+conditions: []
`},
		"within it a binding is": {"2026-11-23T12:30:00Z", "", `
create: RoleBinding apps/oncall
--- is
+++ would be
@@ -0,0 +1,13 @@
+apiVersion: rbac.authorization.k8s.io/v1
+kind: RoleBinding
+metadata:
+  name: oncall
+  namespace: apps
+roleRef:
+  apiGroup: rbac.authorization.k8s.io
+  kind: ClusterRole
+  name: view
+subjects:
+- apiGroup: rbac.authorization.k8s.io
+  kind: User
+  name: jane
`},
		"one that is as it should be stays": {"2026-11-23T12:30:00Z", strings.ReplaceAll(binding, "NAME", "jane"), "\nunchanged: RoleBinding apps/oncall\n"},
		"one that somebody changed is made anew": {"2026-11-23T12:30:00Z", strings.ReplaceAll(binding, "NAME", "joe"), `
update: RoleBinding apps/oncall by Recreate
--- is
+++ would be
@@ -10,4 +10,4 @@
 subjects:
 - apiGroup: rbac.authorization.k8s.io
   kind: User
-  name: joe
+  name: jane
`},
		"after it the binding is deleted": {"2026-11-23T13:00:01Z", strings.ReplaceAll(binding, "NAME", "jane"), `
delete: RoleBinding apps/oncall
--- is
+++ would be
@@ -1,13 +0,0 @@
-apiVersion: rbac.authorization.k8s.io/v1
`},
		"one in another namespace is not its child": {
			"2026-11-23T13:00:01Z", strings.NewReplacer("NAME", "jane", "namespace: apps", "namespace: other").Replace(binding), "\n+conditions: []\n",
		},
		"one of another owner is not its child": {
			"2026-11-23T13:00:01Z",
			strings.NewReplacer("NAME", "jane", "namespace: apps", "namespace: apps, ownerReferences: [{apiVersion: v1, kind: Pod, name: x, uid: y, controller: true}]").Replace(binding),
			"\n+conditions: []\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			now, err := time.Parse(time.RFC3339, test.now)
			if err != nil {
				t.Fatal(err)
			}
			objects := append(transientBinding(t), read(t, test.exist)...)
			var out strings.Builder
			if err := Run(t.Context(), &out, objects, Options{Now: now}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains("\n"+out.String(), test.want) {
				t.Errorf("got\n%s\nwant within it\n%s", &out, test.want)
			}
			if strings.Contains(name, "is not its child") && strings.Contains(out.String(), "delete") {
				t.Errorf("got\n%s", &out)
			}
		})
	}
}

const ofFoo = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: c}
spec:
  parentResource: {apiVersion: example.com/v1, resource: foos}
  childResources: [{apiVersion: v1, resource: configmaps}]
  hooks:
    sync:
      version: VERSION
      rego:
        query: data.a
        inline: |
          package a
          POLICY
---
apiVersion: example.com/v1
kind: Foo
metadata: {name: f, namespace: ns, generation: 3}
status: {observedGeneration: 3}
`

func TestWhatCannotBeReviewedIsSaid(t *testing.T) {
	child := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}`
	for name, test := range map[string]struct{ from, to, want string }{
		"a web server":                 {"rego:", "webhook:", "spec.hooks.sync.rego is not set: only hooks that are policies"},
		"a policy that is wrong":       {"POLICY", "children := [", "CompositeController c: inline:"},
		"a policy that is not there":   {"inline: |", "configMap: {name: p, namespace: ns, key: k}\n        x: |", "configmap/ns/p/k: the manifests do not have the ConfigMap"},
		"a child of another kind":      {"POLICY", `children := [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]`, "children[0], Secret ns/s, is of no kind in spec.childResources"},
		"a child without a name":       {"POLICY", `children := [{"apiVersion": "v1", "kind": "ConfigMap"}]`, "children[0] has no apiVersion, no kind or no metadata.name"},
		"a child twice":                {"POLICY", "children := [" + child + ", " + child + "]", "children has ConfigMap ns/c twice"},
		"a kind that is unknown":       {"resource: configmaps", "resource: bars", "the kind of bars of v1 is unknown: add its CustomResourceDefinition"},
		"a response that is no answer": {"POLICY", `children := 1`, "the response: json:"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.NewReplacer("VERSION", "v1", "POLICY", "status := {}").Replace(strings.ReplaceAll(ofFoo, test.from, test.to))
			err := Run(t.Context(), &strings.Builder{}, read(t, text), Options{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if err := Run(t.Context(), &strings.Builder{}, read(t, strings.NewReplacer("kind: Foo", "kind: Bar", "POLICY", "x := 1", "VERSION", "v1").Replace(ofFoo)), Options{}); !errors.Is(err, ErrNothing) {
		t.Errorf("got %v", err)
	}
}

func TestManifestsThatAreWrongAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"a: b":                                 "document 1: has no apiVersion or no kind",
		"apiVersion: v1\nkind: Pod\n---\nx: [": "document 2: ",
		"a: " + strings.Repeat("x", MaxBytes):  "wrong manifests: more than 10485760 bytes",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	list := read(t, "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n---\n# nothing\n")
	var names []string
	for _, object := range list {
		names = append(names, object.GetName())
	}
	if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestAReviewLeavesWhatTheEngineWrites(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	const head = "Foo ns/f, by CompositeController c\nunchanged: status\n"
	for policy, want := range map[string]string{
		"resyncAfterSeconds := 90":             "asked again after 1m30s\n",
		`validUntil := "2030-01-01T22:00:00Z"`: "the children go at 2030-01-01T22:00:00Z\n",
		`validUntil := "2029-12-31T22:00:00Z"`: "no children: the answer was valid until 2029-12-31T22:00:00Z\n",
		`validUntil := "tomorrow"`:             "",
	} {
		text := strings.NewReplacer("VERSION", "v1", "POLICY", policy).Replace(ofFoo)
		var out strings.Builder
		err := Run(t.Context(), &out, read(t, text), Options{Now: now})
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "tomorrow") {
				t.Errorf("%s: %v", policy, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != head+want {
			t.Errorf("got\n%s\nwant\n%s", &out, head+want)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// maxMemory is half of what the manifests, and a quarter of what the chart lets the program have.
const maxMemory = 128 // MiB

// remembers is a controller with three ConfigMaps for each parent, and the rights for it.
const remembers = `
{apiVersion: v1, kind: Namespace, metadata: {name: memory}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: memory}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: memory}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: memory}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: memory}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: memory}}}
  childResources: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: InPlace}}]
  hooks: {sync: {webhook: {url: %q}}}
`

func TestTheProgramNeedsLittleMemoryForThousandsOfChildren(t *testing.T) {
	testkit.OnlyLong(t)
	hook := httptest.NewServer(http.HandlerFunc(threeConfigMaps))
	t.Cleanup(hook.Close)
	apply(t, fmt.Sprintf(remembers, hook.URL))
	t.Cleanup(func() {
		if text, err := cluster.Kubectl(context.WithoutCancel(t.Context()), nil, "delete", "compositecontroller/memory", "namespace/memory", "--wait=false").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	})
	// The test's own binary has tests, and the race detector.
	binary := filepath.Join(t.TempDir(), "hooks")
	if err := testkit.Build(t.Context(), binary, "-ldflags=-s -w", "."); err != nil {
		t.Fatal(err)
	}
	process := testkit.Run(t, exec.Command(binary,
		"reconcile", "--kubeconfig="+operator.KubeConfig, "--webhook-namespace=hooks-system", "--leader-election=false", "--health-address=", "--metrics-address=",
		"--drain-period=0s", "--hooks-kinds=transientrolebindings.example.com,configmaps",
	))
	const count = 1000
	for n := range count {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "TransientRoleBinding"}}
		object.SetNamespace("memory")
		object.SetName(fmt.Sprint("a", n))
		object.SetLabels(map[string]string{"test": "memory"})
		testkit.Create(t, admin, object)
	}
	testkit.Within(t, 10*time.Minute, "all children are there", func(ctx context.Context) bool {
		var children corev1.ConfigMapList
		return admin.List(ctx, &children, client.InNamespace("memory"), client.HasLabels{"controller-uid"}) == nil && len(children.Items) == 3*count
	})
	peak := testkit.Megabytes(testkit.Memory(t, process.Process.Pid, "VmHWM"))
	testkit.Figure("hook.rss_mb", testkit.Megabytes(testkit.Memory(t, process.Process.Pid, "VmRSS")), "MiB")
	testkit.Figure("hook.rss_peak_mb", peak, "MiB")
	if peak > maxMemory {
		t.Errorf("it has had %.0f MiB, more than %d", peak, maxMemory)
	}
	process.Stop(t)
}

// threeConfigMaps is a hook.
func threeConfigMaps(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Parent unstructured.Unstructured }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var children []any
	for n := range 3 {
		children = append(children, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprintf("%s-%d", asked.Parent.GetName(), n)}, "data": map[string]any{"a": "b"},
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"children": children, "status": map[string]any{"children": len(children)}})
}

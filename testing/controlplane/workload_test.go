package controlplane_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

func (c cluster) installsCRDs(t *testing.T) {
	if name := c.kubectl(t, nil, "get", "widgets", "-o", "name"); name != "" {
		t.Errorf("there are widgets: %s", name)
	}
}

func (c cluster) runsWorkloads(t *testing.T) {
	began := time.Now()
	c.kubectl(t, nil, "apply", "-f", "testdata/workloads.yaml")
	c.kubectl(t, nil, "rollout", "status", "deployment/web", "--timeout=30s")
	t.Logf("the Deployment is ready after %s", time.Since(began))
	c.kubectl(t, nil, "rollout", "status", "statefulset/store", "--timeout=30s")
	c.kubectl(t, nil, "rollout", "status", "daemonset/agent", "--timeout=30s")
	c.waitFor(t, "condition=complete", "job/once")
	c.waitFor(t, "jsonpath={.status.currentHealthy}=2", "pdb/web")
	c.waitFor(t, "jsonpath={.endpoints[1].conditions.ready}=true", "endpointslice", "-l", "kubernetes.io/service-name=web")
	for _, pod := range c.pods(t, "web") {
		status := pod.Status
		if status.Phase != corev1.PodRunning || len(status.ContainerStatuses) != 1 || !status.ContainerStatuses[0].Ready ||
			len(status.InitContainerStatuses) != 1 || status.PodIP == "" {
			t.Errorf("Pod %s has the status %+v", pod.Name, status)
		}
	}
}

func (c cluster) bindsDaemonPodsToTheirNodes(t *testing.T) {
	nodes := map[string]bool{}
	for _, pod := range c.pods(t, "agent") {
		nodes[pod.Spec.NodeName] = true
	}
	if len(nodes) != 2 || !nodes["node-0"] || !nodes["node-1"] {
		t.Errorf("the DaemonSet has Pods on %v", nodes)
	}
}

func (c cluster) separatesControllers(t *testing.T) {
	text, err := os.ReadFile(c.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"username":"system:serviceaccount:kube-system:replicaset-controller"`; !strings.Contains(string(text), want) {
		t.Errorf("want %s in the audit log, got:\n%s", want, text)
	}
}

func (c cluster) respectsSchedulingGates(t *testing.T) {
	gated := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gated"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/wait"}},
			Containers:      []corev1.Container{{Name: "c", Image: "example.com/c"}},
		},
	}
	testkit.Create(t, c.Client, gated)
	// Once the binder has bound a later Pod, it has seen this one.
	c.runPod(t, "later")
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(gated), gated); err != nil {
		t.Fatal(err)
	}
	if gated.Spec.NodeName != "" {
		t.Errorf("the Pod is on %s in spite of its gate", gated.Spec.NodeName)
	}
	c.kubectl(t, nil, "patch", "pod/gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	c.waitFor(t, "condition=Ready", "pod/gated")
}

func (c cluster) execs(t *testing.T) {
	user := c.addUser(t, "executor")
	testkit.Create(t, c.Client, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "executor"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}, // kubectl gets the Pod first
			{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
		},
	})
	c.kubectl(t, nil, "create", "rolebinding", "executor", "--role=executor", "--user=executor")
	executor := testkit.Client(t, user, nil)
	testkit.Succeeds(t, rbacDelay, "the user may get the Pod", func(ctx context.Context) error {
		return executor.Get(ctx, client.ObjectKey{Namespace: "default", Name: "later"}, &corev1.Pod{})
	})
	if out := c.kubectl(t, user, "exec", "later", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("the command prints %q", out)
	}
	if _, err := c.tryKubectl(t.Context(), user, "delete", "pod/later"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("the user deletes a Pod without a right: %v", err)
	}
}

func (c cluster) printsNoLogs(t *testing.T) {
	if out := c.kubectl(t, nil, "logs", "later"); out != "" {
		t.Errorf("kubectl logs prints %q", out)
	}
}

func (c cluster) deletesPodsAtOnce(t *testing.T) {
	began := time.Now()
	c.kubectl(t, nil, "delete", "pod/later", "--grace-period=600", "--timeout=30s")
	t.Logf("gone after %s", time.Since(began))
}

func (c cluster) collectsGarbage(t *testing.T) {
	c.kubectl(t, nil, "delete", "deployment/web", "--timeout=30s")
	c.waitFor(t, "delete", "pod", "-l", "app=web")
}

func (c cluster) deletesNamespaces(t *testing.T) {
	c.waitFor(t, "delete", "namespace/brief")
}

// runPod creates a Pod and waits until it is Ready.
func (c cluster) runPod(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, nil, "run", name, "--image=example.com/c")
	c.waitFor(t, "condition=Ready", "pod/"+name)
}

// waitFor is `kubectl wait --for`.
func (c cluster) waitFor(t *testing.T, condition string, args ...string) {
	t.Helper()
	c.kubectl(t, nil, append([]string{"wait", "--for=" + condition, "--timeout=30s"}, args...)...)
}

// pods returns the Pods of an app. There must be some.
func (c cluster) pods(t *testing.T, app string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods, client.InNamespace("default"), client.MatchingLabels{"app": app}); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Fatalf("%s has no Pods", app)
	}
	return pods.Items
}

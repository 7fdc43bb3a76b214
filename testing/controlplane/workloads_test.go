package controlplane_test

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (w *whole) crdIsInstalled(t *testing.T) {
	if name := w.run(t, nil, "get", "widgets", "-o", "name"); name != "" {
		t.Errorf("there are widgets: %s", name)
	}
}

func (w *whole) workloadsComeUp(t *testing.T) {
	began := time.Now()
	w.run(t, nil, "apply", "-f", "testdata/workloads.yaml")
	w.run(t, nil, "rollout", "status", "deployment/web", "--timeout=30s")
	t.Logf("the Deployment is there after %s", time.Since(began))
	w.run(t, nil, "rollout", "status", "statefulset/store", "--timeout=30s")
	w.run(t, nil, "rollout", "status", "daemonset/agent", "--timeout=30s")
	w.run(t, nil, "wait", "--for=condition=complete", "job/once", "--timeout=30s")
	w.run(t, nil, "wait", "--for=jsonpath={.status.currentHealthy}=2", "pdb/web", "--timeout=30s")
	w.run(t, nil, "wait", "--for=jsonpath={.endpoints[1].conditions.ready}=true", "endpointslice", "-l", "kubernetes.io/service-name=web", "--timeout=30s")
	for _, pod := range w.listPods(t, "app=web") {
		status := pod.Status
		if status.Phase != corev1.PodRunning || len(status.ContainerStatuses) != 1 || !status.ContainerStatuses[0].Ready ||
			len(status.InitContainerStatuses) != 1 || status.PodIP == "" {
			t.Errorf("Pod %s has the status %+v", pod.Name, status)
		}
	}
}

func (w *whole) daemonSetIsOnEachNode(t *testing.T) {
	nodes := map[string]bool{}
	for _, pod := range w.listPods(t, "app=agent") {
		nodes[pod.Spec.NodeName] = true
	}
	if len(nodes) != 2 || !nodes["node-0"] || !nodes["node-1"] {
		t.Errorf("it has Pods on %v", nodes)
	}
}

func (w *whole) controllerHasItsServiceAccount(t *testing.T) {
	text, err := os.ReadFile(w.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"username":"system:serviceaccount:kube-system:replicaset-controller"`; !strings.Contains(string(text), want) {
		t.Errorf("want %s in the audit log, got:\n%s", want, text)
	}
}

func (w *whole) podWaitsForItsGate(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gated"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/wait"}},
			Containers:      []corev1.Container{{Name: "c", Image: "example.com/c"}},
		},
	}
	pods := w.client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The binder has seen it when it has bound a later one.
	w.run(t, nil, "run", "later", "--image=example.com/c")
	w.run(t, nil, "wait", "--for=condition=Ready", "pod/later", "--timeout=30s")
	gated, err := pods.Get(t.Context(), "gated", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if gated.Spec.NodeName != "" {
		t.Errorf("the Pod is on %s", gated.Spec.NodeName)
	}
	w.run(t, nil, "patch", "pod/gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	w.run(t, nil, "wait", "--for=condition=Ready", "pod/gated", "--timeout=30s")
}

func (w *whole) deletedPodGoesAtOnce(t *testing.T) {
	began := time.Now()
	w.run(t, nil, "delete", "pod/later", "--grace-period=600", "--timeout=30s")
	t.Logf("gone after %s", time.Since(began))
}

func (w *whole) podsAreCollected(t *testing.T) {
	w.run(t, nil, "delete", "deployment/web", "--timeout=30s")
	w.run(t, nil, "wait", "--for=delete", "pod", "-l", "app=web", "--timeout=30s")
}

func (w *whole) namespaceGoes(t *testing.T) {
	w.run(t, nil, "wait", "--for=delete", "namespace/brief", "--timeout=30s")
}

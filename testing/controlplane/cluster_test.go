package controlplane_test

import (
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// whole is a control plane with everything in it.
type whole struct {
	*controlplane.ControlPlane
	client   kubernetes.Interface
	auditLog string
}

// patience is for what kube-apiserver and the controllers do on their own.
const patience = 10 * time.Second

// TestCluster shares one control plane, in the order in which its parts are here.
func TestCluster(t *testing.T) {
	ownTemp(t)
	w := newWhole(t)
	// kube-controller-manager takes ten seconds for this, so it is looked at last.
	w.run(t, nil, "create", "namespace", "brief")
	w.run(t, nil, "run", "brief", "--namespace=brief", "--image=example.com/c")
	w.run(t, nil, "delete", "namespace", "brief", "--wait=false")
	for _, part := range []struct {
		sentence string
		test     func(*testing.T)
	}{
		{"a user is who its certificate says it is", w.userIsWhoItsCertificateSays},
		{"tests that run in parallel may each add a user", w.parallelTestsAddUsers},
		{"a user may do what RBAC grants and nothing else", w.rbacDecides},
		{"kubectl neither reads nor writes the developer's files", w.kubectlLeavesHomeAlone},
		{"a CRD is installed", w.crdIsInstalled},
		{"workloads come up", w.workloadsComeUp},
		{"a DaemonSet has a Pod on each node", w.daemonSetIsOnEachNode},
		{"a controller acts under its own ServiceAccount", w.controllerHasItsServiceAccount},
		{"a Pod waits for its scheduling gate", w.podWaitsForItsGate},
		{"kubectl exec runs a command for a user who may do only that", w.execRunsACommand},
		{"kubectl logs prints nothing", w.logsPrintNothing},
		{"a deleted Pod goes at once in spite of its grace period", w.deletedPodGoesAtOnce},
		{"the Pods of a deleted Deployment are collected", w.podsAreCollected},
		{"clients get no answer while kube-apiserver is stopped", w.noAnswerWhileStopped},
		{"a second kube-apiserver is refused", w.secondServerIsRefused},
		{"objects, users and controllers outlive a restart of kube-apiserver", w.outlives("kube-apiserver", w.RestartAPIServer)},
		{"objects, users and controllers outlive a restart of etcd", w.outlives("etcd", w.RestartEtcd)},
		{"a deleted namespace goes with what is in it", w.namespaceGoes},
		{"Stop ends even what kubectl exec left running", w.stopEndsWhatExecLeft},
	} {
		t.Run(part.sentence, part.test)
	}
}

func newWhole(t *testing.T) *whole {
	t.Helper()
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	began := time.Now()
	c := controlplane.Run(t, controlplane.Options{
		CRDPaths:          []string{"testdata/widgets.yaml"},
		ControllerManager: true,
		Kwok:              true,
		Nodes:             2,
		APIServerArgs: map[string][]string{
			"audit-policy-file": {"testdata/audit-policy.yaml"},
			"audit-log-path":    {auditLog},
		},
	})
	t.Logf("ready after %s", time.Since(began))
	return &whole{c, clientFor(t, c.Config()), auditLog}
}

// run runs kubectl, which has to succeed, and returns what it printed.
func (w *whole) run(t *testing.T, user *controlplane.User, args ...string) string {
	t.Helper()
	return kubectl(t, w.ControlPlane, user, args...)
}

func (w *whole) addUser(t *testing.T, name string, groups ...string) *controlplane.User {
	t.Helper()
	user, err := w.AddUser(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func (w *whole) listPods(t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	pods, err := w.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Fatalf("no Pods %s", selector)
	}
	return pods.Items
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

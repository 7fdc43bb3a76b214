package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// TestCluster shares one control plane with everything in it. Its parts are in
// the order in which they run.
func TestCluster(t *testing.T) {
	ownTemp(t)
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
	client := clientFor(t, c.Config())

	// kube-controller-manager takes ten seconds for this, so it is looked at last.
	kubectl(t, c, nil, "create", "namespace", "brief")
	kubectl(t, c, nil, "run", "brief", "--namespace=brief", "--image=example.com/c")
	kubectl(t, c, nil, "delete", "namespace", "brief", "--wait=false")

	t.Run("a user is who its certificate says it is", func(t *testing.T) {
		groups := []string{"developers", "a group: with / any name"}
		user := addUser(t, c, "alice/../@example.com", groups...)
		review, err := clientFor(t, user.Config).AuthenticationV1().SelfSubjectReviews().
			Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		info := review.Status.UserInfo
		if want := append(slices.Clone(groups), "system:authenticated"); info.Username != user.Name || !slices.Equal(info.Groups, want) {
			t.Errorf("want %s in %q, got %s in %q", user.Name, want, info.Username, info.Groups)
		}
		if name := kubectl(t, c, user, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != user.Name {
			t.Errorf("kubectl acts as %s", name)
		}
		if name := kubectl(t, c, nil, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != c.Admin().Name {
			t.Errorf("kubectl of no user acts as %s", name)
		}
	})

	t.Run("tests that run in parallel may each add a user", func(t *testing.T) {
		var tests sync.WaitGroup
		for i := range 8 {
			tests.Go(func() {
				if _, err := c.AddUser(fmt.Sprintf("parallel-%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		tests.Wait()
	})

	t.Run("a user may do what RBAC grants and nothing else", func(t *testing.T) {
		bob := clientFor(t, addUser(t, c, "bob", "viewers").Config)
		if _, err := bob.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("want bob to be forbidden to list Pods, got %v", err)
		}
		kubectl(t, c, nil, "create", "rolebinding", "viewers", "--clusterrole=view", "--group=viewers")
		eventually(t, func(ctx context.Context) error {
			_, err := bob.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			return err
		})
		if _, err := bob.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("want bob to be forbidden to list Pods elsewhere, got %v", err)
		}
	})

	t.Run("kubectl neither reads nor writes the developer's files", func(t *testing.T) {
		home := t.TempDir()
		t.Setenv("HOME", home)
		t.Setenv("KUBECONFIG", filepath.Join(home, "no-such-file"))
		t.Setenv("KUBECACHEDIR", home)
		kubectl(t, c, nil, "get", "namespaces")
		if files, err := os.ReadDir(home); err != nil || len(files) > 0 {
			t.Errorf("in HOME there is %v (%v)", files, err)
		}
	})

	t.Run("a CRD is installed", func(t *testing.T) {
		if name := kubectl(t, c, nil, "get", "widgets", "-o", "name"); name != "" {
			t.Errorf("there are widgets: %s", name)
		}
	})

	t.Run("workloads come up", func(t *testing.T) {
		began := time.Now()
		kubectl(t, c, nil, "apply", "-f", "testdata/workloads.yaml")
		kubectl(t, c, nil, "rollout", "status", "deployment/web", "--timeout=30s")
		t.Logf("the Deployment is there after %s", time.Since(began))
		kubectl(t, c, nil, "rollout", "status", "statefulset/store", "--timeout=30s")
		kubectl(t, c, nil, "rollout", "status", "daemonset/agent", "--timeout=30s")
		kubectl(t, c, nil, "wait", "--for=condition=complete", "job/once", "--timeout=30s")
		kubectl(t, c, nil, "wait", "--for=jsonpath={.status.currentHealthy}=2", "pdb/web", "--timeout=30s")
		kubectl(t, c, nil, "wait", "--for=jsonpath={.endpoints[1].conditions.ready}=true", "endpointslice", "-l", "kubernetes.io/service-name=web", "--timeout=30s")
		for _, pod := range listPods(t, client, "app=web") {
			status := pod.Status
			if status.Phase != corev1.PodRunning || len(status.ContainerStatuses) != 1 || !status.ContainerStatuses[0].Ready ||
				len(status.InitContainerStatuses) != 1 || status.PodIP == "" {
				t.Errorf("Pod %s has the status %+v", pod.Name, status)
			}
		}
	})

	t.Run("a DaemonSet has a Pod on each node", func(t *testing.T) {
		nodes := map[string]bool{}
		for _, pod := range listPods(t, client, "app=agent") {
			nodes[pod.Spec.NodeName] = true
		}
		if len(nodes) != 2 || !nodes["node-0"] || !nodes["node-1"] {
			t.Errorf("it has Pods on %v", nodes)
		}
	})

	t.Run("a controller acts under its own ServiceAccount", func(t *testing.T) {
		text, err := os.ReadFile(auditLog)
		if err != nil {
			t.Fatal(err)
		}
		if want := `"username":"system:serviceaccount:kube-system:replicaset-controller"`; !strings.Contains(string(text), want) {
			t.Errorf("want %s in the audit log, got:\n%s", want, text)
		}
	})

	t.Run("a Pod waits for its scheduling gate", func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "gated"},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/wait"}},
				Containers:      []corev1.Container{{Name: "c", Image: "example.com/c"}},
			},
		}
		pods := client.CoreV1().Pods("default")
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The binder has seen it when it has bound a later one.
		kubectl(t, c, nil, "run", "later", "--image=example.com/c")
		kubectl(t, c, nil, "wait", "--for=condition=Ready", "pod/later", "--timeout=30s")
		gated, err := pods.Get(t.Context(), "gated", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if gated.Spec.NodeName != "" {
			t.Errorf("the Pod is on %s", gated.Spec.NodeName)
		}
		kubectl(t, c, nil, "patch", "pod/gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
		kubectl(t, c, nil, "wait", "--for=condition=Ready", "pod/gated", "--timeout=30s")
	})

	t.Run("kubectl exec runs a command for a user who may do only that", func(t *testing.T) {
		user := addUser(t, c, "executor")
		role := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "executor"},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}, // kubectl looks first
				{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
			},
		}
		if _, err := client.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		kubectl(t, c, nil, "create", "rolebinding", "executor", "--role=executor", "--user=executor")
		eventually(t, func(ctx context.Context) error {
			_, err := clientFor(t, user.Config).CoreV1().Pods("default").Get(ctx, "later", metav1.GetOptions{})
			return err
		})
		if out := kubectl(t, c, user, "exec", "later", "--", "echo", "hello"); out != "hello\n" {
			t.Errorf("it prints %q", out)
		}
		if _, err := tryKubectl(t.Context(), c, user, "delete", "pod/later"); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("want the user to be forbidden to delete Pods, got %v", err)
		}
	})

	t.Run("kubectl logs prints nothing", func(t *testing.T) {
		if out := kubectl(t, c, nil, "logs", "later"); out != "" {
			t.Errorf("it prints %q", out)
		}
	})

	t.Run("a deleted Pod goes at once in spite of its grace period", func(t *testing.T) {
		began := time.Now()
		kubectl(t, c, nil, "delete", "pod/later", "--grace-period=600", "--timeout=30s")
		t.Logf("gone after %s", time.Since(began))
	})

	t.Run("the Pods of a deleted Deployment are collected", func(t *testing.T) {
		kubectl(t, c, nil, "delete", "deployment/web", "--timeout=30s")
		kubectl(t, c, nil, "wait", "--for=delete", "pod", "-l", "app=web", "--timeout=30s")
	})

	t.Run("clients get no answer while kube-apiserver is stopped", func(t *testing.T) {
		if err := c.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
		if err := c.StopAPIServer(); err != nil {
			t.Errorf("it is stopped already: %v", err)
		}
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
			t.Error("a client gets an answer")
		}
		began := time.Now()
		if err := c.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("ready after %s", time.Since(began))
	})

	t.Run("a second kube-apiserver is refused", func(t *testing.T) {
		if err := c.StartAPIServer(t.Context()); err == nil {
			t.Error("it starts")
		}
	})

	for name, restart := range map[string]func(context.Context) error{
		"kube-apiserver": c.RestartAPIServer,
		"etcd":           c.RestartEtcd,
	} {
		t.Run("objects, users and controllers outlive a restart of "+name, func(t *testing.T) {
			before, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if err := restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Logf("restarted after %s", time.Since(began))
			after, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if after.UID != before.UID {
				t.Errorf("the namespace default is another one")
			}
			deployment := "after-" + name
			kubectl(t, c, nil, "create", "deployment", deployment, "--image=example.com/c")
			kubectl(t, c, nil, "rollout", "status", "deployment/"+deployment, "--timeout=60s")
			t.Logf("the controllers are back after %s", time.Since(began))
		})
	}

	t.Run("a deleted namespace goes with what is in it", func(t *testing.T) {
		kubectl(t, c, nil, "wait", "--for=delete", "namespace/brief", "--timeout=30s")
	})

	t.Run("Stop ends even what kubectl exec left running", func(t *testing.T) {
		kubectl(t, c, nil, "run", "last", "--image=example.com/c")
		kubectl(t, c, nil, "wait", "--for=condition=Ready", "pod/last", "--timeout=30s")
		marker := "marker-of-" + filepath.Base(c.Admin().KubeConfig)
		cmd := c.Kubectl(t.Context(), nil, "exec", "last", "--", "sh", "-c", `trap "" TERM HUP; while :; do sleep 1; done`, marker)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func(context.Context) error {
			if !slices.ContainsFunc(processes(t, marker), func(line string) bool { return strings.HasPrefix(line, "sh -c") }) {
				return os.ErrNotExist
			}
			return nil
		})
		began := time.Now()
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		t.Logf("stopped after %s", time.Since(began))
		if err := cmd.Wait(); err == nil {
			t.Error("kubectl exec succeeds")
		}
		if left := processes(t, marker); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

func addUser(t *testing.T, c *controlplane.ControlPlane, name string, groups ...string) *controlplane.User {
	t.Helper()
	user, err := c.AddUser(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func listPods(t *testing.T, client kubernetes.Interface, selector string) []corev1.Pod {
	t.Helper()
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Fatalf("no Pods %s", selector)
	}
	return pods.Items
}

// eventually waits until check says nil: kube-apiserver takes a moment to see
// new RBAC rules.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = check(t.Context()); err == nil {
			return
		}
	}
	t.Fatal(err)
}

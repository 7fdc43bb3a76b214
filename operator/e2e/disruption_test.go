//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestNoPodFailsOrIsMissedWhateverHappensToTheWebhook(t *testing.T) {
	parallel(t)
	one.alone(t)
	var all counts
	disruptions := []struct {
		name string
		run  func(*testing.T)
	}{
		{"rolling upgrade", func(t *testing.T) {
			// The new replicas register a webhook that the old ones do not serve: it has
			// another name and therefore another path.
			if err := one.install(t.Context(), sampleArgs(1, fmt.Sprint("since-", time.Now().Unix()))); err != nil {
				t.Fatal(err)
			}
		}},
		{"replica kill", func(t *testing.T) {
			pods, err := one.replicas(t.Context())
			if err == nil {
				err = deletePods(t.Context(), pods[:1], nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"kubelet restart", restartKubelet},
		{"certificate rotation", rotate},
	}
	for _, disruption := range disruptions[:testkit.Long(len(disruptions), 1)] {
		t.Run(disruption.name, func(t *testing.T) {
			began := time.Now()
			l := startLoad(t)
			disruption.run(t)
			if err := one.settled(t.Context()); err != nil {
				t.Error(err)
			}
			// Consequences of the disruption may come later.
			time.Sleep(time.Until(began.Add(testkit.Long(30*time.Second, 5*time.Second))))
			counts := l.stop()
			fmt.Printf("%-20s %5d Pods in %4.0f s: %d failed, %d unmutated\n", disruption.name, counts.pods, time.Since(began).Seconds(), counts.failed, counts.unmutated)
			all = all.add(counts)
			for i, err := range l.errors {
				if i < 5 {
					t.Error(err)
				}
			}
		})
	}
	testkit.Figure("e2e.pods", float64(all.pods), "pods")
	testkit.Figure("e2e.failed", float64(all.failed), "pods")
	testkit.Figure("e2e.unmutated", float64(all.unmutated), "pods")
	if all.failed+all.unmutated > 0 {
		t.Errorf("of %d Pods, %d failed and %d were missed", all.pods, all.failed, all.unmutated)
	}
}

// A killed process loses its requests, and the Service may still send new
// connections to it for a moment. The API server retries neither. It refuses these
// Pods, and their controllers create them again. It must not admit any of them
// unmutated.
func TestAReplicaThatIsKilledWithoutWarningCostsAFewRefusalsAndNoPodIsMissed(t *testing.T) {
	testkit.OnlyLong(t)
	if clusterDir == "" {
		t.Skip("E2E_CLUSTER is not set: this test kills processes only on a cluster of `make cluster-up`")
	}
	one.installed(t)
	pods, err := one.replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := startLoad(t)
	for _, pod := range pods {
		kill(t, pod)
		testkit.Succeeds(t, time.Minute, "kubelet has restarted the container", func(ctx context.Context) error {
			now, err := clientset.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && now.Status.ContainerStatuses[0].RestartCount == pod.Status.ContainerStatuses[0].RestartCount {
				err = errors.New("not yet")
			}
			return err
		})
		if err := one.settled(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	counts := l.stop()
	testkit.Figure("e2e.sigkill_pods", float64(counts.pods), "pods")
	testkit.Figure("e2e.sigkill_failed", float64(counts.failed), "pods")
	if counts.unmutated > 0 {
		t.Errorf("%d of %d Pods were missed", counts.unmutated, counts.pods)
	}
	if limit := 2 * rate; counts.failed > limit {
		t.Errorf("%d of %d Pods were refused, want at most %d: %s", counts.failed, counts.pods, limit, l.errors[0])
	}
}

// kill kills the process of a Pod's container, as the kernel does when memory runs
// out.
func kill(t *testing.T, pod corev1.Pod) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		cgroup, err := os.ReadFile(process + "/cgroup")
		if err != nil || !strings.Contains(string(cgroup), string(pod.UID)) {
			continue
		}
		if name, err := os.ReadFile(process + "/comm"); err != nil || strings.TrimSpace(string(name)) != "sample" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("cannot find the process of %s", pod.Name)
}

// restartKubelet restarts the kubelet and returns when the new one has reported the
// node Ready. A kubelet that forgot its Pods would have reported that by then.
func restartKubelet(t *testing.T) {
	if clusterDir == "" {
		t.Skip("E2E_CLUSTER is not set: this test restarts kubelets only on a cluster of `make cluster-up`")
	}
	began := metav1.Now()
	if output, err := exec.CommandContext(t.Context(), bin+"/tools/cluster", "-dir", clusterDir, "restart", "kubelet").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	testkit.Succeeds(t, time.Minute, "the new kubelet has reported the node Ready", func(ctx context.Context) error {
		nodes, err := clientset.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, condition := range nodes.Items[0].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Before(&began) {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// rotate rotates the CA and returns when the webhook configuration trusts the new
// one.
func rotate(t *testing.T) {
	name := setupCertificate(t)
	secrets := clientset.CoreV1().Secrets(one.namespace())
	before, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), adminKubeconfig, "kubectl", "annotate", "secret", name, "--namespace", one.namespace(), "admitkit.dev/rotate=now"); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "the webhook configuration trusts a new CA", func(ctx context.Context) error {
		after, err := secrets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		configuration, err := configurationOf(ctx, one)
		if err != nil {
			return err
		}
		ca := after.Data["ca.crt"]
		if bytes.Equal(ca, before.Data["ca.crt"]) || !bytes.Contains(configuration.Webhooks[0].ClientConfig.CABundle, bytes.TrimSpace(ca)) {
			return errors.New("not yet")
		}
		return nil
	})
}

// setupCertificate returns the name of the Secret with the CA of sample-one.
func setupCertificate(t *testing.T) string {
	t.Helper()
	secrets, err := clientset.CoreV1().Secrets(one.namespace()).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets.Items {
		if strings.HasSuffix(secret.Name, "-setupcertificate") {
			return secret.Name
		}
	}
	t.Fatal("no Secret has a CA")
	return ""
}

func configurationOf(ctx context.Context, r release) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	var list admissionregistrationv1.MutatingWebhookConfigurationList
	if err := admin.List(ctx, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		for _, webhook := range list.Items[i].Webhooks {
			if service := webhook.ClientConfig.Service; service != nil && service.Namespace == r.namespace() {
				return &list.Items[i], nil
			}
		}
	}
	return nil, fmt.Errorf("%s has no webhook configuration", r.name)
}

func TestTheWebhookNeverBlocksItsOwnRecovery(t *testing.T) {
	parallel(t)
	watched := namespace(t, one.name)
	one.alone(t)
	configuration, err := configurationOf(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	for _, webhook := range configuration.Webhooks {
		if *webhook.FailurePolicy != admissionregistrationv1.Fail {
			t.Fatalf("the failure policy of %s is %s, want Fail", webhook.Name, *webhook.FailurePolicy)
		}
	}
	pods, err := one.replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := deletePods(t.Context(), pods, new(int64(0))); err != nil {
		t.Fatal(err)
	}
	refused := false
	// An API server gives up a connection that has gone silent after 45 s: 30 s without a
	// frame, and 15 s for the answer to a ping (k8s.io/apimachinery/pkg/util/net).
	testkit.Succeeds(t, 2*time.Minute, "Pods are stamped again", func(ctx context.Context) error {
		// A call that goes to the address of a killed replica waits for the webhook's
		// timeout, while a new replica may answer already.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		pod, err := clientset.CoreV1().Pods(watched).Create(ctx, gated(), metav1.CreateOptions{})
		if err != nil {
			refused = true
			return err
		}
		if !stamped(pod, 1) {
			t.Fatal("a Pod came through unmutated while the webhook was away")
		}
		// kubelet lets the killed replicas go on for 2 s, and the new ones may be there before that.
		if !refused && time.Since(began) < 15*time.Second {
			return errors.New("the killed replicas may still answer")
		}
		return nil
	})
	if refused {
		testkit.Figure("recovery.s", time.Since(began).Seconds(), "s")
	}
	if err := one.settled(t.Context()); err != nil {
		t.Error(err)
	}
}

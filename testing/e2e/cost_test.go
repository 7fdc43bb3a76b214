//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestAReplicaAtRestCostsLittle(t *testing.T) {
	shipped.installed(t)
	pods, err := shipped.replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rest := testkit.Long(60*time.Second, 5*time.Second)
	before := metricsOf(t, pods[0])
	// It is the time that passes here which is measured.
	time.Sleep(rest)
	after := metricsOf(t, pods[0])
	megabytes := after["process_resident_memory_bytes"] / 1e6
	cpu := (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / rest.Seconds() * 1000
	fmt.Printf("FIGURE replica.rss_mb=%.1f MB\nFIGURE replica.cpu_m=%.1f millicores\n", megabytes, cpu)
	if megabytes > 100 || cpu > 50 {
		t.Errorf("a replica at rest has %.0f MB and takes %.0f millicores, want 100 and 50 at most", megabytes, cpu)
	}
}

// A start from nothing: no CA, no webhook configuration, one replica.
func TestTheFirstAdmissionComesSoonAfterTheContainerStarts(t *testing.T) {
	watched := namespace(t, one.name)
	one.installed(t)
	ctx := t.Context()
	old, err := one.replicas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	soon := int64(1) // nobody is served, so nothing needs to drain
	if err := errors.Join(one.resize(ctx, 0), deletePods(ctx, old, &soon), one.settled(ctx)); err != nil {
		t.Fatal(err)
	}
	configuration, err := configurationOf(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(ctx, configuration); err != nil {
		t.Fatal(err)
	}
	if _, err := command(ctx, adminKubeconfig, "kubectl", "delete", "secrets", "--namespace", one.namespace(), "--selector", "app.kubernetes.io/managed-by=admitkit"); err != nil {
		t.Fatal(err)
	}
	if err := one.resize(ctx, 1); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	testkit.Succeeds(t, time.Minute, "a Pod is stamped", func(ctx context.Context) error {
		// A connection that begins just as kube-proxy turns from refusing to forwarding
		// is answered by nobody, and would be waited for until the webhook's timeout.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		pod, err := clientset.CoreV1().Pods(watched).Create(ctx, gated(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && !stamped(pod, 1) {
			err = errors.New("it is not")
		}
		first = time.Now()
		return err
	})
	pods, err := one.replicas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	began := metricsOf(t, pods[0])["process_start_time_seconds"]
	took := float64(first.UnixMilli())/1000 - began
	fmt.Printf("FIGURE start.first_admission_s=%.2f s\n", took)
	if took > 10 {
		t.Errorf("the first admission came %.1f s after the process began", took)
	}
	if err := one.resize(ctx, 2); err != nil {
		t.Fatal(err)
	}
}

// metricsOf returns the metrics without labels of a replica.
func metricsOf(t *testing.T, pod corev1.Pod) map[string]float64 {
	t.Helper()
	text, err := clientset.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name+":8080").SubResource("proxy", "metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metrics := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(name, "#") {
			metrics[name] = number
		}
	}
	return metrics
}

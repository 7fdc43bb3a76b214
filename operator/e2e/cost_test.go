//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestAReplicaAtRestCostsLittle(t *testing.T) {
	testkit.OnlyLong(t)
	shipped.installed(t)
	pods, err := shipped.replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const rest = time.Minute
	before := metricsOf(t, pods[0])
	// The CPU time of this interval is the measurement.
	time.Sleep(rest)
	after := metricsOf(t, pods[0])
	megabytes := after["process_resident_memory_bytes"] / 1e6
	cpu := (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / rest.Seconds() * 1000
	testkit.Figure("replica.rss_mb", megabytes, "MB")
	testkit.Figure("replica.cpu_m", cpu, "millicores")
	if megabytes > 100 || cpu > 50 {
		t.Errorf("a replica at rest takes %.0f MB and %.0f millicores, want at most 100 and 50", megabytes, cpu)
	}
}

// One replica starts with neither a CA nor a webhook configuration.
func TestTheFirstAdmissionComesSoonAfterTheContainerStarts(t *testing.T) {
	testkit.OnlyLong(t)
	watched := namespace(t, one.name)
	one.installed(t)
	ctx := t.Context()
	if err := errors.Join(empty(ctx, one), one.resize(ctx, 1)); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	testkit.Succeeds(t, time.Minute, "a Pod is stamped", func(ctx context.Context) error {
		// If a connection begins just as kube-proxy turns from refusing to forwarding, it
		// gets no answer and would last until the webhook's timeout.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		pod, err := clientset.CoreV1().Pods(watched).Create(ctx, gated(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && !stamped(pod, 1) {
			err = errors.New("the Pod has no stamp")
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
	testkit.Figure("start.first_admission_s", took, "s")
	if took > 10 {
		t.Errorf("the first admission came %.1f s after the process began, want at most 10", took)
	}
	if err := one.resize(ctx, 2); err != nil {
		t.Fatal(err)
	}
}

// empty removes the replicas of a release, its webhook configuration and its CA.
func empty(ctx context.Context, r release) error {
	old, err := r.replicas(ctx)
	if err != nil {
		return err
	}
	// A second is enough: there are no requests to drain.
	if err := errors.Join(r.resize(ctx, 0), deletePods(ctx, old, new(int64(1))), r.settled(ctx)); err != nil {
		return err
	}
	configuration, err := configurationOf(ctx, r)
	if err != nil {
		return err
	}
	if err := admin.Delete(ctx, configuration); err != nil {
		return err
	}
	_, err = command(ctx, adminKubeconfig, "kubectl", "delete", "secrets", "--namespace", r.namespace(), "--selector", "app.kubernetes.io/managed-by=admitkit")
	return err
}

// metricsOf returns those metrics of a replica that have no labels.
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

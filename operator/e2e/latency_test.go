//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

// The test measures, as a client of the API server, how long the creation of a Pod
// takes without admitkit, with one extension, and with five extensions in one
// webhook. The three take turns in random order, so that all see the same noise.
func TestExtensionsAddLittleToTheCreationOfAPod(t *testing.T) {
	testkit.OnlyLong(t)
	ways := []struct {
		extensions int
		namespace  string
		took       []time.Duration
	}{
		{0, namespace(t, "none"), nil},
		{1, namespace(t, one.name), nil},
		{5, namespace(t, five.name), nil},
	}
	one.installed(t)
	five.installed(t)
	before := webhookSeconds(t)
	for range 500 {
		for _, i := range rand.Perm(len(ways)) {
			way := &ways[i]
			began := time.Now()
			pod, err := clientset.CoreV1().Pods(way.namespace).Create(t.Context(), gated(), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			way.took = append(way.took, time.Since(began))
			if !stamped(pod, way.extensions) || stamped(pod, way.extensions+1) {
				t.Fatalf("a Pod in %s has the annotations %v", way.namespace, pod.Annotations)
			}
			if err := clientset.CoreV1().Pods(way.namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, way := range ways {
		prefix := fmt.Sprintf("podcreate%d.", way.extensions)
		testkit.Figure(prefix+"p50_ms", testkit.Milliseconds(testkit.Percentile(way.took, 0.5)), "ms")
		testkit.Figure(prefix+"p99_ms", testkit.Milliseconds(testkit.Percentile(way.took, 0.99)), "ms")
	}
	after := webhookSeconds(t)
	for name, sum := range after {
		if calls := sum.calls - before[name].calls; calls > 0 {
			fmt.Printf("the API server counts: %-60s %5.0f calls, %.2f ms on average\n", name, calls, (sum.seconds-before[name].seconds)/calls*1000)
		}
	}
	if none, all := testkit.Percentile(ways[0].took, 0.5), testkit.Percentile(ways[2].took, 0.5); all-none > 10*time.Millisecond {
		t.Errorf("five extensions add %s to the median of %s", all-none, none)
	}
}

type webhookCalls struct{ calls, seconds float64 }

// webhookSeconds returns the calls of our webhooks by name, from the API server's
// metric apiserver_admission_webhook_admission_duration_seconds. If there are several
// API servers, it asks one.
func webhookSeconds(t *testing.T) map[string]webhookCalls {
	t.Helper()
	stream, err := clientset.Discovery().RESTClient().Get().AbsPath("/metrics").Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(stream)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]webhookCalls{}
	for _, metric := range families["apiserver_admission_webhook_admission_duration_seconds"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "name" && strings.Contains(label.GetValue(), "sample") {
				calls := all[label.GetValue()]
				calls.calls += float64(metric.GetHistogram().GetSampleCount())
				calls.seconds += metric.GetHistogram().GetSampleSum()
				all[label.GetValue()] = calls
			}
		}
	}
	return all
}

//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

// What the creation of a Pod takes without admitkit, with one extension, and with
// five in one webhook, as a client of the API server sees it. They take turns, in
// an order by chance, so that all of them see the same noise.
func TestExtensionsAddLittleToTheCreationOfAPod(t *testing.T) {
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
	// With three busy processes for each processor the medians of 40 differ by up to
	// 10 ms, where those of 100 stay under 7 and those of an idle machine are 4 apart.
	for range testkit.Long(500, 100) {
		for _, i := range rand.Perm(len(ways)) {
			way := &ways[i]
			began := time.Now()
			pod, err := clientset.CoreV1().Pods(way.namespace).Create(t.Context(), gated(), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			way.took = append(way.took, time.Since(began))
			if !stamped(pod, way.extensions) || stamped(pod, way.extensions+1) {
				t.Fatalf("a Pod of %s has these annotations: %v", way.namespace, pod.Annotations)
			}
			if err := clientset.CoreV1().Pods(way.namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, way := range ways {
		slices.Sort(way.took)
		for _, p := range []int{50, 99} {
			fmt.Printf("FIGURE podcreate%d.p%d_ms=%.2f ms\n", way.extensions, p, milliseconds(way.took[len(way.took)*p/100]))
		}
	}
	after := webhookSeconds(t)
	for name, sum := range after {
		if calls := sum.calls - before[name].calls; calls > 0 {
			fmt.Printf("the API server's own count: %-60s %5.0f calls, %.2f ms on average\n", name, calls, (sum.seconds-before[name].seconds)/calls*1000)
		}
	}
	if none, all := ways[0].took[len(ways[0].took)/2], ways[2].took[len(ways[2].took)/2]; all-none > 10*time.Millisecond {
		t.Errorf("five extensions add %s to the median of %s", all-none, none)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

type webhookCalls struct{ calls, seconds float64 }

// webhookSeconds returns what the API server's metric says of our webhooks:
// apiserver_admission_webhook_admission_duration_seconds. Of several API servers
// it asks one.
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

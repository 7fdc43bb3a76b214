package webhook

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/limits"
	"github.com/admitkit/admitkit/webhook/internal/review"
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

// occupied sends a body through a webhook and returns what the request occupies while
// its handler runs, garbage not counted, and the estimate of it.
func occupied[T k8sruntime.Object](t *testing.T, body string) (truth, near, quick int64) {
	t.Helper()
	var inside runtime.MemStats
	mutate := extension.MutatorFunc[T](func(context.Context, T, *extension.Request) error {
		runtime.GC()
		runtime.ReadMemStats(&inside)
		return nil
	})
	webhooks, err := Group([]*extension.Handler{extension.Mutating(mutate, extension.Scope{Name: "test"})}, Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	h := webhooks[0].Handler(HandlerOptions{Memory: NewMemory(8 << 30)}).(*handler)
	client := newClient([]byte(body))
	var before runtime.MemStats
	runtime.GC()
	runtime.GC() // what was in a sync.Pool
	runtime.ReadMemStats(&before)
	if recorder := client.send(h); recorder.Code != http.StatusOK {
		t.Fatalf("%d: %s", recorder.Code, recorder.Body)
	}
	request, _, err := review.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return int64(inside.HeapAlloc) - int64(before.HeapAlloc), h.estimate.Closely([]byte(body), &request.AdmissionRequest), h.estimate.Quickly([]byte(body), &request.AdmissionRequest)
}

// many returns a review of an object with so many of a text at a place.
func many(kind, before, each string, n int, after string) string {
	var object strings.Builder
	for i := range n {
		if i > 0 {
			object.WriteByte(',')
		}
		object.WriteString(strings.ReplaceAll(each, "#", fmt.Sprint(i)))
	}
	return reviewtest.With(`,"kind":{"group":"","version":"v1","kind":"` + kind + `"},"resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE",` +
		`"object":{"apiVersion":"v1","kind":"` + kind + `",` + before + object.String() + after + `}`)
}

func TestTheEstimateIsNotBelowWhatARequestOccupies(t *testing.T) {
	const n = 5_000
	worst := 0.
	for name, test := range map[string]struct {
		body     string
		occupied func(*testing.T, string) (int64, int64, int64)
	}{
		"empty containers":          {many("Pod", `"spec":{"containers":[`, `{}`, n, `]}`), occupied[*corev1.Pod]},
		"empty ephemeral ones":      {many("Pod", `"spec":{"ephemeralContainers":[`, `{}`, n, `]}`), occupied[*corev1.Pod]},
		"containers with resources": {many("Pod", `"spec":{"containers":[`, `{"resources":{"limits":{"a":"1"},"requests":{"a":"1"}}}`, n, `]}`), occupied[*corev1.Pod]},
		"containers with pointers":  {many("Pod", `"spec":{"containers":[`, `{"livenessProbe":{"httpGet":{}},"securityContext":{"capabilities":{}},"lifecycle":{"preStop":{"exec":{}}}}`, n, `]}`), occupied[*corev1.Pod]},
		"labels":                    {many("Pod", `"metadata":{"labels":{`, `"#":""`, n, `}}`), occupied[*corev1.Pod]},
		"resources":                 {many("Pod", `"spec":{"overhead":{`, `"#":"1"`, n, `}}`), occupied[*corev1.Pod]},
		"arguments":                 {many("Pod", `"spec":{"containers":[{"args":[`, `""`, n, `]}]}`), occupied[*corev1.Pod]},
		"variables":                 {many("Pod", `"spec":{"containers":[{"env":[`, `{"name":"#","value":"a"}`, n, `]}]}`), occupied[*corev1.Pod]},
		"volumes":                   {many("Pod", `"spec":{"volumes":[`, `{"projected":{"sources":[{"secret":{}}]}}`, n, `]}`), occupied[*corev1.Pod]},
		"states":                    {many("Pod", `"status":{"containerStatuses":[`, `{"state":{"running":{}},"lastState":{"terminated":{}}}`, n, `]}`), occupied[*corev1.Pod]},
		"managed fields":            {many("Pod", `"metadata":{"managedFields":[{"fieldsV1":{`, `"f:#":{}`, n, `}}]}`), occupied[*corev1.Pod]},
		"a long text":               {many("Pod", `"metadata":{"annotations":{"a":"`, strings.Repeat("a", 100), n, `"}}`), occupied[*corev1.Pod]},
		"numbers without a type":    {many("Unknown", `"spec":{"a":[`, `1`, n, `]}`), occupied[*unstructured.Unstructured]},
		"lists without a type":      {many("Unknown", `"spec":{"a":[`, `[[]]`, n, `]}`), occupied[*unstructured.Unstructured]},
		"objects without a type":    {many("Unknown", `"spec":{"a":[`, `{"a":{"a":{}}}`, n, `]}`), occupied[*unstructured.Unstructured]},
		"members without a type":    {many("Unknown", `"spec":{`, `"#":1`, n, `}`), occupied[*unstructured.Unstructured]},
		"objects of any kind":       {many("Pod", `"spec":{"containers":[`, `{}`, n, `]}`), occupied[k8sruntime.Object]},
	} {
		truth, near, quick := test.occupied(t, test.body)
		ratio := float64(truth) / float64(near)
		t.Logf("%-26s %8d KiB: %.2f of the close estimate, %.2f of the quick one, %.1f of the body", name, truth>>10, ratio, float64(truth)/float64(quick), float64(truth)/float64(len(test.body)))
		if truth > min(near, quick) {
			t.Errorf("%s occupy %d bytes, the estimates are %d and %d", name, truth, near, quick)
		}
		worst = max(worst, ratio)
	}
	fmt.Printf("FIGURE engine.cost_worst=%.2f of the estimate\n", worst)
}

func TestTheEstimateOfAnOrdinaryRequestIsAFewTimesTheTruth(t *testing.T) {
	for file, most := range map[string]float64{"create-pod-5k.json": 4, "create-pod-64k.json": 4} {
		truth, near, quick := occupied[*corev1.Pod](t, string(recorded(t, file)))
		t.Logf("%s occupies %d KiB, the estimates are %d and %d KiB", file, truth>>10, near>>10, quick>>10)
		if truth > near || float64(near) > most*float64(truth) {
			t.Errorf("the close estimate is %.1f times the truth", float64(near)/float64(truth))
		}
	}
}

func BenchmarkEstimate(b *testing.B) {
	for _, file := range []string{"create-pod-5k.json", "create-pod-64k.json"} {
		body := recorded(b, file)
		request, _, err := review.Parse(body)
		if err != nil {
			b.Fatal(err)
		}
		handler := extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), extension.Scope{})
		e := limits.NewEstimate(true, []*host.Handler{host.Open(handler)}, nil)
		b.Run(file+"/quickly", func(b *testing.B) {
			for b.Loop() {
				e.Quickly(body, &request.AdmissionRequest)
			}
		})
		b.Run(file+"/closely", func(b *testing.B) {
			for b.Loop() {
				e.Closely(body, &request.AdmissionRequest)
			}
		})
	}
}

package patch

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// comparison is a Pod before and after, with what one of them is as JSON.
type comparison struct {
	raw           []byte
	before, after runtime.Object
}

// podOf returns a Pod of about this many bytes: the real one, with more
// containers in all that it needs.
func podOf(t testing.TB, size int) *corev1.Pod {
	pod := decode(t, realPod, &corev1.Pod{}).(*corev1.Pod)
	container := pod.Spec.Containers[0]
	each := len(encode(t, container))
	for i := range (size - len(realPod)) / each {
		added := container.DeepCopy()
		added.Name = fmt.Sprintf("web-%d", i)
		pod.Spec.Containers = append(pod.Spec.Containers, *added)
	}
	return pod
}

func unchanged(t testing.TB, size int) comparison {
	pod := podOf(t, size)
	return comparison{encode(t, pod), pod, pod.DeepCopy()}
}

// envAdded changes the first container.
func envAdded(t testing.TB, size int) comparison {
	pod := podOf(t, size)
	after := pod.DeepCopy()
	first := &after.Spec.Containers[0]
	first.Env = append(first.Env, corev1.EnvVar{Name: "ADDED", Value: "value"})
	return comparison{encode(t, pod), pod, after}
}

// envAddedLast changes the last container, so that all before it is looked at.
func envAddedLast(t testing.TB, size int) comparison {
	pod := podOf(t, size)
	after := pod.DeepCopy()
	last := &after.Spec.Containers[len(after.Spec.Containers)-1]
	last.Env = append(last.Env, corev1.EnvVar{Name: "ADDED", Value: "value"})
	return comparison{encode(t, pod), pod, after}
}

func (c comparison) run(t testing.TB) {
	if _, err := Diff(c.raw, c.before, c.after, Options{}); err != nil {
		t.Fatal(err)
	}
}

// TestTheCostIsBounded holds the engine to allocations, which a busy machine
// does not change.
func TestTheCostIsBounded(t *testing.T) {
	tree := decode(t, realPod, &unstructured.Unstructured{})
	for _, c := range []struct {
		name string
		comparison
		budget float64
	}{
		{"nothing changed", unchanged(t, 5_000), 0},
		{"nothing changed in 1 MB", unchanged(t, 1_000_000), 0},
		{"nothing changed in a tree", comparison{realPod, tree, tree.DeepCopyObject()}, 0},
		{"one field changed", envAdded(t, 5_000), 24},
		// Finding the last of 800 containers in raw, and nothing else, grows.
		{"one field changed in 1 MB", envAddedLast(t, 1_000_000), 40},
	} {
		if allocs := testing.AllocsPerRun(20, func() { c.run(t) }); allocs > c.budget {
			t.Errorf("%s: %.0f allocations, the budget is %.0f", c.name, allocs, c.budget)
		}
	}
	pod, m := podOf(t, 5_000), &memory{}
	if allocs := testing.AllocsPerRun(20, func() { m.copy(pod); m.clear() }); allocs > 0 {
		t.Errorf("a copy in memory that was used before: %.0f allocations", allocs)
	}
}

// TestTheCostIsLinearInTheSize measures time, and so is no test for a busy
// machine.
func TestTheCostIsLinearInTheSize(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	sizes := []int{16 << 10, 64 << 10, 256 << 10, 1 << 20}
	worst := 0.0
	for _, c := range []struct {
		name string
		make func(testing.TB, int) comparison
	}{{"noop", unchanged}, {"patch", envAddedLast}} {
		var x, y []float64
		for _, size := range sizes {
			comparison := c.make(t, size)
			x = append(x, math.Log(float64(len(comparison.raw))))
			y = append(y, math.Log(float64(fastest(func() { comparison.run(t) }))))
		}
		exponent := slope(x, y)
		t.Logf("%s: the time grows with the size to the power of %.2f", c.name, exponent)
		worst = max(worst, exponent)
	}
	fmt.Printf("FIGURE patch.size.exponent=%.2f exponent\n", worst)
	if worst > 1.3 {
		t.Errorf("the time grows with the size to the power of %.2f", worst)
	}
}

// fastest returns the time of the least disturbed of many runs.
func fastest(run func()) time.Duration {
	best := time.Hour
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
		start := time.Now()
		run()
		best = min(best, time.Since(start))
	}
	return best
}

// slope returns that of the least squares line.
func slope(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func BenchmarkDiff(b *testing.B) {
	for _, size := range []int{5_000, 64 << 10, 256 << 10, 1 << 20} {
		for _, c := range []struct {
			name string
			comparison
		}{{"noop", unchanged(b, size)}, {"env", envAdded(b, size)}, {"last", envAddedLast(b, size)}} {
			b.Run(fmt.Sprintf("%s/%dKB", c.name, size/1000), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c.run(b)
				}
			})
		}
	}
}

// BenchmarkCopy compares the copy that a comparison needs with the object's own.
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{5_000, 64 << 10} {
		pod := podOf(b, size)
		b.Run(fmt.Sprintf("CopyOf/%dKB", size/1000), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := CopyOf(pod)
				c.Release()
			}
		})
		b.Run(fmt.Sprintf("DeepCopy/%dKB", size/1000), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = pod.DeepCopy()
			}
		})
	}
}

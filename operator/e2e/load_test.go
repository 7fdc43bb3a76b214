//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rate is how many Pods a load creates per second.
const rate = 20

// counts has the outcomes of creating Pods.
type counts struct{ pods, failed, unmutated int }

func (c counts) add(other counts) counts {
	return counts{c.pods + other.pods, c.failed + other.failed, c.unmutated + other.unmutated}
}

// load creates Pods at a steady rate.
type load struct {
	namespace string
	mu        sync.Mutex
	counts    counts
	errors    []string
	creating  sync.WaitGroup
	cancel    context.CancelFunc
	stopped   chan struct{}
}

// startLoad starts to create Pods, each of which sample-one must stamp. A scheduling
// gate keeps them from the nodes, and the load deletes them at once. The load stops
// when the test ends, or when the test calls stop.
func startLoad(t *testing.T) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{namespace: one.watched(), cancel: cancel, stopped: make(chan struct{})}
	go func() {
		defer close(l.stopped)
		ticker := time.NewTicker(time.Second / rate)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.creating.Go(func() { l.create(context.WithoutCancel(ctx)) })
			}
		}
	}()
	t.Cleanup(func() { l.stop() })
	return l
}

// stop stops the load and returns the outcomes of all Pods.
func (l *load) stop() counts {
	l.cancel()
	<-l.stopped
	l.creating.Wait()
	return l.counts
}

func (l *load) create(ctx context.Context) {
	pods := clientset.CoreV1().Pods(l.namespace)
	created, err := pods.Create(ctx, gated(), metav1.CreateOptions{})
	l.mu.Lock()
	l.counts.pods++
	switch {
	case err != nil:
		l.counts.failed++
		l.errors = append(l.errors, fmt.Sprintf("%s: %v", time.Now().Format(time.TimeOnly), err))
	case !stamped(created, 1):
		l.counts.unmutated++
	}
	l.mu.Unlock()
	if err == nil {
		_ = pods.Delete(ctx, created.Name, metav1.DeleteOptions{}) // the end of all tests deletes the namespace
	}
}

// gated returns a Pod that is never scheduled.
func gated() *corev1.Pod {
	spec := restricted("true")
	spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.admitkit.dev/never"}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "load-"}, Spec: spec}
}

// stamped reports whether a sample's first n extensions have stamped a Pod.
func stamped(pod *corev1.Pod, n int) bool {
	for i := range n {
		if pod.Annotations[fmt.Sprintf("sample.admitkit.dev/stamp-%d", i+1)] != "stamped" {
			return false
		}
	}
	return true
}

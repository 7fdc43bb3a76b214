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

// rate is how many Pods a second are created while something happens to the
// webhook.
const rate = 20

// counts is what became of the Pods that were created.
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

// startLoad creates Pods that sample-one must stamp until it is stopped. They wait
// at a scheduling gate, so that no node has to run them, and are deleted at once.
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

// stop returns what became of the Pods, when that is known of all.
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
		_ = pods.Delete(ctx, created.Name, metav1.DeleteOptions{}) // the namespace goes at the end, and what is in it
	}
}

// gated is a Pod that no node gets to see.
func gated() *corev1.Pod {
	spec := restricted("true")
	spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.admitkit.dev/never"}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "load-"}, Spec: spec}
}

// stamped says whether every extension of a sample has stamped a Pod.
func stamped(pod *corev1.Pod, extensions int) bool {
	for i := range extensions {
		if pod.Annotations[fmt.Sprintf("sample.admitkit.dev/stamp-%d", i+1)] != "stamped" {
			return false
		}
	}
	return true
}

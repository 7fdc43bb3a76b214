package fakes_test

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/fakes"
)

// Counter is a Watcher that counts the existing Pods and logs the count.
type Counter struct{ pods int }

func (c *Counter) Handle(_ context.Context, mgr extension.Manager, event watch.Event) {
	switch event.Type {
	case watch.Added:
		c.pods++
	case watch.Deleted:
		c.pods--
	}
	mgr.GetLogger().Infow("pods", "count", c.pods)
}

// A fake Manager lets a test call an extension.
func ExampleManager() {
	mgr := &fakes.Manager{}
	mgr.GetLoggerReturns(zap.NewNop().Sugar())
	var counter Counter
	for _, event := range []watch.EventType{watch.Added, watch.Modified, watch.Added, watch.Deleted} {
		counter.Handle(context.Background(), mgr, watch.Event{Type: event, Object: &corev1.Pod{}})
	}
	fmt.Println(counter.pods, mgr.GetLoggerCallCount())
	// Output: 1 4
}

// A fake Mutator returns what the test sets and records its arguments.
func ExampleMutator() {
	mutator := &fakes.Mutator[*corev1.Pod]{}
	mutator.MutateReturns(extension.Deny("not now"))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}

	err := mutator.Mutate(context.Background(), pod, &extension.Request{})

	_, called, _ := mutator.MutateArgsForCall(0)
	fmt.Println(called.Name, err)
	// Output: web not now
}

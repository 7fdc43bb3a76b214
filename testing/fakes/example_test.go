package fakes_test

import (
	"context"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

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
	mgr := fakes.NewManager()
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

// Sidecar is an Extension that adds a label.
type Sidecar struct{}

func (Sidecar) Handle(_ context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	pod.Labels = map[string]string{"sidecar": "yes"}
	return mgr.PatchFromPod(req, pod)
}

// The fake Manager makes the patch that a manager would make.
func ExampleNewManager() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	raw, _ := json.Marshal(pod)
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: raw}}}

	response := Sidecar{}.Handle(context.Background(), fakes.NewManager(), pod, req)
	fmt.Println(response.Allowed, response.Patches[0].Json())
	// Output: true {"op":"add","path":"/metadata/labels","value":{"sidecar":"yes"}}
}

package extension_test

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
)

// A Mutator changes the object in place; the library makes the patch.
func ExampleMutating() {
	var owner extension.MutatorFunc[*corev1.Pod] = func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "owner", req.User().Username)
		return nil
	}
	handler := extension.Mutating(owner, extension.Scope{Name: "owner"})
	_ = handler // mgr.AddExtension(handler)

	// testing/admit sends it whole requests; a plain call will do here.
	pod, req := &corev1.Pod{}, &extension.Request{Request: admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: "alice"},
	}}}
	err := owner.Mutate(context.Background(), pod, req)
	fmt.Println(pod.Annotations["owner"], err)
	// Output: alice <nil>
}

// A Validator on CONNECT sees the options of the connection: here a kubectl exec.
func ExampleValidating() {
	var noTerminals extension.ValidatorFunc[*corev1.PodExecOptions] = func(_ context.Context, exec *corev1.PodExecOptions, req *extension.Request) error {
		if exec.TTY {
			return extension.Denyf("no terminals in %s", req.Namespace)
		}
		return nil
	}
	handler := extension.Validating(noTerminals, extension.Scope{Rules: extension.Connect("pods/exec")})
	_ = handler // mgr.AddExtension(handler)

	req := &extension.Request{Request: admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "apps"}}}
	fmt.Println(noTerminals.Validate(context.Background(), &corev1.PodExecOptions{TTY: true}, req))
	// Output: no terminals in apps
}

// quotas reports the ResourceQuotas of the teams that pay.
type quotas struct{}

func (quotas) Watch(_ context.Context, mgr extension.Manager, event watch.EventType, quota *corev1.ResourceQuota) {
	mgr.GetLogger().Infow("quota", "event", event, "namespace", quota.Namespace, "hard", quota.Spec.Hard)
}

// A watcher of another kind than Pods, which sees the ResourceQuotas with a label.
func ExampleWatching() {
	paying := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "cost-center", Operator: metav1.LabelSelectorOpExists},
	}}
	watcher := extension.Watching(quotas{}, extension.WatchScope{Selector: paying})

	_ = watcher // mgr.AddExtension(watcher)
}

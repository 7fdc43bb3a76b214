package extension_test

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
)

// A Mutator changes the object in place. Whoever runs it makes the patch.
func ExampleMutating() {
	owner := func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "owner", req.User().Username)
		return nil
	}
	a := extension.Mutating(extension.MutatorFunc[*corev1.Pod](owner), extension.Scope{Name: "owner"})

	pod := &corev1.Pod{}
	req := extension.NewRequest(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: "alice"},
	}})
	err := a.Admit(context.Background(), pod, req)
	fmt.Println(pod.Annotations["owner"], err)
	// Output: alice <nil>
}

// A Validator on CONNECT sees the options of the connection: here a kubectl exec.
func ExampleValidating() {
	noTerminals := func(_ context.Context, exec *corev1.PodExecOptions, req *extension.Request) error {
		if exec.TTY {
			return extension.Denyf("no terminals in %s", req.Namespace)
		}
		return nil
	}
	a := extension.Validating(extension.ValidatorFunc[*corev1.PodExecOptions](noTerminals), extension.Scope{
		Rules: extension.Connect("pods/exec"),
	})

	req := extension.NewRequest(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "apps"}})
	err := a.Admit(context.Background(), &corev1.PodExecOptions{TTY: true}, req)
	reason, denied := extension.DenialReason(err)
	fmt.Println(denied, reason)
	// Output: true no terminals in apps
}

package webhook

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/wire"
)

const podWithUnknownField = `{"metadata":{"name":"p","managedFields":[{"manager":"m"}]},"spec":{"containers":[{"name":"a","new":9007199254740993}]}}`

func requestFor(raw string, operation admissionv1.Operation, kind metav1.GroupVersionKind) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: operation, Kind: kind, Object: runtime.RawExtension{Raw: []byte(raw)},
	}}
}

var podKind = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}

func TestPatchFromLeavesOutWhatTheAPIServerIgnores(t *testing.T) {
	cases := map[string]struct {
		operation admissionv1.Operation
		kind      metav1.GroupVersionKind
		want      string
	}{
		"the status of a Pod that is created": {admissionv1.Create, podKind, `[{"op":"add","path":"/spec/nodeName","value":"n"}]`},
		"but not of one that is updated, which may be by the status subresource": {
			admissionv1.Update, podKind, `[{"op":"add","path":"/spec/nodeName","value":"n"},{"op":"add","path":"/status","value":{"phase":"Running"}}]`,
		},
		"nor of a kind that it does not know": {
			admissionv1.Create,
			metav1.GroupVersionKind{Group: "example.com", Kind: "Pod"},
			`[{"op":"add","path":"/spec/nodeName","value":"n"},{"op":"add","path":"/status","value":{"phase":"Running"}}]`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := wire.Decode([]byte(podWithUnknownField), pod); err != nil {
				t.Fatal(err)
			}
			pod.Spec.NodeName, pod.Status.Phase, pod.ManagedFields = "n", corev1.PodRunning, nil
			response := PatchFrom(requestFor(podWithUnknownField, c.operation, c.kind), pod)
			got, err := json.Marshal(response.Patches)
			if err != nil {
				t.Fatal(err)
			}
			if !response.Allowed || string(got) != c.want {
				t.Errorf("allowed %v\ngot  %s\nwant %s", response.Allowed, got, c.want)
			}
		})
	}
}

func TestPatchFromOfARequestThatCannotBeDecodedIsABadRequest(t *testing.T) {
	response := PatchFrom(requestFor(`{"spec":1}`, admissionv1.Create, podKind), &corev1.Pod{})
	if response.Allowed || response.Result.Code != 400 {
		t.Errorf("got allowed %v, %v", response.Allowed, response.Result)
	}
}

func TestPatchFromOfNoObjectIsAnErrorAndNoPanic(t *testing.T) {
	for name, pod := range map[string]runtime.Object{"a nil Pod": (*corev1.Pod)(nil), "nil": nil} {
		response := PatchFrom(requestFor(podWithUnknownField, admissionv1.Create, podKind), pod)
		if response.Allowed || response.Result.Code != 500 || !strings.Contains(response.Result.Message, "return admission.Allowed") {
			t.Errorf("%s: got allowed %v, %v", name, response.Allowed, response.Result)
		}
	}
}

package webhook_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	operation "gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
)

// answers is an Extension that always answers with this patch.
func answers(patch string) *extension.Handler {
	return ext(func(*corev1.Pod, admission.Request) admission.Response {
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
			Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: []byte(patch),
		}}
	})
}

// failure returns the message of an answer without a decision.
func failure(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	return messageOf(t, w.Body.Bytes())
}

func messageOf(t *testing.T, body []byte) string {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return status.Message
}

// TestAForeignPatchIsAppliedAsTheAPIServerDoes has what libraries do differently.
// testing/differential compares a million patches with the API server's own code.
func TestAForeignPatchIsAppliedAsTheAPIServerDoes(t *testing.T) {
	for name, test := range map[string]struct {
		patch string
		seen  string // by the next handler, below /metadata/annotations/a
		want  string // the failure
	}{
		"an index may be negative":               {patch: `[{"op":"copy","from":"/spec/containers/-1/name","path":"/metadata/annotations"},{"op":"replace","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"a container is added before the last":   {patch: `[{"op":"add","path":"/spec/containers/-2","value":{"name":"new"}},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"a copy of nothing is null":              {patch: `[{"op":"copy","from":"/metadata/nowhere","path":"/metadata/labels"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"nothing is equal to null":               {patch: `[{"op":"test","path":"/metadata/nowhere","value":null},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"a replacement may be new":               {patch: `[{"op":"replace","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"fields of an operation have their case": {patch: `[{"OP":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, want: "Unexpected kind"},
		"no path is no operation":                {patch: `[{"op":"add","path":null,"value":{}}]`, want: "missing"},
		"a null is not the document":             {patch: `[{"op":"replace","path":"","value":null}]`, want: "must be object or array"},
		"no value is not the document":           {patch: `[{"op":"replace","path":""}]`, want: "does not apply"},
		"an array is no Pod":                     {patch: `[{"op":"replace","path":"","value":[1]}]`, want: "API server refuses"},
		"a Pod stays a Pod":                      {patch: `[{"op":"add","path":"/kind","value":"Service"}]`, want: "/v1, Kind=Service"},
		"a Pod stays one of its version":         {patch: `[{"op":"add","path":"/apiVersion","value":"v2"}]`, want: "/v2, Kind=Pod"},
		"no kind is that of the request":         {patch: `[{"op":"remove","path":"/kind"},{"op":"remove","path":"/apiVersion"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, seen: "b"},
		"a Pod has the types of a Pod":           {patch: `[{"op":"add","path":"/spec/containers","value":{}}]`, want: "API server refuses"},
		"not a patch":                            {patch: `{"op":"add"}`, want: "decoding the patch"},
		"not JSON":                               {patch: `[{"op":]`, want: "decoding the patch"},
		"an operation that is null":              {patch: `[null]`, want: "Unexpected kind"},
		"copies are counted":                     {patch: "[" + strings.Repeat(`{"op":"copy","from":"/kind","path":"/x"},`, 32) + `{"op":"copy","from":"/kind","path":"/x"}]`, want: "33 copy operations"},
		"operations are counted":                 {patch: "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 10_000) + `{"op":"remove","path":"/kind"}]`, want: "10001 operations, at most 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := "the next handler did not run"
			next := mutator(func(pod *corev1.Pod) { seen = pod.Annotations["a"] })
			w := post(t, podRequest(admissionv1.Create), answers(test.patch), next)
			if test.want != "" {
				if message := failure(t, w); w.Code != http.StatusInternalServerError || !strings.Contains(message, test.want) || !strings.HasPrefix(message, "extension webhook_test.extensionFunc: ") {
					t.Errorf("HTTP %d: %.300s, want an error of the Extension that says %q", w.Code, message, test.want)
				}
				return
			}
			response := decided(t, podRequest(admissionv1.Create), w)
			if seen != test.seen {
				t.Errorf("the next handler saw %q, want %q", seen, test.seen)
			}
			if string(response.Patch) != test.patch {
				t.Errorf("the patch %s became %s", test.patch, response.Patch)
			}
		})
	}
}

func TestAPatchTypeBelongsToAPatch(t *testing.T) {
	jsonPatch, other, patch := admissionv1.PatchTypeJSONPatch, admissionv1.PatchType("MergePatch"), []byte(`[{"op":"remove","path":"/metadata/name"}]`)
	remove := []operation.Operation{{Operation: "remove", Path: "/metadata/name"}}
	for name, test := range map[string]struct {
		response admission.Response
		want     string
	}{
		"both":                       {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: patch, PatchType: &jsonPatch}}, ""},
		"operations need no type":    {admission.Response{Patches: remove, AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}, ""},
		"operations before a patch":  {admission.Response{Patches: remove, AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: []byte("x"), PatchType: &other}}, ""},
		"a patch without its type":   {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: patch}}, "no PatchType"},
		"a type without a patch":     {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, PatchType: &jsonPatch}}, "no Patch"},
		"a type of another kind":     {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: patch, PatchType: &other}}, `"MergePatch"`},
		"a type that is empty":       {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: []byte("[]"), PatchType: new(admissionv1.PatchType(""))}}, `PatchType ""`},
		"a value that is not JSON":   {admission.Response{Patches: []operation.Operation{{Operation: "add", Path: "/a", Value: func() {}}}, AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}, "encoding the patch"},
		"a value that breaks itself": {admission.Response{Patches: []operation.Operation{{Operation: "add", Path: "/a", Value: breaks{}}}, AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}, "panic: in MarshalJSON"},
	} {
		t.Run(name, func(t *testing.T) {
			w := post(t, podRequest(admissionv1.Create), ext(func(*corev1.Pod, admission.Request) admission.Response { return test.response }))
			if test.want == "" {
				if got := decided(t, podRequest(admissionv1.Create), w); string(got.Patch) != string(patch) || *got.PatchType != jsonPatch {
					t.Errorf("got %+v", got)
				}
			} else if message := failure(t, w); w.Code != http.StatusInternalServerError || !strings.Contains(message, test.want) {
				t.Errorf("HTTP %d: %s, want %q", w.Code, message, test.want)
			}
		})
	}
}

func TestThePatchesOfAChainAreOnePatch(t *testing.T) {
	label := func(value string) *extension.Handler {
		return mutator(func(pod *corev1.Pod) { metav1.SetMetaDataLabel(&pod.ObjectMeta, "a", pod.Labels["a"]+value) })
	}
	response := admit(t, podRequest(admissionv1.Create), label("1"),
		answers(` [ {"op":"add", "path":"/metadata/labels/b", "value":"<2>"} ,{"op":"test","path":"/metadata/labels/b","value":"<2>"}]`), label("3"))
	labels := patched(t, response)["metadata"].(map[string]any)["labels"]
	if got := fmt.Sprint(labels); got != "map[a:13 b:<2>]" {
		t.Errorf("the labels are %v by %s", got, response.Patch)
	}
}

func TestADeletedObjectTakesAPatchWithoutOperationsOnly(t *testing.T) {
	for patch, refused := range map[string]bool{`[]`: false, `null`: false, `[{"op":"test","path":"/kind","value":"Pod"}]`: true} {
		w := post(t, podRequest(admissionv1.Delete), answers(patch))
		if refused != (w.Code != http.StatusOK) {
			t.Errorf("%s: HTTP %d %s", patch, w.Code, w.Body)
		}
	}
}

func TestAStatusThatExtensionsShareStaysAsItIs(t *testing.T) {
	shared := &metav1.Status{Message: "no", Details: &metav1.StatusDetails{Name: "shop"}}
	handler := ext(func(*corev1.Pod, admission.Request) admission.Response {
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: shared}}
	})
	done := make(chan *admissionv1.AdmissionResponse)
	for range 2 {
		go func() { done <- admit(t, podRequest(admissionv1.Create), handler) }()
	}
	for range 2 {
		if response := <-done; response.Allowed || response.Result.Code != http.StatusForbidden || response.Result.Details.Name != "shop" {
			t.Errorf("got %+v", response)
		}
	}
	if shared.Code != 0 {
		t.Errorf("the Extension's own status has the code %d now", shared.Code)
	}
}

// breaks breaks in every method.
type breaks struct{}

func (breaks) MarshalJSON() ([]byte, error) { panic("in MarshalJSON") }

var _ json.Marshaler = breaks{}

package review

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var jsonPatch = admissionv1.PatchTypeJSONPatch

var responses = map[string]*admissionv1.AdmissionResponse{
	"an allowed object": {UID: "u", Allowed: true},
	"a patch": {
		UID: "u", Allowed: true, PatchType: &jsonPatch,
		Patch: []byte(`[{"op":"add","path":"/metadata/labels/a~1b","value":"<é>\u0000"}]`),
	},
	"a denial": {
		UID:    "u",
		Result: &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no \"quotes\" & <tags>,\nplease"},
	},
	"warnings and audit annotations": {
		UID: "u", Allowed: true, Warnings: []string{"é", "\u2028", ""},
		AuditAnnotations: map[string]string{"b": "2", "a": "1"},
	},
	"a large patch": {UID: "u", Allowed: true, PatchType: &jsonPatch, Patch: []byte(strings.Repeat("x", 2*maxPooledAnswer))},
}

func TestAnswerSaysWhatTheResponseSays(t *testing.T) {
	// Twice, because the second answer may get the buffer of the first.
	for range 2 {
		for name, response := range responses {
			t.Run(name, func(t *testing.T) {
				recorder := httptest.NewRecorder()
				if err := WriteResponse(recorder, response); err != nil {
					t.Fatal(err)
				}
				var review admissionv1.AdmissionReview
				if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
					t.Fatal(err)
				}
				want := admissionv1.AdmissionReview{
					TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
					Response: response,
				}
				if !reflect.DeepEqual(review, want) {
					t.Errorf("got %#v, want %#v", review, want)
				}
				if got := recorder.Header().Get("Content-Length"); got != "" && got != strconv.Itoa(recorder.Body.Len()) {
					t.Errorf("announced as %s bytes, %d were sent", got, recorder.Body.Len())
				}
				if got := recorder.Header().Get("Content-Type"); got != "application/json" {
					t.Errorf("sent as %s", got)
				}
			})
		}
	}
}

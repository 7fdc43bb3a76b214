package webhook_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	operation "gomodules.xyz/jsonpatch/v2"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

func TestAnObjectSaysWhatChangedIt(t *testing.T) {
	labels := func(name string, labels map[string]string) *extension.Handler {
		return extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			for key, value := range labels {
				metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value)
			}
			return nil
		}, extension.Scope{Name: name})
	}
	patches := ext(func(_ *corev1.Pod, _ admission.Request) admission.Response {
		return admission.Patched("", operation.NewOperation("add", "/spec", map[string]any{"nodeName": "n"}))
	})
	const annotated = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"shop","annotations":{"a":"b","admitkit.dev/changed-by":BEFORE}}}`
	for name, test := range map[string]struct {
		handlers    []*extension.Handler
		before      string // the annotation, "-" for no annotations at all
		operation   admissionv1.Operation
		subresource string
		want        string // the annotation, empty for what it was
	}{
		"one":                                {[]*extension.Handler{labels("a", map[string]string{"x": "y"})}, "-", admissionv1.Create, "", "shop@v1: a"},
		"beside other annotations":           {[]*extension.Handler{labels("a", map[string]string{"x": "y"})}, "", admissionv1.Update, "", "shop@v1: a"},
		"an Extension that returns a patch":  {[]*extension.Handler{patches}, "-", admissionv1.Create, "", "shop@v1: webhook_test.extensionFunc"},
		"nobody, if nothing is changed":      {[]*extension.Handler{labels("a", nil)}, "-", admissionv1.Create, "", ""},
		"not of a subresource":               {[]*extension.Handler{labels("a", map[string]string{"x": "y"})}, "", admissionv1.Update, "status", ""},
		"what it changed before, too":        {[]*extension.Handler{labels("b", map[string]string{"x": "y"})}, "shop@v0: a", admissionv1.Update, "", "shop@v1: a, b"},
		"what other programs changed":        {[]*extension.Handler{labels("b", map[string]string{"x": "y"})}, "tea@v7: z; shop@v1: b", admissionv1.Update, "", "shop@v1: b; tea@v7: z"},
		"instead of what is no such entry":   {[]*extension.Handler{labels("b", map[string]string{"x": "y"})}, "something else", admissionv1.Update, "", "shop@v1: b"},
		"instead of more than a user writes": {[]*extension.Handler{labels("b", map[string]string{"x": "y"})}, "tea@v7: " + strings.Repeat("z", 5000), admissionv1.Update, "", "shop@v1: b"},
	} {
		t.Run(name, func(t *testing.T) {
			request := podRequest(test.operation)
			request.SubResource = test.subresource
			if test.before != "-" {
				before, _ := json.Marshal(test.before)
				request.Object.Raw = []byte(strings.Replace(annotated, "BEFORE", string(before), 1))
			}
			if request.OldObject.Raw = nil; test.operation == admissionv1.Update {
				request.OldObject.Raw = request.Object.Raw
			}
			webhooks, err := webhook.Group(test.handlers, webhook.Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			response := decided(t, request, send(t, request, webhooks[0].Handler(webhook.HandlerOptions{Mark: "shop@v1"}), webhooks[0].Path()))
			object := request.Object.Raw
			if len(response.Patch) > 0 {
				patch, err := jsonpatch.DecodePatch(response.Patch)
				if err == nil {
					object, err = patch.Apply(object)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var pod corev1.Pod
			if err := json.Unmarshal(object, &pod); err != nil {
				t.Fatal(err)
			}
			want := test.want
			if want == "" {
				want = strings.TrimPrefix(test.before, "-")
			}
			if got := pod.Annotations[webhook.ChangedBy]; got != want {
				t.Errorf("it says %.100q, want %.100q", got, want)
			}
		})
	}
}

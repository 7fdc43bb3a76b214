package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// A Pod with fields that no Go type knows, at every depth, and an integer that
// no float holds.
const podJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"shop","namespace":"apps","novel":{"a":1}},
"spec":{"containers":[{"name":"web","image":"web:1","novel":9007199254740993,"env":[{"name":"A","value":"1","novel":true}]},
{"name":"log","image":"log:1","novel":"log"}],"novel":[1,2]}}`

type mutate = extension.MutatorFunc[*corev1.Pod]

func mutator(f func(pod *corev1.Pod)) *extension.Handler {
	return extension.Mutating(mutate(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		f(pod)
		return nil
	}), extension.Scope{Name: "test"})
}

func validator(f func(pod *corev1.Pod, req *extension.Request) error) *extension.Handler {
	return extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		return f(pod, req)
	}), extension.Scope{Name: "test"})
}

type extensionFunc func(pod *corev1.Pod, req admission.Request) admission.Response

func (f extensionFunc) Handle(_ context.Context, _ extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	return f(pod, req)
}

func (f extensionFunc) Scope() extension.Scope { return extension.Scope{Name: "test"} }

func ext(f extensionFunc) *extension.Handler { return host.HandlerOf(f, nil) }

// podRequest is the admission of a Pod.
func podRequest(operation admissionv1.Operation) *admissionv1.AdmissionRequest {
	request := &admissionv1.AdmissionRequest{
		UID: "1234", Operation: operation, Name: "shop", Namespace: "apps",
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
	}
	if operation == admissionv1.Delete {
		request.OldObject.Raw = []byte(podJSON)
	} else {
		request.Object.Raw = []byte(podJSON)
	}
	return request
}

// post sends a request to the one webhook that the handlers share.
func post(t *testing.T, request *admissionv1.AdmissionRequest, handlers ...*extension.Handler) *httptest.ResponseRecorder {
	t.Helper()
	webhooks, err := webhook.Group(handlers, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	if len(webhooks) != 1 {
		t.Fatalf("the handlers make %d webhooks", len(webhooks))
	}
	return send(t, request, webhooks[0].Handler(webhook.HandlerOptions{}), webhooks[0].Path())
}

// send sends a request to the path of a handler.
func send(t *testing.T, request *admissionv1.AdmissionRequest, handler http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path+"?timeout=10s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// admit sends a request that is decided, and returns the decision.
func admit(t *testing.T, request *admissionv1.AdmissionRequest, handlers ...*extension.Handler) *admissionv1.AdmissionResponse {
	t.Helper()
	return decided(t, request, post(t, request, handlers...))
}

// decided returns the decision that an answer is.
func decided(t *testing.T, request *admissionv1.AdmissionRequest, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK {
		t.Fatalf("HTTP %d, %v: %s", w.Code, err, w.Body)
	}
	if review.Response.UID != request.UID {
		t.Errorf("the answer is for %q", review.Response.UID)
	}
	return review.Response
}

// patched returns the object that the API server makes of an answer.
func patched(t *testing.T, response *admissionv1.AdmissionResponse) map[string]any {
	t.Helper()
	raw := []byte(podJSON)
	if len(response.Patch) > 0 {
		patch, err := jsonpatch.DecodePatch(response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		if raw, err = patch.Apply(raw); err != nil {
			t.Fatalf("%v: %s", err, response.Patch)
		}
	}
	return tree(t, raw)
}

// tree decodes JSON without rounding numbers.
func tree(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var content map[string]any
	if err := decoder.Decode(&content); err != nil {
		t.Fatal(err)
	}
	return content
}

func TestAPatchMakesTheMutationAndKeepsWhatNoTypeKnows(t *testing.T) {
	for name, test := range map[string]struct {
		mutate func(pod *corev1.Pod)
		// replace turns podJSON into what is wanted.
		replace []string
		ops     []string
	}{
		"nothing": {func(*corev1.Pod) {}, nil, nil},
		"an env variable appended": {
			func(pod *corev1.Pod) {
				c := &pod.Spec.Containers[0]
				c.Env = append(c.Env, corev1.EnvVar{Name: "B", Value: "2"})
			},
			[]string{`"novel":true}]`, `"novel":true},{"name":"B","value":"2"}]`},
			[]string{"add /spec/containers/0/env/1"},
		},
		"a value changed": {
			func(pod *corev1.Pod) { pod.Spec.Containers[0].Env[0].Value = "2" },
			[]string{`"value":"1"`, `"value":"2"`},
			[]string{"replace /spec/containers/0/env/0/value"},
		},
		"a container put in front": {
			func(pod *corev1.Pod) {
				pod.Spec.Containers = slices.Insert(pod.Spec.Containers, 0, corev1.Container{Name: "first"})
			},
			[]string{`"containers":[`, `"containers":[{"name":"first","resources":{}},`},
			[]string{"add /spec/containers/0"},
		},
		"a container removed": {
			func(pod *corev1.Pod) { pod.Spec.Containers = pod.Spec.Containers[1:] },
			[]string{`{"name":"web","image":"web:1","novel":9007199254740993,"env":[{"name":"A","value":"1","novel":true}]},`, ``},
			[]string{"remove /spec/containers/0"},
		},
		"a container replaced by another": {
			func(pod *corev1.Pod) { pod.Spec.Containers[1] = corev1.Container{Name: "new"} },
			[]string{`{"name":"log","image":"log:1","novel":"log"}`, `{"name":"new","resources":{}}`},
			[]string{"replace /spec/containers/1"},
		},
		"containers swapped": {
			func(pod *corev1.Pod) { slices.Reverse(pod.Spec.Containers) },
			[]string{
				`{"name":"web","image":"web:1","novel":9007199254740993,"env":[{"name":"A","value":"1","novel":true}]},`, ``,
				`"novel":"log"}`, `"novel":"log"},{"name":"web","image":"web:1","novel":9007199254740993,"env":[{"name":"A","value":"1","novel":true}]}`,
			},
			[]string{"remove /spec/containers/0", "add /spec/containers/1"},
		},
		"a struct set that the object does not have": {
			func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			},
			[]string{`"image":"web:1",`, `"image":"web:1","resources":{"limits":{"cpu":"1"}},`},
			[]string{"add /spec/containers/0/resources"},
		},
		"a label whose name must be escaped": {
			func(pod *corev1.Pod) { pod.Labels = map[string]string{"a/b~c": "x"} },
			[]string{`"name":"shop",`, `"name":"shop","labels":{"a/b~c":"x"},`},
			[]string{"add /metadata/labels"},
		},
		"a 64-bit number": {
			func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = new(int64(1<<62 + 1)) },
			[]string{`"novel":[1,2]`, `"novel":[1,2],"activeDeadlineSeconds":4611686018427387905`},
			[]string{"add /spec/activeDeadlineSeconds"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			response := admit(t, podRequest(admissionv1.Create), mutator(test.mutate))
			want := tree(t, []byte(strings.NewReplacer(test.replace...).Replace(podJSON)))
			if difference := cmp.Diff(want, patched(t, response)); difference != "" {
				t.Errorf("wanted (-) and got (+):\n%s", difference)
			}
			if ops := operations(t, response.Patch); !slices.Equal(ops, test.ops) {
				t.Errorf("the operations are %q, want %q", ops, test.ops)
			}
		})
	}
}

// operations returns what a patch does where.
func operations(t *testing.T, patch []byte) []string {
	t.Helper()
	if len(patch) == 0 {
		return nil
	}
	var ops []struct{ Op, Path string }
	if err := json.Unmarshal(patch, &ops); err != nil {
		t.Fatal(err)
	}
	texts := make([]string, 0, len(ops))
	for _, op := range ops {
		texts = append(texts, op.Op+" "+op.Path)
	}
	return texts
}

func TestHandlersOfEveryFormSeeWhatTheOnesBeforeThemDid(t *testing.T) {
	mark := func(s string) *extension.Handler {
		return mutator(func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marks", pod.Annotations["marks"]+s)
		})
	}
	response := admit(t, podRequest(admissionv1.Create),
		mark("a"),
		ext(func(pod *corev1.Pod, req admission.Request) admission.Response {
			var raw corev1.Pod
			if err := json.Unmarshal(req.Object.Raw, &raw); err != nil || raw.Annotations["marks"] != "a" {
				t.Errorf("the request of an Extension has annotations %v, %v", raw.Annotations, err)
			}
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marks", pod.Annotations["marks"]+"b")
			return webhook.PatchFrom(req, pod)
		}),
		mark("c"),
		extension.Mutating(extension.MutatorFunc[*unstructured.Unstructured](func(_ context.Context, obj *unstructured.Unstructured, _ *extension.Request) error {
			marks := obj.GetAnnotations()["marks"]
			obj.SetAnnotations(map[string]string{"marks": marks + "d"})
			return nil
		}), extension.Scope{Name: "test"}),
		extension.Mutating(extension.MutatorFunc[runtime.Object](func(_ context.Context, obj runtime.Object, _ *extension.Request) error {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				t.Fatalf("for a runtime.Object a Pod came as %T", obj)
			}
			pod.Annotations["marks"] += "e"
			return nil
		}), extension.Scope{Name: "test"}),
		mark("f"),
	)
	want := tree(t, []byte(strings.Replace(podJSON, `"name":"shop"`, `"name":"shop","annotations":{"marks":"abcdef"}`, 1)))
	if difference := cmp.Diff(want, patched(t, response)); difference != "" {
		t.Errorf("wanted (-) and got (+):\n%s", difference)
	}
}

func TestADenialWithoutAReasonNamesTheExtension(t *testing.T) {
	for want, handler := range map[string]*extension.Handler{
		"extension.ValidatorFunc gives no reason":    validator(func(*corev1.Pod, *extension.Request) error { return extension.Deny(" \n") }),
		"webhook_test.extensionFunc gives no reason": ext(func(*corev1.Pod, admission.Request) admission.Response { return admission.Denied("") }),
	} {
		response := admit(t, podRequest(admissionv1.Create), handler)
		if response.Allowed || response.Result.Message != want || response.Result.Code != http.StatusForbidden {
			t.Errorf("got %+v, want %q", response.Result, want)
		}
	}
}

func TestAfterADenialNobodyRunsAndTheWarningsAreKept(t *testing.T) {
	response := admit(t, podRequest(admissionv1.Create),
		validator(func(_ *corev1.Pod, req *extension.Request) error {
			req.Warnf("careful, %s", req.User().Username)
			req.AddAuditAnnotation("seen", "yes")
			return nil
		}),
		validator(func(_ *corev1.Pod, req *extension.Request) error {
			req.Warnf("too late")
			return errors.Join(errors.New("context"), extension.Deny("not today"))
		}),
		validator(func(*corev1.Pod, *extension.Request) error {
			t.Error("a handler ran after the denial")
			return nil
		}),
	)
	if response.Allowed || response.Result.Code != http.StatusForbidden || response.Result.Message != "not today" {
		t.Errorf("got %+v", response)
	}
	if !slices.Equal(response.Warnings, []string{"careful,", "too late"}) || !maps.Equal(response.AuditAnnotations, map[string]string{"extension.ValidatorFunc.seen": "yes"}) {
		t.Errorf("the warnings are %q, the annotations %q", response.Warnings, response.AuditAnnotations)
	}
}

func TestWhatAnExtensionAnswersIsWhatCounts(t *testing.T) {
	for name, test := range map[string]struct {
		response admission.Response
		code     int // of HTTP
		allowed  bool
	}{
		"nothing":             {admission.Response{}, http.StatusOK, true},
		"allowed":             {admission.Allowed("fine"), http.StatusOK, true},
		"denied":              {admission.Denied("no"), http.StatusOK, false},
		"denied as not found": {admission.Errored(http.StatusNotFound, errors.New("no such thing")), http.StatusOK, false},
		"an error":            {admission.Errored(http.StatusInternalServerError, errors.New("broken")), http.StatusInternalServerError, false},
		"a patch of bytes": {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
			Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`),
		}}, http.StatusOK, true},
		"a patch that does not apply": {admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
			Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: []byte(`[{"op":"remove","path":"/nowhere"}]`),
		}}, http.StatusInternalServerError, false},
	} {
		t.Run(name, func(t *testing.T) {
			handler := ext(func(pod *corev1.Pod, _ admission.Request) admission.Response {
				pod.Name = "a change that the response does not carry"
				return test.response
			})
			w := post(t, podRequest(admissionv1.Create), handler)
			if w.Code != test.code {
				t.Fatalf("HTTP %d: %s", w.Code, w.Body)
			}
			if w.Code != http.StatusOK {
				return
			}
			response := admit(t, podRequest(admissionv1.Create), handler)
			if response.Allowed != test.allowed {
				t.Errorf("got %+v", response)
			}
			if name := patched(t, response)["metadata"].(map[string]any)["name"]; name != "shop" {
				t.Errorf("the Pod is now called %q", name)
			}
		})
	}
}

func TestEveryOperationOfAnExtensionsPatchReachesTheAPIServer(t *testing.T) {
	response := admit(t, podRequest(admissionv1.Create), ext(func(*corev1.Pod, admission.Request) admission.Response {
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: []byte(`[
			{"op":"test","path":"/metadata/name","value":"shop"},
			{"op":"copy","from":"/metadata/name","path":"/metadata/generateName"},
			{"op":"move","from":"/metadata/novel","path":"/spec/moved"},
			{"op":"replace","path":"/spec/novel","value":null}]`)}}
	}))
	want := tree(t, []byte(strings.NewReplacer(`,"novel":{"a":1}`, `,"generateName":"shop"`, `"novel":[1,2]`, `"novel":null,"moved":{"a":1}`).Replace(podJSON)))
	if difference := cmp.Diff(want, patched(t, response)); difference != "" {
		t.Errorf("wanted (-) and got (+):\n%s", difference)
	}
}

func TestADeletedObjectIsSeenAndCannotBeChanged(t *testing.T) {
	response := admit(t, podRequest(admissionv1.Delete), validator(func(pod *corev1.Pod, req *extension.Request) error {
		var old corev1.Pod
		if err := req.Old(&old); err != nil || old.Name != "shop" || pod.Name != "shop" {
			t.Errorf("saw %q, and %q before, %v", pod.Name, old.Name, err)
		}
		return nil
	}))
	if !response.Allowed {
		t.Errorf("got %+v", response)
	}
	response = admit(t, podRequest(admissionv1.Delete), ext(func(pod *corev1.Pod, req admission.Request) admission.Response {
		return webhook.PatchFrom(req, pod) // as an Extension does that does not look at the operation
	}))
	if !response.Allowed || len(response.Patch) > 0 {
		t.Errorf("got %+v", response)
	}
	w := post(t, podRequest(admissionv1.Delete), mutator(func(pod *corev1.Pod) { pod.Labels = map[string]string{"a": "b"} }))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "is being deleted") {
		t.Errorf("HTTP %d: %s", w.Code, w.Body)
	}
}

func TestConnectCarriesTheOptions(t *testing.T) {
	request := &admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Connect, Name: "shop", Namespace: "apps", SubResource: "exec",
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Object:   runtime.RawExtension{Raw: []byte(`{"kind":"PodExecOptions","apiVersion":"v1","command":["id"]}`)},
	}
	response := admit(t, request, extension.Validating(extension.ValidatorFunc[runtime.Object](func(_ context.Context, obj runtime.Object, req *extension.Request) error {
		if options, ok := obj.(*corev1.PodExecOptions); !ok || !slices.Equal(options.Command, []string{"id"}) {
			t.Errorf("the options are %T %v", obj, obj)
		}
		if err := req.Old(&corev1.Pod{}); err == nil || !strings.Contains(err.Error(), "CONNECT of pods apps/shop has no old object") {
			t.Errorf("the old object: %v", err)
		}
		return nil
	}), extension.Scope{Name: "test"}))
	if !response.Allowed {
		t.Errorf("got %+v", response)
	}
}

func TestAnObjectOfAnotherShapeIsDeniedWithTheField(t *testing.T) {
	for name, handler := range map[string]*extension.Handler{"validating": validator(nil), "mutating": mutator(nil)} {
		request := podRequest(admissionv1.Update)
		request.Object.Raw = []byte(`{"metadata":{"name":"shop"},"spec":{"containers":[{"name":"a"},{"name":7}]}}`)
		response := admit(t, request, handler)
		if got := response.Result; response.Allowed || got == nil || got.Code != http.StatusBadRequest || got.Reason != metav1.StatusReasonBadRequest ||
			got.Message != "spec.containers[1].name: must be a string" {
			t.Errorf("%s: got %+v", name, response)
		}
	}
	request := podRequest(admissionv1.Delete)
	request.OldObject.Raw = []byte(`{"spec":7}`)
	if w := post(t, request, validator(nil)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "decoding Pod") {
		t.Errorf("a stored object: HTTP %d: %s", w.Code, w.Body)
	}
}

func TestAFailureIsAnHTTPErrorThatNamesTheExtension(t *testing.T) {
	lenient := extension.Validating(extension.ValidatorFunc[*corev1.Pod](nil), extension.Scope{Name: "test", FailurePolicy: new(admissionregistrationv1.Ignore)})
	for name, test := range map[string]struct {
		handler *extension.Handler
		raw     string
		code    int
		want    string
	}{
		"an error": {validator(func(*corev1.Pod, *extension.Request) error { return errors.New("no database") }), podJSON, 500, "no database"},
		"a panic":  {validator(func(*corev1.Pod, *extension.Request) error { panic("boom") }), podJSON, 500, "panic: boom"},
		"an object of another shape, where failures let it through": {lenient, `{"spec":7}`, 400, "decoding Pod apps/shop into *v1.Pod: spec: must be an object with fields"},
		"no object": {validator(nil), ``, 400, "CREATE of pods carries no object"},
	} {
		t.Run(name, func(t *testing.T) {
			request := podRequest(admissionv1.Create)
			request.Object.Raw = []byte(test.raw)
			if test.raw == "" {
				request.Object.Raw = nil
			}
			w := post(t, request, test.handler)
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
				t.Fatal(err)
			}
			if w.Code != test.code || int(status.Code) != test.code || status.Status != metav1.StatusFailure || status.Kind != "Status" {
				t.Errorf("HTTP %d: %+v", w.Code, status)
			}
			if !strings.Contains(status.Message, test.want) || !strings.Contains(status.Message, "extension.ValidatorFunc") {
				t.Errorf("the message is %q", status.Message)
			}
		})
	}
}

func TestTheTimeoutOfTheRequestIsTheDeadlineOfTheContext(t *testing.T) {
	admit(t, podRequest(admissionv1.Create), extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left > 10*time.Second || left < 5*time.Second {
			t.Errorf("of a timeout of 10 s %s are left", left)
		}
		return nil
	}), extension.Scope{Name: "test"}))
}

func TestARequestThatIsNoAdmissionIsRefusedWithAReason(t *testing.T) {
	webhooks, err := webhook.Group([]*extension.Handler{validator(nil)}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	handler := webhooks[0].Handler(webhook.HandlerOptions{MaxBodyBytes: 1000})
	const start = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"`
	for name, test := range map[string]struct {
		method, contentType, body string
		code                      int
		want                      string
	}{
		"another method":       {http.MethodGet, "", "", 405, "method GET"},
		"another content type": {http.MethodPost, "text/plain", start + "}", 415, `content type "text/plain"`},
		"no body":              {http.MethodPost, "application/json", "", 400, "empty"},
		"a body too large":     {http.MethodPost, "application/json", start + strings.Repeat(" ", 1000) + "}", 413, "larger than 1000 bytes"},
		"half a body":          {http.MethodPost, "application/json", start, 400, "decoding the AdmissionReview"},
		"another kind":         {http.MethodPost, "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400, `kind "Pod"`},
		"an older version":     {http.MethodPost, "application/json", strings.Replace(start, "v1", "v1beta1", 1) + "}", 400, "admission.k8s.io/v1beta1"},
		"no request":           {http.MethodPost, "application/json", start + "}", 400, "no request"},
		"no uid":               {http.MethodPost, "application/json", start + `,"request":{}}`, 400, "no uid"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), test.method, webhooks[0].Path(), strings.NewReader(test.body))
			r.Header.Set("Content-Type", test.contentType)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
				t.Fatal(err)
			}
			if w.Code != test.code || int(status.Code) != test.code || !strings.Contains(status.Message, test.want) {
				t.Errorf("HTTP %d: %q, want %d and %q", w.Code, status.Message, test.code, test.want)
			}
		})
	}
}

func TestScopesAreGroupedByContentAndGuarded(t *testing.T) {
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	named := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}
	labelled := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}
	all := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists}}}
	defaults := webhook.Defaults{Protected: []string{"home", "kube-system"}, Excluded: []string{"cni", "home"}}
	group := func(scopes ...extension.Scope) []*webhook.Webhook {
		admissions := make([]*extension.Handler, 0, len(scopes))
		for _, scope := range scopes {
			admissions = append(admissions, extension.Mutating(mutate(nil), scope))
		}
		webhooks, err := webhook.Group(admissions, defaults)
		if err != nil {
			t.Fatal(err)
		}
		return webhooks
	}
	if webhooks := group(extension.Scope{}, extension.Scope{Timeout: time.Second}, extension.Scope{Timeout: 10 * time.Second}); len(webhooks) != 2 || len(webhooks[0].Handlers) != 2 {
		t.Errorf("a default said and one left out are different scopes: %v", webhooks)
	}
	if first, second := group(extension.Scope{})[0].Name, group(extension.Scope{})[0].Name; first != second || !strings.HasPrefix(first, "pods-") {
		t.Errorf("the same scope is called %q and %q", first, second)
	}
	for name, test := range map[string]struct {
		scope   extension.Scope
		without []string
	}{
		"Fail and every namespace":               {extension.Scope{FailurePolicy: &fail}, []string{"home", "kube-system", "cni"}},
		"Fail and a label":                       {extension.Scope{FailurePolicy: &fail, NamespaceSelector: labelled}, []string{"home", "kube-system", "cni"}},
		"Fail and a protected namespace by name": {extension.Scope{FailurePolicy: &fail, NamespaceSelector: named}, nil},
		"Fail and all without exception":         {extension.Scope{FailurePolicy: &fail, NamespaceSelector: all}, nil},
		"Ignore and every namespace":             {extension.Scope{FailurePolicy: &ignore}, []string{"cni", "home"}},
	} {
		var without []string
		for _, r := range group(test.scope)[0].Scope.NamespaceSelector.MatchExpressions {
			if r.Operator == metav1.LabelSelectorOpNotIn {
				without = append(without, r.Values...)
			}
		}
		if !slices.Equal(without, test.without) {
			t.Errorf("%s: it is without %v", name, without)
		}
	}
	everything := extension.Resources("*", "*", []string{"*"}, "*")
	mine := []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "true"}}
	for policy, conditions := range map[*admissionregistrationv1.FailurePolicyType]int{&fail: 2, &ignore: 1} {
		scope := group(extension.Scope{FailurePolicy: policy, Rules: everything, MatchConditions: mine})[0].Scope
		if len(scope.MatchConditions) != conditions || scope.MatchConditions[0].Name != "mine" {
			t.Errorf("%s, and everything: the match conditions are %v", *policy, scope.MatchConditions)
		}
	}
	if len(labelled.MatchExpressions) > 0 {
		t.Error("the author's selector was changed")
	}
}

func TestAnObjectOfAnotherKindThanTheHandlersIsAnError(t *testing.T) {
	request := podRequest(admissionv1.Create)
	request.Kind = metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	w := post(t, request, validator(func(*corev1.Pod, *extension.Request) error {
		t.Error("it is asked about a Deployment as a Pod, which has no containers")
		return nil
	}))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "it takes a /v1, Kind=Pod, and the request has a apps/v1, Kind=Deployment") {
		t.Errorf("HTTP %d: %s", w.Code, w.Body)
	}
}

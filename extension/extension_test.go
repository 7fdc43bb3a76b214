package extension_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/testing/fakes"
)

func TestADenialIsKnownByItsReasonHoweverItIsWrapped(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		reason string
		denied bool
	}{
		"no error":            {nil, "", false},
		"another error":       {fs.ErrNotExist, "", false},
		"a denial":            {extension.Deny("no"), "no", true},
		"a wrapped denial":    {fmt.Errorf("validator: %w", extension.Deny("no")), "no", true},
		"a denial with cause": {extension.Denyf("file %s: %w", "x", fs.ErrNotExist), "file x: file does not exist", true},
	} {
		if reason, denied := host.DenialReason(test.err); reason != test.reason || denied != test.denied {
			t.Errorf("%s: %q, %t", name, reason, denied)
		}
	}
	if err := extension.Denyf("x: %w", fs.ErrNotExist); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a denial hides its cause")
	}
}

func TestARequestKeepsWhatItsHandlerSays(t *testing.T) {
	dryRun := true
	req := &extension.Request{Request: admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		DryRun: &dryRun, OldObject: runtime.RawExtension{Raw: []byte(`{"metadata":{"name":"old","generation":9007199254740993}}`)},
	}}}
	if !req.DryRun() || (&extension.Request{}).DryRun() {
		t.Error("a dry run is not told from another")
	}
	req.Warnf("%d of %d", 1, 2)
	req.AddAuditAnnotation("key", "first")
	req.AddAuditAnnotation("key", "second")
	if w := host.Warnings(req); len(w) != 1 || w[0] != "1 of 2" {
		t.Errorf("the warnings are %q", w)
	}
	if a := host.AuditAnnotations(req); len(a) != 1 || a["key"] != "second" {
		t.Errorf("the annotations are %q", a)
	}
	for name, into := range map[string]interface {
		runtime.Object
		metav1.Object
	}{"a Go type": &corev1.Pod{}, "no Go type": &unstructured.Unstructured{}, "the metadata": &metav1.PartialObjectMetadata{}} {
		if err := req.Old(into); err != nil || into.GetName() != "old" || into.GetGeneration() != 9007199254740993 {
			t.Errorf("decoded into %s: %q, generation %d, %v", name, into.GetName(), into.GetGeneration(), err)
		}
	}
}

func TestTheOldObjectHasTheTypeThatIsAskedFor(t *testing.T) {
	req := &extension.Request{Request: admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		OldObject: runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"old"},"spec":{"nodeName":"n"}}`)},
	}}}
	if pod, err := extension.Old[*corev1.Pod](req); err != nil || pod.Spec.NodeName != "n" {
		t.Errorf("got %+v, %v", pod, err)
	}
	if u, err := extension.Old[*unstructured.Unstructured](req); err != nil || u.GetName() != "old" {
		t.Errorf("got %+v, %v", u, err)
	}
	if object, err := extension.Old[runtime.Object](req); object != nil || err == nil || !strings.Contains(err.Error(), "must be a pointer") {
		t.Errorf("got %+v, %v", object, err)
	}
	created := &extension.Request{Request: admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create}}}
	if pod, err := extension.Old[*corev1.Pod](created); pod != nil || err == nil || !strings.Contains(err.Error(), "CREATE") {
		t.Errorf("got %+v, %v", pod, err)
	}
}

// owned is a Mutator that wants to know its host and may fail to.
type owned struct{ err error }

func (owned) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }
func (o owned) Register(extension.Manager) error                            { return o.err }

func TestAHandlerIsNamedByItsTypeAndToldItsHost(t *testing.T) {
	a := host.Open(extension.Mutating(owned{}, extension.Scope{Name: "x"}))
	if a.Name != "extension_test.owned" || !a.Mutates || a.Respond != nil || a.Scope.Name != "x" {
		t.Errorf("got %q, %t, %t, %q", a.Name, a.Mutates, a.Respond != nil, a.Scope.Name)
	}
	for _, want := range []error{nil, fs.ErrPermission} {
		parts, err := host.PartsOf(extension.Mutating(owned{want}, extension.Scope{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := parts.Register(fakes.NewManager()); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	fake := &fakes.Extension{}
	fake.HandleReturns(admission.Denied("no"))
	x := host.Open(host.HandlerOf(fake, nil))
	if x.Name != "fakes.Extension" || x.Respond == nil {
		t.Errorf("got %q, %t", x.Name, x.Respond != nil)
	}
	if response := x.Respond(t.Context(), &corev1.Pod{}, &extension.Request{}); response.Allowed || fake.HandleCallCount() != 1 {
		t.Errorf("got %+v after %d calls", response, fake.HandleCallCount())
	}
	if host.Open(extension.Validating(extension.ValidatorFunc[runtime.Object](nil), extension.Scope{})).NewObject() != nil {
		t.Error("the type of a runtime.Object is not the handler's to say")
	}
}

func TestAFunctionHasTheNameOfItsScope(t *testing.T) {
	nothing := func(context.Context, *corev1.Pod, *extension.Request) error { return nil }
	for _, h := range []*extension.Handler{
		extension.MutatingFunc(nothing, extension.Scope{Name: "sidecar"}), extension.ValidatingFunc(nothing, extension.Scope{Name: "sidecar"}),
	} {
		if name := host.Open(h).Name; name != "sidecar" {
			t.Errorf("it is named %s", name)
		}
	}
	if name := host.Open(extension.MutatingFunc(nothing, extension.Scope{})).Name; name != "extension.MutatorFunc" {
		t.Errorf("without a name it is %s", name)
	}
}

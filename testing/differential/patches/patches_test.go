package patches

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	operation "gomodules.xyz/jsonpatch/v2"
	library "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// patched returns the answer of an Extension with a patch.
func (p *patcher) patched() *ctrladmission.Response {
	s := p.source
	response := &ctrladmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}
	if s.oneIn(6) {
		for range 1 + s.Intn(4) {
			op := operation.Operation{Operation: pick(s, "add", "replace", "remove", "test", "copy"), Path: p.path(), Value: json.RawMessage(p.value())}
			if op.Operation == "remove" || s.oneIn(10) {
				op.Value = nil
			}
			response.Patches = append(response.Patches, op)
		}
		return response
	}
	if response.Patch = []byte(p.patch()); len(response.Patch) > 0 {
		response.PatchType = new(admissionv1.PatchTypeJSONPatch)
	}
	return response
}

// TestPatchesAreThoseOfTheAPIServer compares verdicts and objects: whether a patch is
// refused, what the next Extension sees, and what the API server has in the end.
func TestPatchesAreThoseOfTheAPIServer(t *testing.T) {
	run(t, "patches", 1_000_000, func(s source, pod *corev1.Pod) func() *testCase {
		p := newPatcher(s, []byte(encode(pod)))
		return func() *testCase {
			c := &testCase{pod: pod, operation: s.operation(), first: p.patched()}
			if s.oneIn(4) {
				c.second = p.patched()
			}
			return c
		}
	}, func(c, own *testCase, theirs, ours decision) string {
		switch {
		case theirs.err != nil && ours.err == nil:
			return "the API server refuses it, admitkit does not"
		case theirs.err != nil && own.code == 200:
			return "admitkit passes on what the API server refuses"
		case theirs.err != nil:
			return ""
		case ours.err != nil && (c.second == nil || own.seen[0] == ""):
			return "admitkit refuses it, the API server does not"
		case ours.err != nil && own.code == 200:
			return "admitkit passes on what the API server refuses"
		case c.operation == admission.Delete:
			return ""
		case own.seen[0] != theirs.object:
			return "the next Extension sees another object: " + own.seen[0]
		case ours.err == nil && own.seen[1] != ours.object:
			return "the last handler sees another object: " + own.seen[1]
		case c.second == nil && ours.object != theirs.object:
			return "the objects differ"
		}
		return ""
	})
}

// TestCopiesAreBoundedAsByTheAPIServer compares the verdicts on patches that copy a
// lot. The API server's limit is a package variable of the library that both sides
// use. So admitkit's verdicts are there before it is set.
func TestCopiesAreBoundedAsByTheAPIServer(t *testing.T) {
	type verdict struct {
		*testCase
		refused bool
	}
	cases := 400
	if testing.Short() {
		cases = 16
	}
	admitkit := admitkits(t)
	verdicts := make([]verdict, cases)
	for i := range verdicts {
		s := source{rand.New(rand.NewSource(int64(i)))}
		c := &testCase{pod: s.pod(), operation: admission.Create}
		big := strings.Repeat(pick(s, "x", "<", "é"), 1<<(13+s.Intn(5)))
		patch := fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{"a":%q}}`, big)
		for n := range 1 + s.Intn(12) {
			patch += fmt.Sprintf(`,{"op":"copy","from":%q,"path":"/metadata/x%d"}`, pick(s, "/metadata", "/metadata/annotations", "/metadata/annotations/a", "/spec", "/metadata/x0", ""), n)
		}
		c.first = &ctrladmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch + "]"), PatchType: new(admissionv1.PatchTypeJSONPatch)}}
		admitkit.admit(c)
		verdicts[i] = verdict{c, c.code != 200}
	}
	library.AccumulatedCopySizeLimit = 3 << 20 // as k8s.io/apiserver, pkg/server/config.go
	defer func() { library.AccumulatedCopySizeLimit = 0 }()
	controllerRuntime := controllerRuntimes(t)
	wrong, refused := 0, 0
	for i, v := range verdicts {
		theirs := controllerRuntime.admit(&testCase{pod: v.pod, operation: v.operation, first: v.first})
		if theirs.err != nil {
			refused++
		}
		if v.refused != (theirs.err != nil) {
			wrong++
			t.Errorf("case %d: the API server: %.200v; admitkit: %d %.300s", i, theirs.err, v.code, v.body)
		}
	}
	t.Logf("the API server refuses %d of %d", refused, cases)
	if refused < cases/10 || refused > cases-cases/10 {
		t.Errorf("%d of %d are refused, which tests little", refused, cases)
	}
	fmt.Printf("FIGURE engine.diff_cases.copies=%d cases\nFIGURE engine.wrong.copies=%d cases\n", cases, wrong)
}

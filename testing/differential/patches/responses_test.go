package patches

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/admission"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// oddTexts are reasons, warnings and values that no protocol likes.
var oddTexts = []string{"", "no", "two\nlines", "\x00", "\xff\xfe", "é", "\u2028", "\t", " x ", `"`, `\`, "<&>", "\x7f", "\u0085", strings.Repeat("long ", 40), strings.Repeat("😀", 300)}

// response returns a random answer of an Extension.
func (p *patcher) response() *ctrladmission.Response {
	r := p.patched()
	if p.oneIn(2) {
		*r = ctrladmission.Response{} // most patches are refused, and nothing else is seen
	}
	r.Allowed, r.UID = !p.oneIn(4), types.UID(pick(p.source, "", "another", "\xff"))
	if p.oneIn(20) {
		r.Patch = []byte(pick(p.source, "", "[]", "null", "x"))
	}
	if p.oneIn(20) {
		r.PatchType = pick(p.source, nil, new(admissionv1.PatchTypeJSONPatch), new(admissionv1.PatchType("")), new(admissionv1.PatchType("MergePatch")))
	}
	if p.oneIn(2) || !r.Allowed {
		r.Result = &metav1.Status{
			Status: pick(p.source, "", metav1.StatusSuccess, metav1.StatusFailure, "odd"), Message: pick(p.source, oddTexts...),
			Reason: metav1.StatusReason(pick(p.source, "", "Forbidden", "odd", "\xff")), Code: pick[int32](p.source, 0, 0, -1, 1, 200, 302, 399, 400, 403, 404, 409, 422, 429, 499, 500, 503, 599, 1<<31-1),
		}
		if p.oneIn(4) {
			r.Result.Details = &metav1.StatusDetails{Name: pick(p.source, oddTexts...), Causes: []metav1.StatusCause{{Message: pick(p.source, oddTexts...)}}, RetryAfterSeconds: p.Int31n(3)}
		}
	}
	for range p.Intn(4) {
		r.Warnings = append(r.Warnings, pick(p.source, oddTexts...))
	}
	if p.oneIn(10) {
		r.Warnings = slices.Repeat([]string{strings.Repeat("w", 200)}, 30)
	}
	for range p.Intn(3) {
		if r.AuditAnnotations == nil {
			r.AuditAnnotations = map[string]string{}
		}
		r.AuditAnnotations[pick(p.source, "key", "a/b", "é", "-", "x.y", strings.Repeat("k", 80))] = pick(p.source, oddTexts...)
	}
	return r
}

// TestTheAPIServerUnderstandsEveryAnswer compares what an API server makes of an
// Extension's answer by admitkit with what it makes of the same answer by
// controller-runtime. There are four differences, all of them documented:
//
//   - a refusal of code 500 and above is a failure of the webhook,
//   - a refusal without code has the code 403, not 400,
//   - an answer without Result is no refusal,
//   - a refusal with a blank message names the Extension.
func TestTheAPIServerUnderstandsEveryAnswer(t *testing.T) {
	run(t, "responses", 1_000_000, func(s source, pod *corev1.Pod) func() *testCase {
		p := newPatcher(s, []byte(encode(pod)))
		return func() *testCase { return &testCase{pod: pod, operation: s.operation(), first: p.response()} }
	}, compareAnswers)
}

func compareAnswers(c, own *testCase, theirs, ours decision) string {
	r := c.first
	if own.code != http.StatusOK {
		if ours.err == nil || theirs.err == nil && (r.Allowed || r.Result != nil) {
			return "admitkit fails, the API server would not"
		}
		return ""
	}
	answer, err := verified(own)
	if err != nil {
		return "the API server does not understand the answer: " + err.Error()
	}
	if (ours.err == nil) != answer.Allowed {
		return "the API server decides otherwise than the answer says"
	}
	if difference := compareExtras(r, own, theirs, ours, answer.AuditAnnotations); difference != "" {
		return difference
	}
	switch refused := !r.Allowed && r.Result != nil; {
	case refused != (ours.err != nil):
		return "the verdict is not the Extension's"
	case refused:
		return compareRefusals(r.Result, theirs.err, ours.err)
	case !r.Allowed: // without Result
		return ""
	case theirs.err != nil:
		return "the API server refuses it, admitkit does not"
	case theirs.object != ours.object:
		return "the objects differ"
	}
	return ""
}

// compareRefusals compares what clients get.
func compareRefusals(result *metav1.Status, theirs, ours error) string {
	var want, got *apierrors.StatusError
	if !errors.As(ours, &got) {
		return "the refusal is no status"
	}
	if !errors.As(theirs, &want) || want.ErrStatus.Reason == metav1.StatusReasonInternalError {
		return "" // a Patch and its PatchType did not go together, which is no reason to let it pass
	}
	g, w := got.ErrStatus.DeepCopy(), want.ErrStatus.DeepCopy()
	if strings.TrimSpace(result.Message) == "" && strings.HasSuffix(g.Message, "gives no reason") {
		g.Message, w.Message = "", ""
	}
	if result.Code == 0 {
		if g.Code != http.StatusForbidden {
			return "the code of a refusal without code"
		}
		g.Code, w.Code = 0, 0
	}
	if encode(g) != encode(w) {
		return fmt.Sprintf("the client gets %s, not %s", encode(g), encode(w))
	}
	return ""
}

// compareExtras compares warnings and audit annotations: whether an API server passes
// all of them on.
func compareExtras(r *ctrladmission.Response, own *testCase, theirs, ours decision, annotations map[string]string) string {
	total, simple := 0, true
	for _, text := range r.Warnings {
		total += utf8.RuneCountInString(text)
		if _, err := utilnet.NewWarningHeader(299, "-", text); err != nil || utf8.RuneCountInString(text) > 256 || strings.TrimSpace(text) != text || text == "" {
			simple = false
		}
	}
	sent := 0
	for _, text := range ours.warnings {
		sent += utf8.RuneCountInString(text)
		if _, err := utilnet.NewWarningHeader(299, "-", text); err != nil || utf8.RuneCountInString(text) > 256 {
			return fmt.Sprintf("the API server would not pass on the warning %q: %v", text, err)
		}
	}
	if sent > 4096 {
		return "the API server would cut the warnings"
	}
	if simple && total <= 4096 && theirs.warnings != nil && !slices.Equal(theirs.warnings, ours.warnings) {
		return fmt.Sprintf("the warnings are %q, not %q", ours.warnings, theirs.warnings)
	}
	record := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", own.operation, nil, false, nil)
	for key, value := range annotations {
		if err := record.AddAnnotation(hookName+"/"+key, value); err != nil {
			return "the API server would drop an audit annotation: " + err.Error()
		}
		if !utf8.ValidString(value) {
			return "an audit annotation is not UTF-8"
		}
	}
	// Two keys may become one; none becomes none.
	if (len(annotations) == 0) != (len(r.AuditAnnotations) == 0) || len(annotations) > len(r.AuditAnnotations) {
		return fmt.Sprintf("of the audit annotations %v remain %v", slices.Collect(maps.Keys(r.AuditAnnotations)), annotations)
	}
	return ""
}

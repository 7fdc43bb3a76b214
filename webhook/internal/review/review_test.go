package review

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/limits"
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

// recordings are AdmissionReviews as a kube-apiserver 1.37 sent them.
var recordings = []string{"create-pod-5k.json", "create-pod-64k.json", "update-pod.json", "connect-exec.json"}

func recorded(t testing.TB, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("../../testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

// unusual are reviews that no API server sends, and that are read all the same.
var unusual = map[string]string{
	"no fields but the uid":             reviewtest.With(``),
	"white space everywhere":            " {\n\t\"apiVersion\" : \"admission.k8s.io/v1\" , \"kind\":\"AdmissionReview\",\r\"request\" : { \"uid\" : \"u\" , \"object\" : { \"a\" : [ ] } , \"userInfo\" : { \"groups\" : [ \"a\" , \"b\" ] } } } \n",
	"the request first":                 `{"request":{"uid":"u"},"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`,
	"escaped names and values":          `{"api\u0056ersion":"admission.k8s.io\/v1","kind":"Admission\u0052eview","request":{"\u0075id":"\u0075\n\"\\","name":"\ud83d\ude00"}}`,
	"a lone surrogate":                  reviewtest.With(`,"name":"a\ud800b"`),
	"names in another case":             reviewtest.With(`,"Name":"a","NAMESPACE":"b","userinfo":{"username":"c"}`),
	"unknown fields of every shape":     reviewtest.With(`,"x":{"uid":"v"},"y":[1,-2.5e+10,true,false,null,"\u00e9"],"z":"é"`),
	"an unknown field twice":            reviewtest.With(`,"x":1,"x":2`),
	"null for everything":               reviewtest.With(`,"kind":null,"resource":null,"subResource":null,"requestKind":null,"requestResource":null,"name":null,"operation":null,"userInfo":null,"object":null,"oldObject":null,"dryRun":null,"options":null`),
	"converted from another kind":       reviewtest.With(`,"kind":{"kind":"A"},"requestKind":{"kind":"B"},"resource":{"resource":"as"},"requestResource":{"resource":"bs"}`),
	"the same with white space":         reviewtest.With(`,"kind": {"kind":"A"} ,"requestKind": {"kind":"A"} ,"resource":{},"requestResource":{}`),
	"the requested kind first":          reviewtest.With(`,"requestKind":{"kind":"A"},"kind":{"kind":"A"}`),
	"null within the user":              reviewtest.With(`,"userInfo":{"username":null,"uid":null,"groups":null,"extra":null}`),
	"null within the user's lists":      reviewtest.With(`,"userInfo":{"groups":[null,"a"],"extra":{"a":null,"b":[null]}}`),
	"empty lists and maps":              reviewtest.With(`,"userInfo":{"groups":[],"extra":{"a":[]}},"kind":{},"requestKind":{},"object":{}`),
	"an empty extra":                    reviewtest.With(`,"userInfo":{"extra":{}}`),
	"strings longer than usual":         reviewtest.With(`,"name":"` + strings.Repeat("n", 600) + `","namespace":"` + strings.Repeat("s", 6000) + `","operation":"CREATE"`),
	"dryRun":                            reviewtest.With(`,"dryRun":true`),
	"no dryRun":                         reviewtest.With(`,"dryRun":false`),
	"objects that are no objects":       reviewtest.With(`,"object":1,"oldObject":"a","options":[true]`),
	"an object with a field twice":      reviewtest.With(`,"object":{"a":1,"a":2}`),
	"an object nested to the limit":     reviewtest.With(`,"object":` + nested(9998)),
	"a response that is not a response": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"},"response":null}`,
}

// malformed are bodies that get a 400, with a part of the message.
var malformed = map[string]struct{ body, message string }{
	"an empty body":                       {``, "the body is empty"},
	"white space":                         {` `, "truncated; expected an object"},
	"no JSON":                             {`hello`, "expected an object, found 'h'"},
	"a list":                              {`[]`, "expected an object, found '['"},
	"null":                                {`null`, `got apiVersion "", kind ""`},
	"an empty object":                     {`{}`, `got apiVersion "", kind ""`},
	"v1beta1":                             {strings.Replace(reviewtest.With(``), "/v1", "/v1beta1", 1), `got apiVersion "admission.k8s.io/v1beta1", kind "AdmissionReview"; this webhook speaks admission.k8s.io/v1 AdmissionReview only`},
	"another kind":                        {`{"apiVersion":"v1","kind":"Pod"}`, `got apiVersion "v1", kind "Pod"`},
	"no request":                          {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, "has no request"},
	"a null request":                      {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`, "has no request"},
	"no uid":                              {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, "has no uid"},
	"something after the review":          {reviewtest.With(``) + `{}`, "expected the end, found '{'"},
	"a trailing comma":                    {reviewtest.With(`,`), "expected the name of a field, found '}'"},
	"a comma for a colon":                 {reviewtest.With(`,"name","a"`), "expected a colon, found ','"},
	"a number for a string":               {reviewtest.With(`,"name":1`), "request: name: at byte 89: expected a string, found '1'"},
	"a string for a bool":                 {reviewtest.With(`,"dryRun":"true"`), "expected true or false"},
	"a string for an object":              {reviewtest.With(`,"userInfo":"alice"`), "userInfo: at byte 93: expected an object"},
	"a string for a list":                 {reviewtest.With(`,"userInfo":{"groups":"a"}`), "expected a list of strings"},
	"a misspelt literal":                  {reviewtest.With(`,"dryRun":nul`), "expected a value, found 'n'"},
	"a number with a leading zero":        {reviewtest.With(`,"object":{"a":01}`), "expected a comma or }, found '1'"},
	"a number without digits":             {reviewtest.With(`,"object":{"a":-}`), "expected a digit, found '}'"},
	"a number that ends with a point":     {reviewtest.With(`,"object":{"a":1.}`), "expected a digit"},
	"a number that ends with an exponent": {reviewtest.With(`,"object":{"a":1e+}`), "expected a digit"},
	"a mismatched bracket":                {reviewtest.With(`,"object":{"a":[}`), "expected a value, found '}'"},
	"an unknown escape":                   {reviewtest.With(`,"object":"\x"`), "expected an escape, found 'x'"},
	"a short escape":                      {reviewtest.With(`,"object":"\u12"`), "expected a hexadecimal digit"},
	"a control character in a string":     {reviewtest.With(`,"object":"` + "\x01" + `"`), "expected a character of a string"},
	"a byte order mark":                   {"\ufeff" + reviewtest.With(``), "expected an object"},
	"the request twice":                   {`{"request":{"uid":"u"},"request":{"uid":"v"}}`, "duplicate field request"},
	"the object twice":                    {reviewtest.With(`,"object":{},"object":{"a":1}`), "request: duplicate field object"},
	"the object twice, once escaped":      {reviewtest.With(`,"object":{},"\u006fbject":{"a":1}`), "request: duplicate field object"},
	"the user's name twice":               {reviewtest.With(`,"userInfo":{"username":"a","username":"b"}`), "request: userInfo: duplicate field username"},
	"an extra twice":                      {reviewtest.With(`,"userInfo":{"extra":{"a":[],"a":[]}}`), "request: userInfo: extra: duplicate field a"},
	"an object nested beyond the limit":   {reviewtest.With(`,"object":` + nested(9999)), "nested deeper than 10000 levels"},
	"nesting without end":                 {strings.Repeat("[", 1<<20), "expected an object"},
	"objects without end":                 {reviewtest.With(`,"object":` + strings.Repeat(`{"a":`, 1<<20)), "nested deeper than 10000 levels"},
	"invalid UTF-8 in the envelope":       {reviewtest.With(",\"name\":\"\xff\""), "not valid UTF-8"},
	"invalid UTF-8 in the object":         {reviewtest.With(",\"object\":{\"a\":\"\xc3\"}"), "not valid UTF-8"},
}

func TestReviewIsReadAsTheAPIMachineryReadsIt(t *testing.T) {
	for _, file := range recordings {
		t.Run(file, func(t *testing.T) {
			body := recorded(t, file)
			compareReviews(t, body)
			request, _, err := Parse(body)
			if err != nil {
				t.Fatal(err)
			}
			if request.UserInfo.Username != "alice@example.com" || len(request.Object.Raw) == 0 {
				t.Errorf("got user %q and an object of %d bytes", request.UserInfo.Username, len(request.Object.Raw))
			}
		})
	}
	for name, body := range unusual {
		t.Run(name, func(t *testing.T) {
			compareReviews(t, []byte(body))
			if _, _, err := Parse([]byte(body)); err != nil {
				t.Error(err)
			}
		})
	}
}

// compareReviews reads a body as a review, and again by sigs.k8s.io/json.
func compareReviews(t *testing.T, body []byte) {
	t.Helper()
	var want admissionv1.AdmissionReview
	wantErr := kjson.UnmarshalCaseSensitivePreserveInts(body, &want)
	got, _, err := Parse(body)
	if err != nil {
		var bad *failure.Error
		if !errors.As(err, &bad) || bad.Code != http.StatusBadRequest && bad.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("not a bad request: %v", err)
		}
		if wantErr == nil && want.Request != nil && !refusedOnPurpose(err) {
			t.Errorf("%q is refused: %v", body, err)
		}
		return
	}
	if wantErr != nil && want.Response == nil {
		t.Errorf("%q is read, and by the API machinery refused: %v", body, wantErr)
	}
	if !reflect.DeepEqual(&got.AdmissionRequest, want.Request) {
		t.Errorf("%.1000q\ngot  %.1000s\nwant %.1000s", body, got.String(), want.Request)
	}
	for _, raw := range [][]byte{got.Object.Raw, got.OldObject.Raw, got.Options.Raw} {
		if raw != nil && !json.Valid(raw) {
			t.Errorf("not JSON: %q", raw)
		}
	}
	compareBeginnings(t, body, got)
}

// compareBeginnings checks that what is read of a body that is too large is what all
// of the body says. Fields may be missing, if they come after an object.
func compareBeginnings(t *testing.T, body []byte, all *extension.Request) {
	t.Helper()
	beginning, err := ParseBeginning(body)
	if err != nil {
		return
	}
	got, want := reflect.ValueOf(beginning.AdmissionRequest), reflect.ValueOf(all.AdmissionRequest)
	for i := range got.NumField() {
		if !got.Field(i).IsZero() && !reflect.DeepEqual(got.Field(i).Interface(), want.Field(i).Interface()) {
			t.Errorf("%.1000q: its beginning has another %s: %v, and all of it %v", body, got.Type().Field(i).Name, got.Field(i), want.Field(i))
		}
	}
}

// refusedOnPurpose reports whether it is known that others read such a body.
func refusedOnPurpose(err error) bool {
	for _, reason := range []string{"duplicate field", "not valid UTF-8", "got apiVersion", "has no uid"} {
		if strings.Contains(err.Error(), reason) {
			return true
		}
	}
	return false
}

func TestPartsOfTheBodyDoNotReachIntoEachOther(t *testing.T) {
	request, _, err := Parse([]byte(reviewtest.With(`,"object":{"a":1},"oldObject":{"b":2}`)))
	if err != nil {
		t.Fatal(err)
	}
	_ = append(request.Object.Raw, `,"oldObject":"gone"`...)
	if got := string(request.OldObject.Raw); got != `{"b":2}` {
		t.Errorf("the old object became %s", got)
	}
}

func TestStringsOfTheRequestDoNotAliasTheBody(t *testing.T) {
	body := []byte(reviewtest.With(`,"name":"pod","userInfo":{"username":"alice","groups":["a","b\n"],"extra":{"k":["v"]}}`))
	request, _, err := Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	before := request.DeepCopy().String()
	for i := range body {
		body[i] = 'x'
	}
	if after := request.String(); after != before {
		t.Errorf("the request was %s and became %s", before, after)
	}
}

func TestMalformedReviewGetsAStatusWithAMessage(t *testing.T) {
	for name, test := range malformed {
		t.Run(name, func(t *testing.T) {
			compareReviews(t, []byte(test.body))
			code, reason := http.StatusBadRequest, metav1.StatusReasonBadRequest
			if strings.Contains(test.message, "nested deeper") { // a limit
				code, reason = http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge
			}
			reviewtest.ExpectStatus(t, post([]byte(test.body)), code, reason, test.message)
		})
	}
}

func TestTruncatedReviewIsRefusedWhereverItEnds(t *testing.T) {
	body := bytes.TrimSpace(recorded(t, "update-pod.json"))
	for end := range len(body) {
		if _, _, err := Parse(body[:end]); err == nil {
			t.Fatalf("cut to %d bytes of %d, the review is accepted", end, len(body))
		}
	}
}

func TestContentTypeMayHaveParameters(t *testing.T) {
	request := reviewtest.WithContentType(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(reviewtest.With(``))), "application/json; charset=utf-8")
	if _, err := Read(httptest.NewRecorder(), request, "an AdmissionReview", maxBody, &limits.Share{}); err != nil {
		t.Error(err)
	}
}

func TestAUserHasABoundedNumberOfGroupsAndExtraFields(t *testing.T) {
	for name, each := range map[string]string{"groups": `"groups":[%s]`, "extra": `"extra":{%s}`} {
		for n, bad := range map[int]bool{maxListed: false, maxListed + 1: true} {
			entries := make([]string, n)
			for i := range entries {
				if entries[i] = `""`; name == "extra" {
					entries[i] = fmt.Sprintf(`"%d":[]`, i)
				}
			}
			_, _, err := Parse([]byte(reviewtest.With(`,"userInfo":{` + fmt.Sprintf(each, strings.Join(entries, ",")) + `}`)))
			if bad != (err != nil && strings.Contains(err.Error(), "more than 10000 entries")) {
				t.Errorf("%d of %s: %v", n, name, err)
			}
		}
	}
}

func FuzzReview(f *testing.F) {
	// What is small is fuzzed fast; the large Pod has nothing that the small one
	// lacks.
	for _, file := range []string{"create-pod-5k.json", "update-pod.json", "connect-exec.json"} {
		f.Add(recorded(f, file))
	}
	for _, body := range unusual {
		f.Add([]byte(body))
	}
	for _, test := range malformed {
		f.Add([]byte(test.body[:min(len(test.body), 32<<10)]))
	}
	f.Fuzz(compareReviews)
}

func TestReadingAReviewKeepsToItsBudgetOfAllocations(t *testing.T) {
	for file, budget := range map[string]float64{
		"create-pod-5k.json":  13,
		"create-pod-64k.json": 13,
		"connect-exec.json":   14,
	} {
		t.Run(file, func(t *testing.T) {
			body := recorded(t, file)
			recorder := httptest.NewRecorder()
			request := reviewtest.NewRequest(body)
			allocs := testing.AllocsPerRun(100, func() {
				request.Body = io.NopCloser(bytes.NewReader(body))
				body, err := Read(recorder, request, "an AdmissionReview", maxBody, &limits.Share{})
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := Parse(body); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > budget {
				t.Errorf("%v allocations, the budget is %v", allocs, budget)
			}
		})
	}
}

// post reads a body as the server does, and answers what is no review.
func post(body []byte) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	request := reviewtest.NewRequest(body)
	body, err := Read(recorder, request, "an AdmissionReview", maxBody, &limits.Share{})
	if err == nil {
		_, _, err = Parse(body)
	}
	if err != nil && WriteFailure(recorder, failure.Code(err), err) != nil {
		panic(err)
	}
	return recorder
}

// maxBody is the default of MaxBodyBytes.
const maxBody = 8 << 20

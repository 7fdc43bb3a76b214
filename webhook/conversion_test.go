package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

// door is a kind in three versions: v2 is the hub.
type (
	doorV1 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Width int64  `json:"width,omitempty"`
			Locks []lock `json:"locks,omitempty"`
		} `json:"spec"`
	}
	doorV2 struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Size  int64  `json:"size,omitempty"`
			Locks []lock `json:"locks,omitempty"`
		} `json:"spec"`
	}
	lock struct {
		Key string `json:"key"`
	}
)

func (d *doorV1) DeepCopyObject() runtime.Object { c := *d; return &c }
func (d *doorV2) DeepCopyObject() runtime.Object { c := *d; return &c }

// ConvertTo and ConvertFrom are those of controller-runtime.
func (d *doorV1) ConvertTo(hub conversion.Hub) error {
	into := hub.(*doorV2)
	switch d.Annotations["do"] {
	case "fail":
		return errors.New("it is stuck")
	case "panic":
		panic("it is open")
	case "rename":
		into.Name = "other"
	case "disown":
		into.OwnerReferences = nil
	case "drop":
		d.Spec.Locks = nil
	}
	into.Labels = map[string]string{"by": "converter"}
	into.Spec.Size, into.Spec.Locks = d.Spec.Width, d.Spec.Locks
	return nil
}

func (d *doorV1) ConvertFrom(hub conversion.Hub) error {
	from := hub.(*doorV2)
	d.Spec.Width, d.Spec.Locks = from.Spec.Size, from.Spec.Locks
	return nil
}

func (*doorV2) Hub() {}

func doors(t testing.TB) *host.Converter {
	t.Helper()
	c, err := host.OpenConverter(extension.Converting("doors.example.com", "v2", extension.Convertible[*doorV1, *doorV2]("v1"),
		extension.Between("v3",
			func(from *unstructured.Unstructured, to *doorV2) error {
				size, _, err := unstructured.NestedInt64(from.Object, "size")
				to.Spec.Size = size
				return err
			},
			func(from *doorV2, to *unstructured.Unstructured) error {
				to.Object["size"] = from.Spec.Size
				return nil
			})))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// conversionOf returns a ConversionReview.
func conversionOf(to string, objects ...string) string {
	return fmt.Sprintf(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u","desiredAPIVersion":%q,"objects":[%s]}}`, to, strings.Join(objects, ","))
}

func send(handler http.Handler, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, "/convert/doors.example.com?timeout=1s", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer
}

type conversionAnswer struct {
	Response struct {
		UID              string           `json:"uid"`
		ConvertedObjects []map[string]any `json:"convertedObjects"`
		Result           metav1.Status    `json:"result"`
	} `json:"response"`
}

func answerOf(t *testing.T, answer *httptest.ResponseRecorder) (a conversionAnswer) {
	t.Helper()
	if answer.Code != http.StatusOK {
		t.Fatalf("got %d: %s", answer.Code, answer.Body)
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v: %s", err, answer.Body)
	}
	return a
}

func TestAnObjectIsConverted(t *testing.T) {
	const metadata = `"metadata":{"name":"d","namespace":"n","uid":"x","generation":3,"new":{"a":1},"managedFields":[{"manager":"m"}],"annotations":{"a":"b"}`
	for name, test := range map[string]struct{ object, to, want string }{
		"to the hub": {
			`{"apiVersion":"example.com/v1","kind":"Door",` + metadata + `},"spec":{"width":9007199254740993}}`, "v2",
			`{"apiVersion":"example.com/v2","kind":"Door",` + metadata + `,"labels":{"by":"converter"}},"spec":{"size":9007199254740993}}`,
		},
		"from the hub": {
			`{"apiVersion":"example.com/v2","kind":"Door",` + metadata + `},"spec":{"size":7}}`, "v1",
			`{"apiVersion":"example.com/v1","kind":"Door",` + metadata + `},"spec":{"width":7}}`,
		},
		"by way of the hub": {
			`{"apiVersion":"example.com/v1","kind":"Door",` + metadata + `},"spec":{"width":7}}`, "v3",
			`{"apiVersion":"example.com/v3","kind":"Door",` + metadata + `,"labels":{"by":"converter"}},"size":7}`,
		},
		"to the version that it has": {
			`{"apiVersion":"example.com/v1","kind":"Door","spec":1}`, "v1", `{"apiVersion":"example.com/v1","kind":"Door","spec":1}`,
		},
		"with fields that the types do not know": {
			`{"apiVersion":"example.com/v2","kind":"Door",` + metadata + `},"spec":{"color":{"r":1},"locks":[{"key":"a"},{"key":"b","since":2}]},"status":{"open":true}}`, "v1",
			`{"apiVersion":"example.com/v1","kind":"Door",` + metadata + `},"spec":{"color":{"r":1},"locks":[{"key":"a"},{"key":"b","since":2}]},"status":{"open":true}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := send(ConversionHandler(doors(t), HandlerOptions{}), conversionOf("example.com/"+test.to, test.object)).Body.String()
			_, after, _ := strings.Cut(text, `"convertedObjects":[`)
			got, _, found := strings.Cut(after, `],"result":{"metadata":{},"status":"Success"}}}`)
			if !found || !reflect.DeepEqual(treeOf(t, got), treeOf(t, test.want)) {
				t.Errorf("got %s\nwant %s", text, test.want)
			}
		})
	}
}

// treeOf decodes JSON, with its integers.
func treeOf(t *testing.T, text string) (decoded map[string]any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&decoded); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return decoded
}

func TestAnObjectThatCannotBeConvertedIsNamed(t *testing.T) {
	door := func(do, more string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Door","metadata":{"name":"d","namespace":"n","ownerReferences":[{"uid":"o"}],"annotations":{"do":%q}}%s}`, do, more)
	}
	for name, test := range map[string]struct{ object, want string }{
		"by an error":                      {door("fail", ""), "doors.example.com n/d: it is stuck"},
		"by a panic":                       {door("panic", ""), "doors.example.com n/d: panic: it is open"},
		"with another name":                {door("rename", ""), "the converter changes metadata.name from d to other"},
		"with other owners":                {door("disown", ""), "the converter changes metadata.ownerReferences"},
		"of another group":                 {`{"apiVersion":"example.org/v1","kind":"Door","metadata":{"name":"d"}}`, `apiVersion "example.org/v1": the converter of doors.example.com has the group example.com`},
		"of another version":               {`{"apiVersion":"example.com/v9","kind":"Door","metadata":{"name":"d"}}`, `version "v9": the converter of doors.example.com has v2, v1, v3`},
		"of another type":                  {door("", `,"spec":{"width":"wide"}`), "decoding it as *webhook.doorV1"},
		"that is no object":                {`7`, "an object without a name: decoding it"},
		"with a field that has no place":   {door("drop", `,"spec":{"locks":[{"key":"a","since":2}]}`), "spec.locks[0].since is not known to *webhook.doorV1, and cannot be kept in the *webhook.doorV2: there is no list of the same length"},
		"with a field that has two places": {door("", `,"spec":{"width":7,"size":8}`), "spec.size is not known to *webhook.doorV1, and cannot be kept in the *webhook.doorV2: the converter sets it"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := ConversionHandler(doors(t), HandlerOptions{})
			whole := door("", "")
			got := answerOf(t, send(handler, conversionOf("example.com/v2", whole, test.object, whole))).Response
			if got.UID != "u" || got.Result.Status != metav1.StatusFailure || !strings.Contains(got.Result.Message, test.want) || len(got.ConvertedObjects) > 0 {
				t.Errorf("got %+v, want %q", got, test.want)
			}
			if again := answerOf(t, send(handler, conversionOf("example.com/v2", whole))).Response; again.Result.Status != metav1.StatusSuccess {
				t.Errorf("the next one fails: %+v", again)
			}
		})
	}
}

func TestWhatIsNoConversionReviewIsRefused(t *testing.T) {
	door := `{"apiVersion":"example.com/v1","kind":"Door"}`
	for name, test := range map[string]struct {
		body, want string
		code       int
	}{
		"no JSON":           {`{`, "decoding the ConversionReview", http.StatusBadRequest},
		"another kind":      {reviewtest.With(``), "this webhook speaks apiextensions.k8s.io/v1 ConversionReview only", http.StatusBadRequest},
		"v1beta1":           {strings.Replace(conversionOf("example.com/v2", door), ".io/v1", ".io/v1beta1", 1), "list v1 alone in conversionReviewVersions", http.StatusBadRequest},
		"no request":        {`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`, "no request with a uid", http.StatusBadRequest},
		"invalid UTF-8":     {"{\"\xff\"}", "not valid UTF-8", http.StatusBadRequest},
		"too many objects":  {conversionOf("example.com/v2", strings.Repeat("1,", MaxConvertedObjects)+"1"), "more than 10000 objects", http.StatusRequestEntityTooLarge},
		"too large a body":  {conversionOf("example.com/v2", strings.Repeat(" ", 2<<20)+door), "larger than 1048576 bytes, see MaxBodyBytes", http.StatusRequestEntityTooLarge},
		"too deep a object": {conversionOf("example.com/v2", strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)), "decoding the ConversionReview", http.StatusRequestEntityTooLarge},
		"a long kind":       {strings.Replace(conversionOf("example.com/v2", door), "ConversionReview", strings.Repeat("C", 2000), 1), "kind: the string has more than 1024 bytes (limit)", http.StatusRequestEntityTooLarge},
		"a long version":    {conversionOf(strings.Repeat("v", 2000), door), "desiredAPIVersion: the string has more than 1024 bytes (limit)", http.StatusRequestEntityTooLarge},
		"a long UID":        {strings.Replace(conversionOf("example.com/v2", door), `"u"`, `"`+strings.Repeat("u", 2000)+`"`, 1), "uid: the string has more than 1024 bytes (limit)", http.StatusRequestEntityTooLarge},
		"too costly":        {conversionOf("example.com/v2", `{"apiVersion":"example.com/v1","kind":"Door","x":[`+strings.Repeat("{},", 100_000)+`{}]}`), "see MaxMemoryBytes", http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			answer := send(ConversionHandler(doors(t), HandlerOptions{MaxBodyBytes: 1 << 20, Memory: NewMemory(8 << 20)}), test.body)
			var status metav1.Status
			if err := json.Unmarshal(answer.Body.Bytes(), &status); err != nil || answer.Code != test.code || !strings.Contains(status.Message, test.want) {
				t.Errorf("got %d %s, want %d %q", answer.Code, answer.Body, test.code, test.want)
			}
		})
	}
}

func TestAConversionThatTakesTooLongIsAnsweredAndKeepsItsPlace(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	slow, err := host.OpenConverter(extension.Converting("doors.example.com", "v2", extension.Between("v1",
		func(*doorV1, *doorV2) error { close(begun); <-end; return nil }, func(*doorV2, *doorV1) error { return nil })))
	if err != nil {
		t.Fatal(err)
	}
	handler := ConversionHandler(slow, HandlerOptions{MaxInFlight: 1})
	body := conversionOf("example.com/v2", `{"apiVersion":"example.com/v1","kind":"Door","metadata":{"name":"d"}}`)
	first := send(handler, body)
	<-begun
	if first.Code != http.StatusGatewayTimeout || !strings.Contains(first.Body.String(), "did not finish in time") {
		t.Errorf("got %d %s", first.Code, first.Body)
	}
	if second := send(handler, body); second.Code != http.StatusTooManyRequests || second.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %s", second.Code, second.Body)
	}
	close(end)
}

func TestAConverterThatCannotWorkIsRefused(t *testing.T) {
	spoke := extension.Convertible[*doorV1, *doorV2]("v1")
	for want, converter := range map[string]*extension.Converter{
		"make one with extension.Converting":   {},
		"it has to be PLURAL.GROUP":            extension.Converting("doors", "v2", spoke),
		"it has one version only":              extension.Converting[*doorV2]("doors.example.com", "v2"),
		`version "v1" is there twice`:          extension.Converting("doors.example.com", "v2", spoke, spoke),
		`version "V2": that is no name`:        extension.Converting("doors.example.com", "V2", spoke),
		"a function of extension.Between":      extension.Converting("doors.example.com", "v2", extension.Between[*doorV1, *doorV2]("v1", nil, nil)),
		"make it with extension.Between":       extension.Converting("doors.example.com", "v2", extension.Spoke[*doorV2]{}),
		`version "v2" is there twice`:          extension.Converting("doors.example.com", "v2", extension.Convertible[*doorV1, *doorV2]("v2")),
		`the Converter of "doors.example.com"`: extension.Converting("doors.example.com", "", spoke),
	} {
		if _, err := host.PartsOf(converter, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := host.PartsOf(extension.Converter{}, nil); err == nil || !strings.Contains(err.Error(), "pass a pointer") {
		t.Errorf("a Converter instead of its pointer: %v", err)
	}
}

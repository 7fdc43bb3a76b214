package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	"github.com/admitkit/admitkit/internal/wire"
)

// widget is a type as authors of CRDs write them, with every kind of field that
// decoders are known to disagree on.
type widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"` //nolint:modernize // as authors of CRDs write it
	Spec              widgetSpec                  `json:"spec"`
}

type widgetSpec struct {
	Size      int64                        `json:"size"`
	Ratio     *float64                     `json:"ratio,omitempty"`
	Small     int8                         `json:"small,omitempty"`
	Count     uint32                       `json:"count,omitempty"`
	Quoted    int64                        `json:"quoted,string,omitempty"`
	Secret    []byte                       `json:"secret,omitempty"`
	Port      intstr.IntOrString           `json:"port"`
	MaxSurge  *intstr.IntOrString          `json:"maxSurge,omitempty"`
	Memory    resource.Quantity            `json:"memory"`
	Limits    map[string]resource.Quantity `json:"limits,omitempty"`
	Since     metav1.Time                  `json:"since"`
	Renewed   *metav1.MicroTime            `json:"renewed,omitempty"`
	Every     metav1.Duration              `json:"every"`
	Template  runtime.RawExtension         `json:"template"`
	Anything  any                          `json:"anything,omitempty"`
	Settings  map[string]any               `json:"settings,omitempty"`
	ByNumber  map[int]string               `json:"byNumber,omitempty"`
	Nested    *widgetSpec                  `json:"nested,omitempty"`
	Pair      [2]string                    `json:"pair"`
	Enabled   *bool                        `json:"enabled,omitempty"`
	Untagged  string
	unnoticed string
}

func (w *widget) DeepCopyObject() runtime.Object {
	panic("not needed: " + w.Spec.unnoticed)
}

// kinds are the types that decoding is compared on.
var kinds = []func() runtime.Object{
	func() runtime.Object { return &corev1.Pod{} },
	func() runtime.Object { return &appsv1.Deployment{} },
	func() runtime.Object { return &corev1.Service{} },
	func() runtime.Object { return &corev1.Secret{} },
	func() runtime.Object { return &widget{} },
	func() runtime.Object { return &metav1.PartialObjectMetadata{} },
	func() runtime.Object { return &unstructured.Unstructured{} },
}

// decodeAsAPIMachinery decodes as the API machinery's package serializer/json does
// when it is not strict.
func decodeAsAPIMachinery(raw []byte, into runtime.Object) error {
	if u, ok := into.(*unstructured.Unstructured); ok {
		return kjson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object)
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(raw, into)
}

// compare decodes with both decoders, into equal objects.
func compare(t *testing.T, raw []byte, newObject func() runtime.Object) {
	t.Helper()
	want, got := newObject(), newObject()
	wantErr, gotErr := decodeAsAPIMachinery(raw, want), wire.Decode(raw, got)
	switch {
	case (wantErr == nil) != (gotErr == nil):
		t.Fatalf("%T from %q: the API machinery says %v, Decode says %v", got, raw, wantErr, gotErr)
	case wantErr == nil && !reflect.DeepEqual(want, got):
		t.Fatalf("%T from %q:\nAPI machinery %#v\nDecode        %#v", got, raw, want, got)
	}
	compareChecked(t, raw, want, wantErr, newObject())
}

// compareChecked decodes a text that was checked before, in an envelope that is long
// enough for the scan to record what it finds.
func compareChecked(t *testing.T, raw []byte, want runtime.Object, wantErr error, got runtime.Object) {
	t.Helper()
	s := wire.NewScanner(slices.Concat(raw, []byte(strings.Repeat(" ", 1<<10))))
	text, err := s.Checked()
	if err != nil || s.End() != nil || !utf8.Valid(raw) || !reflect.ValueOf(got).Elem().IsZero() {
		return
	}
	switch gotErr := text.Decode(got); {
	case (wantErr == nil) != (gotErr == nil):
		t.Fatalf("%T from %q, checked: the API machinery says %v, Decode says %v", got, raw, wantErr, gotErr)
	case wantErr == nil && !reflect.DeepEqual(want, got):
		t.Fatalf("%T from %q, checked:\nAPI machinery %#v\nDecode        %#v", got, raw, want, got)
	}
}

// filler fills objects as the API machinery's own round-trip tests do.
func filler(seed int64) *randfill.Filler {
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{
			func(f *metav1.FieldsV1, c randfill.Continue) {
				raw, _ := json.Marshal(map[string]any{"f:spec": map[string]any{`k:{"name":"` + randomWord(c) + `"}`: map[string]any{}}})
				f.SetRawBytes(raw)
			},
			func(e *metav1.ManagedFieldsEntry, c randfill.Continue) { c.FillNoCustom(e) },
			func(v *any, c randfill.Continue) { *v = randomValue(c, 3) },
			func(e *runtime.RawExtension, c randfill.Continue) { e.Raw, _ = json.Marshal(randomValue(c, 3)) },
		}
	})
	return fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(clientgoscheme.Scheme)).NumElements(0, 3)
}

func randomWord(c randfill.Continue) string {
	return []string{"", "a", "é", "\u2028", "<&>", "\\\"", "\x00\x1f", "𝄞"}[c.Intn(8)] + c.String(8)
}

func randomValue(c randfill.Continue, depth int) any {
	kind := c.Intn(8)
	if depth == 0 {
		kind = c.Intn(6)
	}
	switch kind {
	case 0:
		return nil
	case 1:
		return c.Bool()
	case 2:
		return c.Int63() - c.Int63()
	case 3:
		return c.NormFloat64() * 1e18
	case 4, 5:
		return randomWord(c)
	case 6:
		list := make([]any, c.Intn(3))
		for i := range list {
			list[i] = randomValue(c, depth-1)
		}
		return list
	default:
		object := map[string]any{}
		for range c.Intn(3) {
			object[randomWord(c)] = randomValue(c, depth-1)
		}
		return object
	}
}

func TestDecodeAgreesWithTheAPIMachineryOnFuzzedObjects(t *testing.T) {
	seeds := int64(150)
	if testing.Short() {
		seeds = 50
	}
	for _, newObject := range kinds {
		t.Run(fmt.Sprintf("%T", newObject()), func(t *testing.T) {
			for seed := range seeds {
				fill := filler(seed)
				object := newObject()
				if u, ok := object.(*unstructured.Unstructured); ok {
					var pod corev1.Pod
					fill.Fill(&pod)
					u.Object, _ = runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
				} else {
					fill.Fill(object)
				}
				raw, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, raw, newObject)
				compare(t, distort(raw, rand.New(rand.NewSource(seed))), newObject)
				// A list or map that is there already is merged into, or not.
				compare(t, raw, func() runtime.Object {
					before := newObject()
					if err := decodeAsAPIMachinery(raw, before); err != nil {
						t.Fatal(err)
					}
					return before
				})
			}
		})
	}
}

// distort changes the JSON of an object so that it is still JSON, but not what an
// API server writes: values of other types, duplicate keys, keys in another case.
func distort(raw []byte, r *rand.Rand) []byte {
	members := strings.Split(string(raw), `,"`)
	for range 3 {
		i := r.Intn(len(members))
		key, value, found := strings.Cut(members[i], `":`)
		if !found || strings.ContainsAny(value, "{}[]") {
			continue
		}
		replacement := []string{"null", "1", "1.0", "1e2", `"1"`, "true", "{}", "[]", "9223372036854775807", "9223372036854775808", `"\ud800"`}[r.Intn(11)]
		switch r.Intn(3) {
		case 0:
			members[i] = key + `":` + replacement
		case 1:
			members[i] = key + `":` + value + `,"` + strings.TrimPrefix(key, `{"`) + `":` + replacement
		case 2:
			members[i] = strings.ToUpper(key) + `":` + value
		}
	}
	return []byte(strings.Join(members, `,"`))
}

// peculiar is JSON on which decoders are known to disagree.
var peculiar = map[string]string{
	"an empty input":                ``,
	"null":                          `null`,
	"a list":                        `[]`,
	"a string":                      `"Pod"`,
	"something after the object":    `{} {}`,
	"white space around the object": " \t\r\n{ } \n",
	"a truncated object":            `{"metadata":{"name":"a"`,
	"a trailing comma":              `{"metadata":{"name":"a"},}`,
	"names in another case":         `{"Metadata":{"name":"a"},"metadata":{"Name":"b"},"spec":{"Containers":[{"name":"c"}],"SIZE":1}}`,
	"an escaped name":               `{"\u006detadata":{"n\u0061me":"a"}}`,
	"unknown fields of every shape": `{"x":null,"y":[1,{"z":[]}],"metadata":{"x":{"y":1e400}},"spec":{"x":"\ud800"}}`,
	"a number too large for a float in an unknown": `{"spec":{"settings":{"a":1e400}}}`,
	"a name twice":                         `{"metadata":{"name":"a","name":"b"}}`,
	"an object twice":                      `{"metadata":{"name":"a","labels":{"x":"1"}},"metadata":{"namespace":"b","labels":{"y":"2"}}}`,
	"a list twice, the second shorter":     `{"spec":{"containers":[{"name":"a","image":"x"},{"name":"b"}],"containers":[{"name":"c"}]}}`,
	"a list twice, the second longer":      `{"spec":{"containers":[{"name":"a","image":"x"}],"containers":[{"name":"c"},{"name":"d"}]}}`,
	"a list, then null":                    `{"spec":{"containers":[{"name":"a"}],"containers":null}}`,
	"null for everything":                  `{"metadata":null,"spec":{"containers":null,"nodeName":null,"size":null,"port":null,"memory":null,"since":null,"template":null,"anything":null,"settings":null,"pair":null,"enabled":null,"every":null}}`,
	"null in lists and maps":               `{"metadata":{"labels":{"a":null},"finalizers":[null],"ownerReferences":[null]},"spec":{"containers":[null],"nodeSelector":{"a":null},"limits":{"a":null},"settings":{"a":null}}}`,
	"empty lists and maps":                 `{"metadata":{"labels":{},"finalizers":[]},"spec":{"containers":[],"settings":{},"anything":[]}}`,
	"integers at the edges of int64":       `{"spec":{"size":9223372036854775807,"small":-128,"anything":[9223372036854775807,-9223372036854775808,9223372036854775808,0,-0,1e3,1.0]}}`,
	"an integer beyond int64":              `{"spec":{"size":9223372036854775808}}`,
	"an integer beyond int8":               `{"spec":{"small":128}}`,
	"a negative unsigned":                  `{"spec":{"count":-1}}`,
	"an integer with a fraction":           `{"spec":{"size":1.0,"priority":1.0}}`,
	"an integer with an exponent":          `{"spec":{"size":1e2,"priority":1e2}}`,
	"a quoted integer":                     `{"spec":{"quoted":"12"}}`,
	"a quoted integer without quotes":      `{"spec":{"quoted":12}}`,
	"a quoted null":                        `{"spec":{"quoted":"null"}}`,
	"a string for an integer":              `{"spec":{"size":"1","priority":"1"}}`,
	"a number for a string":                `{"metadata":{"name":1}}`,
	"a string for a list":                  `{"spec":{"containers":"a"}}`,
	"an object for a list":                 `{"spec":{"containers":{}}}`,
	"base64 with line breaks":              `{"data":{"a":"aGVs\nbG8="},"spec":{"secret":"aGVs\r\nbG8="}}`,
	"base64 without padding":               `{"data":{"a":"aGVsbG8"},"spec":{"secret":"aGVsbG8"}}`,
	"base64 for URLs":                      `{"data":{"a":"_-8="},"spec":{"secret":"_-8="}}`,
	"bytes as a list of numbers":           `{"data":{"a":[1,2]},"spec":{"secret":[1,2]}}`,
	"IntOrString of both kinds":            `{"spec":{"port":80,"maxSurge":"25%","ports":[{"targetPort":"http"},{"targetPort":80}]}}`,
	"IntOrString of another kind":          `{"spec":{"port":true,"ports":[{"targetPort":1.5}]}}`,
	"quantities as numbers and strings":    `{"spec":{"memory":1,"limits":{"a":"1Gi","b":0.5,"c":" 5 "},"containers":[{"resources":{"limits":{"cpu":2}}}]}}`,
	"a malformed quantity":                 `{"spec":{"memory":"a lot"}}`,
	"a malformed time":                     `{"metadata":{"creationTimestamp":"yesterday"}}`,
	"a time with a zone and a fraction":    `{"metadata":{"creationTimestamp":"2026-01-02T03:04:05.678+09:00"},"spec":{"renewed":"2026-01-02T03:04:05.678901Z"}}`,
	"a time as a number":                   `{"metadata":{"creationTimestamp":5}}`,
	"a raw object with white space":        `{"spec":{"template": { "a" : [ 1 , 2 ] } }}`,
	"managed fields with escapes":          `{"metadata":{"managedFields":[{"fieldsV1":{"k:{\"name\":\"a\"}": {".":{}}}}]}}`,
	"integers as keys":                     `{"spec":{"byNumber":{"1":"a","-2":"b"}}}`,
	"a word as the key of an integer":      `{"spec":{"byNumber":{"one":"a"}}}`,
	"an array that is too long":            `{"spec":{"pair":["a","b","c"]}}`,
	"an array that is too short":           `{"spec":{"pair":["a"]}}`,
	"a field without a tag":                `{"spec":{"Untagged":"a","untagged":"b"}}`,
	"a field without a name":               `{"":{},"metadata":{"":1},"spec":{"":1}}`,
	"a name that Go keeps to itself":       `{"TypeMeta":{"kind":"a"},"ObjectMeta":{"name":"a"},"spec":{"unnoticed":"a"}}`,
	"invalid UTF-8 in a value":             "{\"metadata\":{\"name\":\"a\xffb\"}}",
	"invalid UTF-8 in a key":               "{\"metadata\":{\"labels\":{\"a\xff\":\"b\"}}}",
	"a lone surrogate":                     `{"metadata":{"name":"\ud800","labels":{"\udc00":"\ud800\u0041"}}}`,
	"a control character in a string":      "{\"metadata\":{\"name\":\"a\nb\"}}",
	"a byte order mark":                    "\ufeff{}",
	"a number with a leading zero":         `{"spec":{"size":01}}`,
	"a number with a plus":                 `{"spec":{"size":+1}}`,
	"not a number":                         `{"spec":{"ratio":NaN}}`,
	"a comment":                            `{/**/}`,
	"a mismatched bracket in an unknown":   `{"x":[}}`,
	"nesting at the limit":                 `{"x":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`,
	"nesting beyond the limit":             `{"x":` + strings.Repeat("[", 10001) + strings.Repeat("]", 10001) + `}`,
	"nesting beyond the limit in metadata": `{"metadata":` + strings.Repeat(`{"x":`, 10001) + `1` + strings.Repeat("}", 10001) + `}`,
}

func TestDecodeAgreesWithTheAPIMachineryOn(t *testing.T) {
	for name, raw := range peculiar {
		t.Run(name, func(t *testing.T) {
			for _, newObject := range kinds {
				compare(t, []byte(raw), newObject)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for i, name := range slices.Sorted(maps.Keys(peculiar)) {
		f.Add([]byte(peculiar[name]), uint8(i%len(kinds))) // of every kind, they would take most of a short run
	}
	for kind := range kinds {
		f.Add(recordedPod(f, "create-pod-5k.json"), uint8(kind))
		object := kinds[kind]()
		if _, ok := object.(*unstructured.Unstructured); ok {
			continue
		}
		filler(int64(kind)).Fill(object)
		raw, err := json.Marshal(object)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(kind))
	}
	f.Fuzz(func(t *testing.T, raw []byte, kind uint8) {
		compare(t, raw, kinds[int(kind)%len(kinds)])
	})
}

func TestDecodedObjectDoesNotAliasTheInput(t *testing.T) {
	for _, newObject := range kinds {
		raw := recordedPod(t, "create-pod-5k.json")
		object, checked, want := newObject(), newObject(), newObject()
		s := wire.NewScanner(raw)
		text, err := s.Checked()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(wire.Decode(raw, object), text.Decode(checked)); err != nil {
			if _, isPod := object.(*corev1.Pod); isPod {
				t.Fatal(err)
			}
			continue // a Pod is no Deployment
		}
		if err := wire.Decode(append([]byte(nil), raw...), want); err != nil {
			t.Fatal(err)
		}
		for i := range raw {
			raw[i] = 'x'
		}
		if !reflect.DeepEqual(object, want) || !reflect.DeepEqual(checked, want) {
			t.Errorf("%T changed with the bytes it was decoded from", object)
		}
	}
}

// The race detector empties pools, which costs some 15 more allocations for a Pod;
// the budgets leave room for that.
func TestDecodeKeepsToItsBudgetOfAllocations(t *testing.T) {
	raw := recordedPod(t, "create-pod-5k.json")
	for name, budget := range map[string]struct {
		newObject func() runtime.Object
		allocs    float64
	}{
		"a Pod":               {func() runtime.Object { return &corev1.Pod{} }, 70},
		"a Pod's metadata":    {func() runtime.Object { return &metav1.PartialObjectMetadata{} }, 14},
		"a Pod, unstructured": {func() runtime.Object { return &unstructured.Unstructured{} }, 620},
	} {
		t.Run(name, func(t *testing.T) {
			allocs := testing.AllocsPerRun(100, func() {
				if err := wire.Decode(raw, budget.newObject()); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > budget.allocs {
				t.Errorf("%v allocations, the budget is %v", allocs, budget.allocs)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, file := range []string{"create-pod-5k.json", "create-pod-64k.json"} {
		raw := recordedPod(b, file)
		for name, newObject := range map[string]func() runtime.Object{
			"Pod": kinds[0], "metadata": kinds[5], "unstructured": kinds[6],
		} {
			for decoder, decode := range map[string]func([]byte, runtime.Object) error{
				"ours": wire.Decode, "apimachinery": decodeAsAPIMachinery,
			} {
				b.Run(fmt.Sprintf("%s/%s/%s", strings.TrimSuffix(file, ".json"), name, decoder), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(len(raw)))
					for b.Loop() {
						if err := decode(raw, newObject()); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// recordedPod returns the object of a recorded AdmissionReview.
func recordedPod(t testing.TB, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("..", "..", "webhook", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatal(err)
	}
	return review.Request.Object.Raw
}

func TestAQuantityThatTakesMinutesToReadIsRefused(t *testing.T) {
	for _, quantity := range []string{`"1e-999999999"`, `1e-999999999`, `"1E+99999999"`, `"1e-9\u0039999"`, `"` + strings.Repeat("9", 1<<20) + `"`} {
		began := time.Now()
		err := wire.Decode([]byte(`{"spec":{"containers":[{"resources":{"limits":{"cpu":`+quantity+`}}}]}}`), &corev1.Pod{})
		if err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("%.40s: %v after %s", quantity, err, time.Since(began))
		}
	}
}

package wire

import (
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// decode_test.go tests that both decoders agree with the API machinery.

func TestWhatAnAPIServerWritesIsTaken(t *testing.T) {
	for _, file := range []string{"create-pod-5k.json", "create-pod-64k.json", "update-pod.json", "connect-exec.json"} {
		body, err := os.ReadFile(filepath.Join("..", "..", "webhook", "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		var review admissionv1.AdmissionReview
		if !fill(NewScanner(body), &review) {
			t.Fatalf("%s is not taken", file)
		}
		into := []any{&corev1.Pod{}, &metav1.PartialObjectMetadata{}}
		if review.Request.Operation == admissionv1.Connect {
			into = []any{&corev1.PodExecOptions{}}
		}
		for _, object := range into {
			if !fill(NewScanner(review.Request.Object.Raw), object) {
				t.Errorf("the object of %s is not taken as a %T", file, object)
			}
		}
	}
	port, now := intstr.FromInt32(80), metav1.NewTime(time.Unix(1_700_000_000, 0))
	for _, object := range []any{
		&corev1.Secret{Data: map[string][]byte{"key": {0, 1, 255}, "empty": {}}, StringData: map[string]string{"a": "<é>\n"}},
		&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{TargetPort: port}, {TargetPort: intstr.FromString("http")}}}},
		&corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: now, DeletionGracePeriodSeconds: new(int64(1 << 62))}},
	} {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		into := reflect.New(reflect.TypeOf(object).Elem()).Interface()
		if !fill(NewScanner(raw), into) {
			t.Errorf("%s is not taken", raw)
		}
	}
}

func TestWhatIsNotTakenLeavesTheObjectAlone(t *testing.T) {
	for name, raw := range map[string]string{
		"a name twice":        `{"metadata":{"name":"a","namespace":"b","name":"c"}}`,
		"truncated":           `{"metadata":{"name":"a"`,
		"something after it":  `{"metadata":{"name":"a"}} {}`,
		"a number too large":  `{"metadata":{"name":"a","generation":9223372036854775808}}`,
		"a string for a list": `{"metadata":{"name":"a"},"spec":{"containers":"b"}}`,
		"invalid UTF-8":       "{\"metadata\":{\"name\":\"a\xff\"}}",
	} {
		var pod corev1.Pod
		if fill(NewScanner([]byte(raw)), &pod) {
			t.Errorf("%s is taken", name)
		}
		if !reflect.ValueOf(pod).IsZero() {
			t.Errorf("%s left %v", name, pod)
		}
	}
	full := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "before"}}
	if fill(NewScanner([]byte(`{"metadata":{"namespace":"a"}}`)), &full) || full.Name != "before" || full.Namespace != "" {
		t.Errorf("an object that is not empty became %v", full)
	}
}

func TestPlainTextEndsAtTheFirstByteThatMeansSomething(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 20_000 {
		text := make([]byte, random.Intn(40))
		for i := range text {
			text[i] = byte(random.Intn(256))
			if random.Intn(8) > 0 {
				text[i] = byte(' ' + random.Intn(200))
			}
		}
		want := slices.IndexFunc(text, func(b byte) bool { return b == '"' || b == '\\' || b < ' ' })
		if want < 0 {
			want = len(text)
		}
		if got := plain(text, 0); got != want {
			t.Fatalf("%q is plain for %d bytes, want %d", text, got, want)
		}
	}
}

func TestAnObjectIsPassedOverWhenItComesAgainLetterForLetter(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":{"b":"1"}} {"a":{"b":"1"}}]`:  true,
		`{"a":{"b":"1"}} {"a":{"b":"2"}}]`:  false,
		`{"a":{"b":"1"}} {"a":{"b":"1"},2]`: false,
		`1 12]`:                             false, // a part of a value is none
		` null]`:                            false,
	} {
		s := NewScanner([]byte(text))
		first, err := s.Value()
		if err != nil {
			t.Fatal(err)
		}
		s.Peek()
		at := s.at
		if got := s.Again(first); got != want || got != (s.at > at) {
			t.Errorf("%s: again %t, at %d after %d; want %t", text, got, s.at, at, want)
		}
		if want && s.Peek() != ']' {
			t.Errorf("%s: goes on at %d, want the end", text, s.at)
		}
	}
}

func TestFieldsThatShareANameAreFilledAsByEncodingJSON(t *testing.T) {
	type Deep struct{ A, B, Untagged string }
	type Left struct {
		Deep
		C string
		D string
	}
	type Right struct {
		Tagged string `json:"Untagged"`
		C      string
		D      string `json:"D"`
	}
	type outer struct {
		Left
		Right `json:",inline"`
		A     string
	}
	const text = `{"A":"1","B":"2","Untagged":"3","C":"4","D":"5"}`
	var want, got outer
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if !fill(NewScanner([]byte(text)), &got) || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

type node struct {
	Name  string `json:"name"`
	*node        //nolint:unused // found by reflection
}

func TestAStructThatEmbedsItselfHasItsFieldsOnce(t *testing.T) {
	if fields := FieldsOf(reflect.TypeFor[node]()); len(fields) != 1 || fields[0].Name != "name" {
		t.Errorf("got %+v", fields)
	}
}

func TestAStringHasTheContentThatItHasForEncodingJSON(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	pieces := []string{`\n`, `\"`, `\\`, `\/`, `\b`, `\u003c`, `\u00E9`, `\u2028`, `\ud83d\ude00`, `\ud800`, `\u12`, `\u12g4`, `\x`, `\`, `"`, "\t", "é", "😀", "some text ", ""}
	taken := 0
	for range 50_000 {
		text := `"`
		for range random.Intn(6) {
			text += pieces[random.Intn(len(pieces))]
		}
		text += `"`
		text = text[:len(text)-random.Intn(2)]
		s := NewScanner([]byte(text))
		got, err := s.Unquoted()
		end := len(text)
		if err == nil {
			end = s.Position()
		}
		var want string
		wantErr := json.Unmarshal([]byte(text[:end]), &want)
		if (err == nil) != (wantErr == nil) || err == nil && string(got) != want {
			t.Fatalf("%s is %q, %v; want %q, %v", text[:end], got, err, want, wantErr)
		}
		if err == nil {
			taken++
		}
	}
	if taken < 10_000 {
		t.Errorf("only %d were strings", taken)
	}
}

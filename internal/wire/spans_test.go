package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// checkedFile returns a review as a text that was checked.
func checkedFile(t *testing.T, name string) Text {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("..", "..", "webhook", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	s := NewScanner(body)
	text, err := s.Checked()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestATextKnowsWhereItsLargeObjectsAndListsEnd(t *testing.T) {
	for _, file := range []string{"create-pod-5k.json", "create-pod-64k.json", "update-pod.json"} {
		text := checkedFile(t, file)
		recorded := 0
		for at := range text.Raw {
			span := text.spanAt(at)
			if span == nil {
				continue
			}
			recorded++
			s := NewScanner(text.Raw[at:])
			value, err := s.Value()
			if err != nil {
				t.Fatal(err)
			}
			if end := at + len(value); int(span.end) != end {
				t.Errorf("%s: the value at %d ends at %d, not %d", file, at, end, span.end)
			}
			members := 0
			if value[0] == '[' {
				var list []json.RawMessage
				err = json.Unmarshal(value, &list)
				members = len(list)
			} else {
				var object map[string]json.RawMessage
				err = json.Unmarshal(value, &object)
				members = len(object)
			}
			if err != nil || int(span.members) != members {
				t.Errorf("%s: the value at %d has %d members, not %d: %v", file, at, members, span.members, err)
			}
			if len(value) < leastSpan {
				t.Errorf("%s: a value of %d bytes is recorded", file, len(value))
			}
		}
		if recorded != len(text.spans) || recorded < 10 {
			t.Errorf("%s: found %d of %d spans", file, recorded, len(text.spans))
		}
	}
}

func TestMovingPastAValueOfACheckedTextComesToTheSamePlace(t *testing.T) {
	text := checkedFile(t, "create-pod-64k.json")
	for at, c := range text.Raw {
		if c != '{' && c != '[' || at > 0 && text.Raw[at-1] != ':' {
			continue // a bracket in a string
		}
		known, unknown := text.Scanner(at), NewScanner(text.Raw[at:])
		if err := known.Skip(); err != nil {
			t.Fatal(err)
		}
		if unknown.Skip() == nil && known.Position() != at+unknown.Position() {
			t.Fatalf("at %d: moved to %d, want %d", at, known.Position(), at+unknown.Position())
		}
	}
}

// A text of nothing but brackets would take more memory for its spans than it has
// itself.
func TestTheSpansOfAnyTextAreBounded(t *testing.T) {
	for name, raw := range map[string]string{
		"nested deeply":     strings.Repeat("["+strings.Repeat("[", 9_000)+strings.Repeat("]", 9_000)+"],", 50),
		"many small ones":   strings.Repeat("{},", 500_000),
		"many larger ones":  strings.Repeat(`["`+strings.Repeat("a", 200)+`"],`, 20_000),
		"an object of them": strings.Repeat(`{"a":{"b":{"c":"`+strings.Repeat("a", 200)+`"}}},`, 10_000),
	} {
		s := NewScanner([]byte("[" + raw + "0]"))
		text, err := s.Checked()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(text.spans) == 0 || cap(text.spans) > maxSpans+maxSpans/2 {
			t.Errorf("%s: room for %d spans, of which %d are used", name, cap(text.spans), len(text.spans))
		}
		s = text.Scanner(0)
		if err := s.Skip(); err != nil || s.Position() != len(text.Raw) {
			t.Errorf("%s: moved to %d of %d: %v", name, s.Position(), len(text.Raw), err)
		}
	}
}

func TestAListOfACheckedTextIsMadeInOneAllocation(t *testing.T) {
	const items = 1000
	raw := []byte(`{"spec":{"containers":[` + strings.Repeat(`{"name":"a"},`, items-1) + `{"name":"b"}]}}`)
	s := NewScanner(raw)
	text, err := s.Checked()
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := text.Decode(&pod); err != nil {
		t.Fatal(err)
	}
	if n, room := len(pod.Spec.Containers), cap(pod.Spec.Containers); n != items || room > items+items/8 {
		t.Errorf("%d containers in room for %d", n, room)
	}
}

func TestATextThatWasNotCheckedIsCheckedWhenItIsDecoded(t *testing.T) {
	for _, raw := range []string{`{"metadata":{"name":"a"},"x":{"y":tru}}`, `{"metadata":{"name":"a"}`, "{\"x\":\"\xff\",\"y\":01}"} {
		text := Text{Raw: []byte(raw)}
		if err := text.Decode(&corev1.Pod{}); err == nil {
			t.Errorf("%s is decoded", raw)
		}
		s := NewScanner(bytes.Repeat([]byte(raw+" "), 100))
		if text, err := s.Checked(); err == nil {
			t.Errorf("%s is checked: %s", raw, text.Raw)
		} else if text.checked {
			t.Errorf("%s counts as checked after %v", raw, err)
		}
	}
}

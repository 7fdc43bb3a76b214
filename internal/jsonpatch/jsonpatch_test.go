package jsonpatch_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/jsonpatch"
)

// record is one test of github.com/json-patch/json-patch-tests, which testdata has in
// full.
type record struct {
	Comment, Error string
	Doc            json.RawMessage
	Patch          json.RawMessage
	Expected       json.RawMessage
	Disabled       bool
}

func records(t *testing.T) (all []record) {
	t.Helper()
	for _, file := range []string{"spec_tests.json", "tests.json"} {
		content, err := os.ReadFile(filepath.Join("testdata/json-patch-tests", file))
		if err != nil {
			t.Fatal(err)
		}
		var some []record
		if err := json.Unmarshal(content, &some); err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// deviations are the tests that the API server's library fails, and what it does: it
// is not for us to be right where the API server is not.
var deviations = map[string]string{
	"27 Toplevel scalar values OK?":                                    "applying the patch: json: cannot unmarshal string into Go value of type jsonpatch.partialDoc",
	"33 Out of bounds (lower)":                                         `applies: {"bar":[1,2,"5"]}`,
	"76 replacing the root of the document is possible with add":       `applying the patch: add operation does not apply: doc is missing path: "": missing value`,
	"87 missing 'value' parameter to addmissing 'value' parameter":     "applies: [1,null]",
	"88 missing 'value' parameter to replacemissing 'value' parameter": "applies: [null]",
	"89 missing 'value' parameter to testmissing 'value' parameter":    "applies: [null]",
	"93 duplicate opspatch has two 'op' members":                       `applies: {"baz":"bar"}`,
}

func TestThePublicTestsPassButForTheAPIServersDeviations(t *testing.T) {
	ran, deviated := 0, map[string]bool{}
	for i, r := range records(t) {
		if r.Patch == nil {
			continue // a comment
		}
		ran++
		name := fmt.Sprintf("%d %s%s", i, r.Comment, r.Error)
		got, err := applied(r)
		wrong := ""
		switch {
		case r.Error != "" && err == nil:
			wrong = "applies: " + string(got)
		case r.Error == "" && err != nil:
			wrong = err.Error()
		case r.Expected != nil && !reflect.DeepEqual(value(t, got), value(t, r.Expected)):
			wrong = "makes " + string(got)
		}
		if wrong != "" {
			deviated[name] = true
		}
		if deviations[name] != wrong {
			t.Errorf("%q: %q,\n%s by %s", name, wrong, r.Doc, r.Patch)
		}
	}
	for name := range deviations {
		if !deviated[name] {
			t.Errorf("%s is no deviation any more", name)
		}
	}
	if ran != 95 {
		t.Errorf("%d tests ran", ran)
	}
	fmt.Printf("FIGURE engine.public_patch_tests=%d tests\n", ran)
}

func applied(r record) ([]byte, error) {
	p, err := jsonpatch.Decode(r.Patch)
	if err != nil {
		return nil, err
	}
	return p.Apply(r.Doc)
}

func value(t *testing.T, text []byte) (v any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func decode(t *testing.T, text string) jsonpatch.Patch {
	t.Helper()
	p, err := jsonpatch.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPatchesAreJoinedWithTheirText(t *testing.T) {
	none, one, two := decode(t, "null"), decode(t, ` [{"op":"add","path":"/a","value":[]} ]`), decode(t, "[{\"path\":\"/a/-\",\t\"op\":\"add\",\"value\":1},{\"op\":\"add\",\"path\":\"/a/-\",\"value\":2}]")
	both := none.Then(one).Then(two).Then(none)
	if got := string(both.Append([]byte("x"))); both.Len() != 3 || got != "x[{\"op\":\"add\",\"path\":\"/a\",\"value\":[]},{\"path\":\"/a/-\",\t\"op\":\"add\",\"value\":1},{\"op\":\"add\",\"path\":\"/a/-\",\"value\":2}]" {
		t.Errorf("%d operations: %s", both.Len(), got)
	}
	for patch, want := range map[*jsonpatch.Patch]string{&none: `{}`, &one: `{"a":[]}`, &both: `{"a":[1,2]}`} {
		if got, err := patch.Apply([]byte(`{}`)); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestWhatAPatchCostsIsBounded(t *testing.T) {
	big := func(size int) string { return `{"a":"` + strings.Repeat("x", size) + `"}` }
	doubles := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, `,{"op":"copy","from":"/m","path":"/m/x%d"}`, i)
		}
		return `[{"op":"add","path":"/m","value":{"a":"b"}}` + text.String() + `]`
	}
	copies := func(from, to string, n int) string {
		return `[{"op":"add","path":"/b","value":` + map[bool]string{true: "[1]", false: "{}"}[strings.HasSuffix(to, "-")] + `}` +
			strings.Repeat(`,{"op":"copy","from":"`+from+`","path":"`+to+`"}`, n) + `]`
	}
	for name, test := range map[string]struct {
		document, patch, want string
	}{
		"copies that double":              {`{}`, doubles(30), "add more than 3145728 bytes"},
		"copies of all within the limit":  {big(1_048_550), copies("/a", "/b/x", 3), ""},
		"copies of all beyond the limit":  {big(1_048_580), copies("/a", "/b/x", 3), "add more than 3145728 bytes"},
		"copies of what is escaped":       {`{"a":"` + strings.Repeat("<", 140_000) + `"}`, copies("/a", "/b/x", 4), "add more than 3145728 bytes"},
		"copies of little in much":        {big(1 << 20), copies("/b/-1", "/b/-", 4), ""},
		"too many copies":                 {`{}`, doubles(33), "it has 33 copy operations, at most 32"},
		"too long a patch":                {`{}`, `[{"op":"add","path":"/a","value":` + big(8<<20) + `}]`, "bytes, the limit is 8388608"},
		"a patch that grows when written": {`{}`, `[{"op":"add","path":"/a","value":{"a":"` + strings.Repeat("<", 3<<19) + `"}}]`, "the document grows by 94371"},
		"a panic of the library":          {`{"a":[null]}`, `[{"op":"test","path":"/a","value":[null]}]`, "an operation does not apply"},
		"a copy from nowhere":             {big(1 << 20), doubles(1)[:len(doubles(1))-1] + strings.Repeat(`,{"op":"copy","from":"/x/y","path":"/b"}`, 5) + `]`, "missing from path"},
		"a copy without from":             {big(1 << 20), `[{"op":"copy","path":"/b"},{"op":"copy","path":"/b"},{"op":"copy","path":"/b"}]`, "missing from"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := decode(t, test.patch).Apply([]byte(test.document))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %d bytes, %v, want %q", len(result), err, test.want)
			}
		})
	}
}

package patch

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// odd is an object with what encoding/json knows and the API's types do not use
// much, or not yet.
type odd struct {
	Deep           `json:",inline"`
	*Pointed       `json:",omitempty"`
	hidden         int
	Skipped        string `json:"-"`
	Untagged       string
	Zero           inner             `json:"zero,omitzero"`
	ZeroList       []string          `json:"zeroList,omitzero"`
	Quoted         int64             `json:"quoted,string"`
	QuotedText     string            `json:"quotedText,omitempty,string"`
	ByNumber       map[int]inner     `json:"byNumber,omitempty"`
	ByText         map[text]string   `json:"byText,omitempty"`
	Any            any               `json:"any,omitempty"`
	Raw            json.RawMessage   `json:"raw,omitempty"`
	Array          [2]int            `json:"array"`
	Float          float64           `json:"float,omitempty"`
	Pointers       []*inner          `json:"pointers,omitempty"`
	Lists          [][]string        `json:"lists,omitempty"`
	Name           string            `json:"name,omitempty"` // hides Deep's
	Null           []string          `json:"null"`
	MapOfLists     map[string][]byte `json:"mapOfLists,omitempty"`
	PointerToPlain *bool             `json:"pointerToPlain,omitempty"`
}

type Deep struct {
	Name string `json:"name"`
	Deep string `json:"deep,omitempty"`
}

type Pointed struct {
	Pointed string `json:"pointed,omitempty"`
}

type inner struct {
	Name string `json:"name,omitempty"`
	V    int    `json:"v,omitempty"`
}

// text writes itself in capitals.
type text struct{ s string }

func (t text) MarshalText() ([]byte, error)     { return []byte(strings.ToUpper(t.s)), nil }
func (t *text) UnmarshalText(from []byte) error { t.s = strings.ToLower(string(from)); return nil }

func (o *odd) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

func (o *odd) DeepCopyObject() runtime.Object {
	encoded, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	copied := &odd{}
	if err := json.Unmarshal(encoded, copied); err != nil {
		panic(err)
	}
	return copied
}

// ruled is a mutation of an odd object, and its patch.
type ruled struct {
	raw    string
	mutate func(*odd)
	want   string
}

func testRules(t *testing.T, cases map[string]ruled) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after := decode(t, []byte(c.raw), &odd{}), decode(t, []byte(c.raw), &odd{})
			c.mutate(after.(*odd))
			ops, err := Diff([]byte(c.raw), before, after, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := string(Append(nil, ops)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			patched := decode(t, apply(t, []byte(c.raw), ops), &odd{})
			if got, want := encode(t, patched), encode(t, after); string(got) != string(want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestFieldsFollowTheRulesOfEncodingJSON(t *testing.T) {
	testRules(t, map[string]ruled{
		"a struct that is omitted when zero keeps its unknown fields": {
			`{"zero":{"v":1,"x":2}}`, func(o *odd) { o.Zero = inner{} }, `[{"op":"remove","path":"/zero/v"}]`,
		},
		"a struct that was omitted for being zero keeps them too": {
			`{"zero":{"x":2}}`, func(o *odd) { o.Zero.V = 1 }, `[{"op":"add","path":"/zero/v","value":1}]`,
		},
		"a struct that was not there is added whole": {
			`{}`, func(o *odd) { o.Zero.V = 1 }, `[{"op":"add","path":"/zero","value":{"v":1}}]`,
		},
		"with omitzero an empty list is written and a nil one is not": {
			`{}`, func(o *odd) { o.ZeroList = []string{} }, `[{"op":"add","path":"/zeroList","value":[]}]`,
		},
		"a field of an embedded struct is the outer's, and hidden by one of the same name": {
			`{"name":"a","deep":"b"}`, func(o *odd) { o.Name, o.Deep.Name, o.Deep.Deep = "c", "hidden", "d" },
			`[{"op":"replace","path":"/deep","value":"d"},{"op":"replace","path":"/name","value":"c"}]`,
		},
		"so is one of an embedded pointer": {
			`{}`, func(o *odd) { o.Pointed = &Pointed{"p"} }, `[{"op":"add","path":"/pointed","value":"p"}]`,
		},
		"and stays when another field changes": {
			`{"pointed":"p"}`, func(o *odd) { o.Float = 1 }, `[{"op":"add","path":"/float","value":1}]`,
		},
		"and is gone with it": {
			`{"pointed":"p"}`, func(o *odd) { o.Pointed = nil }, `[{"op":"remove","path":"/pointed"}]`,
		},
		"what is not written needs no operation": {
			`{}`, func(o *odd) { o.hidden, o.Skipped = 1, "s" }, `[]`,
		},
		"a field without a tag has its Go name": {
			`{"Untagged":"a"}`, func(o *odd) { o.Untagged = "b" }, `[{"op":"replace","path":"/Untagged","value":"b"}]`,
		},
		"a list that must be written is null when it is nil": {
			`{"null":["a"]}`, func(o *odd) { o.Null = nil }, `[{"op":"replace","path":"/null","value":null}]`,
		},
		"and is not when it is empty, which raw need not say": {
			`{}`, func(o *odd) { o.Null = []string{} }, `[{"op":"add","path":"/null","value":[]}]`,
		},
	})
}

func TestValuesFollowTheRulesOfEncodingJSON(t *testing.T) {
	yes := true
	testRules(t, map[string]ruled{
		"a number that is written as a string": {
			`{"quoted":"9007199254740993"}`, func(o *odd) { o.Quoted++ }, `[{"op":"replace","path":"/quoted","value":"9007199254740994"}]`,
		},
		"a string that is written as a string": {
			`{"quotedText":"\"a\""}`, func(o *odd) { o.QuotedText = "b" }, `[{"op":"replace","path":"/quotedText","value":"\"b\""}]`,
		},
		"a map by number": {
			`{"byNumber":{"1":{"v":1,"x":1},"10":{}}}`, func(o *odd) { o.ByNumber[1] = inner{V: 2}; delete(o.ByNumber, 10) },
			`[{"op":"replace","path":"/byNumber/1/v","value":2},{"op":"remove","path":"/byNumber/10"}]`,
		},
		"a map by a type that writes itself": {
			`{"byText":{"A":"1","B":"2"}}`, func(o *odd) { o.ByText[text{"a"}] = "3" }, `[{"op":"replace","path":"/byText/A","value":"3"}]`,
		},
		"an interface is what it holds": {
			`{"any":{"a":[1,{"b":2}]}}`, func(o *odd) { o.Any.(map[string]any)["a"].([]any)[1].(map[string]any)["b"] = "3" },
			`[{"op":"replace","path":"/any/a/1/b","value":"3"}]`,
		},
		"an interface that holds another type is replaced": {
			`{"any":[1]}`, func(o *odd) { o.Any = inner{V: 1} }, `[{"op":"replace","path":"/any","value":{"v":1}}]`,
		},
		"JSON in JSON with other spaces is the same": {
			`{"raw":{"a":1}}`, func(o *odd) { o.Raw = json.RawMessage(`{ "a": 1 }`) }, `[]`,
		},
		"an array is replaced whole": {
			`{"array":[1,2]}`, func(o *odd) { o.Array[1] = 3 }, `[{"op":"replace","path":"/array","value":[1,3]}]`,
		},
		"a float is exact": {
			`{"float":0.1}`, func(o *odd) { o.Float = 1e-7 }, `[{"op":"replace","path":"/float","value":1e-7}]`,
		},
		"items by pointer have keys too, and may be null": {
			`{"pointers":[null,{"name":"a","x":1},{"name":"b","x":2}]}`, func(o *odd) { o.Pointers = o.Pointers[1:]; o.Pointers[1].V = 5; o.Pointers[0].V = 4 },
			`[{"op":"remove","path":"/pointers/0"},{"op":"add","path":"/pointers/0/v","value":4},{"op":"add","path":"/pointers/1/v","value":5}]`,
		},
		"lists in lists": {
			`{"lists":[["a"],["b","c","d"]]}`, func(o *odd) { o.Lists[1][2] = "e" }, `[{"op":"replace","path":"/lists/1/2","value":"e"}]`,
		},
		"a pointer to false is not nil": {
			`{"pointerToPlain":true}`, func(o *odd) { o.PointerToPlain = new(bool) }, `[{"op":"replace","path":"/pointerToPlain","value":false}]`,
		},
		"a pointer to the same is the same": {
			`{"pointerToPlain":true}`, func(o *odd) { o.PointerToPlain = &yes }, `[]`,
		},
	})
}

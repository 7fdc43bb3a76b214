package compose_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// openAPI is that of the kind Kind of example.com/v1, as an API server writes it.
const openAPI = `{"components": {"schemas": {
	"Kind": {"x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Kind"}], "properties": {
		"ports": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {"allOf": [{"$ref": "#/components/schemas/Port"}], "default": {}}},
		"set": {"x-kubernetes-list-type": "set"}, "atomic": {"x-kubernetes-list-type": "atomic"}, "selector": {"x-kubernetes-map-type": "atomic"},
		"map": {"additionalProperties": {"x-kubernetes-list-type": "set"}}, "loose": {"additionalProperties": true}, "loop": {"$ref": "#/components/schemas/Loop"}
	}},
	"Loop": {"$ref": "#/components/schemas/Loop"},
	"Port": {"properties": {"protocol": {"default": "TCP"}}}
}}}`

func read(t *testing.T, text string) *compose.Object {
	t.Helper()
	o := &unstructured.Unstructured{}
	if text == "{}" {
		text = `"none": null}`
	}
	if err := o.UnmarshalJSON([]byte(`{"apiVersion": "example.com/v1", "kind": "Kind", ` + strings.TrimPrefix(text, "{"))); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAMergeHasWhatTheHookWantsAndWhatOthersAdded(t *testing.T) {
	kinds, err := compose.ReadSchemas([]byte(openAPI))
	if err != nil {
		t.Fatal(err)
	}
	kind := kinds[schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Kind"}]
	if kind == nil {
		t.Fatal("the kind has no schema")
	}
	// was is what the hook wanted, to which others made live of it; want is what becomes of
	// it when the hook wants wanted.
	for name, each := range map[string]struct{ was, live, wanted, want string }{
		"a default stays":                             {`{"a": 1}`, `{"a": 1, "b": 2}`, `{"a": 1}`, `{"a": 1, "b": 2}`},
		"a field that was wanted goes":                {`{"a": 1, "b": {"c": 1}}`, `{"a": 1, "b": {"c": 1, "d": 1}}`, `{"a": 1}`, `{"a": 1}`},
		"a field that is null now goes":               {`{"a": 1}`, `{"a": 1}`, `{"a": null}`, `{}`},
		"a null that nobody set means nothing":        {`{"a": null}`, `{"a": 1}`, `{"a": null}`, `{"a": 1}`},
		"a change of somebody else is undone":         {`{"a": 1}`, `{"a": 2}`, `{"a": 1}`, `{"a": 1}`},
		"a list of names is merged":                   {`{"l": [{"name": "a"}, {"name": "b"}]}`, `{"l": [{"name": "i"}, {"name": "a", "d": 1}, {"name": "x"}, {"name": "b"}]}`, `{"l": [{"name": "c"}, {"name": "a"}]}`, `{"l": [{"name": "i"}, {"name": "c"}, {"name": "a", "d": 1}, {"name": "x"}]}`},
		"a list has the order of the hook":            {`{"l": [{"name": "a"}, {"name": "b"}]}`, `{"l": [{"name": "a"}, {"name": "b"}]}`, `{"l": [{"name": "b"}, {"name": "a"}]}`, `{"l": [{"name": "b"}, {"name": "a"}]}`},
		"a name twice, told by its port":              {`{"l": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}`, `{"l": [{"name": "a", "port": 1, "d": 1}, {"name": "a", "port": 2}]}`, `{"l": [{"name": "a", "port": 1}]}`, `{"l": [{"name": "a", "port": 1, "d": 1}]}`},
		"a port twice, told by its name":              {`{"l": [{"name": "a", "port": 1}, {"name": "b", "port": 1}]}`, `{"l": [{"name": "a", "port": 1}, {"name": "b", "port": 1, "d": 1}]}`, `{"l": [{"name": "b", "port": 1}]}`, `{"l": [{"name": "b", "port": 1, "d": 1}]}`},
		"twins are replaced":                          {`{"l": [{"name": "a"}, {"name": "a"}]}`, `{"l": [{"name": "a"}, {"name": "a"}, {"name": "x"}]}`, `{"l": [{"name": "a"}, {"name": "a"}]}`, `{"l": [{"name": "a"}, {"name": "a"}]}`},
		"a list of values is replaced":                {`{"l": [1, 2]}`, `{"l": [1, 2, 3]}`, `{"l": [1]}`, `{"l": [1]}`},
		"an item that is no object":                   {`{"l": [{"name": "a"}]}`, `{"l": [{"name": "a"}, 1]}`, `{"l": [{"name": "b"}]}`, `{"l": [{"name": "b"}]}`},
		"a list that is wanted empty keeps others":    {`{"l": []}`, `{"l": [{"name": "x"}]}`, `{"l": []}`, `{"l": [{"name": "x"}]}`},
		"a list that becomes empty":                   {`{"l": [{"name": "a"}]}`, `{"l": [{"name": "a"}, {"name": "x"}]}`, `{"l": []}`, `{"l": [{"name": "x"}]}`},
		"a list that is wanted no more":               {`{"l": [{"name": "a"}], "m": [1], "map": {"k": ["a"], "l": ["b"]}}`, `{"l": [{"name": "a"}, {"name": "x"}], "m": [1, 2], "map": {"k": ["a", "x"], "l": ["b"], "o": []}}`, `{}`, `{"l": [{"name": "x"}], "map": {"k": ["x"], "o": []}}`},
		"an object that is wanted no more":            {`{"a": {"b": 1}}`, `{"a": {"b": 1, "default": 1}}`, `{}`, `{}`},
		"a list becomes an object":                    {`{"l": [1]}`, `{"l": [1]}`, `{"l": {"a": 1}}`, `{"l": {"a": 1}}`},
		"map keys with a default":                     {`{"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]}`, `{"ports": [{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}, {"port": 2, "protocol": "TCP"}]}`, `{"ports": [{"port": 1, "n": 1}]}`, `{"ports": [{"port": 1, "protocol": "TCP", "n": 1}, {"port": 2, "protocol": "TCP"}]}`},
		"a set":                                       {`{"set": ["a", "b"]}`, `{"set": ["a", "b", "x"]}`, `{"set": ["c", "a"]}`, `{"set": ["c", "a", "x"]}`},
		"a set in a map":                              {`{"map": {"k": ["a", "b"]}}`, `{"map": {"k": ["a", "b", "x"], "o": ["y"]}}`, `{"map": {"k": ["a"]}}`, `{"map": {"k": ["a", "x"], "o": ["y"]}}`},
		"an atomic list":                              {`{"atomic": [{"name": "a"}]}`, `{"atomic": [{"name": "a"}, {"name": "x"}]}`, `{"atomic": [{"name": "a"}]}`, `{"atomic": [{"name": "a"}]}`},
		"an atomic object":                            {`{"selector": {"a": "1"}}`, `{"selector": {"a": "1", "x": "1"}}`, `{"selector": {"a": "1"}}`, `{"selector": {"a": "1"}}`},
		"a schema that refers to itself says nothing": {`{"loop": [{"name": "a"}], "loose": {"a": 1}}`, `{"loop": [{"name": "a"}, {"name": "x"}], "loose": {"a": 1}}`, `{"loop": [{"name": "a"}], "loose": {}}`, `{"loop": [{"name": "a"}, {"name": "x"}], "loose": {}}`},
		"labels and finalizers": {
			`{"metadata": {"labels": {"a": "1", "b": "1"}, "finalizers": ["a/a", "b/b"]}}`, `{"metadata": {"uid": "1", "labels": {"a": "1", "b": "1", "x": "1"}, "finalizers": ["x/x", "a/a", "b/b"]}}`,
			`{"metadata": {"labels": {"a": "1"}, "finalizers": ["a/a"]}}`, `{"metadata": {"uid": "1", "labels": {"a": "1", "x": "1"}, "finalizers": ["x/x", "a/a"]}}`,
		},
		"status and what only the API server sets stay": {`{"a": 1}`, `{"a": 1, "status": {"s": 1}, "metadata": {"resourceVersion": "1", "generation": 1}}`, `{"a": 2}`, `{"a": 2, "status": {"s": 1}, "metadata": {"resourceVersion": "1", "generation": 1}}`},
	} {
		for _, by := range []string{compose.AnnotationApplied, compose.AnnotationLastApplied} {
			t.Run(name+" by "+by, func(t *testing.T) {
				live, wanted, want := read(t, each.live), read(t, each.wanted), read(t, each.want)
				last := compose.New(read(t, each.was), kind).GetAnnotations()[compose.AnnotationApplied]
				if by == compose.AnnotationLastApplied {
					last = each.was
				}
				live.SetAnnotations(map[string]string{by: last, "others": "1"})
				before := live.DeepCopy()
				after := compose.Merge(live, wanted, kind)
				if len(compose.Patch(live.Object, before.Object))+len(compose.Patch(before.Object, live.Object)) > 0 {
					t.Error("the merge changed what it was given")
				}
				if !compose.Applied(after, wanted, kind) || after.GetAnnotations()["others"] != "1" {
					t.Errorf("the annotations are %v", after.GetAnnotations())
				}
				want.SetAnnotations(after.GetAnnotations())
				if different := compose.Patch(after.Object, want.Object); len(different) > 0 {
					t.Errorf("it is %v, and has to be %v", after.Object, want.Object)
				}
				if again := compose.Patch(after.Object, compose.Merge(after, wanted, kind).Object); len(again) > 0 {
					t.Errorf("it is not at rest: %v", again)
				}
			})
		}
	}
}

func TestTheAnnotationOfWhatWasAppliedHasNoValuesAndIsBounded(t *testing.T) {
	applied := func(o *compose.Object) string {
		return compose.New(o, nil).GetAnnotations()[compose.AnnotationApplied]
	}
	secret := read(t, `{"data": {"a": "hidden"}, "list": [{"name": "a", "value": "hidden"}], "args": ["hidden"]}`)
	if text := applied(secret); strings.Contains(text, "hidden") {
		t.Error(text)
	}
	data := map[string]any{}
	for i := range 20_000 {
		data[fmt.Sprintf("%x", i*2654435761)] = ""
	}
	big := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Kind", "data": data, "metadata": map[string]any{"labels": map[string]any{"a": "1"}}}}
	if text := applied(big); text != `{"data":0,"metadata":{"labels":{"a":0}}}` {
		t.Errorf("%.200s", text)
	}
	live := compose.New(big, nil)
	live.Object["data"].(map[string]any)["other"] = "1"
	live.SetLabels(map[string]string{"a": "1", "other": "1"})
	after := compose.Merge(live, read(t, `{"data": {"a": "1"}}`), nil)
	if text, err := json.Marshal(after.Object["data"]); err != nil || string(text) != `{"a":"1"}` || fmt.Sprint(after.GetLabels()) != "map[other:1]" {
		t.Errorf("%s, %v, %v", text, after.GetLabels(), err)
	}
	big.SetAnnotations(map[string]string{"a": strings.Repeat("x", 256<<10-30)})
	if text := applied(big); text != "" {
		t.Errorf("there is no room for %s", text)
	}
}

package offline

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// newerField is a field that no Go type has. An API server that is newer than the types of an
// extension sends such fields.
const newerField = "fieldOfANewerVersion"

// asNewer returns the request with an unknown field in each struct of its object but the metadata.
func (r *Request) asNewer(scheme *runtime.Scheme) (*Request, error) {
	newer := *r
	if len(r.Object) == 0 || r.Operation == admissionv1.Connect {
		return &newer, nil
	}
	var object map[string]any
	if err := json.Unmarshal(r.Object, &object); err != nil {
		return nil, fmt.Errorf("decoding the object: %w", err)
	}
	if known, err := scheme.New(r.Kind); err == nil {
		extend(reflect.TypeOf(known), object)
	} else { // a custom resource
		object[newerField] = true
		if spec, is := object["spec"].(map[string]any); is {
			spec[newerField] = true
		}
	}
	var err error
	newer.Object, err = json.Marshal(object)
	return &newer, err
}

// extend adds the unknown field to the JSON of a struct and of those in it.
func extend(t reflect.Type, value any) {
	if t.Implements(reflect.TypeFor[json.Unmarshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return // its JSON is no struct
	}
	switch value := value.(type) {
	case map[string]any:
		switch t.Kind() {
		case reflect.Pointer:
			extend(t.Elem(), value)
		case reflect.Map:
			for _, item := range value {
				extend(t.Elem(), item)
			}
		case reflect.Struct:
			value[newerField] = true
			extendFields(t, value)
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for _, item := range value {
				extend(t.Elem(), item)
			}
		}
	}
}

func extendFields(t reflect.Type, value map[string]any) {
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "metadata" || name == "-":
		case name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct:
			extendFields(field.Type, value) // such as the source of a volume
		default:
			extend(field.Type, value[name])
		}
	}
}

// checkUnknown checks that the extension kept the unknown fields.
func (s *Step) checkUnknown() ([]Breach, error) {
	if !s.Webhook.Mutates() || len(s.Before) == 0 || len(s.Object) == 0 {
		return nil, nil
	}
	var before, after map[string]any
	for into, text := range map[*map[string]any][]byte{&before: s.Before, &after: s.Object} {
		if err := json.Unmarshal(text, into); err != nil {
			return nil, fmt.Errorf("decoding the object of %s: %w", s.Extension, err)
		}
	}
	var lost []string
	forgotten("", before, after, &lost)
	if len(lost) == 0 {
		return nil, nil
	}
	slices.Sort(lost)
	return []Breach{{s.Extension, "loses the fields that its Go types do not know, which a newer API server may have; be a Mutator, or return mgr.PatchFromPod(req, pod)", strings.Join(lost, "\n")}}, nil
}

// forgotten adds the paths of the unknown fields of before that after lacks, although it has what they are in.
func forgotten(path string, before, after any, lost *[]string) {
	switch before := before.(type) {
	case map[string]any:
		after, is := after.(map[string]any)
		if !is {
			return
		}
		for key, value := range before {
			below := strings.TrimPrefix(path+"."+key, ".")
			if _, kept := after[key]; key == newerField && !kept {
				*lost = append(*lost, below)
			}
			forgotten(below, value, after[key], lost)
		}
	case []any:
		list, _ := after.([]any)
		for i, item := range before {
			if other, found := counterpart(item, list, i, len(before)); found {
				forgotten(fmt.Sprint(path, ".", i), item, other, lost)
			}
		}
	}
}

// counterpart returns the item of a list that was another before: that of the same name,
// or the one in its place if the list is as long as it was.
func counterpart(item any, list []any, i, length int) (any, bool) {
	if name := at(item, "name"); name != nil {
		for _, other := range list {
			if at(other, "name") == name {
				return other, true
			}
		}
		return nil, false
	}
	if len(list) != length {
		return nil, false
	}
	return list[i], true
}

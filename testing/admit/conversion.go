package admit

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// Convert converts an object to another version, the one that into is of, by the same
// ConversionReview that an API server sends. It ends the test if that fails.
func Convert(t testing.TB, c *extension.Converter, from, into client.Object) {
	t.Helper()
	opened := open(t, c)
	if err := convert(opened, from, into); err != nil {
		t.Fatalf("admit: %v", err)
	}
}

// RoundTrip tests that a conversion loses nothing, and takes objects that are not whole. It
// converts each object to each other version and back, and calls [testing.TB.Errorf] with the
// difference if that is another object. It also converts it without each of its fields, as API
// servers do for a server-side apply, and with null in their place, and calls Errorf with the
// error. Give it objects of every version that have together a value in every field of the types
// of that version's package: a version without an object is an error, and a field without a value
// too, since nothing tells whether it is lost.
func RoundTrip(t testing.TB, c *extension.Converter, objects ...client.Object) {
	t.Helper()
	opened := open(t, c)
	if len(objects) == 0 {
		t.Fatalf("admit: RoundTrip needs an object of each version of %s", opened.CRD)
	}
	for _, version := range opened.Versions {
		of := slices.DeleteFunc(slices.Clone(objects), func(object client.Object) bool { return versionOf(opened, object) != version })
		if len(of) == 0 {
			t.Errorf("%s: no object is of version %s: what it loses is not tested", opened.CRD, version.Name)
		}
		if empty := emptyFields(of); len(empty) > 0 {
			t.Errorf("%s: no object of version %s has a value in %s: whether it is lost is not tested", opened.CRD, version.Name, strings.Join(empty, ", "))
		}
	}
	for _, object := range objects {
		from := versionOf(opened, object)
		for _, other := range opened.Versions {
			if other == from {
				continue
			}
			there, back := blank(opened, other, object), object
			err := convert(opened, object, there)
			if err == nil {
				back = blank(opened, from, object)
				err = convert(opened, there, back)
			}
			if err != nil {
				t.Errorf("%s: %v", opened.CRD, err)
				continue
			}
			if difference := cmp.Diff(object, back, cmpopts.EquateEmpty(), cmpopts.IgnoreTypes(metav1.TypeMeta{})); difference != "" {
				t.Errorf("%s %s is another one after it was %s (-before +after):\n%s", opened.CRD, object.GetName(), other.Name, difference)
			}
			convertsParts(t, opened, object, from, other)
		}
	}
}

// blank returns an empty object of a version. One without a Go type says by its apiVersion which
// version it is of.
func blank(c *host.Converter, version *host.ConverterVersion, like client.Object) client.Object {
	object := version.New()
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: c.Group, Version: version.Name, Kind: like.GetObjectKind().GroupVersionKind().Kind})
	return object
}

// convertsParts reports the fields without which an object cannot be converted.
func convertsParts(t testing.TB, c *host.Converter, object client.Object, from, to *host.ConverterVersion) {
	t.Helper()
	content, err := contentOf(c, object, from)
	if err != nil {
		t.Errorf("%s: %v", c.CRD, err)
		return
	}
	var walk func(value any, path string)
	walk = func(value any, path string) {
		switch value := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				if path == "" && slices.Contains([]string{"apiVersion", "kind", "metadata"}, key) {
					continue
				}
				field, child := strings.TrimPrefix(path+"."+key, "."), value[key]
				value[key] = nil
				_, null := review(c, content, from, to)
				delete(value, key)
				_, absent := review(c, content, from, to)
				value[key] = child
				if absent != nil {
					t.Errorf("%s: without %s: %v: an API server converts an object without the fields that a server-side apply gives up: leave out what is absent", c.CRD, field, absent)
				} else if null != nil {
					t.Errorf("%s: with null for %s: %v: take it as absent", c.CRD, field, null)
				}
				walk(child, field)
			}
		case []any:
			for i, item := range value {
				walk(item, fmt.Sprintf("%s[%d]", path, i))
			}
		}
	}
	walk(content, "")
}

func open(t testing.TB, c *extension.Converter) *host.Converter {
	t.Helper()
	opened, err := host.OpenConverter(c)
	if err != nil {
		t.Fatalf("admit: %v", err)
	}
	return opened
}

// versionOf returns the version of an object: of its apiVersion or, without one, of its
// type.
func versionOf(c *host.Converter, object client.Object) *host.ConverterVersion {
	_, name, _ := strings.Cut(object.GetObjectKind().GroupVersionKind().GroupVersion().String(), "/")
	for _, v := range c.Versions {
		if v.Name == name || name == "" && v.Type == reflect.TypeOf(object) {
			return v
		}
	}
	return nil
}

// convert converts an object to the version of another.
func convert(c *host.Converter, from, into client.Object) error {
	is, wanted := versionOf(c, from), versionOf(c, into)
	if is == nil || wanted == nil {
		return fmt.Errorf("the converter of %s has no version for a %T or a %T: it has %s; an object without a Go type needs its apiVersion", c.CRD, from, into, strings.Join(c.Names(), ", "))
	}
	if is == wanted {
		return fmt.Errorf("the converter of %s: both objects are of version %s, which no API server converts", c.CRD, is.Name)
	}
	content, err := contentOf(c, from, is)
	if err != nil {
		return err
	}
	converted, err := review(c, content, is, wanted)
	if err != nil {
		return err
	}
	return json.Unmarshal(converted, into)
}

// contentOf returns an object of a version as an API server has it.
func contentOf(c *host.Converter, object client.Object, is *host.ConverterVersion) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	content["apiVersion"] = c.Group + "/" + is.Name
	if content["kind"] == nil {
		content["kind"] = reflect.TypeOf(object).Elem().Name()
	}
	return content, nil
}

// review sends a review of an object to the converter.
func review(c *host.Converter, content map[string]any, is, wanted *host.ConverterVersion) (json.RawMessage, error) {
	object, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	converted, err := offline.Convert(webhook.ConversionHandler(c, webhook.HandlerOptions{}), object, schema.GroupVersion{Group: c.Group, Version: wanted.Name})
	if err != nil {
		return nil, fmt.Errorf("from %s to %s: %w", is.Name, wanted.Name, err)
	}
	return converted, nil
}

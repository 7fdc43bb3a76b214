package pod

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The limits of a patch. Its author is not trusted by the process that applies it.
const (
	// maxOperations is the limit of the API.
	maxOperations = 256
	// maxPatched is the most bytes that the Pod, the values of the operations and what
	// they copy may have together: several times what Pods have.
	maxPatched = 128 << 10
)

// applyPatch applies a JSON Patch (RFC 6902) to the spec, labels and annotations of a
// Pod. Unknown fields are errors, so that a misspelt path does not go unnoticed.
//
// It works on a decoded tree, in which each operation costs no more than the length of
// its path, its value, and the length of the list that it changes. Libraries that
// decode again what they walk through take minutes for what fits in a template.
func applyPatch(pod *corev1.Pod, operations []v1alpha1.JSONPatchOperation) error {
	if len(operations) == 0 {
		return nil
	}
	if len(operations) > maxOperations {
		return fmt.Errorf("%d operations, at most %d are allowed", len(operations), maxOperations)
	}
	before, err := json.Marshal(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
	})
	if err != nil {
		return err
	}
	d := document{left: maxPatched}
	if d.root, err = d.decode(before); err != nil {
		return err
	}
	for i, operation := range operations {
		if err := d.apply(operation); err != nil {
			return fmt.Errorf("[%d]: %s %q: %w", i, operation.Operation, operation.Path, err)
		}
	}
	if err := v1alpha1.CheckQuantities(d.root, pod); err != nil {
		return fmt.Errorf("the result is not a Pod: %w", err)
	}
	after, err := json.Marshal(d.root)
	if err != nil {
		return err
	}
	var patched corev1.Pod
	strict, err := kjson.UnmarshalStrict(after, &patched)
	if err != nil {
		return fmt.Errorf("the result is not a Pod: %w", err)
	}
	if len(strict) > 0 {
		return fmt.Errorf("the result is not a Pod: %w", strict[0])
	}
	if len(patched.Spec.Containers) == 0 {
		return fmt.Errorf("the result has no containers")
	}
	if err := onlyPatches(patched); err != nil {
		return err
	}
	pod.Labels, pod.Annotations, pod.Spec = patched.Labels, patched.Annotations, patched.Spec
	return nil
}

// onlyPatches refuses a patch of more than the spec, labels and annotations, which would
// have no effect.
func onlyPatches(patched corev1.Pod) error {
	patched.Spec, patched.Labels, patched.Annotations = corev1.PodSpec{}, nil, nil
	rest := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	switch {
	case patched.TypeMeta != rest.TypeMeta:
		return errors.New("apiVersion and kind cannot be changed; patch only /spec, /metadata/labels and /metadata/annotations")
	case !reflect.DeepEqual(patched.ObjectMeta, rest.ObjectMeta):
		return errors.New("of /metadata only /metadata/labels and /metadata/annotations can be changed; admitkit sets the rest")
	case !reflect.DeepEqual(patched.Status, rest.Status):
		return errors.New("/status cannot be changed; patch only /spec, /metadata/labels and /metadata/annotations")
	}
	return nil
}

// document is a JSON document that is patched.
type document struct {
	root any
	// left is how many bytes may still come in.
	left int
}

var (
	errNothing = errors.New("there is nothing at the path")
	errTooMuch = fmt.Errorf("the Pod, the values and the copies have more than %d bytes together", maxPatched)
)

// decode decodes a part of the document. Numbers stay as they are written.
func (d *document) decode(raw []byte) (value any, err error) {
	if d.left -= len(raw); d.left < 0 {
		return nil, errTooMuch
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return value, decoder.Decode(&value)
}

// apply applies one operation.
func (d *document) apply(o v1alpha1.JSONPatchOperation) error {
	path, err := pointer(o.Path)
	if err != nil {
		return err
	}
	var value any
	switch o.Operation {
	case "add", "replace", "test":
		if o.Value != nil { // the API type does not tell a null from an absent value
			value, err = d.decode(o.Value.Raw)
		}
	case "move", "copy":
		value, err = d.take(o)
	case "remove":
	default:
		return errors.New("the operation is not one of add, remove, replace, move, copy and test")
	}
	if err != nil {
		return err
	}
	switch o.Operation {
	case "test":
		found, err := find(d.root, path)
		if err == nil && !equal(found, value) {
			err = errors.New("the value is another")
		}
		return err
	case "remove":
		return d.change(path, remove)
	case "replace":
		return d.change(path, func(in any, key string) (any, error) { return replace(in, key, value) })
	}
	return d.change(path, func(in any, key string) (any, error) { return add(in, key, value) })
}

// take returns what a move or a copy takes.
func (d *document) take(o v1alpha1.JSONPatchOperation) (any, error) {
	from, err := pointer(o.From)
	if err != nil {
		return nil, err
	}
	value, err := find(d.root, from)
	if err != nil {
		return nil, fmt.Errorf("from %q: %w", o.From, err)
	}
	if o.Operation == "copy" {
		return d.clone(value)
	}
	if strings.HasPrefix(o.Path, o.From+"/") {
		return nil, fmt.Errorf("from %q: nothing can be moved into itself", o.From)
	}
	return value, d.change(from, remove)
}

// clone copies a value. It counts what the copy will take in JSON, at least.
func (d *document) clone(value any) (any, error) {
	d.left--
	switch v := value.(type) {
	case string:
		d.left -= len(v)
	case json.Number:
		d.left -= len(v)
	case []any:
		v = slices.Clone(v)
		for i := range v {
			var err error
			if v[i], err = d.clone(v[i]); err != nil {
				return nil, err
			}
		}
		value = v
	case map[string]any:
		v = maps.Clone(v)
		for key := range v {
			d.left -= len(key)
			var err error
			if v[key], err = d.clone(v[key]); err != nil {
				return nil, err
			}
		}
		value = v
	}
	if d.left < 0 {
		return nil, errTooMuch
	}
	return value, nil
}

// change changes the member at a path.
func (d *document) change(path []string, to func(in any, key string) (any, error)) error {
	if len(path) == 0 {
		return errors.New("the whole Pod cannot be changed at once")
	}
	root, err := change(d.root, path, to)
	if err == nil {
		d.root = root
	}
	return err
}

// change returns the list or object in which the member at a path is changed.
func change(in any, path []string, to func(in any, key string) (any, error)) (any, error) {
	if len(path) == 1 {
		return to(in, path[0])
	}
	child, err := find(in, path[:1])
	if err != nil {
		return nil, err
	}
	if child, err = change(child, path[1:], to); err != nil {
		return nil, err
	}
	return replace(in, path[0], child)
}

// find returns what is at a path.
func find(in any, path []string) (any, error) {
	for _, key := range path {
		switch v := in.(type) {
		case map[string]any:
			found := false
			if in, found = v[key]; !found {
				return nil, errNothing
			}
		case []any:
			i, err := index(key, len(v))
			if err != nil {
				return nil, err
			}
			in = v[i]
		default:
			return nil, errNothing
		}
	}
	return in, nil
}

func add(in any, key string, value any) (any, error) {
	switch v := in.(type) {
	case map[string]any:
		v[key] = value
		return v, nil
	case []any:
		if key == "-" {
			return append(v, value), nil
		}
		i, err := index(key, len(v)+1)
		if err != nil {
			return nil, err
		}
		return slices.Insert(v, i, value), nil
	}
	return nil, errNothing
}

func replace(in any, key string, value any) (any, error) {
	if _, err := find(in, []string{key}); err != nil {
		return nil, err
	}
	switch v := in.(type) {
	case map[string]any:
		v[key] = value
	case []any:
		i, _ := index(key, len(v))
		v[i] = value
	}
	return in, nil
}

func remove(in any, key string) (any, error) {
	if _, err := find(in, []string{key}); err != nil {
		return nil, err
	}
	switch v := in.(type) {
	case map[string]any:
		delete(v, key)
	case []any:
		i, _ := index(key, len(v))
		return slices.Delete(v, i, i+1), nil
	}
	return in, nil
}

// index returns the index that a key names in a list: below end, without a sign or
// leading zeros.
func index(key string, end int) (int, error) {
	i, err := strconv.Atoi(key)
	if err != nil || strconv.Itoa(i) != key || i < 0 || i >= end {
		return 0, fmt.Errorf("%q is not the index of an item", key)
	}
	return i, nil
}

// equal compares values. Numbers are equal if they are written alike, or have one
// value.
func equal(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equal)
	case json.Number:
		b, ok := b.(json.Number)
		if x, err := a.Float64(); ok && a != b && err == nil {
			y, err := b.Float64()
			return err == nil && x == y
		}
		return ok && a == b
	}
	return reflect.DeepEqual(a, b)
}

// pointer splits a JSON Pointer (RFC 6901).
func pointer(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	path := strings.Split(text, "/")
	if path[0] != "" {
		return nil, errors.New("a path begins with a slash")
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for i := range path {
		path[i] = unescape.Replace(path[i])
	}
	return path[1:], nil
}

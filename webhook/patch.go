package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension"
)

// PatchFrom returns the response that turns the object of the request into
// after, which is of the Go type that its author decoded the object into.
// Fields that this type does not know are left as they are.
func PatchFrom(req admission.Request, after runtime.Object) admission.Response {
	raw := req.Object.Raw
	if req.Operation == admissionv1.Delete {
		raw = req.OldObject.Raw // there is no other; a change to it is an error later
	}
	before := reflect.New(reflect.TypeOf(after).Elem()).Interface().(runtime.Object)
	if err := extension.Decode(raw, before); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding %s %s/%s: %w", req.Resource.Resource, req.Namespace, req.Name, err))
	}
	ops, err := diff(raw, before, after)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.Patched("", ops...)
}

// diff returns the operations that make of raw what a handler made of before.
//
// Both sides of the comparison are typed, so that a field which the Go type
// does not know is on neither and is never touched. raw is walked alongside for
// the paths: what the Go type writes out and raw does not have (an empty
// struct, say) cannot be the parent of an operation.
func diff(raw []byte, before, after runtime.Object) ([]jsonpatch.Operation, error) {
	beforeTree, err := tree(before)
	if err != nil {
		return nil, err
	}
	afterTree, err := tree(after)
	if err != nil {
		return nil, err
	}
	if reflect.DeepEqual(beforeTree, afterTree) {
		return nil, nil
	}
	var rawTree map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &rawTree); err != nil {
		return nil, err
	}
	var d differ
	d.objects("", rawTree, beforeTree, afterTree)
	return d.ops, nil
}

// tree returns an object as the JSON values that it is written as, integers
// with all their bits.
func tree(obj runtime.Object) (map[string]any, error) {
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", obj, err)
	}
	var content map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &content); err != nil {
		return nil, fmt.Errorf("decoding %T: %w", obj, err)
	}
	return content, nil
}

type differ struct {
	ops []jsonpatch.Operation
}

func (d *differ) add(path string, value any) {
	d.ops = append(d.ops, jsonpatch.NewOperation("add", path, value))
}

func (d *differ) replace(path string, value any) {
	d.ops = append(d.ops, jsonpatch.NewOperation("replace", path, value))
}

func (d *differ) remove(path string) {
	d.ops = append(d.ops, jsonpatch.NewOperation("remove", path, nil))
}

// objects compares two JSON objects, keys in order so that the patch is always
// the same.
func (d *differ) objects(path string, raw, before, after map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		_, stays := after[key]
		if _, inRaw := raw[key]; inRaw && !stays {
			d.remove(child(path, key))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		was, had := before[key]
		is := after[key]
		if had && reflect.DeepEqual(was, is) {
			continue
		}
		rawValue, inRaw := raw[key]
		switch {
		case !inRaw:
			d.add(child(path, key), is)
		case !had:
			d.replace(child(path, key), is)
		default:
			d.values(child(path, key), rawValue, was, is)
		}
	}
}

// values compares two values at a path that raw has.
func (d *differ) values(path string, raw, before, after any) {
	switch after := after.(type) {
	case map[string]any:
		rawMap, isRaw := raw.(map[string]any)
		beforeMap, isBefore := before.(map[string]any)
		if isRaw && isBefore {
			d.objects(path, rawMap, beforeMap, after)
			return
		}
	case []any:
		rawList, isRaw := raw.([]any)
		beforeList, isBefore := before.([]any)
		if isRaw && isBefore && len(rawList) == len(beforeList) {
			d.lists(path, rawList, beforeList, after)
			return
		}
	}
	d.replace(path, after)
}

// lists compares two lists along their longest common subsequence, so that an
// insertion is one operation and an item keeps its unknown fields when it
// moves up or down.
func (d *differ) lists(path string, raw, before, after []any) {
	position, i := 0, 0
	at := func() string { return path + "/" + strconv.Itoa(position) }
	gap := func(beforeEnd int, added []any) {
		for _, item := range added {
			switch {
			case i == beforeEnd:
				d.add(at(), item)
			case identity(before[i]) == nil && identity(item) == nil:
				d.values(at(), raw[i], before[i], item)
				i++
			default:
				d.replace(at(), item)
				i++
			}
			position++
		}
		for ; i < beforeEnd; i++ {
			d.remove(at())
		}
	}
	done := 0
	for _, match := range commonItems(before, after) {
		gap(match.before, after[done:match.after])
		if !reflect.DeepEqual(before[i], after[match.after]) {
			d.values(at(), raw[i], before[i], after[match.after])
		}
		i++
		position++
		done = match.after + 1
	}
	gap(len(before), after[done:])
}

type itemMatch struct{ before, after int }

// commonItems returns a longest common subsequence of two lists.
func commonItems(before, after []any) []itemMatch {
	var matches, tail []itemMatch
	start, beforeEnd, afterEnd := 0, len(before), len(after)
	for start < beforeEnd && start < afterEnd && sameItem(before[start], after[start]) {
		matches = append(matches, itemMatch{start, start})
		start++
	}
	for beforeEnd > start && afterEnd > start && sameItem(before[beforeEnd-1], after[afterEnd-1]) {
		beforeEnd--
		afterEnd--
		tail = append(tail, itemMatch{beforeEnd, afterEnd})
	}
	n, m := beforeEnd-start, afterEnd-start
	// length[i][j] is that of the longest common subsequence of what follows.
	length := make([][]int, n+1)
	for i := range length {
		length[i] = make([]int, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if sameItem(before[start+i], after[start+j]) {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch {
		case sameItem(before[start+i], after[start+j]):
			matches = append(matches, itemMatch{start + i, start + j})
			i++
			j++
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	slices.Reverse(tail)
	return append(matches, tail...)
}

// sameItem reports whether two list items stand for the same thing: the same
// name where they have one, the same content where not.
func sameItem(a, b any) bool {
	if nameA, nameB := identity(a), identity(b); nameA != nil || nameB != nil {
		return nameA == nameB
	}
	return reflect.DeepEqual(a, b)
}

// identity returns an item's name, by which lists of containers, volumes,
// environment variables and most others are keyed; nil when it has none.
func identity(item any) any {
	object, isObject := item.(map[string]any)
	if !isObject {
		return nil
	}
	name, isString := object["name"].(string)
	if !isString {
		return nil
	}
	return name
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// child appends a key to a JSON pointer (RFC 6901).
func child(path, key string) string {
	return path + "/" + pointerEscape.Replace(key)
}

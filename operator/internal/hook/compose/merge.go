package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// AnnotationApplied keeps on a child which fields the hook wanted when it was last written:
// those that the hook returns no more are removed. Values are not in it, but for those that
// tell the items of a list.
const AnnotationApplied = "admitkit.dev/applied-fields"

const (
	// maxApplied bounds the annotation. maxAnnotations is the API server's, for all of them.
	maxApplied     = 64 << 10
	maxAnnotations = 256 << 10
)

// whole stands in AnnotationApplied for a value with all that is in it.
const whole = 0

// guessedKeys are the fields that may tell the items of a list whose kind does not say
// which do. They are Metacontroller's, in its order.
var guessedKeys = []string{"containerPort", "port", "mountPath", "name", "uid", "ip", "path"}

// metadata is what a hook may want of it.
var metadata = &Schema{Properties: map[string]*Schema{
	"labels":          {additional: &Schema{}},
	"annotations":     {additional: &Schema{}},
	"ownerReferences": {ListType: "map", MapKeys: []string{"uid"}},
	"finalizers":      {ListType: "set"},
}}

// Merge returns what a child becomes that a hook wants: it has the fields that the hook
// returned, those that others or defaults have set, and no more those that the hook
// returned when the child was last written, and does not now.
func Merge(observed, wanted *Object, s *Schema) *Object {
	last := lastApplied(observed)
	after := mergeObject(body(observed.Object), body(last), body(wanted.Object), s)
	for _, key := range []string{"apiVersion", "kind", "status"} {
		if value, ok := observed.Object[key]; ok {
			after[key] = value
		}
	}
	meta, _ := observed.Object["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	fields := mergeObject(writable(observed.Object), writable(last), writable(wanted.Object), metadata)
	for field := range metadata.Properties {
		delete(meta, field)
	}
	maps.Copy(meta, fields)
	after["metadata"] = meta
	merged := &Object{Object: after}
	annotate(merged, wanted, s)
	return merged
}

// New returns a child as it is made.
func New(wanted *Object, s *Schema) *Object {
	child := wanted.DeepCopy()
	annotate(child, wanted, s)
	return child
}

// Applied says whether a child has the fields of what is wanted in its annotation.
func Applied(observed, wanted *Object, s *Schema) bool {
	_, theirs := observed.GetAnnotations()[AnnotationLastApplied]
	return !theirs && observed.GetAnnotations()[AnnotationApplied] == appliedFields(wanted, s)
}

func annotate(child, wanted *Object, s *Schema) {
	annotations := maps.Clone(child.GetAnnotations())
	delete(annotations, AnnotationLastApplied)
	delete(annotations, AnnotationApplied)
	if text := appliedFields(wanted, s); text != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[AnnotationApplied] = text
	}
	if len(annotations) > 0 {
		child.SetAnnotations(annotations)
	} else if meta, ok := child.Object["metadata"].(map[string]any); ok {
		delete(meta, "annotations")
	}
}

// body returns of an object what is below no rule of its own.
func body(o map[string]any) map[string]any {
	rest := maps.Clone(o)
	for _, key := range []string{"apiVersion", "kind", "metadata", "status"} {
		delete(rest, key)
	}
	return rest
}

func writable(o map[string]any) map[string]any {
	fields := map[string]any{}
	meta, _ := o["metadata"].(map[string]any)
	for field := range metadata.Properties {
		if value := meta[field]; value != nil {
			fields[field] = value
		}
	}
	return fields
}

// lastApplied returns the fields that a child had when it was last written, by us or by
// Metacontroller, whose annotation has the values, too.
func lastApplied(observed *Object) map[string]any {
	for _, annotation := range []string{AnnotationApplied, AnnotationLastApplied} {
		var last map[string]any
		if text := observed.GetAnnotations()[annotation]; text != "" && utiljson.Unmarshal([]byte(text), &last) == nil {
			return last
		}
	}
	return nil
}

// appliedFields is the annotation of what is wanted. Where it would be too long, it has less
// detail: all of an object is then taken for what the hook wanted.
func appliedFields(wanted *Object, s *Schema) string {
	budget := maxAnnotations - len(AnnotationApplied)
	for key, value := range wanted.GetAnnotations() {
		budget -= len(key) + len(value)
	}
	budget = min(budget, maxApplied)
	meta := writable(wanted.Object)
	delete(meta, "ownerReferences") // of the parent, which is always wanted
	for _, depth := range []int{1 << 10, 6, 3, 1} {
		fields, _ := skeleton(body(wanted.Object), s, depth).(map[string]any)
		fields["metadata"] = skeleton(meta, metadata, 1<<10)
		if text, err := json.Marshal(fields); err == nil && len(text) <= budget {
			return string(text)
		}
	}
	return ""
}

func skeleton(value any, s *Schema, depth int) any {
	switch value := value.(type) {
	case map[string]any:
		if depth == 0 {
			return whole
		}
		fields := make(map[string]any, len(value))
		for key, inner := range value {
			if inner != nil {
				fields[key] = skeleton(inner, s.field(key), depth-1)
			}
		}
		return fields
	case []any:
		switch {
		case s.set():
			return value
		case depth == 0 || s.atomic():
			return whole
		}
		return skeletonOfList(value, s, depth)
	}
	return whole
}

// skeletonOfList keeps what tells the items; whole if nothing does.
func skeletonOfList(list []any, s *Schema, depth int) any {
	items := make([]any, len(list))
	for i, each := range list {
		item, ok := each.(map[string]any)
		if !ok {
			return whole
		}
		fields, _ := skeleton(item, s.items(), max(depth-1, 1)).(map[string]any)
		told := false
		for _, key := range slices.Concat(s.mapKeys(), guessedKeys) {
			switch item[key].(type) {
			case string, int64, float64, bool:
				fields[key], told = item[key], true
			}
		}
		if !told {
			return whole
		}
		items[i] = fields
	}
	return items
}

func mergeObject(live map[string]any, last any, wanted map[string]any, s *Schema) map[string]any {
	after := maps.Clone(live)
	lastFields, some := last.(map[string]any)
	all := s.atomic() || last != nil && !some
	for key, value := range live {
		if wanted[key] != nil {
			continue
		}
		switch was := lastFields[key]; {
		case all:
			delete(after, key)
		case was == nil:
		default:
			if after[key] = remains(value, was, s.field(key)); after[key] == nil {
				delete(after, key)
			}
		}
	}
	for key, value := range wanted {
		if value != nil {
			after[key] = mergeValue(live[key], lastFields[key], value, s.field(key))
		}
	}
	return after
}

// remains returns what others have in a value that the hook wants no more; nil if that is
// nothing. An object whose fields are known goes as a whole: what the hook did not set in it
// are defaults.
func remains(live, last any, s *Schema) any {
	switch live := live.(type) {
	case map[string]any:
		if s.isMap() {
			if rest := mergeObject(live, last, nil, s); len(rest) > 0 {
				return rest
			}
		}
	case []any:
		if rest := mergeList(live, last, nil, s); len(rest) > 0 {
			return rest
		}
	}
	return nil
}

func mergeValue(live, last, wanted any, s *Schema) any {
	switch wanted := wanted.(type) {
	case map[string]any:
		if live, ok := live.(map[string]any); ok {
			return mergeObject(live, last, wanted, s)
		}
	case []any:
		if live, ok := live.([]any); ok {
			return mergeList(live, last, wanted, s)
		}
	}
	if equal(live, wanted) {
		return live
	}
	return wanted
}

// mergeList merges the items of lists that something tells in both of them. The keys that
// the schema names come first: where two items have the same, others may tell them. Other
// lists are replaced.
func mergeList(live []any, last any, wanted []any, s *Schema) []any {
	switch {
	case equal(live, wanted):
		return live
	case s.set():
		return mergeItems(live, last, wanted, nil, s)
	case s.atomic():
		return wanted
	}
	candidates := [][]string{}
	if keys := s.mapKeys(); len(keys) > 0 {
		candidates = append(candidates, keys)
	}
	for _, key := range guessedKeys {
		candidates = append(candidates, []string{key})
	}
	for _, keys := range candidates {
		if distinct(live, keys, s) && distinct(wanted, keys, s) {
			return mergeItems(live, last, wanted, keys, s)
		}
	}
	return wanted
}

func distinct(list []any, keys []string, s *Schema) bool {
	seen := make(map[string]bool, len(list))
	for _, item := range list {
		id, ok := identity(item, keys, s)
		if !ok || seen[id] {
			return false
		}
		seen[id] = true
	}
	return true
}

// identity tells an item of a list by some of its fields, or, without keys, by its value.
func identity(item any, keys []string, s *Schema) (id string, ok bool) {
	if keys == nil {
		return fmt.Sprintf("%T %v", item, item), true
	}
	fields, _ := item.(map[string]any)
	for _, key := range keys {
		value := fields[key]
		if value == nil {
			value = s.items().defaultOf(key)
		}
		if value == nil {
			return "", false
		}
		id += fmt.Sprintf("%v\x00", value)
	}
	return id, true
}

// mergeItems returns the wanted items in their order, and between them, where they are,
// those that nobody but others wanted.
func mergeItems(live []any, last any, wanted []any, keys []string, s *Schema) []any {
	were, some := last.([]any)
	all := last != nil && !some
	lastItems := make(map[string]any, len(were))
	for _, item := range were {
		if id, ok := identity(item, keys, s); ok {
			lastItems[id] = item
		}
	}
	want := make(map[string]bool, len(wanted))
	for _, item := range wanted {
		id, _ := identity(item, keys, s)
		want[id] = true
	}
	place := make(map[string]int, len(live))
	var others []int
	for i, item := range live {
		id, _ := identity(item, keys, s)
		place[id] = i
		if _, ours := lastItems[id]; !want[id] && !ours && !all {
			others = append(others, i)
		}
	}
	after := make([]any, 0, len(wanted)+len(others))
	for i, before := range placesOf(wanted, place, keys, s, len(live)) {
		for len(others) > 0 && others[0] < before {
			after, others = append(after, live[others[0]]), others[1:]
		}
		id, _ := identity(wanted[i], keys, s)
		if at, there := place[id]; there {
			after = append(after, mergeValue(live[at], lastItems[id], wanted[i], s.items()))
		} else {
			after = append(after, wanted[i])
		}
	}
	for _, i := range others {
		after = append(after, live[i])
	}
	return after
}

// placesOf returns where the wanted items are among those that there are; new ones are
// before the next one that is there.
func placesOf(wanted []any, place map[string]int, keys []string, s *Schema, end int) []int {
	places := make([]int, len(wanted))
	for i, item := range slices.Backward(wanted) {
		id, _ := identity(item, keys, s)
		if at, there := place[id]; there {
			end = at
		}
		places[i] = end
	}
	return places
}

// Patch returns the JSON merge patch that makes one object of another; empty if they are
// the same.
func Patch(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	for key := range before {
		if before[key] != nil && after[key] == nil {
			patch[key] = nil
		}
	}
	for key, value := range after {
		from, fromObject := before[key].(map[string]any)
		to, toObject := value.(map[string]any)
		switch {
		case value == nil:
		case fromObject && toObject:
			if inner := Patch(from, to); len(inner) > 0 {
				patch[key] = inner
			}
		case !equal(before[key], value):
			patch[key] = value
		}
	}
	return patch
}

// equal compares values as JSON: a field that is null is none, and 1.0 is 1.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return false
		}
		for _, key := range keys(a, b) {
			if !equal(a[key], b[key]) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case int64:
		if b, ok := b.(float64); ok {
			return float64(a) == b
		}
	case float64:
		if b, ok := b.(int64); ok {
			return a == float64(b)
		}
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

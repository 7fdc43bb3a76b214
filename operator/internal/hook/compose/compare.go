package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"
)

func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// Difference returns the path of the first field in which two versions of an object
// differ, but for what the API server counts and dates; "" if there is none. Status is not
// compared.
func Difference(a, b *Object) string {
	for _, key := range keys(a.Object, b.Object) {
		switch key {
		case "status":
			continue
		case "metadata":
			am, _ := a.Object[key].(map[string]any)
			bm, _ := b.Object[key].(map[string]any)
			for _, field := range []string{"labels", "annotations", "ownerReferences", "finalizers"} {
				if path := difference("metadata."+field, own(am[field]), own(bm[field])); path != "" {
					return path
				}
			}
			continue
		}
		if path := difference(key, a.Object[key], b.Object[key]); path != "" {
			return path
		}
	}
	return ""
}

// own returns annotations without those that keep what was applied.
func own(metadata any) any {
	of, ok := metadata.(map[string]any)
	if !ok {
		return metadata
	}
	of = maps.Clone(of)
	delete(of, AnnotationLastApplied)
	delete(of, AnnotationApplied)
	if len(of) == 0 {
		return nil
	}
	return of
}

func keys(a, b map[string]any) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func difference(path string, a, b any) string {
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	if aIsMap && bIsMap {
		for _, key := range keys(am, bm) {
			if inner := difference(path+"."+key, am[key], bm[key]); inner != "" {
				return inner
			}
		}
		return ""
	}
	as, aIsSlice := a.([]any)
	bs, bIsSlice := b.([]any)
	if aIsSlice && bIsSlice && len(as) == len(bs) {
		for i := range as {
			if inner := difference(fmt.Sprintf("%s[%d]", path, i), as[i], bs[i]); inner != "" {
				return inner
			}
		}
		return ""
	}
	if reflect.DeepEqual(a, b) {
		return ""
	}
	return path
}

// maxTimes is how many values of a parent are looked at for times.
const maxTimes = 20_000

// NextTime returns the first RFC 3339 time after now that a parent has outside its
// metadata and status. The status is the hook's own: a time in it that it moves on with
// each call would wake it for ever.
func NextTime(parent *Object, now time.Time) (next time.Time, ok bool) {
	left := maxTimes
	for key, value := range parent.Object {
		if key != "metadata" && key != "status" {
			nextTime(value, now, &next, &left)
		}
	}
	return next, !next.IsZero()
}

func nextTime(value any, now time.Time, next *time.Time, left *int) {
	if *left--; *left < 0 {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for _, inner := range value {
			nextTime(inner, now, next, left)
		}
	case []any:
		for _, inner := range value {
			nextTime(inner, now, next, left)
		}
	case string:
		// The shortest is 2006-01-02T15:04:05Z.
		if len(value) < 20 || len(value) > 40 || value[4] != '-' {
			return
		}
		if at, err := time.Parse(time.RFC3339, value); err == nil && at.After(now) && (next.IsZero() || at.Before(*next)) {
			*next = at
		}
	}
}

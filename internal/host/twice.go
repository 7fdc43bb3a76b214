package host

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/admitkit/admitkit/extension"
)

// Check returns an error if a part is there twice, or two Converters are for one
// CustomResourceDefinition.
func (p *Parts) Check() error {
	known := map[string]bool{}
	for _, c := range p.Converters {
		if known[c.CRD] {
			return fmt.Errorf("there are two Converters of %q: make one of them, with all versions", c.CRD)
		}
		known[c.CRD] = true
	}
	for i, r := range p.Reconcilers {
		if isAmong(r, p.Reconcilers[:i]) {
			return twice(r)
		}
	}
	for i, w := range p.Watchers {
		if isAmong(w, p.Watchers[:i]) {
			return twice(valueOf(w))
		}
	}
	for i, h := range p.Handlers {
		if slices.ContainsFunc(p.Handlers[:i], func(other *extension.Handler) bool { return doTheSame(h, other) }) {
			return twice(inside.Value(h))
		}
	}
	return nil
}

// doTheSame reports whether two Handlers are one, or of one value with one scope.
func doTheSame(a, b *extension.Handler) bool {
	value := addressOf(inside.Value(a))
	return a == b || value != nil && value == addressOf(inside.Value(b)) &&
		inside.Mutates(a) == inside.Mutates(b) && reflect.DeepEqual(inside.Scope(a), inside.Scope(b))
}

func isAmong[T any](value T, others []T) bool {
	same := addressOf(value)
	return same != nil && slices.ContainsFunc(others, func(other T) bool { return addressOf(other) == same })
}

// addressOf returns the pointer that a value is, or nil. Values without a field may have one
// address.
func addressOf(value any) any {
	if typ := reflect.TypeOf(value); typ != nil && typ.Kind() == reflect.Pointer && typ.Elem().Size() > 0 {
		return value
	}
	return nil
}

func twice(part any) error {
	return fmt.Errorf("%T is added twice, and would do everything twice: add it once", part)
}

package patch

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxDepth is how deep a tree may nest: as deep as encoding/json reads.
const maxDepth = 10_000

// checkTree returns an error if a tree holds a value that the API machinery does not
// have in trees. It panics when it copies one, which is long after the handler that
// put the value there has returned.
func checkTree(tree any) error {
	path, problem := foreignValue(tree, maxDepth)
	if problem == "" {
		return nil
	}
	slices.Reverse(path)
	return fmt.Errorf("%.200s %s", strings.TrimPrefix(strings.Join(path, ""), "."), problem)
}

// foreignValue returns the path to such a value, its last step first, and what is
// wrong with it: nothing if there is none.
func foreignValue(value any, depth int) (path []string, problem string) {
	if depth == 0 {
		return nil, fmt.Sprintf("nests deeper than %d values: is it a part of itself?", maxDepth)
	}
	switch value := value.(type) {
	case nil, string, bool, int64, float64, json.Number:
		return nil, ""
	case map[string]any:
		for key, member := range value {
			if path, problem := foreignValue(member, depth-1); problem != "" {
				return append(path, "."+key), problem
			}
		}
		return nil, ""
	case []any:
		for i, item := range value {
			if path, problem := foreignValue(item, depth-1); problem != "" {
				return append(path, "["+strconv.Itoa(i)+"]"), problem
			}
		}
		return nil, ""
	}
	problem = fmt.Sprintf("is of type %T, which an unstructured object cannot hold", value)
	if instead := insteadOf(reflect.TypeOf(value)); instead != "" {
		problem += "; use " + instead
	}
	return nil, problem
}

// insteadOf returns the type that a tree has for values of another one.
func insteadOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "int64"
	case reflect.Float32, reflect.Float64:
		return "float64"
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Slice, reflect.Array:
		return "[]any"
	case reflect.Map, reflect.Struct:
		return "map[string]any"
	case reflect.Pointer:
		return insteadOf(t.Elem())
	}
	return ""
}

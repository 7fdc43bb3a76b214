package jsonpatch

import (
	"strconv"
	"strings"
)

// maxFields bounds how many fields are named.
const maxFields = 20

// Fields names the fields that a patch changes, such as spec.containers[0].image, for
// people. It says why if the patch cannot be read.
func Fields(patch []byte) string {
	decoded, err := Decode(patch)
	if err != nil {
		return err.Error()
	}
	var fields []string
	named := map[string]bool{}
	for _, path := range decoded.Paths() {
		field := fieldOf(path)
		if !named[field] && len(named) < maxFields {
			fields = append(fields, field)
		}
		named[field] = true
	}
	more := ""
	if n := len(named) - len(fields); n > 0 {
		more = " and " + strconv.Itoa(n) + " more"
	}
	return strings.Join(fields, ", ") + more
}

// fieldOf names the field of a path.
func fieldOf(path []string) string {
	var name strings.Builder
	for i, step := range path {
		_, err := strconv.Atoi(step)
		switch {
		case err == nil || step == "-":
			name.WriteString("[" + step + "]")
		case strings.ContainsAny(step, "./"):
			name.WriteString("[" + strconv.Quote(step) + "]")
		default:
			if i > 0 {
				name.WriteByte('.')
			}
			name.WriteString(step)
		}
	}
	return name.String()
}

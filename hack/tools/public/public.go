// Package public says which packages of the module are its public API.
package public

import (
	"slices"
	"strings"
)

// Is reports it for the package of a name, at a path within the module. Of what is
// generated, the fakes follow the interfaces.
func Is(name, path string) bool {
	return name != "main" && !slices.Contains(strings.Split(path, "/"), "internal") && path != "testing/fakes" && !strings.HasPrefix(path, "examples")
}

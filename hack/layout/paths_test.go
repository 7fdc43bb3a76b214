package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A step of a path in docs/architecture.md: 3. `requests.Reconcile` (`reconciler.go`) ...
var step = regexp.MustCompile("^([0-9]+)\\. `([A-Za-z.]+)` \\(`([^`]+)`")

// maxSteps keeps a path short enough to follow.
const maxSteps = 10

func TestThePathsOfTheArchitectureAreThoseOfTheCode(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var folder string // of the package whose first step it is, or whose room has it: the files of the others are relative to it
	var passed []string
	paths := 0
	for line := range strings.Lines(string(page)) {
		match := step.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		number, function, file := match[1], match[2], match[3]
		if number == "1" {
			folder, _, _ = strings.Cut(filepath.Dir(file), "/internal/")
			passed = nil
			paths++
		} else {
			file = filepath.Join(folder, file)
		}
		if i := slices.Index(passed, file); i >= 0 && i < len(passed)-1 {
			t.Errorf("step %s, %s, goes back to %s", number, function, file)
		}
		if passed = append(passed, file); len(passed) > maxSteps {
			t.Errorf("step %s: a path has at most %d steps", number, maxSteps)
		}
		if !declares(t, filepath.Join(root, file), function) {
			t.Errorf("step %s: %s has no %s", number, file, function)
		}
	}
	if paths != 2 {
		t.Errorf("%d paths are described, want that of a grant and that of a record", paths)
	}
}

// declares reports whether a file declares a function, package.Function or
// Type.Method. An interface's method counts, too.
func declares(t *testing.T, path, name string) bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Error(err)
		return false
	}
	before, after, qualified := strings.Cut(name, ".")
	if !qualified {
		after = name
	}
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != after {
			return false
		}
		return f.Recv == nil || strings.EqualFold(receiver(f), before) || isSink(before)
	})
}

// isSink: each sink has a type of its own for the method of the interface.
func isSink(name string) bool { return name == "Sink" }

func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if pointer, ok := typ.(*ast.StarExpr); ok {
		typ = pointer.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	if name, ok := typ.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

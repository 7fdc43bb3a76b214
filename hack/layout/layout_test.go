// Package layout measures the size of the code itself.
package layout

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

const root = "../.."

// maxReadmeLines keeps the README on one page: the rest is in docs.
const maxReadmeLines = 120

func TestTheHouseIsInOrder(t *testing.T) {
	packages := map[string]int{} // files by folder
	long, unsafeLines := 0, 0
	for _, path := range sources(t) {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(file) {
			continue
		}
		packages[filepath.Dir(path)]++
		long += functionsOver(50, files, file)
		unsafeLines += linesWithUnsafe(files, file)
	}
	largest := 0
	for _, count := range packages {
		largest = max(largest, count)
	}
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Count(readme, []byte("\n"))
	if lines > maxReadmeLines {
		t.Errorf("README.md has %d lines, more than %d", lines, maxReadmeLines)
	}
	testkit.Figure("house.largest_package_files", float64(largest), "files")
	testkit.Figure("house.functions_over_50", float64(long), "functions")
	testkit.Figure("house.readme_lines", float64(lines), "lines")
	testkit.Figure("house.unsafe_lines", float64(unsafeLines), "lines")
}

// sources returns the Go files of the library and the operator that are no tests.
func sources(t *testing.T) []string {
	t.Helper()
	var paths []string
	if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && (name == "bin" || name == "testdata" || strings.HasPrefix(name, ".") || isModule(path)) {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			paths = append(paths, path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(paths) < 100 {
		t.Fatalf("only %d files are found", len(paths))
	}
	return paths
}

func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil && folder != filepath.Join(root, "operator")
}

// functionsOver counts the functions with more lines than that, from func to the
// closing brace.
func functionsOver(lines int, files *token.FileSet, file *ast.File) (count int) {
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if ok && files.Position(f.End()).Line-files.Position(f.Pos()).Line+1 > lines {
			count++
		}
	}
	return count
}

// linesWithUnsafe counts the lines that use package unsafe.
func linesWithUnsafe(files *token.FileSet, file *ast.File) int {
	lines := map[int]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		if use, ok := node.(*ast.SelectorExpr); ok {
			if of, ok := use.X.(*ast.Ident); ok && of.Name == "unsafe" {
				lines[files.Position(use.Pos()).Line] = true
			}
		}
		return true
	})
	return len(lines)
}

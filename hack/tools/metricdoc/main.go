// Command metricdoc prints the page docs/metrics.md of a module: every metric that a package
// in the folders that are its arguments registers, with its labels and its help. It reads the
// Go source, so that the page and the metrics cannot differ.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const head = `# Metrics

<!-- Written by make generate from the metrics in the code: their names, labels and help. -->

` + "`/metrics` is at `--metrics-address`, with the metrics of controller-runtime, of the Go runtime and of the process beside these.\n" +
	"[Operations](%s/operations.md#metrics) says which of them to alert on.\n"

func main() {
	dir := flag.String("dir", ".", "folder of the module")
	operations := flag.String("operations", ".", "folder of operations.md, as the page sees it")
	flag.Parse()
	page, err := write(*dir, *operations, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "metricdoc:", err)
		os.Exit(1)
	}
	fmt.Print(page)
}

func write(dir, operations string, folders []string) (string, error) {
	var page strings.Builder
	fmt.Fprintf(&page, head, operations)
	for _, folder := range folders {
		sections, err := sectionsOf(dir, folder)
		if err != nil {
			return "", err
		}
		for _, s := range sections {
			s.write(&page)
		}
	}
	return page.String(), nil
}

// section is a package with metrics.
type section struct {
	folder  string
	intro   []string // the comments of the declarations
	metrics []metric
}

type metric struct {
	name, typ, help string
	labels          []string
}

func (s *section) write(page *strings.Builder) {
	fmt.Fprintf(page, "\n## %s\n", s.folder)
	for _, text := range s.intro {
		page.WriteString("\n" + text)
	}
	page.WriteString("\n| metric | type | labels | |\n|---|---|---|---|\n")
	for _, m := range s.metrics {
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", m.name, m.typ, strings.Join(m.labels, ", "), m.help)
	}
}

// sectionsOf returns the packages below a folder that have metrics.
func sectionsOf(dir, folder string) ([]*section, error) {
	var sections []*section
	byFolder := map[string]*section{}
	err := filepath.WalkDir(filepath.Join(dir, folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		intro, metrics, err := metricsOf(path)
		if err != nil || len(metrics) == 0 {
			return err
		}
		name, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			return err
		}
		s := byFolder[name]
		if s == nil {
			s = &section{folder: filepath.ToSlash(name)}
			byFolder[name], sections = s, append(sections, s)
		}
		s.intro, s.metrics = append(s.intro, intro...), append(s.metrics, metrics...)
		return nil
	})
	return sections, err
}

// metricsOf returns the metrics of a file and the comments of their declarations.
func metricsOf(path string) (intro []string, metrics []metric, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	var problems []error
	for _, decl := range file.Decls {
		before := len(metrics)
		ast.Inspect(decl, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok && isConstructor(call) {
				m, err := metricOf(file, call)
				if err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", path, err))
				}
				metrics = append(metrics, m)
			}
			return true
		})
		if d, ok := decl.(*ast.GenDecl); ok && len(metrics) > before && d.Doc != nil {
			intro = append(intro, d.Doc.Text())
		}
	}
	return intro, metrics, errors.Join(problems...)
}

// isConstructor reports whether a call makes a metric: prometheus.NewGauge(...).
func isConstructor(call *ast.CallExpr) bool {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	of, ok := function.X.(*ast.Ident)
	if !ok || of.Name != "prometheus" {
		return false
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return false
	}
	typ, ok := options.Type.(*ast.SelectorExpr)
	return ok && strings.HasSuffix(typ.Sel.Name, "Opts")
}

func metricOf(file *ast.File, call *ast.CallExpr) (metric, error) {
	typ := strings.TrimPrefix(call.Fun.(*ast.SelectorExpr).Sel.Name, "New")
	m := metric{typ: strings.ToLower(strings.TrimSuffix(typ, "Vec"))}
	for _, element := range call.Args[0].(*ast.CompositeLit).Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := pair.Key.(*ast.Ident); key.Name {
		case "Name":
			m.name = textOf(pair.Value)
		case "Help":
			m.help = textOf(pair.Value)
		}
	}
	if m.name == "" || m.help == "" {
		return m, fmt.Errorf("metric %q: Name and Help must be string literals", m.name)
	}
	if len(call.Args) > 1 {
		if m.labels = labelsOf(file, call.Args[1]); len(m.labels) == 0 {
			return m, fmt.Errorf("metric %s: its labels must be a literal, or a variable of its file that is set to one", m.name)
		}
	}
	return m, nil
}

// labelsOf returns the strings of a slice: a literal, or a variable of the file.
func labelsOf(file *ast.File, expression ast.Expr) []string {
	if name, ok := expression.(*ast.Ident); ok {
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok {
				if i := slices.IndexFunc(spec.Names, func(n *ast.Ident) bool { return n.Name == name.Name }); i >= 0 && i < len(spec.Values) {
					expression = spec.Values[i]
				}
			}
			return true
		})
	}
	literal, ok := expression.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	var labels []string
	for _, element := range literal.Elts {
		labels = append(labels, textOf(element))
	}
	return labels
}

// textOf returns the value of a string literal, or of literals that are joined.
func textOf(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	}
	return ""
}

// Command optiondoc prints docs/options.md: every field of manager.Options, with
// its comment and its flag, and every field of extension.Scope. It reads the Go
// source, so that the page and the comments cannot differ.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const head = `# Options

<!-- Written by make generate from the comments in manager/options.go, manager/command/flags.go and extension/scope.go. -->

Every field of ` + "`manager.Options`, with the flag that sets it; fields without a flag are for programs only. Each flag can be\n" +
	"given by an environment variable too: `--webhook-namespace` by `ADMITKIT_WEBHOOK_NAMESPACE`. The logger's `--zap-` flags are\n" +
	"controller-runtime's. `Serving.ServicePort` is the field ServicePort of the group Serving:\n\n" +
	"\tmanager.Options{Serving: manager.ServingOptions{ServicePort: 8443}}\n"

const scopeHead = `
# Scope

Every field of ` + "`extension.Scope`, which says for one extension what the API server sends to it.\n"

func main() {
	dir := flag.String("dir", ".", "root of the repository")
	flag.Parse()
	page, err := write(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "optiondoc:", err)
		os.Exit(1)
	}
	fmt.Print(page)
}

func write(dir string) (string, error) {
	flags, err := flagsOf(filepath.Join(dir, "manager/command/flags.go"))
	if err != nil {
		return "", err
	}
	options, err := fieldsOf(filepath.Join(dir, "manager/options.go"), "Options", "")
	if err != nil {
		return "", err
	}
	scope, err := fieldsOf(filepath.Join(dir, "extension/scope.go"), "Scope", "")
	if err != nil {
		return "", err
	}
	var page strings.Builder
	page.WriteString(head)
	for _, field := range options {
		field.write(&page, flags)
	}
	page.WriteString(scopeHead)
	for _, field := range scope {
		field.write(&page, nil)
	}
	return page.String(), nil
}

// field is one, or several that share a comment.
type field struct {
	names        []string
	typ, comment string
}

func (f field) write(page *strings.Builder, flags map[string]string) {
	fmt.Fprintf(page, "\n## %s\n\n`%s`", strings.Join(f.names, ", "), f.typ)
	for _, name := range f.names {
		if flags[name] != "" {
			fmt.Fprintf(page, " · `--%s`", flags[name])
		}
	}
	fmt.Fprintf(page, "\n\n%s", markdown(f.comment))
}

var reference = regexp.MustCompile(`\[((?:\w+\.)*[A-Z]\w*)\]`)

// markdown returns a Go comment as Markdown.
func markdown(comment string) string {
	return reference.ReplaceAllString(comment, "`$1`")
}

// fieldsOf returns the fields of a struct type. In place of a field whose type is a
// struct in the same file it returns the fields of that, each with its path.
func fieldsOf(path, typ, group string) ([]field, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	structure := structOf(file, typ)
	if structure == nil {
		return nil, fmt.Errorf("%s: no struct type %s", path, typ)
	}
	var fields []field
	var problems []error
	for _, f := range structure.Fields.List {
		if len(f.Names) == 0 || !f.Names[0].IsExported() {
			continue
		}
		if nested, ok := f.Type.(*ast.Ident); ok && structOf(file, nested.Name) != nil {
			inner, err := fieldsOf(path, nested.Name, group+f.Names[0].Name+".")
			fields, problems = append(fields, inner...), append(problems, err)
			continue
		}
		found := field{comment: f.Doc.Text()}
		for _, name := range f.Names {
			found.names = append(found.names, group+name.Name)
		}
		var text strings.Builder
		problems = append(problems, printer.Fprint(&text, files, f.Type))
		found.typ = text.String()
		if found.comment == "" {
			problems = append(problems, fmt.Errorf("%s: %s.%s has no comment", path, typ, f.Names[0]))
		}
		fields = append(fields, found)
	}
	return fields, errors.Join(problems...)
}

// structOf returns a struct type of a file, nil if there is none of the name.
func structOf(file *ast.File, name string) *ast.StructType {
	var found *ast.StructType
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.TypeSpec); ok && spec.Name.Name == name {
			found, _ = spec.Type.(*ast.StructType)
		}
		return found == nil
	})
	return found
}

// parsed are the flags that have a variable of their own first.
var parsed = map[string]string{
	"f.podSelector": "PodSelector", "f.failurePolicy": "FailurePolicy", "f.setup": "SetupCertificate",
	"f.drainPeriod": "Serving.DrainPeriod", "f.probe": "Registration.Probe",
}

// flagsOf returns the flags by the paths of the fields that they are bound to:
// set.Int32Var(&o.Serving.ServicePort, "service-port", ...).
func flagsOf(path string) (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	flags := map[string]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		target, ok := call.Args[0].(*ast.UnaryExpr)
		name, isText := call.Args[1].(*ast.BasicLit)
		if !ok || !isText {
			return true
		}
		option := types.ExprString(target.X)
		if field := parsed[option]; field != "" {
			option = field
		}
		flags[strings.TrimPrefix(option, "o.")] = strings.Trim(name.Value, `"`)
		return true
	})
	if len(flags) == 0 {
		return nil, fmt.Errorf("%s: no flags", path)
	}
	return flags, nil
}

// Command apilist prints the public API of the module in a folder: one line for
// each constant, variable, function, type, field and method that another module
// can use. make generate writes it to docs/api.txt, and make verify fails when the
// API has changed and that file has not, so that no change goes unnoticed in
// review.
//
//	go run -C hack/tools ./apilist -dir "$PWD"
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"go/types"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"

	"github.com/admitkit/admitkit/hack/tools/public"
)

func main() {
	dir := flag.String("dir", ".", "folder of the module")
	flag.Parse()
	lines, err := list(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "apilist:", err)
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	for _, line := range lines {
		_, _ = out.WriteString(line + "\n")
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "apilist:", err)
		os.Exit(1)
	}
}

func list(dir string) ([]string, error) {
	loaded, err := packages.Load(&packages.Config{Dir: dir, Mode: packages.NeedName | packages.NeedTypes | packages.NeedModule}, "./...")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, p := range loaded {
		for _, problem := range p.Errors {
			return nil, problem
		}
		if p.Module == nil {
			return nil, errors.New("package " + p.PkgPath + " is in no module")
		}
		if path := strings.TrimPrefix(p.PkgPath, p.Module.Path+"/"); public.Is(p.Name, path) {
			lines = append(lines, listPackage(path, p.Types)...)
		}
	}
	return lines, nil
}

func listPackage(path string, p *types.Package) []string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, "pkg "+path+", "+fmt.Sprintf(format, args...))
	}
	within := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Path()
	}
	text := func(t types.Type) string { return types.TypeString(t, within) }
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch object := object.(type) {
		case *types.Const:
			add("const %s %s = %s", name, text(object.Type()), object.Val())
		case *types.TypeName:
			listType(object, add, text)
		default:
			add("%s", types.ObjectString(object, within))
		}
	}
	return lines
}

// listType lists a type with its exported fields and methods.
func listType(object *types.TypeName, add func(string, ...any), text func(types.Type) string) {
	name := object.Name()
	named, isNamed := object.Type().(*types.Named)
	if object.IsAlias() || !isNamed {
		add("type %s = %s", name, text(types.Unalias(object.Type())))
		return
	}
	switch under := named.Underlying().(type) {
	case *types.Struct:
		add("type %s struct", text(named))
		for field := range under.Fields() {
			if field.Embedded() && field.Exported() {
				add("type %s struct, embeds %s", name, text(field.Type()))
			} else if field.Exported() {
				add("type %s struct, %s %s", name, field.Name(), text(field.Type()))
			}
		}
	case *types.Interface:
		add("type %s interface", text(named))
		for embedded := range under.EmbeddedTypes() {
			add("type %s interface, embeds %s", name, text(embedded))
		}
		for method := range under.ExplicitMethods() {
			add("type %s interface, %s%s", name, method.Name(), strings.TrimPrefix(text(method.Type()), "func"))
		}
	default:
		add("type %s %s", text(named), text(under))
	}
	for method := range named.Methods() {
		if method.Exported() && !strings.HasPrefix(method.Name(), "DeepCopy") {
			signature := method.Type().(*types.Signature)
			add("method (%s) %s%s", text(signature.Recv().Type()), method.Name(), strings.TrimPrefix(text(signature), "func"))
		}
	}
}

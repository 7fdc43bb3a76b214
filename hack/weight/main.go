// Command weight builds a webhook three times, on controller-runtime alone, on
// package manager, and with the command line of manager/command, and prints how
// much larger admitkit makes it:
//
//	FIGURE weight.binary_ratio=1.08 ratio
//
// It fails if a ratio is above its bound, or if the linker has to keep every exported
// method, because a function that is linked looks methods up by names or numbers that
// are no constants; text/template does. That is 10 MB, and one call brings it. It runs from
// the module's root; see `make weight`.
package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	library := flag.Float64("library", 1.115, "how many times as large as plain the program on package manager may be")
	program := flag.Float64("program", 1.37, "the same, with the command line")
	out := flag.String("out", "bin/weight", "folder for the binaries")
	doc := flag.String("write", "", "file whose table is written anew, docs/weight.md")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *out, *doc, *library, *program)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "weight:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, doc string, libraryBound, programBound float64) error {
	var weights [3]weighed
	for i, name := range []string{"plain", "library", "program"} {
		var err error
		if weights[i], err = weigh(ctx, out, name); err != nil {
			return err
		}
	}
	plain, library, program := weights[0], weights[1], weights[2]
	text := table(plain, library, program)
	fmt.Print(text)
	fmt.Printf("FIGURE weight.binary_ratio=%.3f ratio\n", program.ratio(plain))
	fmt.Printf("FIGURE weight.library_ratio=%.3f ratio\n", library.ratio(plain))
	fmt.Printf("FIGURE weight.modules_added=%d modules\n", len(program.added(plain)))
	fmt.Printf("FIGURE weight.library_modules_added=%d modules\n", len(library.added(plain)))
	if doc != "" {
		if err := write(doc, text); err != nil {
			return err
		}
	}
	return errors.Join(
		plain.check(plain, 1), library.check(plain, libraryBound), program.check(plain, programBound))
}

// weighed is what one program weighs.
type weighed struct {
	name    string
	bytes   int64
	modules []string
	// keepers are the functions for which the linker keeps every exported method.
	keepers []string
}

// weigh builds a program as it would be shipped.
func weigh(ctx context.Context, out, name string) (weighed, error) {
	w := weighed{name: name}
	binary := filepath.Join(out, name)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -dumpdep", "-o", binary, "./hack/weight/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	var graph bytes.Buffer
	build.Stderr = &graph
	if err := build.Run(); err != nil {
		return w, fmt.Errorf("%s: %w\n%s", build, err, graph.Bytes())
	}
	w.keepers = keepers(&graph)
	file, err := os.Stat(binary)
	if err != nil {
		return w, err
	}
	w.bytes = file.Size()
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return w, err
	}
	for _, module := range info.Deps {
		w.modules = append(w.modules, module.Path)
	}
	if name != "plain" {
		// It is a dependency of each program but ours.
		w.modules = append(w.modules, info.Main.Path)
	}
	return w, nil
}

// keepers finds the marked functions in what the linker prints, lines such as
// "main.main -> text/template.(*state).evalField <ReflectMethod>". A function is marked
// for every method that is kept for the first one, so the first ones say why.
func keepers(graph *bytes.Buffer) []string {
	var all []string
	lines := bufio.NewScanner(graph)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if _, to, _ := strings.Cut(lines.Text(), " -> "); strings.HasSuffix(to, " <ReflectMethod>") {
			all = append(all, strings.TrimSuffix(to, " <ReflectMethod>"))
		}
	}
	return all
}

func (w weighed) ratio(plain weighed) float64 { return float64(w.bytes) / float64(plain.bytes) }

// added are the modules that a program has and plain has not.
func (w weighed) added(plain weighed) []string {
	known := map[string]bool{}
	for _, module := range plain.modules {
		known[module] = true
	}
	var added []string
	for _, module := range w.modules {
		if !known[module] {
			added = append(added, module)
		}
	}
	return added
}

// check returns what is wrong with a program's weight.
func (w weighed) check(plain weighed, bound float64) error {
	var errs []error
	if len(w.keepers) > 0 {
		errs = append(errs, fmt.Errorf("%s: the linker keeps every exported method of every type, because of a call of reflect's Method or MethodByName in one of: %s; "+
			"give it a constant, or keep its package out of the program", w.name, strings.Join(w.keepers[:min(len(w.keepers), 20)], ", ")))
	}
	if ratio := w.ratio(plain); ratio > bound {
		errs = append(errs, fmt.Errorf("%s: %.3f times as large as plain, which is above the bound, %.3f; compare the two with go tool nm -size, and see docs/weight.md", w.name, ratio, bound))
	}
	return errors.Join(errs...)
}

func table(plain weighed, others ...weighed) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s, %s/%s | MB | ratio | modules | added |\n|---|---|---|---|---|\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, w := range append([]weighed{plain}, others...) {
		fmt.Fprintf(&text, "| %s | %.2f | %.3f | %d | %s |\n", w.name, float64(w.bytes)/1e6, w.ratio(plain), len(w.modules), strings.Join(w.added(plain), ", "))
	}
	return text.String()
}

const begin, end = "<!-- weight -->\n", "<!-- /weight -->\n"

// write puts the table into a page, between its two comments.
func write(doc, table string) error {
	page, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return fmt.Errorf("%s: the comments %q and %q are missing", doc, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(doc, []byte(before+begin+table+end+after), 0o600)
}

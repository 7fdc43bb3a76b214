package rego

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// MaxTestFiles is how many .rego files a folder of tests can have.
const MaxTestFiles = 1000

// Errors of [Test].
var (
	// ErrTestsFailed means that tests ran, and that at least one failed.
	ErrTestsFailed = errors.New("tests failed")
	// ErrNoTests means that there is nothing to run, which is no success.
	ErrNoTests = errors.New("no tests")
)

// TestOptions say which tests [Test] runs, and how.
type TestOptions struct {
	// Version is the version of the language that the files are in. Default: [V1].
	Version string
	// Run is a regular expression. Only tests whose names match it run.
	Run string
	// Timeout is how long one test can take. Default: 5s.
	Timeout time.Duration
}

// Test runs the rules that begin with test_ in the .rego files of a folder and of those
// below it, and prints a line for each, with the reason for those that fail. A rule that begins
// with todo_test_ is skipped. Policies have the builtins of a hook, and none that were taken away.
func Test(ctx context.Context, out io.Writer, dir fs.FS, options TestOptions) error {
	source := Source{Version: cmp.Or(options.Version, V1)}
	if source.Version != V0 && source.Version != V1 {
		return fmt.Errorf("version: %q is neither %s nor %s", source.Version, V0, V1)
	}
	var err error
	if source.Modules, err = readModules(dir); err != nil {
		return err
	}
	modules, err := source.parse()
	if err != nil {
		return err
	}
	capable := capabilities(source.Version)
	for _, builtin := range ast.CapabilitiesForThisVersion().Builtins {
		// The runner puts calls of these into the tests.
		if takenAway[builtin.Name] == internal {
			capable.Builtins = append(capable.Builtins, builtin)
		}
	}
	compiler := newCompiler(source.Version).WithCapabilities(capable).WithEnablePrintStatements(true)
	results, err := tester.NewRunner().
		SetCompiler(compiler).
		SetModules(modules).
		SetTimeout(cmp.Or(options.Timeout, 5*time.Second)).
		EnableTracing(true).
		Filter(options.Run).
		RunTests(ctx, nil)
	if err != nil {
		if failed, ok := errors.AsType[ast.Errors](err); ok {
			return compileError(failed)
		}
		return err
	}
	return report(ctx, out, results, options)
}

func readModules(dir fs.FS) ([]Module, error) {
	var modules []Module
	err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".rego" {
			return err
		}
		if len(modules) == MaxTestFiles {
			return fmt.Errorf("%s: there are more than %d .rego files", name, MaxTestFiles)
		}
		file, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // it was read
		text, err := io.ReadAll(io.LimitReader(file, MaxSourceBytes+1))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(text) > MaxSourceBytes {
			return fmt.Errorf("%s: it has more than %d bytes", name, MaxSourceBytes)
		}
		modules = append(modules, Module{Name: name, Text: string(text)})
		return nil
	})
	if err == nil && len(modules) == 0 {
		err = fmt.Errorf("%w: there is no .rego file", ErrNoTests)
	}
	return modules, err
}

// report prints the results in the order of the files, whatever order they came in.
func report(ctx context.Context, out io.Writer, came <-chan *tester.Result, options TestOptions) error {
	var results []*tester.Result
	for result := range came {
		// The runner sends nothing for a test that it did not come to.
		if result != nil {
			results = append(results, result)
		}
	}
	slices.SortFunc(results, func(a, b *tester.Result) int {
		return cmp.Or(a.Location.Compare(b.Location), cmp.Compare(a.Name, b.Name))
	})
	failed, passed := 0, 0
	var text strings.Builder
	for _, result := range results {
		name := result.Package + "." + result.Name
		switch {
		case result.Skip:
			fmt.Fprintf(&text, "skip  %s\n", name)
			continue
		case result.Pass():
			passed++
			fmt.Fprintf(&text, "pass  %s  %s\n", name, result.Duration.Round(time.Microsecond))
			continue
		}
		failed++
		fmt.Fprintf(&text, "FAIL  %s\n      %s\n", name, why(result))
		for line := range strings.Lines(string(result.Output)) {
			fmt.Fprintf(&text, "      print: %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	fmt.Fprintf(&text, "%d passed, %d failed\n", passed, failed)
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case failed > 0:
		return fmt.Errorf("%d of %d %w", failed, failed+passed, ErrTestsFailed)
	case len(results) == 0 && options.Run != "":
		return fmt.Errorf("%w: no name of a rule that begins with test_ matches %q", ErrNoTests, options.Run)
	case len(results) == 0:
		return fmt.Errorf("%w: no rule begins with test_", ErrNoTests)
	}
	return nil
}

// why says what a test did not get past.
func why(result *tester.Result) string {
	place := fmt.Sprintf("%s:%d", result.Location.File, result.Location.Row)
	if result.Error != nil {
		return fmt.Sprintf("%s: %s", place, located(result.Error))
	}
	for _, event := range slices.Backward(result.Trace) {
		if event.Op != topdown.FailOp || event.Location == nil || event.Location.File != result.Location.File {
			continue
		}
		return fmt.Sprintf("%s:%d: not true: %s", event.Location.File, event.Location.Row, shorten(string(event.Location.Text)))
	}
	return place + ": it is not true"
}

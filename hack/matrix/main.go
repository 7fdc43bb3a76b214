// Command matrix runs the tests that depend on the API server on every Kubernetes
// version that admitkit supports, builds what it needs first, and writes what it
// saw into docs/support.md. It runs from the module's root; see `make matrix`.
//
// A run of some versions only (-versions, MATRIX) writes no page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// packages have the tests that depend on what the API server does.
var packages = []string{
	"./webhook", "./internal/registration", "./certs", "./manager",
	"./operator/access/...", "./operator/audit/...", "./operator/binding/...", "./operator/hook/...", "./operator/sandbox/...", "./operator/session/...",
}

func main() {
	m := &matrix{}
	only := flag.String("versions", os.Getenv("MATRIX"), "the versions to run, separated by spaces, for example \"1.34 1.35\" (MATRIX; default: all)")
	flag.StringVar(&m.binaries, "binaries", "bin/k8s", "the folder of the Kubernetes binaries")
	flag.StringVar(&m.logs, "logs", "bin/matrix", "the folder that gets the output of the tests")
	flag.StringVar(&m.page, "write", "", "the file that a complete run writes, docs/support.md")
	flag.Parse()
	m.packages = packages
	if flag.NArg() > 0 {
		m.packages, m.page = flag.Args(), "" // not what the page is about
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := m.run(ctx, strings.Fields(*only))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

type matrix struct {
	binaries, logs, page string
	packages             []string
}

// row is what was seen of one version.
type row struct {
	minor, version string
	// tested is what the kube-apiserver that ran calls itself.
	tested string
	tests  report
	took   time.Duration
	err    error
}

func (m *matrix) run(ctx context.Context, only []string) error {
	supported, err := list(ctx)
	if err != nil {
		return err
	}
	chosen, err := choose(supported, only)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.logs, 0o755); err != nil {
		return err
	}
	began := time.Now()
	failed := 0
	for i := range chosen {
		r := &chosen[i]
		r.err = m.test(ctx, r)
		if ctx.Err() != nil {
			return fmt.Errorf("stopped during %s: %w", r.version, context.Cause(ctx))
		}
		if r.err != nil {
			failed++
		}
		fmt.Println(r)
	}
	fmt.Printf("FIGURE matrix.versions=%d versions\nFIGURE matrix.failed=%d versions\n", len(chosen), failed)
	switch {
	case m.page == "":
	case len(chosen) < len(supported):
		fmt.Printf("matrix: %s is left as it is: only a run of all versions writes it\n", m.page)
	default:
		if err := os.WriteFile(m.page, support(chosen, commit(ctx), began), 0o644); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d versions failed", failed, len(chosen))
	}
	return nil
}

// list asks hack/controlplane for the versions, the newest first.
func list(ctx context.Context) ([]row, error) {
	text, err := output(ctx, "go", "run", "-C", "hack/controlplane", ".", "-list")
	if err != nil {
		return nil, fmt.Errorf("the list of supported versions: %w", err)
	}
	var rows []row
	for line := range strings.Lines(text) {
		minor, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("the list of supported versions: line %q has no version", line)
		}
		rows = append(rows, row{minor: minor, version: version})
	}
	if len(rows) == 0 {
		return nil, errors.New("the list of supported versions is empty")
	}
	return rows, nil
}

func choose(supported []row, only []string) ([]row, error) {
	if len(only) == 0 {
		return slices.Clone(supported), nil
	}
	var chosen []row
	for _, name := range only {
		i := slices.IndexFunc(supported, func(r row) bool { return r.minor == name || r.version == name })
		if i < 0 {
			return nil, fmt.Errorf("MATRIX (-versions): Kubernetes %q is not supported: name some of %s", name, names(supported))
		}
		if slices.ContainsFunc(chosen, func(r row) bool { return r.minor == supported[i].minor }) {
			return nil, fmt.Errorf("MATRIX (-versions): Kubernetes %s is named twice", supported[i].minor)
		}
		chosen = append(chosen, supported[i])
	}
	return chosen, nil
}

func names(rows []row) string {
	var list []string
	for _, r := range rows {
		list = append(list, r.minor)
	}
	return strings.Join(list, ", ")
}

// test gets a version's binaries and runs the tests on them.
func (m *matrix) test(ctx context.Context, r *row) error {
	// The operator is a module of its own: both are tested in its workspace.
	workspace, err := filepath.Abs("operator/go.work")
	if err != nil {
		return err
	}
	folder, err := filepath.Abs(filepath.Join(m.binaries, r.version))
	if err != nil {
		return err
	}
	fmt.Printf("matrix: Kubernetes %s\n", r.version)
	// What is published may be another patch. It is this one that is claimed.
	build := command(ctx, "go", "run", "-C", "hack/controlplane", ".", "-module", ".", "-out", filepath.Dir(folder), "-k8s", r.minor)
	build.Env = append(slices.DeleteFunc(os.Environ(), isAssets), "K8S_DOWNLOAD=no")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := runGroup(build); err != nil {
		return fmt.Errorf("its binaries: %w", err)
	}
	text, err := output(ctx, filepath.Join(folder, "kube-apiserver"), "--version")
	if err != nil {
		return fmt.Errorf("kube-apiserver --version: %w", err)
	}
	r.tested = strings.TrimPrefix(strings.TrimSpace(text), "Kubernetes ")
	log, err := os.Create(filepath.Join(m.logs, r.version+".log"))
	if err != nil {
		return err
	}
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	tests := command(ctx, "go", append([]string{"test", "-json", "-short", "-vet=off", "-p", "2", "-count=1", "-timeout", "30m"}, m.packages...)...)
	tests.Env = append(slices.DeleteFunc(os.Environ(), isAssets), "KUBEBUILDER_ASSETS="+folder, "GOWORK="+workspace)
	tests.Stdout, tests.Stderr = &events{report: &r.tests, log: log}, os.Stderr
	err = errors.Join(runGroup(tests), log.Close())
	switch {
	case err != nil && len(r.tests.failed) > 0:
		return fmt.Errorf("failed: %s; see %s", strings.Join(r.tests.failed, ", "), log.Name())
	case err != nil:
		return fmt.Errorf("go test: %w; see %s", err, log.Name())
	case r.tests.passed == 0:
		return fmt.Errorf("no test ran; see %s", log.Name())
	}
	return nil
}

// isAssets picks the variables that would choose another version.
func isAssets(variable string) bool {
	return strings.HasPrefix(variable, "KUBEBUILDER_ASSETS=") || strings.HasPrefix(variable, "K8S=")
}

// String is the line of a version.
func (r *row) String() string {
	result := "ok"
	if r.err != nil {
		result = "FAILED: " + r.err.Error()
	}
	return fmt.Sprintf("matrix: Kubernetes %s: kube-apiserver %s, %d tests passed, %d failed, %d skipped, %s: %s",
		r.minor, orUnknown(r.tested), r.tests.passed, len(r.tests.failed), len(r.tests.skipped), r.took.Round(time.Second), result)
}

func orUnknown(version string) string {
	if version == "" {
		return "did not run"
	}
	return version
}

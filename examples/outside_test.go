package examples_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

const library = "github.com/admitkit/admitkit"

// testOfTheProgram returns the test that the README has for its program.
func testOfTheProgram(t *testing.T) string {
	t.Helper()
	return `package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/admit"
)

` + readmeBlock(t, "go", 1)
}

// outsideModule makes a module of its own in a temporary folder, with the
// README's program and its test.
func outsideModule(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require(t, dir, "example.com/stamp")
	for name, content := range map[string]string{"main.go": readmeBlock(t, "go", 0), "main_test.go": testOfTheProgram(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// require makes a folder a module that requires the library. It begins with the
// library's own versions, so that there is nothing to download; go mod tidy
// removes those that its program does not need.
func require(t *testing.T, dir, module string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	goMod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(goMod), "module "+library, "module "+module, 1) +
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", library, library, root)
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sums)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// modules returns the modules whose code goes into a program.
func modules(t *testing.T, dir, program string) []string {
	t.Helper()
	text := goIn(t, dir, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", program)
	paths := slices.Compact(slices.Sorted(strings.FieldsSeq(text)))
	return slices.DeleteFunc(paths, func(path string) bool { return path == "example.com/stamp" })
}

// outside is the environment of a module of its own. Its flags are those of this test, so
// that what it requires is not compiled once more.
func outside() []string { return append(os.Environ(), "GOWORK=off") }

// goIn runs the go command in a folder.
func goIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if err := testkit.OpenSources(); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir, command.Env = dir, outside()
	var complaints strings.Builder
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s%s", strings.Join(args, " "), err, output, &complaints)
	}
	return string(output)
}

// built is a command line with the program that `go run .` would link once more.
func built(line, binary string) string { return strings.Replace(line, "go run . ", binary+" ", 1) }

func TestAModuleOfItsOwnBuildsTestsAndRuns(t *testing.T) {
	dir := outsideModule(t)
	goIn(t, dir, "mod", "tidy")
	goIn(t, dir, "vet", "./...")
	goIn(t, dir, "test", "./...")
	binary := filepath.Join(dir, "stamp")
	goIn(t, dir, "build", "-o", binary, ".")

	session := readmeBlock(t, "console", 0)
	first, want, _ := strings.Cut(session, "\n")
	review := exec.CommandContext(t.Context(), "sh", "-c", built(strings.TrimPrefix(first, "$ "), binary))
	if got, err := review.CombinedOutput(); err != nil || string(got) != want {
		t.Errorf("the review of the README prints (%v)\n%s", err, got)
	}

	needed := modules(t, dir, ".")
	if !slices.Contains(needed, library) {
		t.Fatalf("the program does not contain the library: %v", needed)
	}
	core := modules(t, "..", "./manager/command")
	for _, path := range needed {
		if !slices.Contains(core, path) {
			t.Errorf("module %s goes into the program and is no part of manager/command", path)
		}
	}
	for path := range strings.FieldsSeq(goIn(t, dir, "list", "-deps", ".")) {
		for _, heavy := range []string{library + "/extension/cluster", library + "/extension/deliver", library + "/extension/remote", library + "/testing/", "sigs.k8s.io/controller-runtime/pkg/envtest"} {
			if strings.HasPrefix(path, heavy) {
				t.Errorf("package %s goes into the program", path)
			}
		}
	}
	fmt.Printf("FIGURE outside.modules=%d count\n", len(needed))

	clientset := kubernetes.NewForConfigOrDie(cluster.Config())
	program := testkit.Run(t, exec.Command(binary, "start", "--namespace=default", "--advertise-host=127.0.0.1", fmt.Sprintf("--port=%d", freeport.For(t)),
		"--unregister-on-stop", "--health-address=", "--metrics-address=", "--drain-period=10ms", "--kubeconfig="+cluster.Admin().KubeConfig))
	t.Cleanup(func() { program.Stop(t) })
	testkit.Eventually(t, "a new Pod says who created it", func(ctx context.Context) bool {
		pod, err := clientset.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && pod.Annotations["example.com/created-by"] == "admin"
	})
}

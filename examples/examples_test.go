// Package examples_test runs the examples as their users do: built, started with
// flags, with the rights of their rbac.yaml and no others, on a real API server.
package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

var update = flag.Bool("update", false, "write review.txt and rbac.yaml of the examples anew")

// programs are the examples, each by the program that registers or watches.
var programs = map[string]func(*testing.T, *example){
	"ordinal":         ordinalAddsTheOrdinal,
	"persi":           persiMountsTheVolumesOfBindings,
	"ssh":             sshMakesAndDeletesKeys,
	"sidecar":         sidecarAddsAProxy,
	"scanner":         scannerScansEveryImage,
	"dns":             dnsSetsOptions,
	"wrapper":         wrapperWrapsCommands,
	"labels":          labelsAreRequired,
	"digest":          digestDeniesTags,
	"noexec":          noexecDeniesTerminals,
	"logstream":       logstreamPrintsLogs,
	"service":         serviceKeepsAServiceForEachApp,
	"tenant":          tenantMarksWhatItsNamespaceHas,
	"deployment":      deploymentSpreadsPods,
	"backup":          backupDeniesUnknownTimeZones,
	"split/registrar": splitTakesTwoPrograms,
	"addenv":          addenvAddsAVariable,
	"annotator":       annotatorCountsContainers,
	"podlogger":       podloggerLogsEvents,
	"costguard":       costguardDeniesWhatCostsTooMuch,
	"preview":         previewRunsUntilItsTimeIsOver,
	"alarm":           alarmsHaveTwoVersions,
}

// The tests of this package share one real API server.
var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, controlplane.Options{CRDPaths: []string{"alarm/crd", "backup/crd.yaml", "preview/crd"}}, func(c *controlplane.ControlPlane) error {
		cluster = c
		return nil
	}))
}

func TestExamples(t *testing.T) {
	bin := buildExamples(t)
	var passed atomic.Int32
	t.Run("each", func(t *testing.T) {
		for path, test := range programs {
			folder, _, _ := strings.Cut(path, "/")
			t.Run(folder, func(t *testing.T) {
				t.Parallel()
				// What is registered first runs last.
				t.Cleanup(func() {
					if !t.Failed() {
						passed.Add(1)
					}
				})
				e := newExample(t, bin, folder, filepath.Base(path))
				e.hasShortFiles(t)
				e.reviewsItsManifest(t)
				e.install(t)
				test(t, e)
			})
		}
	})
	fmt.Printf("FIGURE examples.passed=%d examples\n", passed.Load())
}

// buildExamples builds one program that is each of them by the name by which it is called,
// because to link twenty takes longer than all of their tests. For that, the go command sees
// their packages as another than main, which can be imported.
func buildExamples(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var imports, names strings.Builder
	replaced := map[string]string{}
	replace := func(file, text string) {
		t.Helper()
		replaced[file] = filepath.Join(bin, fmt.Sprintf("%d.go", len(replaced)))
		if err := os.WriteFile(replaced[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range append(slices.Sorted(maps.Keys(programs)), "split/server") {
		files, err := filepath.Glob(filepath.Join(here, folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				replaced[file] = "" // it is not there
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			replace(file, mainPackage.ReplaceAllString(mainFunction.ReplaceAllString(string(text), "func Main()"), "package "+notMain))
		}
		name := filepath.Base(folder)
		fmt.Fprintf(&imports, "%s %q\n", name, library+"/examples/"+folder)
		fmt.Fprintf(&names, "%q: %s.Main,\n", name, name)
		if err := os.Symlink("all", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	replace(filepath.Join(here, "all", "main.go"), "package main\nimport (\n\"os\"\n\"path/filepath\"\n"+imports.String()+")\nfunc main() { map[string]func(){\n"+names.String()+"}[filepath.Base(os.Args[0])]() }\n")
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(bin, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Build(t.Context(), filepath.Join(bin, "all"), "-overlay="+file, "-ldflags=-s -w", "./all"); err != nil {
		t.Fatal(err)
	}
	return bin
}

// notMain is the name that the package of an example has, where it is built with the others.
const notMain = "main_"

var (
	mainPackage  = regexp.MustCompile(`(?m)^package main$`)
	mainFunction = regexp.MustCompile(`(?m)^func main\(\)`)
)

// example is one of them, with a namespace for its Pods.
type example struct {
	bin, folder       string
	program           string
	namespace, system string
	// kube may do everything.
	kube   client.Client
	client kubernetes.Interface
}

func newExample(t *testing.T, bin, folder, program string) *example {
	t.Helper()
	kube, err := client.New(cluster.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &example{
		bin: bin, folder: folder, program: program, namespace: folder + "-apps", system: folder + "-system",
		kube: kube, client: kubernetes.NewForConfigOrDie(cluster.Config()),
	}
	e.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}})
	return e
}

func (e *example) hasShortFiles(t *testing.T) {
	t.Helper()
	if err := filepath.WalkDir(e.folder, func(path string, _ os.DirEntry, err error) error {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if lines := bytes.Count(text, []byte("\n")); lines >= 150 {
			t.Errorf("%s has %d lines", path, lines)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// reviewsItsManifest runs the command in the first line of review.txt and
// compares what it prints with the rest. What comes of the review is reviewed
// once more, and must be left as it is: an admission may come twice.
func (e *example) reviewsItsManifest(t *testing.T) {
	t.Helper()
	golden := filepath.Join(e.folder, "review.txt")
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	line, want, _ := strings.Cut(string(text), "\n")
	words := strings.Fields(line) // $ go run ./examples/NAME review ...
	if len(words) < 5 || !strings.HasPrefix(line, "$ go run ./examples/"+e.folder) || words[4] != "review" {
		t.Fatalf("%s begins with %q", golden, line)
	}
	program := filepath.Base(words[3])
	got, code := e.run(t, program, nil, words[4:]...)
	got = uid.ReplaceAllString(got, "UID") + fmt.Sprintf("exit code %d\n", code)
	if *update {
		if err := os.WriteFile(golden, []byte(line+"\n"+got), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Errorf("%s\nprints:\n%s\nand not:\n%s", line, got, want)
	}
	if code != 0 {
		return
	}
	first := exec.CommandContext(t.Context(), filepath.Join(e.bin, program), append(words[4:], "-o=yaml")...)
	first.Dir = ".."
	outcome, err := first.Output() // without the warnings
	if err != nil {
		t.Fatal(err)
	}
	again, code := e.run(t, program, bytes.NewReader(outcome), "review", "-f=-", "--dry-run")
	if code != 0 || strings.Contains(again, "changed by") {
		t.Errorf("a review of what came of the review, exit code %d:\n%s", code, again)
	}
}

// uid is what a review makes up.
var uid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// run runs a program in the root of the repository.
func (e *example) run(t *testing.T, program string, in io.Reader, args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(e.bin, program), args...)
	cmd.Dir = ".."
	cmd.Stdin = in
	text, err := cmd.CombinedOutput()
	output = strings.ReplaceAll(string(text), notMain+".", "main.") // as Go prints its types
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return output, exit.ExitCode()
	}
	if err != nil {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return output, 0
}

// install applies rbac.yaml, which is the part of the program's own manifests
// that gives rights. Its ServiceAccounts are groups here, so that one process can
// be two of them.
func (e *example) install(t *testing.T) {
	t.Helper()
	printed, code := e.run(t, e.program, nil, "manifests", "--image=registry.example.com/"+e.folder+":1", "--namespace=apps", "--webhook-namespace="+e.system)
	if code != 0 {
		t.Fatal(printed)
	}
	want := rights(printed)
	golden := filepath.Join(e.folder, "rbac.yaml")
	if *update {
		if err := os.WriteFile(golden, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("%s is not the rights that `%s manifests` prints: run go test ./examples -update", golden, e.program)
	}
	for document := range strings.SplitSeq(strings.ReplaceAll(want, "namespace: apps\n", "namespace: "+e.namespace+"\n"), "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		e.create(t, object)
		if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
			continue
		}
		subjects, _, _ := unstructured.NestedSlice(object.Object, "subjects")
		account := subjects[0].(map[string]any)["name"]
		subjects = append(subjects, map[string]any{"kind": rbacv1.GroupKind, "apiGroup": rbacv1.GroupName, "name": account})
		if err := unstructured.SetNestedSlice(object.Object, subjects, "subjects"); err != nil {
			t.Fatal(err)
		}
		if err := e.kube.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// rights are the documents of manifests that are no workloads.
func rights(manifests string) string {
	var kept []string
	for document := range strings.SplitSeq(manifests, "---\n") {
		for _, kind := range []string{"Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
			if strings.Contains(document, "\nkind: "+kind+"\n") && !strings.HasPrefix(document, "#") {
				kept = append(kept, document)
			}
		}
	}
	return strings.Join(kept, "---\n")
}

// start starts the program with the rights of its ServiceAccounts, and returns
// when it is ready. It is interrupted when the test ends, and must end by itself.
func (e *example) start(t *testing.T, args ...string) *testkit.Output {
	t.Helper()
	args = append([]string{"start", "--unregister-on-stop"}, args...)
	return e.startAs(t, e.program, freeport.For(t), []string{e.folder, e.folder + "-registrar", e.folder + "-reconciler"}, args...)
}

func (e *example) startAs(t *testing.T, program string, port int32, groups []string, args ...string) *testkit.Output {
	t.Helper()
	user, err := cluster.AddUser(program, groups...)
	if err != nil {
		t.Fatal(err)
	}
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	flags := []string{
		args[0], "--namespace=" + e.namespace, "--webhook-namespace=" + e.system, "--leaf-secret-name=" + e.folder + "-certificate",
		"--advertise-host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--health-address=" + health, "--metrics-address=",
		"--drain-period=10ms", "--kubeconfig=" + user.KubeConfig,
	}
	process := testkit.Run(t, exec.Command(filepath.Join(e.bin, program), append(flags, args[1:]...)...)) // the last of two wins
	t.Cleanup(func() { process.Stop(t) })
	if args[0] == "register" {
		return &process.Output // it is ready once the server is
	}
	testkit.Eventually(t, program+" is ready", func(ctx context.Context) bool { return testkit.IsReady(ctx, health) })
	return &process.Output
}

// create fails the test when the object is not admitted.
func (e *example) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := e.kube.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// samples are the objects of a manifest, in the example's namespace.
func (e *example) samples(t *testing.T, name string) []client.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.folder, name))
	if err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	for document := range strings.SplitSeq(string(text), "---\n") {
		read := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &read.Object); err != nil {
			t.Fatal(err)
		}
		read.SetNamespace(e.namespace)
		typed, err := clientgoscheme.Scheme.New(read.GroupVersionKind())
		if err != nil {
			objects = append(objects, read)
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, typed); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, typed.(client.Object))
	}
	return objects
}

// pod creates the Pod of a manifest and returns it as it is stored.
func (e *example) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := e.samples(t, name)[0].(*corev1.Pod)
	e.create(t, pod)
	return pod
}

// denies reports an object that is admitted, or not for a reason with that text.
func denies(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("the answer is %v, without %q", err, text)
	}
}

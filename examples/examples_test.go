// Package examples_test runs the examples as a newcomer does: built, started
// with flags, on a real API server.
package examples_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/testing/controlplane"
)

func TestExamples(t *testing.T) {
	cluster := controlplane.Run(t, controlplane.Options{})
	clientset := kubernetes.NewForConfigOrDie(cluster.Config())
	pods := clientset.CoreV1().Pods(metav1.NamespaceDefault)
	existing := createPod(t, clientset, "existing")

	t.Run("addenv adds an environment variable to new Pods", func(t *testing.T) {
		runExample(t, cluster, "addenv", "-name=COLOR", "-value=blue")
		eventually(t, "a new Pod has the variable", func(ctx context.Context) bool {
			pod := newPod("probe")
			pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/init:1", Env: []corev1.EnvVar{{Name: "COLOR", Value: "red"}}}}
			created, err := pods.Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil || len(created.Spec.Containers[0].Env) == 0 {
				return false
			}
			if env := created.Spec.InitContainers[0].Env; len(env) != 1 || env[0].Value != "red" {
				t.Errorf("a variable that was set is %v", env)
			}
			return created.Spec.Containers[0].Env[0] == corev1.EnvVar{Name: "COLOR", Value: "blue"}
		})
	})
	t.Run("podlogger logs the Pods that exist and those that come", func(t *testing.T) {
		log := runExample(t, cluster, "podlogger")
		eventually(t, "the existing Pod is logged", func(context.Context) bool { return log.contains(`"ADDED"`, existing.Name) })
		createPod(t, clientset, "new")
		eventually(t, "the new Pod is logged", func(context.Context) bool { return log.contains(`"ADDED"`, `"new"`) })
	})
	t.Run("annotator annotates the Pods that exist", func(t *testing.T) {
		runExample(t, cluster, "annotator")
		eventually(t, "the existing Pod is annotated", func(ctx context.Context) bool {
			pod, err := pods.Get(ctx, existing.Name, metav1.GetOptions{})
			return err == nil && pod.Annotations["example.admitkit.dev/containers"] == "1"
		})
	})
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

func createPod(t *testing.T, clientset kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	pod, err := clientset.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), newPod(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// output is what a program printed so far.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

// contains reports whether one line has all of the texts.
func (o *output) contains(texts ...string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
next:
	for line := range strings.Lines(o.buffer.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		return true
	}
	return false
}

// runExample builds an example and runs it until the test ends, when it is
// interrupted and must end by itself.
func runExample(t *testing.T, cluster *controlplane.ControlPlane, name string, args ...string) *output {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v: %s", name, err, text)
	}
	log := &output{}
	program := exec.Command(binary, append(args, "-kubeconfig="+cluster.Admin().KubeConfig)...)
	program.Stdout, program.Stderr = log, log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := program.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := program.Wait(); err != nil {
			t.Errorf("%s ended with %v: %s", name, err, log.buffer.String())
		}
	})
	return log
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	}); err != nil {
		t.Fatalf("not within 30 s: %s", what)
	}
}

// readmeBlocks returns the code blocks of a language in the README.
func readmeBlocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}

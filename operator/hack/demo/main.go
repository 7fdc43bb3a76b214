// Command demo shows admitkit at work on a real API server: a Pod that is
// mutated, an exec that is recorded, a Pod that is denied. Run it with
// `make demo`, which makes the binaries that it needs.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

var (
	// The namespaces, and the rights of the manager and of alice.
	//go:embed setup.yaml
	setup string
	//go:embed pod.yaml
	manifest string
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	began := time.Now()
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Printf("demo: failed: %v\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
	fmt.Printf("\n(%s)\n", time.Since(began).Round(time.Second))
	fmt.Println("demo: ok")
}

// demo is what the steps share.
type demo struct {
	cluster   *controlplane.ControlPlane
	clientset *kubernetes.Clientset
	asked     chan *corev1.Pod
	log       lines
}

func run(ctx context.Context) (err error) {
	d := &demo{asked: make(chan *corev1.Pod, 1)}

	// Without kube-controller-manager, which envtest does not publish: a newcomer
	// would wait until it is built.
	heading("A control plane: etcd, kube-apiserver, kwok")
	if d.cluster, err = controlplane.Start(ctx, controlplane.Options{Kwok: true}); err != nil {
		return err
	}
	defer func() {
		heading("Shut down")
		err = errors.Join(err, d.cluster.Stop())
	}()
	config := d.cluster.Config()
	if d.clientset, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, d.cluster.Admin(), setup, "apply", "-f", "-"); err != nil {
		return err
	}
	version, err := d.clientset.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	fmt.Printf("kube-apiserver %s answers at %s\n", version.GitVersion, config.Host)

	heading("The manager: makes its CA, signs a certificate, listens, registers")
	stopManager, err := d.startManager(ctx)
	if err != nil {
		return err
	}
	defer func() {
		heading("Stop the manager: drain, then end")
		err = errors.Join(err, stopManager())
		fmt.Println(d.log.find(`"webhook server stopped"`))
	}()

	return d.show(ctx)
}

// show does what the manager is there for.
func (d *demo) show(ctx context.Context) error {
	steps := []struct {
		heading string
		run     func(context.Context) error
	}{
		{"A Pod: as asked for and as stored", d.mutated},
		{"alice, who has the right to exec and no more, runs a command", d.recorded},
		{"A Pod that is denied", d.denied},
	}
	for _, step := range steps {
		heading(step.heading)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.heading, err)
		}
	}
	return nil
}

// startManager runs a manager with three extensions, under a user that has the
// rights that the README lists, and returns the function that stops it.
func (d *demo) startManager(ctx context.Context) (stop func() error, err error) {
	user, err := d.cluster.AddUser("system:serviceaccount:admitkit-system:admitkit")
	if err != nil {
		return nil, err
	}
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	drain := time.Second
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{"apps"}, WebhookNamespace: "admitkit-system",
		Host: "127.0.0.1", Port: port, RESTConfig: user.Config, Serving: manager.ServingOptions{DrainPeriod: &drain},
		Logger: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), &d.log, zap.InfoLevel)).Sugar(),
	})
	if err != nil {
		return nil, err
	}
	for _, e := range []any{
		extension.MutatingFunc(d.addEnv, extension.Scope{Name: "add-env"}),
		extension.ValidatingFunc(noPrivileged, extension.Scope{Name: "no-privileged"}),
	} {
		if err := mgr.AddExtension(e); err != nil {
			return nil, err
		}
	}
	if err := mgr.AddExtension(audit.New(audit.Options{})); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(context.WithoutCancel(ctx)) }()
	stop = func() error {
		mgr.Stop()
		return <-done
	}
	select {
	case <-mgr.Ready():
		fmt.Println(d.log.find(`"webhooks registered"`))
		return stop, nil
	case err := <-done:
		return nil, err
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop())
	}
}

// addEnv is the Mutator of the demo. It keeps a copy of the Pod as it was asked
// for, to show the difference.
func (d *demo) addEnv(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
	if !req.DryRun() {
		select {
		case d.asked <- pod.DeepCopy():
		default:
		}
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "demo.admitkit.dev/requested-by", req.User().Username)
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		container.Env = append(container.Env, corev1.EnvVar{Name: "HELLO", Value: "from admitkit"})
	}
	return nil
}

// noPrivileged is the Validator of the demo.
func noPrivileged(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	for _, container := range pod.Spec.Containers {
		if security := container.SecurityContext; security != nil && security.Privileged != nil && *security.Privileged {
			return extension.Denyf("container %q is privileged; drop securityContext.privileged, or ask the platform team", container.Name)
		}
	}
	return nil
}

func (d *demo) mutated(ctx context.Context) error {
	// The API server learns of a new webhook by a watch of its own.
	if err := poll(ctx, "the API server calls the webhook", func(ctx context.Context) (bool, error) {
		pod, err := d.clientset.CoreV1().Pods("apps").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "probe"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(pod.Annotations) > 0, err
	}); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, d.cluster.Admin(), manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	var stored *corev1.Pod
	if err := poll(ctx, "the Pod runs", func(ctx context.Context) (done bool, err error) {
		stored, err = d.clientset.CoreV1().Pods("apps").Get(ctx, "shop", metav1.GetOptions{})
		return err == nil && stored.Status.Phase == corev1.PodRunning, err
	}); err != nil {
		return err
	}
	difference, err := diff(ctx, <-d.asked, stored)
	if err != nil {
		return err
	}
	fmt.Print(difference)
	if !strings.Contains(difference, "+") || !strings.Contains(difference, "HELLO") {
		return errors.New("the Pod was not mutated")
	}
	return nil
}

func (d *demo) recorded(ctx context.Context) error {
	alice, err := d.cluster.AddUser("alice", "developers")
	if err != nil {
		return err
	}
	output, err := d.kubectl(ctx, alice, "", "exec", "-n", "apps", "shop", "--", "echo", "hello from inside the Pod")
	if err != nil {
		return err
	}
	fmt.Print(output)
	line := d.log.find(`"msg":"session"`)
	fmt.Printf("\nthe audit line:\n%s\n", line)
	if !strings.Contains(line, "hello from inside the Pod") || !strings.Contains(line, "alice") {
		return errors.New("the exec was not recorded in the log")
	}
	if err := poll(ctx, "the Event is written", func(ctx context.Context) (bool, error) {
		events, err := d.clientset.EventsV1().Events("apps").List(ctx, metav1.ListOptions{FieldSelector: "reason=PodExec"})
		return err == nil && len(events.Items) > 0, err
	}); err != nil {
		return err
	}
	fmt.Println("\nand the Event:")
	output, err = d.kubectl(ctx, d.cluster.Admin(), "", "get", "events", "-n", "apps", "--field-selector", "reason=PodExec")
	fmt.Print(output)
	return err
}

func (d *demo) denied(ctx context.Context) error {
	output, err := d.kubectl(ctx, d.cluster.Admin(), "", "run", "root", "-n", "apps", "--image=example.com/root:1", "--privileged")
	if err == nil {
		return fmt.Errorf("a privileged Pod was admitted: %s", output)
	}
	fmt.Print(output)
	if !strings.Contains(output, "ask the platform team") {
		return fmt.Errorf("kubectl does not show the reason: %w", err)
	}
	return nil
}

// kubectl runs and prints a command, and returns what it says on both streams.
func (d *demo) kubectl(ctx context.Context, user *controlplane.User, stdin string, args ...string) (string, error) {
	fmt.Printf("$ (%s) kubectl %s\n", user.Name, strings.Join(args, " "))
	command := d.cluster.Kubectl(ctx, user, args...)
	if stdin != "" {
		command.Stdin = strings.NewReader(stdin)
	}
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return string(output), err
}

// diff compares what is asked of two Pods, not what became of them. git is the
// one diff that everybody has who has this repository.
func diff(ctx context.Context, asked, stored *corev1.Pod) (string, error) {
	dir, err := os.MkdirTemp("", "admitkit-demo-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, pod := range map[string]*corev1.Pod{"as-asked-for.yaml": asked, "as-stored.yaml": stored} {
		shown := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations, Labels: pod.Labels}, Spec: pod.Spec}
		shown.Spec.NodeName = ""
		text, err := yaml.Marshal(shown)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	command := exec.CommandContext(ctx, "git", "diff", "--no-index", "--no-color", "--unified=2", "as-asked-for.yaml", "as-stored.yaml")
	command.Dir = dir
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // there is a difference
		err = nil
	}
	return string(output), err
}

var step int

func heading(text string) {
	step++
	fmt.Printf("\n== %d. %s\n", step, text)
}

// poll waits for what the API server or a controller does on its own.
func poll(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		var done bool
		done, last = condition(ctx)
		return done, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, errors.Join(err, last))
	}
	return nil
}

// lines keeps what the manager logs, for the demo to show some of it.
type lines struct {
	mu   sync.Mutex
	text []string
}

// Write keeps a line.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, strings.TrimSpace(string(p)))
	return len(p), nil
}

// Sync does nothing: nothing is buffered.
func (l *lines) Sync() error { return nil }

// find returns the last line with a text in it.
func (l *lines) find(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range slices.Backward(l.text) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

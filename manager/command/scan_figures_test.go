package command_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// ten adds ten extensions, which decide by the label n of Pods and Deployments.
func ten(mgr *manager.Manager) error {
	const created, updated = admissionregistrationv1.Create, admissionregistrationv1.Update
	pods, deployments := extension.Pods(created, updated), extension.Resources("apps", "v1", []string{"deployments"}, created, updated)
	ignore := admissionregistrationv1.Ignore
	of := func(o client.Object, divisor int) bool {
		n, err := strconv.Atoi(o.GetLabels()["n"])
		return err == nil && n%divisor == 0
	}
	deny := func(divisor int, scope extension.Scope) any {
		return extension.ValidatingFunc(func(_ context.Context, o client.Object, _ *extension.Request) error {
			if of(o, divisor) {
				return extension.Denyf("%s denies it", scope.Name)
			}
			return nil
		}, scope)
	}
	stamp := func(divisor int, scope extension.Scope) any {
		return extension.MutatingFunc(func(_ context.Context, o client.Object, _ *extension.Request) error {
			if of(o, divisor) {
				annotations := o.GetAnnotations()
				if annotations == nil {
					annotations = map[string]string{}
				}
				annotations["example.com/"+scope.Name] = "yes"
				o.SetAnnotations(annotations)
			}
			return nil
		}, scope)
	}
	for _, e := range []any{
		stamp(7, extension.Scope{Name: "sevens", Rules: slices.Concat(pods, deployments)}),
		stamp(11, extension.Scope{Name: "elevens", Rules: pods}),
		stamp(5, extension.Scope{Name: "odd", Rules: pods, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"parity": "odd"}}}),
		extension.MutatingFunc(func(_ context.Context, d *appsv1.Deployment, _ *extension.Request) error {
			if of(d, 3) {
				d.Spec.RevisionHistoryLimit = new(int32(3))
			}
			return nil
		}, extension.Scope{Name: "histories", Rules: deployments}),
		deny(13, extension.Scope{Name: "thirteens", Rules: slices.Concat(pods, deployments)}),
		deny(17, extension.Scope{Name: "seventeens", Rules: slices.Concat(pods, deployments)}),
		deny(2, extension.Scope{Name: "even", Rules: deployments, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"parity": "even"}}}),
		deny(1, extension.Scope{Name: "marked", Rules: pods, ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"marked": "yes"}}}),
		extension.ValidatingFunc(func(_ context.Context, o *corev1.Pod, _ *extension.Request) error {
			if of(o, 19) {
				return errors.New("it is broken")
			}
			return nil
		}, extension.Scope{Name: "broken", Rules: pods}),
		extension.ValidatingFunc(func(_ context.Context, o *corev1.Pod, _ *extension.Request) error {
			if of(o, 23) {
				return errors.New("it is broken, and that does not matter")
			}
			return nil
		}, extension.Scope{Name: "ignored", Rules: pods, FailurePolicy: &ignore}),
	} {
		if err := mgr.AddExtension(e); err != nil {
			return err
		}
	}
	return nil
}

// A scan says of an object what the API server does to an update of it that changes nothing,
// while other objects come and go.
func TestAScanSaysWhatTheAPIServerDoes(t *testing.T) {
	t.Parallel()
	pods, deployments := testkit.Long(20_000, 120), testkit.Long(5_000, 30)
	at := cluster
	if !testing.Short() {
		at = controlplane.Run(t, controlplane.Options{Kwok: true, Nodes: 50})
	}
	kube := testkit.Client(t, at.Admin(), nil)
	var namespaces []string
	for _, parity := range []string{"even", "odd"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: parity + "-", Labels: map[string]string{"parity": parity}}}
		testkit.Create(t, kube, namespace)
		namespaces = append(namespaces, namespace.Name)
	}
	objects := make([]client.Object, 0, pods+deployments)
	for n := range pods + deployments {
		objects = append(objects, numbered(n, n >= pods, namespaces[n%2]))
	}
	each(t, objects, func(ctx context.Context, o client.Object) error { return kube.Create(ctx, o) })

	stop := comeAndGo(t, kube, namespaces[0])
	flags := []string{"--kubeconfig=" + at.Admin().KubeConfig, "--namespace=" + strings.Join(namespaces, ","), "--webhook-namespace=" + testkit.Namespace(t, kube)}
	var problems bytes.Buffer
	scan := tenProgram(t, append([]string{"scan", "-o", "json", "--findings=1000000"}, flags...)...)
	scan.Stdout, scan.Stderr = nil, &problems
	stdout, err := scan.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := scan.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	_, _ = out.Peek(1) // it prints when it is through, and ends when somebody has read that
	took := time.Since(began)
	if !testing.Short() { // few findings are written at once, and then it has ended
		testkit.Figure("scan.mb", testkit.Megabytes(testkit.Memory(t, scan.Process.Pid, "VmHWM")), "MB")
	}
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	err = scan.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Fatalf("%v: %s", err, &problems)
	}
	var result struct {
		Findings []struct {
			Extension, Kind, Namespace, Name, Message string
			Outcomes                                  []string
		}
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	stop()
	said := map[string][]string{}
	for _, f := range result.Findings {
		key := f.Kind + " " + f.Namespace + "/" + f.Name
		for _, outcome := range f.Outcomes {
			said[key] = append(said[key], f.Extension+" "+outcome)
		}
	}

	recordings := t.TempDir()
	server := testkit.Run(t, tenProgram(t, append([]string{"start", "--host=127.0.0.1", "--port=0", "--unregister-on-stop", "--health-address=", "--metrics-address=", "--drain-period=0s", "--record=" + recordings}, flags...)...))
	testkit.Eventually(t, "the webhooks are called", func(ctx context.Context) bool {
		return apierrors.IsForbidden(kube.Create(ctx, numbered(13, false, namespaces[0]), client.DryRunAll))
	})
	var wrong atomic.Int32
	each(t, objects, func(ctx context.Context, o client.Object) error {
		kind := "Pod"
		if _, is := o.(*appsv1.Deployment); is {
			kind = "Deployment"
		}
		does, err := doneTo(ctx, kube, o)
		if err != nil {
			return err
		}
		says := said[kind+" "+o.GetNamespace()+"/"+o.GetName()]
		if saysOf := verdict(says); saysOf != does {
			wrong.Add(1)
			t.Errorf("%s %s (%s): the API server: %s; the scan: %s %v", kind, o.GetName(), o.GetLabels()["n"], does, saysOf, says)
		}
		return nil
	})
	testkit.Figure("scan.objects", float64(len(objects)), "objects")
	testkit.Figure("scan.s", took.Seconds(), "s")
	testkit.Figure("scan.wrong", float64(wrong.Load()), "objects")
	server.Stop(t)
	replayReal(t, recordings, flags)
}

// replayReal replays what a server has recorded that an API server called. The same program
// answers the same.
func replayReal(t *testing.T, recordings string, flags []string) {
	t.Helper()
	replay := tenProgram(t, append([]string{"replay", recordings, "-o", "json"}, flags...)...)
	replay.Stdout, replay.Stderr = nil, nil
	text, err := replay.Output()
	var report struct{ Reviews, Differing int }
	if err := errors.Join(err, json.Unmarshal(text, &report)); err != nil || report.Reviews == 0 || report.Differing > 0 {
		t.Errorf("%v: %s", err, text)
	}
	testkit.Figure("replay.real_reviews", float64(report.Reviews), "reviews")
	testkit.Figure("replay.real_differences", float64(report.Differing), "reviews")
}

// tenProgram runs a subcommand of the program with the ten extensions in a process of its own.
func tenProgram(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd, _ := program(t, args...)
	cmd.Env = append(cmd.Env, "COMMAND_TEST_MAIN=ten")
	return cmd
}

// numbered returns a Pod or a Deployment with a number.
func numbered(n int, isDeployment bool, namespace string) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: "web-", Labels: map[string]string{"n": strconv.Itoa(n)}}
	if n%29 == 0 {
		meta.Labels["marked"] = "yes"
	}
	spec := corev1.PodSpec{NodeName: "node-" + strconv.Itoa(n%50), Containers: []corev1.Container{{Name: "main", Image: "example.com/web:1", Env: []corev1.EnvVar{{Name: "N", Value: strconv.Itoa(n)}}}}}
	if !isDeployment {
		return &corev1.Pod{ObjectMeta: meta, Spec: spec}
	}
	labels := map[string]string{"app": "web"}
	spec.NodeName = ""
	return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
}

// each calls a function for each object, several at a time.
func each(t *testing.T, objects []client.Object, do func(context.Context, client.Object) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	for _, o := range objects {
		group.Go(func() error { return do(ctx, o) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// comeAndGo creates and deletes objects until it is stopped.
func comeAndGo(t *testing.T, kube client.Client, namespace string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		for n := 0; ; n++ {
			o := numbered(n, n%2 == 0, namespace)
			if err := kube.Create(ctx, o); err != nil {
				done <- err
				return
			}
			if err := kube.Delete(ctx, o, client.GracePeriodSeconds(0)); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// doneTo returns what the API server does to an update that changes nothing.
func doneTo(ctx context.Context, kube client.Client, o client.Object) (string, error) {
	for {
		current := o.DeepCopyObject().(client.Object)
		if err := kube.Get(ctx, client.ObjectKeyFromObject(o), current); err != nil {
			return "", err
		}
		updated := current.DeepCopyObject().(client.Object)
		err := kube.Update(ctx, updated, client.DryRunAll)
		switch {
		case apierrors.IsConflict(err): // kwok has written its status
			continue
		case apierrors.IsForbidden(err), apierrors.IsInternalError(err): // denied, or failed
			return "refused", nil
		case err != nil:
			return "", err
		}
		current.SetManagedFields(nil)
		updated.SetManagedFields(nil)
		if equality.Semantic.DeepEqual(current, updated) {
			return "unchanged", nil
		}
		return "changed", nil
	}
}

// verdict returns what the API server would do by the findings of a scan. An extension with
// the failure policy Ignore fails in vain.
func verdict(said []string) string {
	has := func(outcome string) bool {
		return slices.ContainsFunc(said, func(s string) bool { return strings.HasSuffix(s, " "+outcome) && s != "ignored failed" })
	}
	switch {
	case has("stuck"), has("failed"):
		return "refused"
	case has("changed"):
		return "changed"
	}
	return "unchanged"
}

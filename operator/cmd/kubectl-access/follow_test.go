package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// loudNode is where Pods of runs whose names begin with loud are.
const loudNode = "loud"

// played has the Pod of a run in a phase, as its kubelet would.
func played(t *testing.T, name string, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	run, pod := &v1alpha1.SandboxRun{}, &corev1.Pod{}
	testkit.Succeeds(t, time.Minute, name+" is "+string(phase), func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKey{Namespace: sandboxed, Name: name}, run); err != nil {
			return err
		}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: sandboxed, Name: run.Status.PodName}, pod); err != nil {
			return err
		}
		pod.Status.Phase = phase
		if phase == corev1.PodFailed {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sandbox", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "line 2\n"}}}}
		}
		return admin.Status().Update(ctx, pod)
	})
	return pod
}

// What a run writes is printed while it works: to who may read logs from the log, and else from the status of the run.
func TestTheOutputOfARunIsPrintedAsItComes(t *testing.T) {
	t.Parallel()
	log := testkit.NewKubelet(t, admin, loudNode)
	testkit.Create(t, admin,
		&v1alpha1.SandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxed, Name: "loud"}, Spec: v1alpha1.SandboxRunTemplateSpec{Image: "example.com/agent"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "logs"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}}}},
		boundTo("logs", "alice"))
	log.Write("line 1 \x1b[2J")
	made := func(o outcome) outcome { return o.expect(t, 0, "created") }
	made(kubectlAccess(t, alice, "-n", sandboxed, "run", "loud", "-p", "a", "--name=loud"))
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "logs", "none").expect(t, cli.CodeNotFound, `there is no run "none"`)

	played(t, "loud", corev1.PodRunning)
	var asAlice, asMallory outcome
	done := make(chan struct{}, 2)
	for user, to := range map[bool]*outcome{true: &asAlice, false: &asMallory} {
		go func() {
			who := mallory
			if user {
				who = alice
			}
			*to = kubectlAccess(t, who, "-n", sandboxed, "runs", "logs", "loud", "-f")
			done <- struct{}{}
		}()
	}
	testkit.Within(t, time.Minute, "alice follows the log", func(context.Context) bool {
		for _, query := range log.Asked() {
			if query.Get("follow") == "true" {
				return true
			}
		}
		return false
	})
	log.Write("line 2")
	log.End()
	pod := played(t, "loud", corev1.PodFailed)
	<-done
	<-done
	for who, o := range map[string]outcome{"alice": asAlice, "mallory": asMallory} {
		o.expect(t, cli.CodeError, "sandboxrun/loud is failed")
		if !strings.HasPrefix(o.stdout, "line 1 ") || strings.Count(o.stdout, "line 2") != 1 || strings.Contains(o.stdout, "\x1b") {
			t.Errorf("%s: %q", who, o.stdout)
		}
	}
	asMallory.expect(t, cli.CodeError, "you have not the right to get pods/log in namespace agents")
	if strings.Contains(asAlice.stderr, "not the right") {
		t.Error(asAlice.stderr)
	}

	kubectlAccess(t, alice, "-n", sandboxed, "runs", "logs", "loud").expect(t, 0, "line 1", "line 2")
	if err := admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "logs", "loud").expect(t, 0, "cannot be read", "line 1", "line 2")
	kubectlAccess(t, alice, "-n", sandboxed, "__complete", "runs", "logs", "").expect(t, 0, "loud")
	if o := kubectlAccess(t, alice, "-n", sandboxed, "__complete", "runs", "cancel", "").expect(t, 0); strings.Contains(o.stdout, "loud") {
		t.Errorf("%q has ended, and is offered", o.stdout)
	}
}

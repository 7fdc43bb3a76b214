//go:build e2e && linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// The limits of the test: mayDoze is how long the user of a session may do nothing, and mayBeEmpty how long a run waits for somebody.
const (
	mayDoze    = 15 * time.Second
	mayBeEmpty = 45 * time.Second
)

// shared returns the template of runs that people enter. They reach the collectors of sessions.
func (i *installation) shared() string {
	return fmt.Sprintf(`
---
apiVersion: admitkit.dev/v1alpha1
kind: SandboxRunTemplate
metadata: {name: shared, namespace: %s}
spec:
  image: %s
  command: [/untrusted, echo]
  terminationGracePeriodSeconds: 1
  resources: {cpu: 50m, memory: 64Mi}
  interactive: {idleSeconds: %[3]d, detachIdleSeconds: %[3]d, detachSeconds: 5}
  egress: {dns: false, cidrs: [{cidr: 10.244.0.0/16, ports: [{port: 8444}]}]}
`, agents, i.untrusted, int(mayBeEmpty.Seconds()))
}

// interactiveRun returns an Interactive run.
func interactiveRun(name string) string {
	return strings.Replace(runOf(name, "shared", ""), "prompt: Do it.", "mode: Interactive, prompt: Let us in.", 1)
}

// watched has a run that nobody enters, one whose visitor mayDoze off, and one whose visitor stays. What is recorded of their
// sessions says when each run ends.
func (i *installation) watched(t *testing.T) {
	i.apply(t, interactiveRun("lonely")+interactiveRun("dozy")+interactiveRun("busy"))
	dozy, busy := i.visit(t, "dozy"), i.visit(t, "busy")
	awake, leave := context.WithCancel(t.Context())
	stays := make(chan error, 1)
	go func() { stays <- busy.talk(awake) }()
	defer leave()

	i.endsBy(t, "lonely", v1alpha1.InteractiveTerminatedIdle)
	if code := exitCode(dozy.Wait()); code != 137 {
		t.Errorf("the session of who did nothing ended with %d", code)
	}
	if s := dozy.recorded(t); !strings.HasPrefix(s.Reason, protocol.ReasonIdle) {
		t.Errorf("the session of who did nothing is on record as %+v", s)
	}
	touch(t, "dozy")
	i.endsBy(t, "dozy", v1alpha1.InteractiveTerminatedDetach)

	began := busy.event(t).Spec.Time.Time
	time.Sleep(time.Until(began.Add(mayBeEmpty + 5*time.Second))) // what is tested is that nothing happens
	touch(t, "busy")
	testkit.Succeeds(t, patience, "the run of who stays is known to be in use", func(ctx context.Context) error {
		run := runNamed(ctx, t, "busy")
		if s := run.Status.Interactive; run.Status.Phase != v1alpha1.SandboxRunning || s.AttachedSessions != 1 || s.EndsReason != v1alpha1.InteractiveTerminatedMaxLifetime {
			return fmt.Errorf("it is %s: %+v", run.Status.Phase, s)
		}
		return nil
	})
	leave()
	if err := errors.Join(<-stays, busy.Wait()); err != nil {
		t.Errorf("the session of who stayed ended with %v: %s", err, busy.Output.String())
	}
	if s := busy.recorded(t); s.ExitCode != 0 || s.SHA256 == "" || s.Location == "" {
		t.Errorf("the session of who stayed is on record as %+v", s)
	}
	touch(t, "busy")
	i.endsBy(t, "busy", v1alpha1.InteractiveTerminatedDetach)
}

// visitor is somebody in a run, by kubectl exec.
type visitor struct {
	*testkit.Process
	pod   string
	input io.WriteCloser
}

// visit enters a run, and returns when what is said there comes back.
func (i *installation) visit(t *testing.T, name string) *visitor {
	t.Helper()
	pod := i.podOf(t, name)
	must(t, "kubectl", "wait", "--for=condition=Ready", "pod/"+pod.Name, "--namespace", agents, "--timeout=2m")
	cmd := command(t.Context(), "kubectl", "exec", "--stdin", "--namespace", agents, pod.Name, "--", "/untrusted", "echo")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{testkit.Run(t, cmd), pod.Name, input}
	if _, err := io.WriteString(input, "hello\n"); err != nil {
		t.Fatal(err)
	}
	v.Await(t, "hello")
	return v
}

// talk says something every second until it is told to leave.
func (v *visitor) talk(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return v.input.Close()
		case <-time.After(time.Second):
			if _, err := io.WriteString(v.input, "I am here\n"); err != nil {
				return err
			}
		}
	}
}

// event is the AuditEvent of a session.
func (v *visitor) event(t *testing.T) *v1alpha1.AuditEvent {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if spec := &list.Items[i].Spec; spec.Pod == v.pod && spec.Session != "" {
			return &list.Items[i]
		}
	}
	t.Fatalf("no session in Pod %s is on record", v.pod)
	return nil
}

// recorded waits until it is on record how a session has ended.
func (v *visitor) recorded(t *testing.T) *v1alpha1.AuditSession {
	t.Helper()
	var session *v1alpha1.AuditSession
	testkit.Within(t, patience, "the end of the session is on record", func(context.Context) bool {
		session = v.event(t).Status.Session
		return session != nil
	})
	return session
}

// touch has a run looked at, which is else a matter of a minute.
func touch(t *testing.T, name string) {
	t.Helper()
	must(t, "kubectl", "annotate", "sandboxrun", name, "--namespace", agents, "--overwrite", "example.com/touched="+fmt.Sprint(time.Now().UnixNano()))
}

func runNamed(ctx context.Context, t *testing.T, name string) *v1alpha1.SandboxRun {
	t.Helper()
	run := &v1alpha1.SandboxRun{}
	if err := admin.Get(ctx, client.ObjectKey{Namespace: agents, Name: name}, run); err != nil {
		t.Fatal(err)
	}
	return run
}

// endsBy waits until the watchdog has ended a run for a reason.
func (i *installation) endsBy(t *testing.T, name, reason string) {
	t.Helper()
	run := ended(t, name)
	if c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionCompleted); run.Status.Phase != v1alpha1.SandboxCancelled || c == nil || c.Reason != reason {
		t.Errorf("run %s is %s: %+v, want %s; %+v", name, run.Status.Phase, c, reason, run.Status.Interactive)
	}
}

// exitCode returns that of a command that has failed, 0 of one that has not.
func exitCode(err error) int {
	if exited, ok := errors.AsType[*exec.ExitError](err); ok {
		return exited.ExitCode()
	}
	return 0
}

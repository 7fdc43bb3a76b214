package main

import (
	"context"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// kwok runs the command on this machine.
func TestAnInteractiveRunIsEnteredWithOnesOwnRights(t *testing.T) {
	t.Parallel()
	testkit.Create(t, admin,
		&v1alpha1.SandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxed, Name: "pair"}, Spec: v1alpha1.SandboxRunTemplateSpec{Image: "example.com/agent", Interactive: &v1alpha1.InteractiveLimits{}}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "enter"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}, {APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create", "get"}},
		}}, boundTo("enter", "alice"))
	in := func(args ...string) []string { return append([]string{"-n", sandboxed}, args...) }
	kubectlAccess(t, alice, in("run", "pair", "-p", "a", "--idle=5m")...).expect(t, cli.CodeUsage, "add --interactive")
	kubectlAccess(t, alice, in("run", "pair", "-p", "a", "-i", "--timeout=5m")...).expect(t, cli.CodeUsage, "timeout", "interactive")
	kubectlAccess(t, alice, in("run", "pair", "-p", "a", "-i", "--idle=31m")...).expect(t, cli.CodeRefused, "interactive.idleSeconds: 1860 is more than the 1800")
	kubectlAccess(t, alice, in("run", "pair", "-p", "a", "-i", "--idle=10m", "--lifetime=1h", "--name=pair")...).expect(t, 0, "created")
	run := &v1alpha1.SandboxRun{}
	testkit.Within(t, time.Minute, "it says when it ends", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKey{Namespace: sandboxed, Name: "pair"}, run) == nil && run.Status.Phase == v1alpha1.SandboxRunning && run.Status.Interactive != nil && run.Status.Interactive.EndsTime != nil
	})
	if l := run.Status.Interactive.Limits; *l.IdleSeconds != 600 || *l.MaxLifetimeSeconds != 3600 {
		t.Errorf("%+v", l)
	}
	kubectlAccess(t, alice, in("runs", "list", "-o", "wide")...).expect(t, 0, "ENDS IN", "MODE", "Interactive", "Running", "9m")
	o := kubectlAccess(t, alice, in("runs", "attach", "pair", "--", "echo", "two words")...).expect(t, 0, "ends at", "InteractiveTerminatedIdle")
	if o.stdout != "two words\n" {
		t.Errorf("%q", o.stdout)
	}
	shell := &invocation{}
	shell.begin(t, alice, genericiooptions.IOStreams{In: strings.NewReader("echo from $0\nexit\n"), Out: &shell.stdout, ErrOut: &shell.stderr}, in("runs", "attach", "pair")...)
	shell.wait().expect(t, 0, "from ")
	kubectlAccess(t, mallory, in("runs", "attach", "pair")...).expect(t, cli.CodeRefused, "you have not the right to create pods/exec for pod/sandbox-pair-")
	kubectlAccess(t, alice, in("runs", "attach", "none")...).expect(t, cli.CodeNotFound, `there is no run "none"`)
	kubectlAccess(t, alice, in("runs", "attach")...).expect(t, cli.CodeUsage, "NAME is missing")
	kubectlAccess(t, alice, in("runs", "attach", "pair", "sh")...).expect(t, cli.CodeUsage, `unexpected argument "sh"`)
	kubectlAccess(t, alice, in("__complete", "runs", "attach", "")...).expect(t, 0, "pair")
	kubectlAccess(t, alice, in("runs", "cancel", "pair")...).expect(t, 0, "cancelled")
	testkit.Within(t, time.Minute, "it is cancelled", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(run), run) == nil && run.Status.Phase == v1alpha1.SandboxCancelled
	})
	kubectlAccess(t, alice, in("runs", "attach", "pair")...).expect(t, cli.CodeRefused, "nobody can enter it: sandboxrun/pair is cancelled")
	kubectlAccess(t, alice, in("runs", "attach", "--help")...).expect(t, 0, "by default a shell", "-- git status")
}

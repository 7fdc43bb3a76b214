package main

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestARunIsMadeFollowedListedAndCancelled(t *testing.T) {
	t.Parallel()
	agent := &v1alpha1.SandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxed, Name: "agent"}, Spec: v1alpha1.SandboxRunTemplateSpec{Image: "example.com/agent", TimeoutSeconds: new(int64(600))}}
	testkit.Create(t, admin, agent)

	kubectlAccess(t, alice, "-n", sandboxed, "run", "agent", "--prompt=Mend the build.", "--name=mend", "--env=TASK=7", "--timeout=5m", "--watch").expect(t, 0, "sandboxrun/mend created", "sandboxrun/mend is succeeded")
	run := &v1alpha1.SandboxRun{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: sandboxed, Name: "mend"}, run); err != nil {
		t.Fatal(err)
	}
	if run.Spec.Prompt != "Mend the build." || *run.Spec.TimeoutSeconds != 300 || run.Spec.ExtraEnv[0].Name != "TASK" || run.Spec.Author.Username != "alice" {
		t.Errorf("%+v", run.Spec)
	}
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "cancel", "mend").expect(t, 3, "nothing to cancel", "succeeded")

	waiting := strings.TrimSpace(kubectlAccess(t, alice, "-n", sandboxed, "run", "later", "--prompt=Wait.").expect(t, 0, "Warning: spec.templateRef: there is no SandboxRunTemplate or ClusterSandboxRunTemplate later: the run waits for it", "created").stdout)
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "list").expect(t, 0, "NAME", "PHASE", "AUTHOR", "mend", "Succeeded", waiting, "alice")
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "describe", "mend").expect(t, 0, "mend", "SandboxRunTemplate/agent", "alice", "Succeeded", "Conditions")
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "list", "--mine", "-o", "name").expect(t, 0, "sandboxrun.admitkit.dev/"+waiting)
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "cancel", waiting).expect(t, 0, "cancelled")
	testkit.Within(t, time.Minute, "it is cancelled", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKey{Namespace: sandboxed, Name: waiting}, run) == nil && run.Status.Phase == v1alpha1.SandboxCancelled
	})

	kubectlAccess(t, alice, "-n", sandboxed, "run", "agent", "-p", "a", "--name=early", "--workspace=shared").expect(t, 0, "Warning: spec.workspaceRef: there is no Workspace shared: the run waits for it")
	kubectlAccess(t, alice, "-n", sandboxed, "runs", "cancel", "early").expect(t, 0, "cancelled")
	testkit.Create(t, admin, &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxed, Name: "shared"}})
	kubectlAccess(t, alice, "-n", sandboxed, "run", "agent", "-p", "a", "--name=shares", "--workspace=shared", "--watch").expect(t, 0, "sandboxrun/shares is succeeded")
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: sandboxed, Name: "shares"}, run); err != nil || run.Spec.WorkspaceRef == nil || run.Spec.WorkspaceRef.Name != "shared" {
		t.Errorf("%v, %+v", err, run.Spec)
	}

	kubectlAccess(t, nil, "-n", sandboxed, "__complete", "run", "agent", "--workspace", "").expect(t, 0, "shared\n", ":4")
	kubectlAccess(t, alice, "-n", sandboxed, "__complete", "run", "agent", "--model", "").expect(t, 0, ":4")

	for want, args := range map[string][]string{
		"2 say what the work is to do":                           {"run", "agent"},
		"2 --prompt and -f: give one of them":                    {"run", "agent", "-p", "a", "-f", "/none"},
		"2 --lifetime says how long the run lives":               {"run", "agent", "-p", "a", "--interactive", "--timeout=1m"},
		"2 for a run that stays":                                 {"run", "agent", "-p", "a", "--ttl=0s"},
		"3 refused: spec.retries in body":                        {"run", "agent", "-p", "a", "--retries=11"},
		"2 no such file":                                         {"run", "agent", "-f", "/none"},
		"2 TEMPLATE is missing":                                  {"run"},
		"2 not in whole seconds":                                 {"run", "agent", "-p", "a", "--timeout=1500ms"},
		"3 timeoutSeconds: 601 is more than the 600":             {"run", "agent", "-p", "a", "--timeout=601s"},
		"3 ADMITKIT_RUN is reserved":                             {"run", "agent", "-p", "a", "--env=ADMITKIT_RUN=x"},
		"3 not the right to get workspaces":                      {"run", "agent", "-p", "a", "--workspace=another"},
		"5 there is no run \"none\"":                             {"runs", "cancel", "none"},
		"2 unknown command \"stop\" for \"kubectl access runs\"": {"runs", "stop"},
	} {
		code, want, _ := strings.Cut(want, " ")
		kubectlAccess(t, alice, append([]string{"-n", sandboxed}, args...)...).expect(t, int(code[0]-'0'), want)
	}
}

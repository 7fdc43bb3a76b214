package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

func TestTheTerminalOfASessionIsToldThatItsEndMovesAndComes(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	anotherTemplate(t, namespace, "watching", func(config *v1alpha1.AccessConfig) {
		config.AccessCommand = "kubectl get pod -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -w -o name"
	})
	// shell runs a session with a request of its name.
	shell := func(t *testing.T, name string) (shows func(string)) {
		t.Helper()
		command := throughKubectl(t, alice, "exec", "watching", "-n", namespace, "--name", name, "--shell")
		person, end := terminal(t)
		command.Stdin, command.Stdout, command.Stderr = end, end, end
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end kubectl with what it runs
		shown := &testkit.Output{}
		go func() { _, _ = io.Copy(shown, person) }()
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			_ = command.Wait()
		})
		shows = func(text string) {
			t.Helper()
			testkit.Eventually(t, fmt.Sprintf("the terminal shows %q", text), func(context.Context) bool { return strings.Contains(shown.String(), text) })
		}
		shows("pod/web-")
		return shows
	}
	t.Run("it moves, and is now", func(t *testing.T) {
		t.Parallel()
		shows := shell(t, "moved")
		kubectlAccess(t, alice, "extend", "moved", "10m", "-n", namespace).expect(t, 0)
		shows("\r\nkubectl access: access now ends at ")
		kubectlAccess(t, alice, "revoke", "moved", "-n", namespace, "--reason", "done").expect(t, 0)
		shows("\r\nkubectl access: access has ended: revoked by alice: done")
	})
	t.Run("it is soon", func(t *testing.T) {
		t.Parallel()
		shows := shell(t, "soon")
		// The warning comes in the last quarter of the time.
		var req v1alpha1.ExecAccessRequest
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "soon"}, &req); err != nil {
			t.Fatal(err)
		}
		lasts := (time.Since(req.CreationTimestamp.Time) + 16*time.Second).Round(time.Second)
		shortened := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"duration":%q}}`, lasts))
		if err := testkit.Client(t, alice, cli.Scheme).Patch(t.Context(), &req, shortened); err != nil {
			t.Fatal(err)
		}
		shows("\r\nkubectl access: access ends in ")
	})
}

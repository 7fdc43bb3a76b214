package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/internal/testkit"
)

func TestTheTerminalOfASessionIsToldThatItsEndMoves(t *testing.T) {
	template := &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watching", Namespace: namespace}}
	template.Spec.AccessConfig = v1alpha1.AccessConfig{
		AllowedGroups: []string{"devs"}, DefaultDuration: "30m", MaxDuration: "2h",
		AccessCommand: "kubectl get pod -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -w -o name",
	}
	template.Spec.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	testkit.Create(t, admin, template)
	t.Cleanup(func() { // other tests list the templates
		if err := admin.Delete(context.WithoutCancel(t.Context()), template); err != nil {
			t.Error(err)
		}
	})
	command := cluster.Kubectl(t.Context(), alice, "access", "exec", "watching", "-n", namespace, "--name", "heralded", "--shell")
	person, end := terminal(t)
	command.Stdin, command.Stdout, command.Stderr = end, end, end
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end kubectl with what it runs
	shown := &testkit.Output{}
	go func() { _, _ = io.Copy(shown, person) }()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
	}()
	shows := func(text string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("the terminal shows %q", text), func(context.Context) bool { return strings.Contains(shown.String(), text) })
	}
	shows("pod/web-")
	kubectlAccess(t, alice, "extend", "heralded", "10m", "-n", namespace).expect(t, 0)
	shows("\r\nkubectl access: access now ends at ")
	// The warning comes in the last quarter of the time: at once, if three quarters have passed.
	var req v1alpha1.ExecAccessRequest
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "heralded"}, &req); err != nil {
		t.Fatal(err)
	}
	lasts := (time.Since(req.CreationTimestamp.Time) + 8*time.Second).Round(time.Second)
	shortened := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"duration":%q}}`, lasts))
	if err := testkit.Client(t, alice, scheme).Patch(t.Context(), &req, shortened); err != nil {
		t.Fatal(err)
	}
	shows("\r\nkubectl access: access ends in ")
	kubectlAccess(t, alice, "extend", "heralded", "20m", "-n", namespace).expect(t, 0)
	kubectlAccess(t, alice, "revoke", "heralded", "-n", namespace, "--reason", "done").expect(t, 0)
	shows("\r\nkubectl access: access has ended: revoked by alice: done")
}

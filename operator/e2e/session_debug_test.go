//go:build e2e

package e2e

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
)

func TestAnEphemeralContainerIsRecordedWhoeverAttaches(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	pod := sessionPod(t, recorded, "debugged", func(*corev1.PodSpec) {})
	mayDebug := append(mayExec(), rule("", "pods", "list", "watch"), rule("", "pods/ephemeralcontainers", "patch"), rule("", "pods/attach", "create"), rule("", "pods/log", "get"))
	erin := newUserWith(t, "erin", recorded, mayDebug...)
	frank := newUserWith(t, "frank", recorded, mayDebug...)
	debug := func(more ...string) []string {
		return append([]string{"debug", "-it", pod.Name, "--namespace", recorded, "--image", podImage, "--profile=restricted"}, more...)
	}

	session := erin.onTerminal(t, debug("--container=shell", "--", "sh")...)
	id := sessionOf(t, pod, "sh")
	session.send("echo here-$((6 * 7))\n")
	session.expect("here-42\r\n")
	second := frank.onTerminal(t, "attach", "-it", pod.Name, "--namespace", recorded, "--container=shell")
	second.send("echo second-$((6 * 7))\n")
	second.expect("second-42\r\n")
	session.expect("second-42\r\n") // they share the terminal
	if out, err := erin.kubectl(t.Context(), "exec", "--namespace", recorded, pod.Name, "--container=shell", "--", "echo", "by exec"); err != nil || out != "by exec\n" {
		t.Errorf("exec into the ephemeral container: %v: %s", err, out)
	} else if _, err := sealed(t, sessionOf(t, pod, "echo", "by exec")); err != nil {
		t.Error(err)
	}
	second.send("exit 3\n")
	second.end()
	session.end()
	debugIsOnRecord(t, id)

	if out, err := frank.kubectl(t.Context(), "attach", pod.Name, "--namespace", recorded, "--container=main"); err == nil || !strings.Contains(err.Error(), "Use kubectl exec") {
		t.Errorf("attach to a container that does not begin with the recorder: %v: %s", err, out)
	}
	refusedDebug(t, erin, debug)
}

// debugIsOnRecord checks the recording of who added an ephemeral container.
func debugIsOnRecord(t *testing.T, id string) {
	t.Helper()
	if _, err := sealed(t, id); err != nil { // once its container has ended
		t.Fatal(err)
	}
	output := string(recordedOutput(t, id))
	for _, has := range []string{"here-42\r\n", "second-42\r\n"} {
		if !strings.Contains(output, has) {
			t.Errorf("the recording has not %q: %q", has, output)
		}
	}
	redeemed, err := collector.ReadRedeemed(t.Context(), recordings(), id)
	if err != nil || redeemed.Ticket.User != "erin" || redeemed.Ticket.Container != "shell" {
		t.Errorf("the ticket is %+v, %v", redeemed, err)
	}
	testkit.Succeeds(t, time.Minute, "the AuditEvent says where the recording is", func(ctx context.Context) error {
		var event v1alpha1.AuditEvent
		if err := admin.Get(ctx, client.ObjectKey{Name: id}, &event); err != nil {
			return err
		}
		if s := event.Status.Session; s == nil || s.ExitCode != 3 || event.Spec.Way != v1alpha1.WayDebug {
			return errors.New("not yet, or not that")
		}
		return nil
	})
}

// refusedDebug checks that what cannot be recorded is refused, with a command that works.
func refusedDebug(t *testing.T, erin user, debug func(...string) []string) {
	t.Helper()
	for _, test := range []struct {
		what string
		args []string
		why  string
	}{
		{"a variable that the kubelet replaces", debug("--env=NAME=x", "--", "sh", "-c", "echo $(NAME)"), "Have a shell replace it"},
		{"the recorder's path", debug("--", "/.admitkit/recorder", "--ticket=x", "--", "sh"), "by nobody else"},
	} {
		if out, err := erin.kubectl(t.Context(), test.args...); err == nil || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: %v: %s", test.what, err, out)
		}
	}
	_, err := erin.kubectl(t.Context(), debug("--target=main")...)
	if err == nil {
		t.Fatal("what the image says runs, and is not recorded")
	}
	works := regexp.MustCompile(`kubectl debug -it .* -- sh`).FindString(err.Error())
	if works == "" {
		t.Fatalf("the refusal does not say what works: %v", err)
	}
	session := erin.onTerminal(t, strings.Fields(works)[1:]...)
	session.send("echo as-told-$((6 * 7))\n")
	session.expect("as-told-42\r\n")
	session.send("exit\n")
	session.end()
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// terminal returns both ends of a terminal: that of the user, and that of the
// command.
func terminal(t *testing.T) (person, command *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	command, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Close() })
	return person, command
}

func beginInProcess(t *testing.T, user *controlplane.User, terminal *os.File, args ...string) (interrupt func(), wait func() int) {
	t.Helper()
	i := &invocation{}
	i.begin(t, user, genericiooptions.IOStreams{In: terminal, Out: terminal, ErrOut: terminal}, args...)
	return i.interrupt, func() int { return i.wait().code }
}

func beginThroughKubectl(t *testing.T, user *controlplane.User, terminal *os.File, args ...string) (interrupt func(), wait func() int) {
	t.Helper()
	command := throughKubectl(t, user, args...)
	command.Stdin, command.Stdout, command.Stderr = terminal, terminal, terminal
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return func() { _ = command.Process.Signal(syscall.SIGINT) }, func() int {
		_ = command.Wait() // its exit code says it
		return command.ProcessState.ExitCode()
	}
}

func TestInterruptingAWaitAsksWhetherToRevoke(t *testing.T) {
	t.Parallel()
	for sentence, c := range map[string]struct {
		user   string // carol may not patch
		answer string
		before func(*testing.T, *v1alpha1.ExecAccessRequest)
		begin  func(t *testing.T, user *controlplane.User, terminal *os.File, args ...string) (interrupt func(), wait func() int)
		words  []string
		not    string
	}{
		"yes":                       {"", "y\n", nil, beginInProcess, []string{"is revoked"}, "kept"},
		"yes, through kubectl":      {"", "y\n", nil, beginThroughKubectl, []string{"is revoked"}, "kept"},
		"no":                        {"", "n\n", nil, beginInProcess, []string{"The request is kept"}, "is revoked"},
		"yes, without the right to": {"carol", "\n", nil, beginInProcess, []string{"revoking", "cannot patch", "The request is kept"}, "is revoked"},
		"yes, after it has been revoked": {"", "y\n", func(t *testing.T, req *v1alpha1.ExecAccessRequest) {
			if err := admin.Delete(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}, beginInProcess, []string{"is revoked"}, "kept"},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: strings.NewReplacer(" ", "-", ",", "").Replace(sentence)}}
			args, user := []string{"exec", "asleep", "-n", namespace, "--name", req.Name}, alice
			if c.user != "" {
				args, user = append(args, "--as", c.user), nil
			}
			person, end := terminal(t)
			shown := &testkit.Output{}
			go func() { _, _ = io.Copy(shown, person) }()
			interrupt, wait := c.begin(t, user, end, args...)
			t.Cleanup(func() { _ = person.Close() }) // which ends what reads from it
			testkit.Eventually(t, "it waits", func(context.Context) bool { return strings.Contains(shown.String(), "NoPod") })
			interrupt()
			testkit.Eventually(t, "it asks", func(context.Context) bool { return strings.Contains(shown.String(), "[Y/n]") })
			if c.before != nil {
				c.before(t, req)
			}
			if _, err := person.WriteString(c.answer); err != nil {
				t.Fatal(err)
			}
			code := wait()
			testkit.Eventually(t, "all is shown", func(context.Context) bool {
				return strings.Contains(shown.String(), "error: interrupted") && strings.HasSuffix(shown.String(), "\n")
			})
			outcome{stderr: shown.String(), code: code}.expect(t, cli.CodeInterrupted, c.words...)
			if strings.Contains(shown.String(), c.not) {
				t.Errorf("it says %q, and is not to: %s", c.not, shown)
			}
		})
	}
}

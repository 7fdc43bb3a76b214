package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// kubectlAccess runs what `kubectl access ...` runs, as a user, or as the administrator.
func kubectlAccess(t *testing.T, user *controlplane.User, args ...string) outcome {
	t.Helper()
	return begin(t, user, args...).wait()
}

// outcome is what a command line came to.
type outcome struct {
	stdout, stderr string
	code           int
}

// expect fails the test unless it ended with the code, and said the words.
func (o outcome) expect(t *testing.T, code int, words ...string) outcome {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit code %d, want %d\n%s%s", o.code, code, o.stdout, o.stderr)
	}
	for _, word := range words {
		if !strings.Contains(o.stdout+o.stderr, word) {
			t.Errorf("nothing of %q in:\n%s%s", word, o.stdout, o.stderr)
		}
	}
	return o
}

// invocation is a command line that runs beside the test.
type invocation struct {
	stdout, stderr testkit.Output
	// interrupt does what SIGINT does to the process.
	interrupt context.CancelFunc
	ended     chan struct{}
	code      int
}

func begin(t *testing.T, user *controlplane.User, args ...string) *invocation {
	t.Helper()
	i := &invocation{}
	i.begin(t, user, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &i.stdout, ErrOut: &i.stderr}, args...)
	return i
}

// begin begins with streams of the test's. Output to any other stream is not in the
// outcome.
func (i *invocation) begin(t *testing.T, user *controlplane.User, streams genericiooptions.IOStreams, args ...string) {
	t.Helper()
	if user == nil {
		user = cluster.Admin()
	}
	if user.KubeConfig != "" {
		args = append([]string{"--kubeconfig=" + user.KubeConfig}, args...)
	}
	ctx, interrupt := context.WithTimeout(t.Context(), 5*time.Minute) // none waits longer
	i.interrupt, i.ended = interrupt, make(chan struct{})
	go func() {
		defer close(i.ended)
		i.code = run(ctx, streams, args)
	}()
	t.Cleanup(func() {
		interrupt()
		<-i.ended
	})
}

// wait waits for the end.
func (i *invocation) wait() outcome {
	<-i.ended
	return outcome{i.stdout.String(), i.stderr.String(), i.code}
}

package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
)

const noon = "2030-01-01T12:00:00.123456789Z "

func TestLinesOfALogAreBounded(t *testing.T) {
	for sentence, test := range map[string]struct {
		log  string
		want []string
	}{
		"an empty log":                                {"", nil},
		"lines":                                       {noon + "a\n" + noon + "b\n", []string{"a", "b"}},
		"an empty line":                               {noon + "\n", []string{""}},
		"a line without an end":                       {noon + "a", []string{"a"}},
		"what has no time is no line":                 {"unable to retrieve container logs\n" + noon + "a\n", []string{"a"}},
		"a long line has its beginning":               {noon + strings.Repeat("x", 5000) + "\n" + noon + "b\n", []string{strings.Repeat("x", 1024), "b"}},
		"an event":                                    {noon + `{"type": "tool", "message": "go build"}` + "\n", []string{"tool: go build"}},
		"an event without a message":                  {noon + `{"type": "tool", "n": 1}` + "\n", []string{`tool: {"type": "tool", "n": 1}`}},
		"JSON whose type is no text is a line":        {noon + `{"type": 7}` + "\n", []string{`{"type": 7}`}},
		"of many long lines the newest that fit":      {strings.Repeat(noon+strings.Repeat("y", 2000)+"\n", 50), lines(strings.Repeat("y", 1024), 32)},
		"a container runtime that sends more than 50": {strings.Repeat(noon+"z\n", 80), lines("z", 50)},
	} {
		t.Run(sentence, func(t *testing.T) {
			o := &outputs{of: &runs{shared: &shared{}, lender: &credentials.Lender{}}, logs: func(context.Context, types.NamespacedName) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader(test.log)), nil
			}}
			events, closed, err := o.look(t.Context(), &v1alpha1.SandboxRun{Status: v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxRunning, PodName: "p"}})
			if err != nil || closed {
				t.Fatal(closed, err)
			}
			var got []string
			for _, e := range events {
				got = append(got, strings.TrimPrefix(e.Type+": "+e.Message, ": "))
			}
			if strings.Join(got, "\n") != strings.Join(test.want, "\n") || len(got) != len(test.want) {
				t.Errorf("got %d: %.200q", len(got), got)
			}
		})
	}
}

func lines(text string, n int) (all []string) {
	for range n {
		all = append(all, text)
	}
	return all
}

// A run is read each ten seconds, and once more at its end, at most; a node that does not answer is given up.
func TestHowOftenOutputIsRead(t *testing.T) {
	at := clocktesting.NewFakePassiveClock(now)
	o := newOutputs(&runs{shared: &shared{options: Options{Clock: at}}, lender: &credentials.Lender{}})
	key, run := types.NamespacedName{Name: "b"}, &v1alpha1.SandboxRun{Status: v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxRunning, PodName: "p"}}
	expect := func(sentence string, want time.Duration) {
		t.Helper()
		if got := o.wait(key, at.Now(), run.Status.Phase.Terminal()); got != want {
			t.Errorf("%s: wait %s, want %s", sentence, got, want)
		}
	}
	expect("the first time", 0)
	expect("again", outputPeriod)
	at.SetTime(now.Add(outputPeriod))
	expect("later", 0)
	at.SetTime(now.Add(outputPeriod + time.Second))
	run.Status.Phase, run.Status.CompletionTime = v1alpha1.SandboxFailed, &metav1.Time{Time: at.Now()}
	expect("at its end", 0)
	at.SetTime(at.Now().Add(time.Second))
	expect("after its end", outputPeriod-time.Second)
	failing := errors.New("the node does not answer")
	o.logs = func(context.Context, types.NamespacedName) (io.ReadCloser, error) { return nil, failing }
	if _, closed, err := o.look(t.Context(), run); closed || err == nil {
		t.Errorf("soon after the end: %t, %v", closed, err)
	}
	run.Status.RecentEvents = []v1alpha1.SandboxEvent{{Message: "kept"}}
	at.SetTime(at.Now().Add(outputPatience))
	if events, closed, err := o.look(t.Context(), run); !closed || err != nil || len(events) != 1 {
		t.Errorf("long after the end: %v, %t, %v", events, closed, err)
	}
	failing = apierrors.NewNotFound(corev1.Resource("pods"), "p")
	if _, closed, err := o.look(t.Context(), run); !closed || err != nil {
		t.Errorf("of a Pod that is gone: %t, %v", closed, err)
	}
}

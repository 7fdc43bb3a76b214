package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// forgetful keeps no records while it is told not to.
type forgetful struct {
	noted
	fails bool
}

func (f *forgetful) Record(ctx context.Context, record extension.Record) error {
	if f.fails {
		return errors.New("the disk is full")
	}
	return f.noted.Record(ctx, record)
}

// Each line of the log of a proxy is one record, whatever fails in between, and what is no report is none.
func TestWhatAProxyWithoutABrokerRefusesIsOnRecordOnce(t *testing.T) {
	kept, at := &forgetful{}, clocktesting.NewFakePassiveClock(now)
	r := &refusals{of: &runs{shared: &shared{options: Options{Clock: at}}, recorder: kept}}
	var log bytes.Buffer
	seconds := 0
	write := func(text string) {
		seconds++
		_, _ = fmt.Fprintf(&log, "%s %s\n", now.Add(time.Duration(seconds)*time.Second).Format(time.RFC3339Nano), strings.TrimSuffix(text, "\n"))
	}
	refuse := func(id string, hosts ...string) {
		report := protocol.Report{ID: id}
		for _, host := range hosts {
			report.Entries = append(report.Entries, protocol.Reported{Host: host, Port: 443, Reason: "egress.hosts does not list it", Count: 2, First: now, Last: now})
		}
		var lines bytes.Buffer
		if err := protocol.LogReport(&lines, report); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(lines.String()) {
			write(line)
		}
	}
	var failing error
	r.logs = func(_ context.Context, _ types.NamespacedName, since time.Time) (io.ReadCloser, error) {
		rest := log.String()
		if len(rest) > maxLog {
			rest = rest[:maxLog]
		}
		if !since.IsZero() { // as a kubelet: to the second
			if i := strings.Index(log.String(), since.Truncate(time.Second).Format(time.RFC3339)); i >= 0 {
				rest = log.String()[i:min(len(log.String()), i+maxLog)]
			}
		}
		return io.NopCloser(strings.NewReader(rest)), failing
	}
	key, pod := types.NamespacedName{Namespace: "a", Name: "p"}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "pod"}}
	object := &corev1.ObjectReference{Kind: "SandboxRun", Namespace: "a", Name: "b", UID: "UID"}
	read := func(sentence string, fails, more bool, want int) {
		t.Helper()
		r.wait(key, at.Now(), false)
		at.SetTime(at.Now().Add(outputPeriod))
		again, err := r.read(t.Context(), key, pod, object)
		if (err != nil) != fails || again != more || len(kept.noted) != want {
			t.Errorf("%s: %v, again %v, %d records, want %d", sentence, err, again, len(kept.noted), want)
		}
	}
	write(`{"level":"info","msg":"the proxy serves"}`)
	write(`{"egressReport":{"id":"","entries":[]}}`)
	read("nothing was refused", false, false, 0)
	refuse("r-1", "a.example.com", "b.example.com")
	kept.fails = true
	read("nothing can be recorded", true, false, 0)
	kept.fails = false
	read("it can be again", false, false, 2)
	read("nothing is new", false, false, 2)
	refuse("r-2", "a.example.com")
	failing = apierrors.NewNotFound(corev1.Resource("pods"), "p")
	read("the Pod is gone", false, false, 2)
	failing = nil
	read("another report of the same name", false, false, 3)
	if record := kept.noted[0]; record.Action != "egress-refused" || !record.Denied || record.Object != *object || record.Pod.UID != "pod" || !strings.Contains(record.Reason, `2 connections to "a.example.com", port 443, were refused`) {
		t.Errorf("%+v", record)
	}
	if kept.noted[0].ID == kept.noted[2].ID || kept.noted[0].ID == kept.noted[1].ID {
		t.Errorf("two records are one: %+v", kept.noted)
	}
	for range 800 { // more than is read at a time
		write(strings.Repeat("x", 1500))
	}
	refuse("r-3", "c.example.com")
	read("there is more", false, true, 3)
	read("and that is all", false, false, 4)
}

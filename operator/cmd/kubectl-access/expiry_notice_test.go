package main

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestTheTerminalIsToldBeforeAccessEnds(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	made := func(duration string) request {
		req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(began)}}
		req.Spec.Duration = duration
		return req
	}
	revoked := made("1h")
	revoked.GetRequestSpec().Revoked = &v1alpha1.Revocation{By: "bob", Reason: "left\x1b[2J", At: new(metav1.NewTime(began))}
	at := func(after time.Duration) string { return began.Add(after).Local().Format(time.TimeOnly) }
	for sentence, c := range map[string]struct {
		duration string
		before   time.Duration
		states   []request // after the first warning, nil for a deletion
		steps    []time.Duration
		want     []string
	}{
		"five minutes before":                {"1h", 5 * time.Minute, nil, []time.Duration{55 * time.Minute, 5 * time.Minute}, []string{"access ends in 5m, at " + at(time.Hour), "access has ended"}},
		"in the last quarter of a short one": {"8m", 5 * time.Minute, nil, []time.Duration{6 * time.Minute, 2 * time.Minute}, []string{"access ends in 2m, at " + at(8*time.Minute), "access has ended"}},
		"never":                              {"1h", 0, nil, []time.Duration{time.Hour}, []string{"access has ended"}},
		"again when the end has moved": {
			"1h", 5 * time.Minute,
			[]request{made("2h")},
			[]time.Duration{55 * time.Minute, time.Hour, 5 * time.Minute},
			[]string{"access ends in 5m, at " + at(time.Hour), "access now ends at " + at(2*time.Hour), "access ends in 5m, at " + at(2*time.Hour), "access has ended"},
		},
		"when it is revoked": {"1h", 5 * time.Minute, []request{revoked}, []time.Duration{55 * time.Minute}, []string{"access ends in 5m", "access has ended: revoked by bob: left"}},
		"when it is deleted": {"1h", 5 * time.Minute, []request{nil}, []time.Duration{55 * time.Minute}, []string{"access ends in 5m", "access has ended: the request was deleted"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			out, fake := &testkit.Output{}, clocktesting.NewFakeClock(began)
			h := &expiryNotice{out: out, newline: "\r\n", before: c.before, clock: fake}
			states, done := make(chan request), make(chan struct{})
			go func() {
				defer close(done)
				h.run(t.Context(), made(c.duration), states)
			}()
			for i, step := range c.steps {
				testkit.Eventually(t, "it waits", func(context.Context) bool { return fake.HasWaiters() })
				if lines := strings.Count(out.String(), "kubectl access"); lines > i+len(c.states) {
					t.Errorf("it speaks too soon: %q", out)
				}
				fake.Step(step)
				if i == 0 {
					testkit.Eventually(t, "it speaks", func(context.Context) bool { return strings.Contains(out.String(), c.want[0]) })
					for n, state := range c.states {
						states <- state
						testkit.Eventually(t, "it speaks of what is new", func(context.Context) bool { return strings.Count(out.String(), "kubectl access") == n+2 })
					}
				}
				if i+1 < len(c.steps) {
					testkit.Eventually(t, "it waits for what is next", func(context.Context) bool { return fake.HasWaiters() })
				}
			}
			<-done
			said := out.String()
			for _, want := range c.want {
				before, after, found := strings.Cut(said, "\r\nkubectl access: "+want)
				if !found || strings.Contains(before, "kubectl access") || strings.Contains(said, "\x1b") {
					t.Fatalf("it says %q, want %q", out, c.want)
				}
				_, said, _ = strings.Cut(after, "\r\n")
				said = "\r\n" + strings.TrimPrefix(said, "\r\n")
			}
			if strings.Contains(said, "kubectl access") {
				t.Errorf("it says more: %q", said)
			}
		})
	}
}

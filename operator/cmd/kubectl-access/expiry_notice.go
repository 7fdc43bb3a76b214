package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// expiryNotice says on the terminal of a session when access is about to end, when its end moves,
// and that it has ended, which may come as a surprise to who types.
type expiryNotice struct {
	out io.Writer
	// newline is that of a terminal that may be in raw mode, where a line feed alone leaves
	// the cursor where it is.
	newline string
	before  time.Duration
	clock   clock.Clock
}

// expiryNotice begins to follow a request, until stop is called.
func (a *ask) expiryNotice(ctx context.Context, cl client.WithWatch, req request) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	h := &expiryNotice{out: a.ErrOut, newline: "\n", before: a.warnBefore, clock: clock.RealClock{}}
	if isTerminal(a.ErrOut) {
		h.newline = "\r\n"
	}
	states := make(chan request)
	var group sync.WaitGroup
	group.Go(func() {
		defer close(states)
		now := copyOf(req)
		err := follow(ctx, cl, now, func() (bool, error) {
			select {
			case states <- copyOf(now):
			case <-ctx.Done():
			}
			return false, nil
		})
		if exit, ok := errors.AsType[*cli.ExitError](err); ok && exit.Code == cli.CodeNotFound && ctx.Err() == nil {
			select {
			case states <- nil:
			case <-ctx.Done():
			}
		}
	})
	group.Go(func() { h.run(ctx, copyOf(req), states) })
	return func() {
		cancel()
		group.Wait()
	}
}

func copyOf(req request) request { return req.DeepCopyObject().(request) }

// run speaks until access has ended. A nil state is that of a request that was deleted;
// without further states, as for users who may not watch, the end stays as it is.
func (h *expiryNotice) run(ctx context.Context, req request, states <-chan request) {
	end, _ := v1alpha1.EndOf(req)
	warned := false
	for {
		due, speak := h.next(req, end, warned)
		timer := h.clock.NewTimer(due.Sub(h.clock.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
			if speak {
				warned = true
				h.say("access ends in %s, at %s", cli.Short(end.Sub(h.clock.Now()).Round(time.Second)), end.Local().Format(time.TimeOnly))
				continue
			}
			h.say("access has ended")
			return
		case now, more := <-states:
			timer.Stop()
			if !more {
				states = nil
				continue
			}
			if now == nil || v1alpha1.Over(now, h.clock.Now()) {
				h.say("access has ended%s", because(now))
				return
			}
			if moved, _ := v1alpha1.EndOf(now); !moved.Equal(end) {
				end, warned = moved, false
				h.say("access now ends at %s", end.Local().Format(time.TimeOnly))
			}
			req = now
		}
	}
}

// next returns what is due next: the warning, or the end.
func (h *expiryNotice) next(req request, end time.Time, warned bool) (due time.Time, warning bool) {
	if at, warns := v1alpha1.WarnAt(req, h.before); warns && !warned {
		return at, true
	}
	return end, false
}

func (h *expiryNotice) say(format string, args ...any) {
	_, _ = fmt.Fprint(h.out, h.newline, "kubectl access: ", cli.EscapeLine(fmt.Sprintf(format, args...)), h.newline)
}

// because says why access has ended before its time.
func because(req request) string {
	if req == nil {
		return ": the request was deleted"
	}
	if by := req.GetRequestSpec().Revoked; by != nil {
		reason := ": revoked by " + by.By
		if by.Reason != "" {
			reason += ": " + by.Reason
		}
		return reason
	}
	if c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessStillValid); c != nil && c.Status == "False" {
		return ": " + c.Message
	}
	return ""
}

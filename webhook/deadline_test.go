package webhook

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type key struct{}

func TestARequestContextIsAContextWithADeadline(t *testing.T) {
	for name, test := range map[string]struct {
		end     func(cancel context.CancelFunc, c *requestContext)
		want    error
		overran bool
	}{
		"its time is over":   {func(context.CancelFunc, *requestContext) { time.Sleep(2 * time.Second) }, context.DeadlineExceeded, true},
		"its client is gone": {func(cancel context.CancelFunc, _ *requestContext) { cancel() }, context.Canceled, false},
		"its request is done": {func(_ context.CancelFunc, c *requestContext) {
			c.stop()
			time.Sleep(2 * time.Second)
		}, context.Canceled, false},
	} {
		for asked, before := range map[string]bool{"asked before": true, "asked after": false} {
			t.Run(name+", "+asked, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
					defer cancel()
					overran := make(chan time.Time, 1)
					c := &requestContext{}
					deadline := time.Now().Add(time.Second)
					c.begin(parent, deadline, func() { c.expire(); overran <- time.Now() })
					if at, ok := c.Deadline(); !ok || time.Until(at) != time.Second || c.Err() != nil || c.Value(key{}) != "value" {
						t.Errorf("at first: %v, %v, %v", at, c.Err(), c.Value(key{}))
					}
					var child context.Context
					if before {
						var cancel context.CancelFunc
						child, cancel = context.WithTimeout(c, time.Hour)
						defer cancel()
					}
					test.end(cancel, c)
					synctest.Wait()
					<-c.Done()
					if !errors.Is(c.Err(), test.want) {
						t.Errorf("it ended with %v, want %v", c.Err(), test.want)
					}
					if child != nil {
						<-child.Done()
						if !errors.Is(child.Err(), test.want) {
							t.Errorf("its child ended with %v, want %v", child.Err(), test.want)
						}
					}
					c.stop()
					if (len(overran) == 1) != test.overran {
						t.Errorf("overran was called %d times", len(overran))
					}
					if test.overran {
						if at := <-overran; !at.Equal(deadline) {
							t.Errorf("overran was called %s after the deadline", at.Sub(deadline))
						}
					}
				})
			})
		}
	}
}

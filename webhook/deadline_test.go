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
					overran := make(chan struct{}, 1)
					c := &requestContext{}
					c.begin(parent, time.Now().Add(time.Second), func() { c.expire(); overran <- struct{}{} })
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
				})
			})
		}
	}
}

package hook

import (
	"testing"
	"time"
)

func TestAHookThatDoesNotComeToRestIsSlowedDown(t *testing.T) {
	var c churn
	now := time.Now()
	change := func(generation int64, count int) {
		for range count {
			c.add(generation, int(generation-1), now)
		}
	}
	wait := func(generation int64, want time.Duration) {
		t.Helper()
		if got := c.wait(generation, now); (got - want).Abs() > time.Millisecond {
			t.Errorf("it waits %s, want %s", got, want)
		}
	}
	wait(1, 0)
	change(1, maxChurn-1)
	wait(1, 0)
	change(1, 1)
	wait(1, churnEvery)
	now = now.Add(churnEvery / 2)
	wait(1, churnEvery/2)
	now = now.Add(churnEvery / 2)
	wait(1, 0)
	change(1, 1)
	wait(1, churnEvery)
	wait(2, 0) // the parent is another, and has a child that rolls
	change(2, maxChurn)
	wait(2, 0)
	change(2, 1)
	wait(2, churnEvery)
	wait(1, 0)
	change(1, 2*maxChurn)
	wait(1, churnEvery) // and not twice as long
	now = now.Add(time.Hour)
	change(1, maxChurn-1)
	wait(1, 0)
}

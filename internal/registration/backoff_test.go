package registration

import (
	"testing"
	"time"
)

func TestRepairsOfTheSameThingPauseTwiceAsLongEachTimeUpToAMinute(t *testing.T) {
	var p repairBackoff
	now := time.Now()
	over, other := []string{"selectors", "selectors"}, repairKey{mutating.kind, "rules"}
	of := repairKey{mutating.kind, "selectors"}
	if wait, _ := p.wait(of, "v1", now); wait != 0 {
		t.Errorf("the first repair waits for %s", wait)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		p.repaired(mutating.kind, over, "v1", now)
		want *= time.Second
		if wait, times := p.wait(of, "v1", now); wait != want || times != i+1 {
			t.Errorf("after repair %d: the next one waits for %s, want %s; %d were counted", i+1, wait, want, times)
		}
		if wait, _ := p.wait(other, "v1", now); wait != 0 {
			t.Errorf("the repair of something else waits for %s", wait)
		}
		if wait, _ := p.wait(repairKey{"ValidatingWebhookConfiguration", "selectors"}, "v1", now); wait != 0 {
			t.Errorf("the repair of the other object waits for %s", wait)
		}
		if wait, _ := p.wait(of, "v2", now); wait != 0 {
			t.Errorf("what has changed of our own, a certificate for example, waits for %s", wait)
		}
		now = now.Add(want)
		if wait, _ := p.wait(of, "v1", now); wait != 0 {
			t.Errorf("after the pause it waits for another %s", wait)
		}
	}
	for version := range 9 {
		now = now.Add(time.Second)
		p.repaired(mutating.kind, over, string(rune('a'+version)), now)
	}
	if wait, _ := p.wait(of, "i", now); wait != firstPause {
		t.Errorf("after changes of our own it waits for %s, want %s", wait, firstPause)
	}
	now = now.Add(quiet)
	p.repaired(mutating.kind, over, "v1", now)
	if wait, _ := p.wait(of, "v1", now); wait != firstPause {
		t.Errorf("after a quiet time it waits for %s, want %s", wait, firstPause)
	}
}

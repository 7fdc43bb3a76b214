package registration

import (
	"testing"
	"time"
)

func TestRepairsOfTheSameThingPauseTwiceAsLongEachTimeUpToAMinute(t *testing.T) {
	var p patience
	now := time.Now()
	over, other := []cause{{kind: "selectors"}, {kind: "selectors"}}, dispute{mutating.kind, "rules"}
	of := dispute{mutating.kind, "selectors"}
	if wait := p.wait(of, "v1", now); wait != 0 {
		t.Errorf("the first repair waits for %s", wait)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		p.repaired(mutating, over, "v1", now)
		want *= time.Second
		if wait := p.wait(of, "v1", now); wait != want {
			t.Errorf("after repair %d: the next one waits for %s, want %s", i+1, wait, want)
		}
		if wait := p.wait(other, "v1", now); wait != 0 {
			t.Errorf("the repair of something else waits for %s", wait)
		}
		if wait := p.wait(dispute{"ValidatingWebhookConfiguration", "selectors"}, "v1", now); wait != 0 {
			t.Errorf("the repair of the other object waits for %s", wait)
		}
		if wait := p.wait(of, "v2", now); wait != 0 {
			t.Errorf("what has changed of our own, a certificate for example, waits for %s", wait)
		}
		now = now.Add(want)
		if wait := p.wait(of, "v1", now); wait != 0 {
			t.Errorf("after the pause it waits for another %s", wait)
		}
	}
	now = now.Add(quiet)
	p.repaired(mutating, over, "v1", now)
	if wait := p.wait(of, "v1", now); wait != firstPause {
		t.Errorf("after a quiet time it waits for %s, want %s", wait, firstPause)
	}
}

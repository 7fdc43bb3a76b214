package registration

import (
	"strings"
	"testing"
	"time"
)

func TestTheRepairsOfOneCauseAreToldOnceAMinuteWithTheirNumber(t *testing.T) {
	var told RepairsTold
	began := time.Now()
	selectors := Repair{Object: "MutatingWebhookConfiguration x", Kind: "selectors", Detail: "a term"}
	rules := Repair{Object: selectors.Object, Kind: "rules"}
	for i, step := range []struct {
		after  time.Duration
		repair Repair
		want   int
	}{
		{0, selectors, 1},
		{time.Second, selectors, 0},
		{2 * time.Second, rules, 1}, // another cause
		{59 * time.Second, selectors, 0},
		{60 * time.Second, selectors, 3},
		{61 * time.Second, selectors, 0},
		{2 * time.Minute, selectors, 2},
		{time.Hour, selectors, 1},
	} {
		if got := told.Tell(step.repair, began.Add(step.after)); got != step.want {
			t.Errorf("step %d: got %d, want %d", i, got, step.want)
		}
	}
	if text := RepairText(selectors, 3); !strings.Contains(text, "a term") || !strings.Contains(text, "3 times") || !strings.Contains(text, "1m0s") {
		t.Errorf("the Event says %q", text)
	}
	if text := RepairText(Repair{Object: "MutatingWebhookConfiguration a", Kind: "missing"}, 1); text != "MutatingWebhookConfiguration a written: it was missing" {
		t.Errorf("the Event says %q", text)
	}
}

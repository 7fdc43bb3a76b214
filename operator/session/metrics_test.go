package session

import (
	"testing"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// A label of a metric has few values, whatever recorders and users write into a reason.
func TestSessionsAreCountedByAFewReasons(t *testing.T) {
	for want, end := range map[string]protocol.End{
		"command":      {Code: 3},
		"signal":       {Code: 130, Signal: 2},
		"hangup":       {Code: 137, Signal: 9, Reason: protocol.ReasonHangup},
		"no-collector": {Code: 137, Reason: protocol.ReasonNoCollector + " for 10s"},
		"stopped":      {Code: 137, Signal: 9, Reason: "it was ended by root"},
	} {
		if got := kindOfEnd(&end); got != want {
			t.Errorf("%+v is counted as %s, not as %s", end, got, want)
		}
	}
}

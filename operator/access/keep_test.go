package access

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A request for a template that does not exist may name any duration.
func TestARequestThatGotNothingIsNotKeptForWhatItAskedFor(t *testing.T) {
	for sentence, test := range map[string]struct {
		duration string
		revoked  time.Duration // after created, by the status; 0 for never
		pod      string
		want     time.Duration // after created, without the retention
	}{
		"by two centuries, never granted":          {"2000000h", 10 * time.Minute, "", 24 * time.Hour},
		"by two centuries, revoked late":           {"2000000h", 48 * time.Hour, "", 48 * time.Hour},
		"by a status that says it ended at once":   {"2h", -time.Hour, "", 2 * time.Hour},
		"by a status, of one that was granted":     {"48h", -time.Hour, "p", 48 * time.Hour},
		"at the end of its time, without a grant":  {"48h", 0, "", 48 * time.Hour},
		"that waited for its template, and no end": {"", 10 * time.Minute, "", 10 * time.Minute},
	} {
		t.Run(sentence, func(t *testing.T) {
			req := about(execAccess).request
			req.GetRequestSpec().Duration, req.GetRequestStatus().PodUID = test.duration, test.pod
			if test.revoked != 0 {
				req.GetRequestStatus().RevokedAt = &metav1.Time{Time: created.Add(test.revoked)}
			}
			if kept := keepUntil(req, time.Hour).Sub(created.Add(time.Hour)); kept != test.want {
				t.Errorf("it is kept for %s, want %s", kept, test.want)
			}
		})
	}
}

func TestARequestOnBehalfOfAUserCountsForThemIfItIsAllowed(t *testing.T) {
	for sentence, test := range map[string]struct {
		change func(*facts)
		user   string
		want   bool
	}{
		"by who may ask, for who is asked for":  {forOther("bot", "alice", "bot"), "alice", true},
		"by who may ask, for who asks":          {forOther("bot", "alice", "bot"), "bot", true},
		"by who may not ask":                    {forOther("mallory", "alice", "bot"), "alice", false},
		"by who may not ask, for who asks":      {forOther("mallory", "alice", "bot"), "mallory", true},
		"by who may not ask any more":           {func(f *facts) { forOther("old", "alice", "bot")(f); settledOn("web-0", "p")(f) }, "alice", true},
		"by who may ask, for longer than it is": {func(f *facts) { forOther("bot", "alice", "bot")(f); f.request.GetRequestSpec().Duration = "3h" }, "alice", false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := about(execAccess, test.change)
			if got := countsFor(f.template, f.request, test.user); got != test.want {
				t.Errorf("it counts: %t", got)
			}
		})
	}
}

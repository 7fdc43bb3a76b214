package grant_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
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
			req := factstest.About(grant.ExecAccess).Request
			req.GetRequestSpec().Duration, req.GetRequestStatus().PodUID = test.duration, test.pod
			if test.revoked != 0 {
				req.GetRequestStatus().RevokedAt = &metav1.Time{Time: factstest.Created.Add(test.revoked)}
			}
			if kept := grant.KeepUntil(req, time.Hour).Sub(factstest.Created.Add(time.Hour)); kept != test.want {
				t.Errorf("it is kept for %s, want %s", kept, test.want)
			}
		})
	}
}

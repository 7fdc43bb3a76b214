package v1alpha1_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestARevocationEndsAccessSoonerAndNeverLater(t *testing.T) {
	created := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		duration string
		revoked  time.Duration // 0 for none
		want     time.Duration // -1 for an error
	}{
		"not revoked":               {"1h", 0, time.Hour},
		"revoked before its end":    {"1h", time.Minute, time.Minute},
		"revoked after its end":     {"1h", 2 * time.Hour, time.Hour},
		"revoked before it was":     {"1h", -time.Hour, 0},
		"of a duration that is not": {"soon", time.Minute, -1},
	} {
		for by, revoke := range map[string]func(*v1alpha1.ExecAccessRequest, *metav1.Time){
			"a user": func(req *v1alpha1.ExecAccessRequest, at *metav1.Time) {
				req.Spec.Revoked = &v1alpha1.Revocation{At: at}
			},
			"an uninstall": func(req *v1alpha1.ExecAccessRequest, at *metav1.Time) { req.Status.RevokedAt = at },
		} {
			req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
			req.Spec.Duration = test.duration
			if test.revoked != 0 {
				revoke(req, &metav1.Time{Time: created.Add(test.revoked)})
			}
			end, err := v1alpha1.EndOf(req)
			if (err != nil) != (test.want < 0) || err == nil && !end.Equal(created.Add(test.want)) {
				t.Errorf("%s, by %s: the end is %s, %v", name, by, end, err)
			}
		}
	}
}

func TestAccessIsOverWhenItsTimeHasPassedOrItWasRevoked(t *testing.T) {
	created := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for sentence, test := range map[string]struct {
		duration string
		revoked  time.Duration // 0 for none
		now      time.Duration
		want     bool
	}{
		"before the end":                 {"1h", 0, time.Hour - 1, false},
		"at the end":                     {"1h", 0, time.Hour, true},
		"revoked":                        {"1h", time.Minute, 2 * time.Minute, true},
		"revoked by a clock that is off": {"1h", time.Minute, 0, true},
		"revoked after its end":          {"1h", 2 * time.Hour, time.Minute, true},
		"of a duration that is not":      {"soon", 0, 0, true},
	} {
		req := &v1alpha1.PodAccessRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		req.Spec.Duration = test.duration
		if test.revoked != 0 {
			req.Status.RevokedAt = &metav1.Time{Time: created.Add(test.revoked)}
		}
		if over := v1alpha1.Over(req, created.Add(test.now)); over != test.want {
			t.Errorf("%s: it is over: %t", sentence, over)
		}
	}
}

func TestARevocationThatNoWebhookSawCountsWithoutATime(t *testing.T) {
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()}}
	req.Spec.Duration, req.Spec.Revoked = "1h", &v1alpha1.Revocation{}
	if !v1alpha1.Over(req, time.Now()) {
		t.Error("it is not over")
	}
}

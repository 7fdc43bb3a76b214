package auditevent

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// A record whose time is old, or whose object is, is not deleted sooner for that.
func TestARecordIsKeptFromTheLatestOfItsTimesForThirtyDays(t *testing.T) {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	micro := func(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(at.Add(d)) }
	const retention = 30 * 24 * time.Hour
	e, _ := New(Options{}).(*events)
	for sentence, test := range map[string]struct {
		made, spec, last time.Duration
		want             time.Duration
	}{
		"one of now":                {0, 0, 0, retention},
		"one of long ago":           {0, -time.Hour, 0, retention},
		"one whose clock is ahead":  {0, time.Hour, 0, time.Hour + retention},
		"a flood that still counts": {-time.Hour, -time.Hour, time.Minute, time.Minute + retention},
	} {
		event := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at.Add(test.made))}}
		last := micro(test.last)
		event.Spec.Time, event.Status.LastTime = micro(test.spec), &last
		if end, known := e.end(event); !known || !end.Equal(at.Add(test.want)) {
			t.Errorf("%s: %s, %t", sentence, end, known)
		}
	}
	if _, known := e.end(&v1alpha1.AuditEvent{}); known {
		t.Error("a record without times has an end")
	}
}

package decision

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
)

// lookEvery is how often to look who uses an Interactive run.
const lookEvery = time.Minute

// end is when and why an Interactive run ends.
type end struct {
	at              time.Time
	reason, message string
}

// endsOf returns the ends of a run that began at a time, in the order in which they count. If the activity is not known, it is nil.
func endsOf(a *facts.Activity, began time.Time, l *v1alpha1.InteractiveLimits) (ends []end) {
	after := func(from time.Time, seconds *int64) time.Time { return from.Add(time.Duration(*seconds) * time.Second) }
	lasting := func(seconds int64) string { return (time.Duration(seconds) * time.Second).String() }
	if a != nil && a.Attached == 0 {
		left := !a.Unrecorded.After(a.Detached) // of an unrecorded session nobody knows whether it has ended
		idle := *l.IdleSeconds
		if left {
			idle = min(idle, *l.DetachIdleSeconds)
		}
		last := a.Last
		if last.Before(began) {
			last = began
		}
		ends = append(ends, end{after(last, &idle), v1alpha1.InteractiveTerminatedIdle, "nobody has used it for " + lasting(idle)})
		if left && !a.Detached.IsZero() {
			ends = append(ends, end{after(a.Detached, l.DetachSeconds), v1alpha1.InteractiveTerminatedDetach, "the last session ended, and nobody came back for " + lasting(*l.DetachSeconds)})
		}
	}
	return append(ends, end{after(began, l.MaxLifetimeSeconds), v1alpha1.InteractiveTerminatedMaxLifetime, "its life of " + lasting(*l.MaxLifetimeSeconds) + " is over"})
}

// nextEnd returns the end that has come, the first of them, or else the one that comes next.
func nextEnd(ends []end, now time.Time) (next end, fired bool) {
	for _, e := range ends {
		if !now.Before(e.at) {
			return e, true
		}
		if next.at.IsZero() || e.at.Before(next.at) {
			next = e
		}
	}
	return next, false
}

// decideLife ends an Interactive run that nobody uses, or whose life is over.
func (d *Decision) decideLife(f *facts.Facts, now time.Time) {
	status := d.Status.Interactive
	if status == nil || d.Status.StartTime == nil {
		return
	}
	if f.Unwatched != nil {
		d.Set(f.Run, v1alpha1.ConditionActivityKnown, false, v1alpha1.ActivityUnreadable, f.Unwatched.Error()+": only maxLifetimeSeconds ends the run", now)
	} else {
		d.Set(f.Run, v1alpha1.ConditionActivityKnown, true, v1alpha1.ActivityRead, "", now)
	}
	if a := f.Activity; a != nil {
		status.AttachedSessions = a.Attached
		status.LastActivityTime, status.DetachedTime = timeOf(a.Last), timeOf(a.Detached)
	}
	next, fired := nextEnd(endsOf(f.Activity, d.Status.StartTime.Time, &status.Limits), now)
	status.EndsTime, status.EndsReason = timeOf(next.at), next.reason
	if fired {
		d.Finish(v1alpha1.SandboxCancelled, next.reason, next.message, now)
		return
	}
	d.Next = next.at
	if again := now.Add(lookEvery); again.Before(d.Next) {
		d.Next = again
	}
}

func timeOf(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return &metav1.Time{Time: at.Truncate(time.Second)}
}

package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// lookEvery is how often to look who uses an Interactive run.
const lookEvery = time.Minute

// activity is what is known of the people in a run.
type activity struct {
	// last is when a session last began, or a recorded one ended.
	last time.Time
	// detached is when the last recorded session ended, and attached how many have not.
	detached time.Time
	attached int32
	// unrecorded is when the last session began of which nobody knows when it ends.
	unrecorded time.Time
}

// readActivity reads from AuditEvents who uses an Interactive run that has its Pod.
func (r *runs) readActivity(ctx context.Context, f *facts) {
	status := f.run.Status.Interactive
	if status == nil || f.job == nil || f.run.Status.Phase.Terminal() {
		return
	}
	f.activity = &activity{}
	if t := status.LastActivityTime; t != nil {
		f.activity.last, f.activity.unrecorded = t.Time, t.Time
	}
	if t := status.DetachedTime; t != nil {
		f.activity.detached = t.Time
	}
	now := r.options.Clock.Now()
	for _, pod := range f.pods {
		for _, labels := range []client.MatchingLabels{
			{v1alpha1.LabelAuditNamespace: pod.Namespace, v1alpha1.LabelAuditPod: v1alpha1.AuditLabelValue(pod.Name)}, {v1alpha1.LabelAuditFolded: "true"},
		} {
			if err := r.eachAuditEvent(ctx, labels, func(event *v1alpha1.AuditEvent) { f.activity.add(event, pod, now) }); err != nil {
				f.activity, f.unwatched = nil, fmt.Errorf("reading AuditEvents: %w", err)
				return // the condition says it, and what else there is to decide must not wait
			}
		}
	}
}

func (r *runs) eachAuditEvent(ctx context.Context, labels client.MatchingLabels, do func(*v1alpha1.AuditEvent)) error {
	var list v1alpha1.AuditEventList
	for more := true; more; more = list.Continue != "" {
		if err := r.live.List(ctx, &list, labels, client.Limit(owned.PageSize), client.Continue(list.Continue)); err != nil {
			return err
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
	}
	return nil
}

// add takes an AuditEvent into account. A time that has not come yet is that of a clock that is ahead.
func (a *activity) add(event *v1alpha1.AuditEvent, pod *corev1.Pod, now time.Time) {
	seen := func(at time.Time, of *time.Time) {
		if at.After(now) {
			at = now
		}
		at = at.Truncate(time.Second)
		for _, t := range []*time.Time{&a.last, of} {
			if at.After(*t) {
				*t = at
			}
		}
	}
	spec, status := &event.Spec, &event.Status
	switch {
	case spec.Folded:
		if status.LastTime != nil && slices.ContainsFunc(status.Acts, func(act v1alpha1.AuditFold) bool {
			return act.Namespace == pod.Namespace && act.Pod == pod.Name && act.Decision == v1alpha1.AuditAllowed && entersWork(act.Way, act.Container)
		}) {
			seen(status.LastTime.Time, &a.unrecorded)
		}
	case !concerns(spec, pod) || spec.Decision != v1alpha1.AuditAllowed || !entersWork(spec.Way, spec.Container):
	case spec.Session == "":
		seen(spec.Time.Time, &a.unrecorded)
	case status.Session == nil:
		seen(spec.Time.Time, &a.last)
		a.attached++
	default:
		seen(status.Session.EndTime.Time, &a.detached)
	}
}

func concerns(spec *v1alpha1.AuditEventSpec, pod *corev1.Pod) bool {
	return spec.Namespace == pod.Namespace && spec.Pod == pod.Name && (spec.PodUID == "" || spec.PodUID == pod.UID)
}

// entersWork reports whether a way leads into the container that does the work.
func entersWork(way v1alpha1.AuditWay, in string) bool {
	return (way == v1alpha1.WayExec || way == v1alpha1.WayAttach) && (in == "" || in == workload.Container)
}

// end is when and why an Interactive run ends.
type end struct {
	at              time.Time
	reason, message string
}

// ends returns the ends of a run that began at a time, in the order in which they count. If the activity is not known, it is nil.
func (a *activity) ends(began time.Time, l *v1alpha1.InteractiveLimits) (ends []end) {
	after := func(from time.Time, seconds *int64) time.Time { return from.Add(time.Duration(*seconds) * time.Second) }
	lasting := func(seconds int64) string { return (time.Duration(seconds) * time.Second).String() }
	if a != nil && a.attached == 0 {
		left := !a.unrecorded.After(a.detached) // of an unrecorded session nobody knows whether it has ended
		idle := *l.IdleSeconds
		if left {
			idle = min(idle, *l.DetachIdleSeconds)
		}
		last := a.last
		if last.Before(began) {
			last = began
		}
		ends = append(ends, end{after(last, &idle), v1alpha1.InteractiveTerminatedIdle, "nobody has used it for " + lasting(idle)})
		if left && !a.detached.IsZero() {
			ends = append(ends, end{after(a.detached, l.DetachSeconds), v1alpha1.InteractiveTerminatedDetach, "the last session ended, and nobody came back for " + lasting(*l.DetachSeconds)})
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
func (f *facts) decideLife(d *decision, now time.Time) {
	status := d.status.Interactive
	if status == nil || d.status.StartTime == nil {
		return
	}
	if f.unwatched != nil {
		d.set(f.run, v1alpha1.ConditionActivityKnown, false, v1alpha1.ActivityUnreadable, f.unwatched.Error()+": only maxLifetimeSeconds ends the run", now)
	} else {
		d.set(f.run, v1alpha1.ConditionActivityKnown, true, v1alpha1.ActivityRead, "", now)
	}
	if a := f.activity; a != nil {
		status.AttachedSessions = a.attached
		status.LastActivityTime, status.DetachedTime = timeOf(a.last), timeOf(a.detached)
	}
	next, fired := nextEnd(f.activity.ends(d.status.StartTime.Time, &status.Limits), now)
	status.EndsTime, status.EndsReason = timeOf(next.at), next.reason
	if fired {
		d.finish(v1alpha1.SandboxCancelled, next.reason, next.message, now)
		return
	}
	d.next = next.at
	if again := now.Add(lookEvery); again.Before(d.next) {
		d.next = again
	}
}

func timeOf(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return &metav1.Time{Time: at.Truncate(time.Second)}
}

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
)

// Defaults of the limits of Interactive runs, in seconds.
const (
	defaultIdle        = 30 * 60
	defaultDetachIdle  = 15 * 60
	defaultDetach      = 5 * 60
	defaultMaxLifetime = 24 * 3600
)

// lookEvery is how often to look who uses an Interactive run.
const lookEvery = time.Minute

// limitsOf replaces limits, those of from or the defaults, as far as they are set, if bounded by no more than they are.
func limitsOf(from, with *v1alpha1.InteractiveLimits, bounded bool, field string) (*v1alpha1.InteractiveLimits, error) {
	of := &v1alpha1.InteractiveLimits{
		IdleSeconds: new(int64(defaultIdle)), DetachIdleSeconds: new(int64(defaultDetachIdle)), DetachSeconds: new(int64(defaultDetach)), MaxLifetimeSeconds: new(int64(defaultMaxLifetime)),
	}
	if from != nil {
		of = from.DeepCopy()
	}
	if with == nil {
		return of, nil
	}
	for _, limit := range []struct {
		value, with *int64
		name        string
	}{
		{of.IdleSeconds, with.IdleSeconds, ".idleSeconds"},
		{of.DetachIdleSeconds, with.DetachIdleSeconds, ".detachIdleSeconds"},
		{of.DetachSeconds, with.DetachSeconds, ".detachSeconds"},
		{of.MaxLifetimeSeconds, with.MaxLifetimeSeconds, ".maxLifetimeSeconds"},
	} {
		if err := less(limit.value, limit.with, bounded, field+limit.name); err != nil {
			return nil, err
		}
	}
	// What was left out cannot be more than what it depends on.
	*of.IdleSeconds, *of.DetachSeconds = min(*of.IdleSeconds, *of.MaxLifetimeSeconds), min(*of.DetachSeconds, *of.MaxLifetimeSeconds)
	*of.DetachIdleSeconds = min(*of.DetachIdleSeconds, *of.IdleSeconds)
	return of, nil
}

// live makes a plan that of an Interactive run with these limits. The Job ends it, too, when its life is over, so that
// nobody need be there for that.
func (p *plan) live(limits *v1alpha1.InteractiveLimits) {
	p.interactive, p.timeout = limits, *limits.MaxLifetimeSeconds
}

// withMode makes the plan that of the mode of a run.
func (p *plan) withMode(spec *v1alpha1.SandboxRunSpec) error {
	if spec.Mode != v1alpha1.SandboxInteractive {
		p.interactive = nil
		if spec.Interactive != nil {
			return fmt.Errorf("interactive: needs mode Interactive")
		}
		return nil
	}
	switch {
	case p.interactive == nil:
		return fmt.Errorf("mode: the template is not for Interactive runs: let its author set spec.interactive there")
	case spec.TimeoutSeconds != nil:
		return fmt.Errorf("timeoutSeconds: an Interactive run has none: set interactive.maxLifetimeSeconds")
	case spec.Retries > 0:
		return fmt.Errorf("retries: an Interactive run is not tried again: leave it out")
	}
	limits, err := limitsOf(p.interactive, spec.Interactive, true, "interactive")
	if err == nil {
		p.live(limits)
	}
	return err
}

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
	return (way == v1alpha1.WayExec || way == v1alpha1.WayAttach) && (in == "" || in == container)
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

package facts

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// Activity is what is known of the people in a run.
type Activity struct {
	// Last is when a session last began, or a recorded one ended.
	Last time.Time
	// Detached is when the last recorded session ended, and attached how many have not.
	Detached time.Time
	Attached int32
	// Unrecorded is when the last session began of which nobody knows when it ends.
	Unrecorded time.Time
}

// readActivity reads from AuditEvents who uses an Interactive run that has its Pod.
func (r *Reader) readActivity(ctx context.Context, f *Facts) {
	status := f.Run.Status.Interactive
	if status == nil || f.Job == nil || f.Run.Status.Phase.Terminal() {
		return
	}
	f.Activity = &Activity{}
	if t := status.LastActivityTime; t != nil {
		f.Activity.Last, f.Activity.Unrecorded = t.Time, t.Time
	}
	if t := status.DetachedTime; t != nil {
		f.Activity.Detached = t.Time
	}
	now := r.Clock.Now()
	for _, pod := range f.Pods {
		for _, labels := range []client.MatchingLabels{
			{v1alpha1.LabelAuditNamespace: pod.Namespace, v1alpha1.LabelAuditPod: v1alpha1.AuditLabelValue(pod.Name)}, {v1alpha1.LabelAuditFolded: "true"},
		} {
			if err := r.eachAuditEvent(ctx, labels, func(event *v1alpha1.AuditEvent) { f.Activity.add(event, pod, now) }); err != nil {
				f.Activity, f.Unwatched = nil, fmt.Errorf("reading AuditEvents: %w", err)
				return // the condition says it, and what else there is to decide must not wait
			}
		}
	}
}

func (r *Reader) eachAuditEvent(ctx context.Context, labels client.MatchingLabels, do func(*v1alpha1.AuditEvent)) error {
	var list v1alpha1.AuditEventList
	for more := true; more; more = list.Continue != "" {
		if err := r.Live.List(ctx, &list, labels, client.Limit(owned.PageSize), client.Continue(list.Continue)); err != nil {
			return err
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
	}
	return nil
}

// add takes an AuditEvent into account. A time that has not come yet is that of a clock that is ahead.
func (a *Activity) add(event *v1alpha1.AuditEvent, pod *corev1.Pod, now time.Time) {
	seen := func(at time.Time, of *time.Time) {
		if at.After(now) {
			at = now
		}
		at = at.Truncate(time.Second)
		for _, t := range []*time.Time{&a.Last, of} {
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
			seen(status.LastTime.Time, &a.Unrecorded)
		}
	case !concerns(spec, pod) || spec.Decision != v1alpha1.AuditAllowed || !entersWork(spec.Way, spec.Container):
	case spec.Session == "":
		seen(spec.Time.Time, &a.Unrecorded)
	case status.Session == nil:
		seen(spec.Time.Time, &a.Last)
		a.Attached++
	default:
		seen(status.Session.EndTime.Time, &a.Detached)
	}
}

func concerns(spec *v1alpha1.AuditEventSpec, pod *corev1.Pod) bool {
	return spec.Namespace == pod.Namespace && spec.Pod == pod.Name && (spec.PodUID == "" || spec.PodUID == pod.UID)
}

// entersWork reports whether a way leads into the container that does the work.
func entersWork(way v1alpha1.AuditWay, in string) bool {
	return (way == v1alpha1.WayExec || way == v1alpha1.WayAttach) && (in == "" || in == workload.Container)
}

package sandbox

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

func limits(t *testing.T, with *v1alpha1.InteractiveLimits) *v1alpha1.InteractiveLimits {
	t.Helper()
	if with == nil {
		with = &v1alpha1.InteractiveLimits{}
	}
	of, err := workload.Of(&v1alpha1.SandboxRunTemplateSpec{Image: "a", Interactive: with}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return of.Interactive
}

func TestWhenAnInteractiveRunEnds(t *testing.T) {
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	const idle, detach, life = v1alpha1.InteractiveTerminatedIdle, v1alpha1.InteractiveTerminatedDetach, v1alpha1.InteractiveTerminatedMaxLifetime
	for sentence, test := range map[string]struct {
		activity *activity
		with     *v1alpha1.InteractiveLimits
		at       time.Time
		want     string
		end      time.Time
		fired    bool
	}{
		"if nobody comes, soon":                                {&activity{}, nil, at(0), idle, at(15), false},
		"if nobody came":                                       {&activity{}, nil, at(15), idle, at(15), true},
		"not while a recorded session lasts":                   {&activity{last: at(1), attached: 1}, nil, at(23 * 60), life, at(24 * 60), false},
		"after a recorded session":                             {&activity{last: at(60), detached: at(60)}, nil, at(64), detach, at(65), false},
		"if nobody came back":                                  {&activity{last: at(60), detached: at(60)}, nil, at(65), detach, at(65), true},
		"later after a session of which nobody knows its end":  {&activity{last: at(60), unrecorded: at(60)}, nil, at(89), idle, at(90), false},
		"if nobody came again for that time":                   {&activity{last: at(60), unrecorded: at(60)}, nil, at(90), idle, at(90), true},
		"as if attached, if such a session is the latest":      {&activity{last: at(61), unrecorded: at(61), detached: at(60)}, nil, at(70), idle, at(91), false},
		"when its life is over, whoever uses it":               {&activity{last: at(60), attached: 2}, nil, at(24 * 60), life, at(24 * 60), true},
		"when its life is over, if nothing is known":           {nil, nil, at(24 * 60), life, at(24 * 60), true},
		"not before, if nothing is known":                      {nil, nil, at(23 * 60), life, at(24 * 60), false},
		"by its own limits":                                    {&activity{}, &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(60))}, at(1), idle, at(1), true},
		"by the first of several that are over":                {&activity{last: at(1), detached: at(1)}, nil, at(25 * 60), idle, at(16), true},
		"by what comes first of those that are not over":       {&activity{last: now.Add(time.Second), unrecorded: now.Add(time.Second)}, &v1alpha1.InteractiveLimits{MaxLifetimeSeconds: new(int64(60))}, at(0), life, at(1), false},
		"no later for an activity that is older than it":       {&activity{last: at(-60), unrecorded: at(-60)}, nil, at(0), idle, at(30), false},
		"by a detach that comes later than the idle time does": {&activity{last: at(60), detached: at(60)}, &v1alpha1.InteractiveLimits{DetachSeconds: new(int64(3600))}, at(75), idle, at(75), true},
	} {
		t.Run(sentence, func(t *testing.T) {
			next, fired := nextEnd(test.activity.ends(now, limits(t, test.with)), test.at)
			if next.reason != test.want || !next.at.Equal(test.end) || fired != test.fired {
				t.Errorf("got %s at %s, fired %t", next.reason, next.at, fired)
			}
		})
	}
}

// live are the facts of an Interactive run that began now.
func live(t *testing.T, change func(*facts)) func(*facts) {
	t.Helper()
	return func(f *facts) {
		f.run.Spec.Mode = v1alpha1.SandboxInteractive
		f.run.Status.Interactive = &v1alpha1.InteractiveStatus{Limits: *limits(t, nil)}
		f.activity = &activity{}
		change(f)
	}
}

func TestWhatFollowsForAnInteractiveRun(t *testing.T) {
	reason := func(d *decision) string {
		return meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionCompleted).Reason
	}
	for sentence, test := range map[string]struct {
		change func(*facts)
		at     time.Time
		is     func(*decision) bool
	}{
		"one that is young is looked at again": {func(*facts) {}, now, func(d *decision) bool {
			return d.next.Equal(now.Add(lookEvery)) && d.status.Interactive.EndsTime.Equal(&metav1.Time{Time: now.Add(15 * time.Minute)}) && d.status.Phase == v1alpha1.SandboxRunning
		}},
		"one that is about to end is looked at then": {func(*facts) {}, now.Add(15*time.Minute - time.Second), func(d *decision) bool { return d.next.Equal(now.Add(15 * time.Minute)) }},
		"one that is idle is cancelled, and its Job ends": {func(*facts) {}, now.Add(15 * time.Minute), func(d *decision) bool {
			return d.status.Phase == v1alpha1.SandboxCancelled && d.end && reason(d) == v1alpha1.InteractiveTerminatedIdle
		}},
		"what was seen before a restart counts": {
			func(f *facts) {
				at := metav1.NewTime(now.Add(10 * time.Minute))
				f.run.Status.Interactive.LastActivityTime = &at
				f.activity.last, f.activity.unrecorded = at.Time, at.Time
			}, now.Add(39 * time.Minute), func(d *decision) bool { return d.status.Phase == v1alpha1.SandboxRunning },
		},
		"an outage of the manager does not lengthen a life": {func(*facts) {}, now.Add(100 * time.Hour), func(d *decision) bool { return d.status.Phase == v1alpha1.SandboxCancelled }},
		"a Job that has lived too long is no failure": {
			func(f *facts) {
				f.job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded}}
			}, now, func(d *decision) bool {
				return d.status.Phase == v1alpha1.SandboxCancelled && reason(d) == v1alpha1.InteractiveTerminatedMaxLifetime
			},
		},
		"one whose use is not known goes on, and says so": {
			func(f *facts) { f.activity, f.unwatched = nil, errors.New("forbidden") }, now.Add(time.Hour), func(d *decision) bool {
				c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionActivityKnown)
				return d.status.Phase == v1alpha1.SandboxRunning && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "forbidden")
			},
		},
		"a Batch run is left alone": {
			func(f *facts) { f.run.Status.Interactive, f.activity = nil, nil }, now.Add(100 * time.Hour), func(d *decision) bool {
				return d.status.Phase == v1alpha1.SandboxRunning && d.status.Interactive == nil
			},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if d := decide(factsOf(t, live(t, test.change)), test.at); !test.is(&d) {
				t.Errorf("%+v, %+v", d, d.status.Interactive)
			}
		})
	}
}

func TestWhoUsesARunIsReadFromAuditEvents(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u"}}
	micro := func(minutes int) metav1.MicroTime {
		return metav1.NewMicroTime(now.Add(time.Duration(minutes) * time.Minute))
	}
	exec := func(change func(*v1alpha1.AuditEvent)) *v1alpha1.AuditEvent {
		e := &v1alpha1.AuditEvent{Spec: v1alpha1.AuditEventSpec{AuditRecord: v1alpha1.AuditRecord{
			Time: micro(-5), Way: v1alpha1.WayExec, Verb: "connect", Namespace: "a", Pod: "p", PodUID: "u", Container: workload.Container, Decision: v1alpha1.AuditAllowed,
		}}}
		change(e)
		return e
	}
	five, three := now.Add(-5*time.Minute), now.Add(-3*time.Minute)
	for sentence, test := range map[string]struct {
		change func(*v1alpha1.AuditEvent)
		want   activity
	}{
		"an exec":                       {func(*v1alpha1.AuditEvent) {}, activity{last: five, unrecorded: five}},
		"an exec that was denied":       {func(e *v1alpha1.AuditEvent) { e.Spec.Decision = v1alpha1.AuditDenied }, activity{}},
		"an exec into another Pod":      {func(e *v1alpha1.AuditEvent) { e.Spec.Pod = "q" }, activity{}},
		"one into an earlier Pod":       {func(e *v1alpha1.AuditEvent) { e.Spec.PodUID = "v" }, activity{}},
		"one into the proxy":            {func(e *v1alpha1.AuditEvent) { e.Spec.Container = "egress-proxy" }, activity{}},
		"a port-forward":                {func(e *v1alpha1.AuditEvent) { e.Spec.Way = v1alpha1.WayPortForward }, activity{}},
		"one by a clock that is ahead":  {func(e *v1alpha1.AuditEvent) { e.Spec.Time = micro(60) }, activity{last: now, unrecorded: now}},
		"a recorded session that lasts": {func(e *v1alpha1.AuditEvent) { e.Spec.Session = "s" }, activity{last: five, attached: 1}},
		"a recorded session that is over": {func(e *v1alpha1.AuditEvent) {
			e.Spec.Session, e.Status.Session = "s", &v1alpha1.AuditSession{EndTime: micro(-3)}
		}, activity{last: three, detached: three}},
		"a flood with an exec": {func(e *v1alpha1.AuditEvent) {
			last := micro(-3)
			e.Spec.Pod, e.Spec.Folded, e.Status.LastTime = "q", true, &last
			e.Status.Acts = []v1alpha1.AuditFold{{Way: v1alpha1.WayExec, Decision: v1alpha1.AuditAllowed, Namespace: "a", Pod: "p"}}
		}, activity{last: three, unrecorded: three}},
		"a flood elsewhere": {func(e *v1alpha1.AuditEvent) {
			last := micro(-3)
			e.Spec.Folded, e.Status.LastTime = true, &last
			e.Status.Acts = []v1alpha1.AuditFold{{Way: v1alpha1.WayExec, Decision: v1alpha1.AuditAllowed, Namespace: "b", Pod: "p"}}
		}, activity{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := activity{}
			a.add(exec(test.change), pod, now)
			if a != test.want {
				t.Errorf("got %+v, want %+v", a, test.want)
			}
		})
	}
}

// A template that changes its limits later changes nothing of a run that has begun.
func TestARunEndsByTheLimitsThatWereDecided(t *testing.T) {
	decided := factsOf(t, live(t, func(f *facts) { f.run.Status.Interactive.Limits.IdleSeconds = new(int64(7)) }))
	if d := decide(decided, now.Add(7*time.Second)); d.status.Phase != v1alpha1.SandboxCancelled {
		t.Errorf("not by what was decided: %+v", d.status)
	}
}

package decision

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
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
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
		activity *facts.Activity
		with     *v1alpha1.InteractiveLimits
		at       time.Time
		want     string
		end      time.Time
		fired    bool
	}{
		"if nobody comes, soon":                                {&facts.Activity{}, nil, at(0), idle, at(15), false},
		"if nobody came":                                       {&facts.Activity{}, nil, at(15), idle, at(15), true},
		"not while a recorded session lasts":                   {&facts.Activity{Last: at(1), Attached: 1}, nil, at(23 * 60), life, at(24 * 60), false},
		"after a recorded session":                             {&facts.Activity{Last: at(60), Detached: at(60)}, nil, at(64), detach, at(65), false},
		"if nobody came back":                                  {&facts.Activity{Last: at(60), Detached: at(60)}, nil, at(65), detach, at(65), true},
		"later after a session of which nobody knows its end":  {&facts.Activity{Last: at(60), Unrecorded: at(60)}, nil, at(89), idle, at(90), false},
		"if nobody came again for that time":                   {&facts.Activity{Last: at(60), Unrecorded: at(60)}, nil, at(90), idle, at(90), true},
		"as if attached, if such a session is the latest":      {&facts.Activity{Last: at(61), Unrecorded: at(61), Detached: at(60)}, nil, at(70), idle, at(91), false},
		"when its life is over, whoever uses it":               {&facts.Activity{Last: at(60), Attached: 2}, nil, at(24 * 60), life, at(24 * 60), true},
		"when its life is over, if nothing is known":           {nil, nil, at(24 * 60), life, at(24 * 60), true},
		"not before, if nothing is known":                      {nil, nil, at(23 * 60), life, at(24 * 60), false},
		"by its own limits":                                    {&facts.Activity{}, &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(60))}, at(1), idle, at(1), true},
		"by the first of several that are over":                {&facts.Activity{Last: at(1), Detached: at(1)}, nil, at(25 * 60), idle, at(16), true},
		"by what comes first of those that are not over":       {&facts.Activity{Last: now.Add(time.Second), Unrecorded: now.Add(time.Second)}, &v1alpha1.InteractiveLimits{MaxLifetimeSeconds: new(int64(60))}, at(0), life, at(1), false},
		"no later for an activity that is older than it":       {&facts.Activity{Last: at(-60), Unrecorded: at(-60)}, nil, at(0), idle, at(30), false},
		"by a detach that comes later than the idle time does": {&facts.Activity{Last: at(60), Detached: at(60)}, &v1alpha1.InteractiveLimits{DetachSeconds: new(int64(3600))}, at(75), idle, at(75), true},
	} {
		t.Run(sentence, func(t *testing.T) {
			next, fired := nextEnd(endsOf(test.activity, now, limits(t, test.with)), test.at)
			if next.reason != test.want || !next.at.Equal(test.end) || fired != test.fired {
				t.Errorf("got %s at %s, fired %t", next.reason, next.at, fired)
			}
		})
	}
}

// live are the facts of an Interactive run that began now.
func live(t *testing.T, change func(*facts.Facts)) func(*facts.Facts) {
	t.Helper()
	return func(f *facts.Facts) {
		f.Run.Spec.Mode = v1alpha1.SandboxInteractive
		f.Run.Status.Interactive = &v1alpha1.InteractiveStatus{Limits: *limits(t, nil)}
		f.Activity = &facts.Activity{}
		change(f)
	}
}

func TestWhatFollowsForAnInteractiveRun(t *testing.T) {
	reason := func(d *Decision) string {
		return meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionCompleted).Reason
	}
	for sentence, test := range map[string]struct {
		change func(*facts.Facts)
		at     time.Time
		is     func(*Decision) bool
	}{
		"one that is young is looked at again": {func(*facts.Facts) {}, now, func(d *Decision) bool {
			return d.Next.Equal(now.Add(lookEvery)) && d.Status.Interactive.EndsTime.Equal(&metav1.Time{Time: now.Add(15 * time.Minute)}) && d.Status.Phase == v1alpha1.SandboxRunning
		}},
		"one that is about to end is looked at then": {func(*facts.Facts) {}, now.Add(15*time.Minute - time.Second), func(d *Decision) bool { return d.Next.Equal(now.Add(15 * time.Minute)) }},
		"one that is idle is cancelled, and its Job ends": {func(*facts.Facts) {}, now.Add(15 * time.Minute), func(d *Decision) bool {
			return d.Status.Phase == v1alpha1.SandboxCancelled && d.End && reason(d) == v1alpha1.InteractiveTerminatedIdle
		}},
		"what was seen before a restart counts": {
			func(f *facts.Facts) {
				at := metav1.NewTime(now.Add(10 * time.Minute))
				f.Run.Status.Interactive.LastActivityTime = &at
				f.Activity.Last, f.Activity.Unrecorded = at.Time, at.Time
			}, now.Add(39 * time.Minute), func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxRunning },
		},
		"an outage of the manager does not lengthen a life": {func(*facts.Facts) {}, now.Add(100 * time.Hour), func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxCancelled }},
		"a Job that has lived too long is no failure": {
			func(f *facts.Facts) {
				f.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded}}
			}, now, func(d *Decision) bool {
				return d.Status.Phase == v1alpha1.SandboxCancelled && reason(d) == v1alpha1.InteractiveTerminatedMaxLifetime
			},
		},
		"one whose use is not known goes on, and says so": {
			func(f *facts.Facts) { f.Activity, f.Unwatched = nil, errors.New("forbidden") }, now.Add(time.Hour), func(d *Decision) bool {
				c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionActivityKnown)
				return d.Status.Phase == v1alpha1.SandboxRunning && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "forbidden")
			},
		},
		"a Batch run is left alone": {
			func(f *facts.Facts) { f.Run.Status.Interactive, f.Activity = nil, nil }, now.Add(100 * time.Hour), func(d *Decision) bool {
				return d.Status.Phase == v1alpha1.SandboxRunning && d.Status.Interactive == nil
			},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if d := Of(factsOf(t, live(t, test.change)), test.at); !test.is(&d) {
				t.Errorf("%+v, %+v", d, d.Status.Interactive)
			}
		})
	}
}

// A template that changes its limits later changes nothing of a run that has begun.
func TestARunEndsByTheLimitsThatWereDecided(t *testing.T) {
	decided := factsOf(t, live(t, func(f *facts.Facts) { f.Run.Status.Interactive.Limits.IdleSeconds = new(int64(7)) }))
	if d := Of(decided, now.Add(7*time.Second)); d.Status.Phase != v1alpha1.SandboxCancelled {
		t.Errorf("not by what was decided: %+v", d.Status)
	}
}

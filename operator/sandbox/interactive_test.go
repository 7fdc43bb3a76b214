package sandbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// people is a sandbox with Interactive runs, whose clock a test sets.
type people struct {
	*story
	clock *clocktesting.FakePassiveClock
}

// TestInteractiveRuns has the real audit extension beside the sandbox, and sessions that are not recorded.
func TestInteractiveRuns(t *testing.T) {
	kept := &records{}
	p := &people{clock: clocktesting.NewFakePassiveClock(time.Now())}
	i := install(t, sandbox.Options{Interactive: true, Clock: p.clock}, func() any { return kept }, func() any {
		return audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{})}}})
	})
	p.story = &story{i, kept}
	shared := template(i.here, "shared")
	shared.Spec.Interactive = &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(1200)), DetachIdleSeconds: new(int64(600))}
	testkit.Create(t, admin, template(i.here, "agent"), shared)
	// One clock is for all of them, so each begins when the one before has ended.
	t.Run("are admitted where their template allows it", p.admitted)
	t.Run("are entered by nobody but into the work", p.entered)
	t.Run("go on while they are used, and end when they are not", p.used)
	t.Run("end when their life is over", p.old)
}

func (p *people) interactive(name string) *v1alpha1.SandboxRun {
	r := run(p.here, name, "shared")
	r.Spec.Mode = v1alpha1.SandboxInteractive
	return r
}

func (p *people) admitted(t *testing.T) {
	for want, change := range map[string]func(*v1alpha1.SandboxRun){
		"spec.mode: the template is not for Interactive runs: let its author set spec.interactive there": func(r *v1alpha1.SandboxRun) { r.Spec.TemplateRef.Name = "agent" },
		"spec.interactive.idleSeconds: 1201 is more than the 1200 of the template": func(r *v1alpha1.SandboxRun) {
			r.Spec.Interactive = &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(1201))}
		},
		"interactive needs mode Interactive": func(r *v1alpha1.SandboxRun) {
			r.Spec.Mode, r.Spec.Interactive = v1alpha1.SandboxBatch, &v1alpha1.InteractiveLimits{}
		},
		"an Interactive run has no timeoutSeconds": func(r *v1alpha1.SandboxRun) { r.Spec.TimeoutSeconds = new(int64(60)) },
		"detachIdleSeconds must not be more than idleSeconds": func(r *v1alpha1.SandboxRun) {
			r.Spec.Interactive = &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(60)), DetachIdleSeconds: new(int64(61))}
		},
		"idleSeconds and detachSeconds must not be more than maxLifetimeSeconds": func(r *v1alpha1.SandboxRun) {
			r.Spec.Interactive = &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(61)), MaxLifetimeSeconds: new(int64(60))}
		},
	} {
		r := p.interactive("no")
		change(r)
		refused(t, p.alice.Create(t.Context(), r, client.DryRunAll), want)
	}
}

// begun makes a run, and waits until it has its Pod.
func (p *people) begun(t *testing.T, r *v1alpha1.SandboxRun) {
	t.Helper()
	p.clock.SetTime(time.Now())
	testkit.Create(t, p.alice, r)
	await(t, r, "runs", in(v1alpha1.SandboxRunning))
}

func (p *people) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := server.Kubectl(t.Context(), nil, append([]string{"-n", p.here}, args...)...).CombinedOutput()
	return string(out), err
}

func (p *people) entered(t *testing.T) {
	r := p.interactive("entered")
	p.begun(t, r)
	if out, err := p.kubectl(t, "exec", r.Status.PodName, "--", "echo", "hello"); err != nil || !strings.Contains(out, "hello") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := p.kubectl(t, "port-forward", r.Status.PodName, "0:80"); err == nil || !strings.Contains(out, "could use its proxy") {
		t.Errorf("%v: %s", err, out)
	}
	p.cancelRun(t, r)
	await(t, r, "is cancelled", in(v1alpha1.SandboxCancelled))
}

// at sets the clock to a time after the start of a run, and has the run looked at.
func (p *people) at(t *testing.T, r *v1alpha1.SandboxRun, after time.Duration) {
	t.Helper()
	p.clock.SetTime(r.Status.StartTime.Add(after))
	touch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"annotations": {"example.com/at": %q}}}`, after))
	if err := admin.Patch(t.Context(), r.DeepCopy(), touch); err != nil {
		t.Fatal(err)
	}
}

func endsAfter(after time.Duration, reason string) func(*v1alpha1.SandboxRun) bool {
	return func(run *v1alpha1.SandboxRun) bool {
		i := run.Status.Interactive
		return i != nil && i.EndsTime != nil && i.EndsReason == reason && i.EndsTime.Sub(run.Status.StartTime.Time) == after
	}
}

func (p *people) used(t *testing.T) {
	r := p.interactive("used")
	p.begun(t, r)
	await(t, r, "says when it ends", endsAfter(10*time.Minute, v1alpha1.InteractiveTerminatedIdle))
	if job := p.job(t, r); *job.Spec.ActiveDeadlineSeconds != 86400 || !job.Spec.Template.Spec.Containers[0].TTY {
		t.Errorf("%+v", job.Spec)
	}
	if policy := p.policy(t, r); len(policy.Spec.Ingress) > 0 || len(policy.Spec.Egress) > 0 {
		t.Errorf("sessions open a way by the network: %+v", policy.Spec)
	}
	p.at(t, r, 9*time.Minute) // what comes later than the clock would count as of now
	if out, err := p.kubectl(t, "exec", r.Status.PodName, "--", "true"); err != nil {
		t.Fatal(err, out)
	}
	p.at(t, r, 10*time.Minute+30*time.Second) // after its end, had nobody used it
	await(t, r, "knows of the exec", func(run *v1alpha1.SandboxRun) bool { return run.Status.Interactive.LastActivityTime != nil })
	last := r.Status.Interactive.LastActivityTime.Time
	if start := r.Status.StartTime.Time; last.Before(start) { // by the test's clock; the Job's is the API server's
		last = start
	}
	if r.Status.Phase != v1alpha1.SandboxRunning || !r.Status.Interactive.EndsTime.Time.Equal(last.Add(20*time.Minute)) {
		t.Errorf("%s, %+v", r.Status.Phase, r.Status.Interactive)
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionActivityKnown); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	p.at(t, r, last.Sub(r.Status.StartTime.Time)+20*time.Minute)
	p.ended(t, r, v1alpha1.InteractiveTerminatedIdle, "nobody has used it for 20m0s")
}

func (p *people) old(t *testing.T) {
	r := p.interactive("old")
	r.Spec.Interactive = &v1alpha1.InteractiveLimits{MaxLifetimeSeconds: new(int64(300))}
	p.begun(t, r)
	if job := p.job(t, r); *job.Spec.ActiveDeadlineSeconds != 300 {
		t.Errorf("%+v", job.Spec)
	}
	testkit.Within(t, patience, "somebody comes a second after its start, or later", func(context.Context) bool {
		began := time.Now()
		out, err := p.kubectl(t, "exec", r.Status.PodName, "--", "true")
		if err != nil {
			t.Fatal(err, out)
		}
		return !began.Before(r.Status.StartTime.Add(time.Second))
	})
	p.at(t, r, 299*time.Second)
	await(t, r, "is used, and ends all the same", endsAfter(5*time.Minute, v1alpha1.InteractiveTerminatedMaxLifetime))
	p.at(t, r, 5*time.Minute)
	p.ended(t, r, v1alpha1.InteractiveTerminatedMaxLifetime, "its life of 5m0s is over")
}

// ended expects the end of a run, on record with its reason, and that its Pod is gone.
func (p *people) ended(t *testing.T, r *v1alpha1.SandboxRun, reason, message string) {
	t.Helper()
	await(t, r, "is cancelled", in(v1alpha1.SandboxCancelled))
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionCompleted); c.Reason != reason || c.Message != message {
		t.Errorf("%+v", c)
	}
	gone(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.here, Name: r.Status.PodName}})
	testkit.Within(t, patience, "it is counted", func(context.Context) bool {
		return strings.Contains(p.Metrics(), fmt.Sprintf("admitkit_sandbox_watchdog_total{reason=%q} 1", reason))
	})
	testkit.Succeeds(t, patience, "it is on record", func(context.Context) error {
		p.kept.mu.Lock()
		defer p.kept.mu.Unlock()
		for _, record := range p.kept.kept {
			if record.Object.UID == r.UID && record.Action == "cancelled" && record.Reason == reason+": "+message {
				return nil
			}
		}
		return fmt.Errorf("not among %d records", len(p.kept.kept))
	})
}

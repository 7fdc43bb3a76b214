package facts

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

func TestWhoUsesARunIsReadFromAuditEvents(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
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
		want   Activity
	}{
		"an exec":                       {func(*v1alpha1.AuditEvent) {}, Activity{Last: five, Unrecorded: five}},
		"an exec that was denied":       {func(e *v1alpha1.AuditEvent) { e.Spec.Decision = v1alpha1.AuditDenied }, Activity{}},
		"an exec into another Pod":      {func(e *v1alpha1.AuditEvent) { e.Spec.Pod = "q" }, Activity{}},
		"one into an earlier Pod":       {func(e *v1alpha1.AuditEvent) { e.Spec.PodUID = "v" }, Activity{}},
		"one into the proxy":            {func(e *v1alpha1.AuditEvent) { e.Spec.Container = "egress-proxy" }, Activity{}},
		"a port-forward":                {func(e *v1alpha1.AuditEvent) { e.Spec.Way = v1alpha1.WayPortForward }, Activity{}},
		"one by a clock that is ahead":  {func(e *v1alpha1.AuditEvent) { e.Spec.Time = micro(60) }, Activity{Last: now, Unrecorded: now}},
		"a recorded session that lasts": {func(e *v1alpha1.AuditEvent) { e.Spec.Session = "s" }, Activity{Last: five, Attached: 1}},
		"a recorded session that is over": {func(e *v1alpha1.AuditEvent) {
			e.Spec.Session, e.Status.Session = "s", &v1alpha1.AuditSession{EndTime: micro(-3)}
		}, Activity{Last: three, Detached: three}},
		"a flood with an exec": {func(e *v1alpha1.AuditEvent) {
			last := micro(-3)
			e.Spec.Pod, e.Spec.Folded, e.Status.LastTime = "q", true, &last
			e.Status.Acts = []v1alpha1.AuditFold{{Way: v1alpha1.WayExec, Decision: v1alpha1.AuditAllowed, Namespace: "a", Pod: "p"}}
		}, Activity{Last: three, Unrecorded: three}},
		"a flood elsewhere": {func(e *v1alpha1.AuditEvent) {
			last := micro(-3)
			e.Spec.Folded, e.Status.LastTime = true, &last
			e.Status.Acts = []v1alpha1.AuditFold{{Way: v1alpha1.WayExec, Decision: v1alpha1.AuditAllowed, Namespace: "b", Pod: "p"}}
		}, Activity{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := Activity{}
			a.add(exec(test.change), pod, now)
			if a != test.want {
				t.Errorf("got %+v, want %+v", a, test.want)
			}
		})
	}
}

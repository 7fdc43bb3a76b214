package session

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

func TestOnlyAPodInWhichTheSessionCouldGoOnIsEvicted(t *testing.T) {
	given := time.Now()
	ticket := &protocol.Ticket{PodUID: "uid", Container: "web", Expires: given.Add(protocol.Life).Unix()}
	started := func(after time.Duration) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(given.Add(after))}}
	}
	for what, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a Pod of which nothing is known": {func(*corev1.Pod) {}, true},
		"another Pod of the name":         {func(p *corev1.Pod) { p.UID = "other" }, false},
		"a Pod that ends":                 {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, false},
		"a Pod that has ended":            {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"its container runs":              {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = started(-time.Hour) }, true},
		"its container was started anew":  {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = started(time.Minute) }, false},
		"its container has ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{}
		}, false},
		"another container was started anew": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Name = "other" }, true},
		"an ephemeral container runs": {func(p *corev1.Pod) {
			p.Status.EphemeralContainerStatuses, p.Status.ContainerStatuses = p.Status.ContainerStatuses, nil
			p.Status.EphemeralContainerStatuses[0].State = started(time.Minute)
		}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}}}
		if what == "a Pod of which nothing is known" {
			pod.Status.ContainerStatuses = nil
		}
		test.change(pod)
		if got := lives(pod, ticket); got != test.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}

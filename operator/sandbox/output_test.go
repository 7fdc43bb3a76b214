package sandbox_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// loudNode is where Pods of runs whose names begin with loud are.
const loudNode = "loud"

// The output of a run is in its status while it works, and whole at its end.
func (s *story) output(t *testing.T) {
	k := testkit.NewKubelet(t, admin, loudNode)
	for i := range 60 {
		k.Write(fmt.Sprintf("line %d", i))
	}
	k.Write(strings.Repeat("x", 5000), `{"type": "tool", "message": "go build"}`, "\xff\x1b[2J")
	r := run(s.here, "loud", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "has its Pod", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: r.Status.PodName}}
	s.phase(t, pod, corev1.PodRunning)
	await(t, r, "shows its output", func(run *v1alpha1.SandboxRun) bool { return len(run.Status.RecentEvents) == v1alpha1.MaxRecentEvents })
	events := r.Status.RecentEvents
	if r.Status.Phase != v1alpha1.SandboxRunning || r.Status.OutputClosed || events[0].Message != "line 13" || events[0].Time.Unix() != 1_900_000_013 || len(events[47].Message) != 1024 ||
		events[48].Type != "tool" || events[48].Message != "go build" || events[49].Message != "\uFFFD\x1b[2J" {
		t.Errorf("%+v", events)
	}
	k.Write("the last words")
	s.phase(t, pod, corev1.PodFailed)
	await(t, r, "shows all of it", func(run *v1alpha1.SandboxRun) bool { return run.Status.OutputClosed })
	if last := r.Status.RecentEvents[49]; r.Status.Phase != v1alpha1.SandboxFailed || last.Message != "the last words" {
		t.Errorf("%s, %+v", r.Status.Phase, last)
	}
	if asked := k.Asked(); len(asked) > 4 || asked[0].Get("timestamps") != "true" || asked[0].Get("limitBytes") != "1048576" {
		t.Errorf("the kubelet was asked for %v", asked)
	}
}

// phase plays the kubelet.
func (s *story) phase(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	testkit.ChangeStatus(t, admin, pod, func(pod *corev1.Pod) { pod.Status.Phase = phase })
}

// ends plays the kubelet: the work has ended, with these last words.
func ends(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, code int32, words string) {
	t.Helper()
	testkit.ChangeStatus(t, admin, pod, func(pod *corev1.Pod) {
		pod.Status.Phase = phase
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sandbox", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: words}}}}
	})
}

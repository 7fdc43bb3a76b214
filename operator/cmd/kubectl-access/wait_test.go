package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// unscheduled makes a template whose access Pods stay without a node, so that the test
// says how they are.
func unscheduled(t *testing.T) (namespace string) {
	t.Helper()
	namespace = newShop(t)
	made := &v1alpha1.PodAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "unscheduled"},
		Spec: v1alpha1.PodAccessTemplateSpec{
			AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}},
			PodSpec:      &corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "app", Image: "example.com/app"}}},
		},
	}
	testkit.Create(t, admin, made)
	return namespace
}

// becomes writes the status of a request's access Pod, when the Pod is there.
func becomes(t *testing.T, namespace, request string, status corev1.PodStatus) {
	t.Helper()
	pod := &corev1.Pod{}
	testkit.Eventually(t, "the Pod is there", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "podaccess-" + request}, pod) == nil
	})
	before := pod.DeepCopy()
	pod.Status = status
	if err := admin.Status().Patch(t.Context(), pod, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

func waitingFor(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func TestAPodThatIsNotReadySaysWhyInItsOwnWords(t *testing.T) {
	t.Parallel()
	namespace := unscheduled(t)
	asked := begin(t, alice, "pod", "unscheduled", "-n", namespace, "--name", "words")
	container := func(state corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: state}}}
	}
	crashing := container(waitingFor("CrashLoopBackOff", "back-off 5m0s restarting failed container"))
	crashing.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}
	for _, c := range []struct {
		status corev1.PodStatus
		want   string
	}{
		{corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available:\n3 Insufficient cpu.",
		}}}, "Pod podaccess-words: not scheduled: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."},
		{container(waitingFor("ContainerCreating", "")), "container app is being created"},
		{container(waitingFor("ImagePullBackOff", `Back-off pulling image "example.com/app"`)), `container app: ImagePullBackOff: Back-off pulling image "example.com/app"`},
		{crashing, "container app: CrashLoopBackOff: back-off 5m0s restarting failed container; it ended with exit code 3: Error"},
	} {
		becomes(t, namespace, "words", c.status)
		testkit.Eventually(t, c.want, func(context.Context) bool { return strings.Contains(asked.stderr.String(), c.want) })
	}
	kubectlAccess(t, alice, "describe", "words", "-n", namespace).expect(t, 0, "Pod not ready:", "CrashLoopBackOff")
	asked.interrupt()
	if said := asked.wait().expect(t, cli.CodeInterrupted).stderr; strings.Count(said, "CrashLoopBackOff") != 1 {
		t.Errorf("the same words are not said once:\n%s", said)
	}
}

func TestAWaitThatIsTooLongEndsWithTheWordsOfThePod(t *testing.T) {
	t.Parallel()
	waitsWhile(t, "too-long", "10s", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "app", State: waitingFor("ErrImagePull", "no such host"),
	}}}).expect(t, cli.CodeTimeout, "not ready after 10s: Pod podaccess-too-long: container app: ErrImagePull: no such host")
}

func TestAPodThatEndedSaysItsExitCode(t *testing.T) {
	t.Parallel()
	waitsWhile(t, "ended", "1m", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "app", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}},
	}}}).expect(t, cli.CodeRefused, "PodEnded", "container app ended with exit code 137: OOMKilled")
}

// waitsWhile asks for a Pod that becomes as the status says.
func waitsWhile(t *testing.T, name, timeout string, status corev1.PodStatus) outcome {
	t.Helper()
	namespace := unscheduled(t)
	asked := begin(t, alice, "pod", "unscheduled", "-n", namespace, "--name", name, "--timeout", timeout)
	becomes(t, namespace, name, status)
	return asked.wait()
}

func TestTheListShowsAPodThatIsGone(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	listed := func(name, status string) {
		t.Helper()
		line := regexp.MustCompile(`(?m)^` + name + ` .*\b` + status + `\b.*$`)
		testkit.Eventually(t, name+" is "+status, func(context.Context) bool {
			return line.MatchString(kubectlAccess(t, alice, "list", "-n", namespace).expect(t, 0).stdout)
		})
	}
	name := requestedIn(t, namespace)
	kubectlAccess(t, alice, "pod", "debug", "-n", namespace, "--name", "gone").expect(t, 0)
	kubectlAccess(t, alice, "exec", "asleep", "-n", namespace, "--name", "no-pod", "--timeout", "0").expect(t, 0)
	listed(name, "Ready")
	listed("gone", "Ready")
	listed("no-pod", "NoPod")
	req := &v1alpha1.ExecAccessRequest{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, req); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{req.Status.PodName, "podaccess-gone"} {
		if err := admin.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}); err != nil {
			t.Fatal(err)
		}
	}
	listed(name, "PodGone")
	listed("gone", "PodGone")
	kubectlAccess(t, alice, "revoke", "no-pod", "-n", namespace).expect(t, 0)
	listed("no-pod", "Revoked")
}

// A Pod that access is granted to can fail later.
func TestDescribeSaysWhatBecameOfThePod(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	name := requestedIn(t, namespace)
	req, pod := &v1alpha1.ExecAccessRequest{}, &corev1.Pod{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, req); err != nil {
		t.Fatal(err)
	}
	if o := kubectlAccess(t, alice, "describe", name, "-n", namespace).expect(t, 0); strings.Contains(o.stdout, "not ready") {
		t.Errorf("the Pod is ready, and it says:\n%s", o.stdout)
	}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: req.Status.PodName}, pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses[0].State, pod.Status.ContainerStatuses[0].Ready = waitingFor("CrashLoopBackOff", "back-off"), false
	if err := admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	kubectlAccess(t, alice, "describe", name, "-n", namespace).expect(t, 0, "Pod not ready:", "container web: CrashLoopBackOff: back-off")
}

func TestThePodOfARequestSaysNoMoreThanFits(t *testing.T) {
	pod := &corev1.Pod{}
	for range 5 {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: "app", State: waitingFor("ErrImagePull", strings.Repeat("é", 10_000))})
	}
	found := troubles(pod)
	if len(found) != 5 || len([]rune(found[0])) > maxTrouble+len("...") {
		t.Errorf("%d troubles, the first of %d characters", len(found), len([]rune(found[0])))
	}
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Limits of what is said about a Pod, which can have hundreds of containers and
// messages of any length.
const (
	maxTroubles = 3
	maxTrouble  = 400
)

// aboutPod returns what keeps the Pod that a request waits for from being ready, or
// "" if it does not wait for a Pod.
func aboutPod(ctx context.Context, cl client.Client, req request) string {
	c := unmet(req)
	if c == nil || !slices.Contains([]string{v1alpha1.ReasonPodNotReady, v1alpha1.ReasonPodEnded, v1alpha1.ReasonNoPod}, c.Reason) {
		return ""
	}
	name := cmp.Or(req.GetRequestStatus().PodName, req.GetTargetPod())
	if why := troubled(ctx, cl, req.GetNamespace(), name); why != "" {
		return "Pod " + name + ": " + why
	}
	return ""
}

// troubled returns what keeps a Pod from being ready, in the words of the scheduler and
// the kubelet. It returns "" if nothing does, or the engineer may not read the Pod.
func troubled(ctx context.Context, cl client.Client, namespace, name string) string {
	pod := &corev1.Pod{}
	if name == "" || cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod) != nil {
		return ""
	}
	found := troubles(pod)
	if len(found) > maxTroubles {
		found = append(found[:maxTroubles], fmt.Sprintf("and %d more", len(found)-maxTroubles))
	}
	return strings.Join(found, "; ")
}

// troubles returns what keeps a Pod from being ready: first what went wrong, and if
// nothing did what is still to come.
func troubles(pod *corev1.Pod) []string {
	var wrong, pending []string
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			wrong = append(wrong, sentence("not scheduled", c.Reason, c.Message))
		}
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason+pod.Status.Message != "" {
		wrong = append(wrong, sentence("failed", pod.Status.Reason, pod.Status.Message))
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		container := "container " + status.Name
		switch state := status.State; {
		case state.Terminated != nil && (state.Terminated.ExitCode != 0 || pod.Status.Phase == corev1.PodSucceeded):
			wrong = append(wrong, exited(container+" ended with", state.Terminated))
		case state.Waiting != nil && slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, state.Waiting.Reason):
			pending = append(pending, container+" is being created")
		case state.Waiting != nil:
			trouble := sentence(container, state.Waiting.Reason, state.Waiting.Message)
			if last := status.LastTerminationState.Terminated; last != nil {
				trouble += exited("; it ended with", last)
			}
			wrong = append(wrong, trouble)
		case state.Running != nil && !status.Ready && !slices.ContainsFunc(pod.Status.InitContainerStatuses, func(init corev1.ContainerStatus) bool { return init.Name == status.Name }):
			pending = append(pending, container+" runs, but is not ready")
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	return pending
}

// exited says how a container ended.
func exited(container string, state *corev1.ContainerStateTerminated) string {
	return sentence(fmt.Sprintf("%s exit code %d", container, state.ExitCode), state.Reason, state.Message)
}

// sentence joins what there is of a subject, a reason and a message, on one line.
func sentence(parts ...string) string {
	var said []string
	for _, part := range parts {
		if part = strings.Join(strings.Fields(part), " "); part != "" {
			said = append(said, part)
		}
	}
	text := []rune(strings.Join(said, ": "))
	if len(text) > maxTrouble {
		text = append(text[:maxTrouble], []rune("...")...)
	}
	return string(text)
}

package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// eventTimeout limits the write of an Event. Its message is in the log, too.
const eventTimeout = 2 * time.Second

// Event writes an Event about a Secret, where `kubectl describe` shows it.
func Event(ctx context.Context, events corev1client.EventInterface, namespace, name, eventType, reason, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventTimeout)
	defer cancel()
	now := metav1.Now()
	_, err := events.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: name + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: namespace, Name: name},
		Type:           eventType, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: "admitkit"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	return err
}

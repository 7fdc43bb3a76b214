package manager

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventTimeout limits the write of an Event. Its message is in the log, too.
const eventTimeout = 2 * time.Second

// event writes an Event about the CA's Secret, where `kubectl describe` shows it.
// Failing, for lack of the right for example, is not an error.
func (m *Manager) event(reason, message string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.GetContext()), eventTimeout)
	defer cancel()
	namespace, now := m.options.WebhookNamespace, metav1.Now()
	name := m.options.SetupCertificateName
	if _, err := m.clients.Core.Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: name + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: namespace, Name: name},
		Type:           corev1.EventTypeNormal, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: "admitkit"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{}); err != nil {
		m.options.Logger.Debugw("Event not written", "reason", reason, "message", message, "error", err)
	}
}

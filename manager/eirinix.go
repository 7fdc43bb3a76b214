package manager

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
)

// This file has methods of EiriniX's manager that are short forms here.

// AddWatcher is AddExtension for a Watcher. Start returns its error.
func (m *Manager) AddWatcher(w extension.Watcher) { _ = m.AddExtension(w) } // the manager keeps the error

// AddReconciler is AddExtension for a Reconciler. Start returns its error.
func (m *Manager) AddReconciler(r extension.Reconciler) { _ = m.AddExtension(r) } // the manager keeps the error

// ListWatchers returns the Watchers that were added.
func (m *Manager) ListWatchers() []extension.Watcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.parts.Watchers)
}

// ListReconcilers returns the Reconcilers that were added.
func (m *Manager) ListReconcilers() []extension.Reconciler {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.parts.Reconcilers)
}

// GetManagerOptions returns the options with their defaults. Changing them changes nothing.
func (m *Manager) GetManagerOptions() Options {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.options
}

// warnOfEiriniX says so when an installation of EiriniX has left the configuration that
// it would have had under this fingerprint. With failure policy Fail, and nobody who
// serves it, that refuses every Pod. A process that may not read it does not try.
func (m *Manager) warnOfEiriniX(ctx context.Context) {
	name := m.options.OperatorFingerprint + "-mutating-hook"
	may, err := m.clients.Authorization.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Name: name, Verb: "get",
		}},
	}, metav1.CreateOptions{})
	if err != nil || !may.Status.Allowed {
		return
	}
	if _, err := m.clients.Admissionregistration.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{}); err == nil {
		m.options.Logger.Warnw("EiriniX has left a webhook configuration, which refuses Pods that nobody answers: delete it once nothing serves it",
			"MutatingWebhookConfiguration", name)
	}
}

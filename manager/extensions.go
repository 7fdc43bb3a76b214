package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
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

// ListExtensions returns the Extensions that were added. Mutators and Validators are none.
func (m *Manager) ListExtensions() []extension.Extension {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []extension.Extension
	for _, h := range m.parts.Handlers {
		if e, is := host.Open(h).Extension(); is {
			all = append(all, e)
		}
	}
	return all
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
	if !m.mayGet(ctx, "admissionregistration.k8s.io", "mutatingwebhookconfigurations", name) {
		return
	}
	if _, err := m.clients.Admissionregistration.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{}); err == nil {
		m.options.Logger.Warnw("EiriniX has left a webhook configuration, which refuses Pods that nobody answers: delete it once nothing serves it",
			"MutatingWebhookConfiguration", name)
	}
}

// mayGet reports whether this process may get an object without a namespace.
func (m *Manager) mayGet(ctx context.Context, group, resource, name string) bool {
	may, err := m.clients.Authorization.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: group, Resource: resource, Name: name, Verb: "get",
		}},
	}, metav1.CreateOptions{})
	return err == nil && may.Status.Allowed
}

// AddExtension adds an extension: an [extension.Extension], [extension.Watcher],
// [extension.Reconciler], [extension.Composite], [*extension.Handler] or
// [*extension.Converter], or a value
// that is several of these. One type cannot be both an Extension and a Watcher,
// because both have a method Handle: make it a Composite of two parts. Handlers
// with the same scope run in the order in which they were added.
//
// It fails for anything else, and after the start. The error says what would be
// right. It is returned by Start, Watch, RegisterExtensions and the rest too, so
// that no manager runs without an extension that its author believes is there.
func (m *Manager) AddExtension(e any) error {
	if err := m.addExtension(e); err != nil {
		err = fmt.Errorf("adding an extension: %w", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.problem = errors.Join(m.problem, err)
		return err
	}
	return nil
}

func (m *Manager) addExtension(e any) error {
	// Without the lock: a Composite asks the manager for what it needs.
	parts, err := host.PartsOf(e, m)
	if err != nil {
		return err
	}
	if len(parts.Handlers)+len(parts.Converters) > 0 {
		if err := m.options.callable(); err != nil {
			return err
		}
	}
	if _, err := parts.Reads(m.options.Scheme, host.Serves|host.Reconciles); err != nil {
		return err
	}
	for _, w := range parts.Watchers {
		if _, _, err := host.WatchedBy(w, m.options.Scheme); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return fmt.Errorf("%T: the manager has started", e)
	}
	all := host.Parts{
		Handlers: slices.Concat(m.parts.Handlers, parts.Handlers), Watchers: slices.Concat(m.parts.Watchers, parts.Watchers),
		Reconcilers: slices.Concat(m.parts.Reconcilers, parts.Reconcilers), Converters: slices.Concat(m.parts.Converters, parts.Converters),
	}
	if err := all.Check(); err != nil {
		return err
	}
	m.parts.Append(parts)
	return nil
}

// errNothing is the error of a manager without extensions. It would be ready, and
// nobody would be asked.
var errNothing = errors.New("there is no extension: add one with AddExtension before the start")

// added returns what keeps the manager from running what its author added.
func (m *Manager) added() error {
	if err := m.problems(); err != nil {
		return err
	}
	if m.parts.Empty() {
		return errNothing
	}
	return nil
}

// problems returns the errors of AddExtension.
func (m *Manager) problems() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}

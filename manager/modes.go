package manager

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/webhook"
)

// ModeRule sets the mode of extensions, everywhere or in some namespaces.
type ModeRule = webhook.ModeRule

// modeRules returns the rules: first those of the options, then those of the file.
func (m *Manager) modeRules(text []byte) ([]ModeRule, error) {
	return entries(&m.modes.file, text, "Registration.Modes", m.options.Registration.Modes, func(rules []ModeRule) error {
		return webhook.CheckModes(m.parts.Handlers, rules)
	})
}

// modeState is what is known of the modes of a running manager.
type modeState struct {
	mu     sync.Mutex
	file   followed
	series []prometheus.Labels
	// next are the webhooks to register, nil if they are, and since is when they changed.
	next  []*webhook.Webhook
	since time.Time
}

// register has webhooks registered.
func (s *modeState) register(webhooks []*webhook.Webhook, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.since = webhooks, now
}

// change gives a registration the webhooks of the modes that changed, and reports whether
// some did. They count as those of a newer replica do: others, whose file changes a little
// later, let them be.
func (s *modeState) change(r *registration.Registration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		return false
	}
	r.Webhooks, r.Started, s.next = s.next, s.since, nil
	return true
}

// followModes follows the file of modes until ctx ends. When it has changed, it calls
// change with the webhooks.
func (m *Manager) followModes(ctx context.Context, change func([]*webhook.Webhook)) {
	m.follow(ctx, &m.modes.file, func(text []byte) error {
		webhooks, err := m.webhooksIn(text)
		if err == nil {
			err = m.guardOwnPods(webhooks)
		}
		if err != nil {
			return err
		}
		m.modes.register(webhooks, m.clock.Now())
		m.tellModes(webhooks)
		change(webhooks)
		return nil
	})
}

// tellModes says which extensions are not in force.
func (m *Manager) tellModes(webhooks []*webhook.Webhook) {
	m.modes.mu.Lock()
	defer m.modes.mu.Unlock()
	for _, series := range m.modes.series {
		extensionMode.Delete(series)
	}
	m.modes.series = nil
	for _, w := range webhooks {
		for _, name := range w.Extensions() {
			series := prometheus.Labels{"extension": name, "mode": string(w.Mode)}
			extensionMode.With(series).Set(1)
			m.modes.series = append(m.modes.series, series)
			if w.Mode != extension.Enforce {
				m.options.Logger.Infow("an extension is not in force", "extension", name, "mode", w.Mode,
					"webhook", w.RegisteredName(), "namespaces", metav1.FormatLabelSelector(w.Scope.NamespaceSelector))
			}
		}
	}
}

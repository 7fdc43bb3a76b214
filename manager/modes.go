package manager

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/webhook"
)

// ModeRule sets the mode of extensions, everywhere or in some namespaces.
type ModeRule = webhook.ModeRule

// maxModesFile is the most that a file of modes may have.
const maxModesFile = 1 << 20

// modesInterval is how often the file of modes is read.
const modesInterval = time.Second

// readModes returns the content of the file of modes, nil without one.
func (m *Manager) readModes() ([]byte, error) {
	path := m.options.Registration.ModesFile
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path) //nolint:gosec // the operator's choice
	if err != nil {
		return nil, fmt.Errorf("Registration.ModesFile: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxModesFile+1))
	if err == nil && len(text) > maxModesFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxModesFile)
	}
	if err != nil {
		return nil, fmt.Errorf("Registration.ModesFile: %w", err)
	}
	return text, nil
}

// modeRules returns the rules: first those of the options, then those of the file.
func (m *Manager) modeRules(text []byte) ([]ModeRule, error) {
	options := &m.options.Registration
	if err := webhook.CheckModes(m.parts.Handlers, options.Modes); err != nil {
		return nil, fmt.Errorf("Registration.Modes%w", err)
	}
	var file struct {
		Modes []ModeRule `json:"modes"`
	}
	err := yaml.UnmarshalStrict(text, &file)
	if err == nil {
		err = webhook.CheckModes(m.parts.Handlers, file.Modes)
		if err != nil {
			err = fmt.Errorf("modes%w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("Registration.ModesFile: %s: %w", options.ModesFile, err)
	}
	return slices.Concat(options.Modes, file.Modes), nil
}

// modeState is what is known of the modes of a running manager.
type modeState struct {
	mu     sync.Mutex
	text   []byte // of the file, as it is followed
	series []prometheus.Labels
	// next are the webhooks to register, nil if they are, and since is when they changed.
	next  []*webhook.Webhook
	since time.Time
}

// follow keeps the webhooks of a content of the file, which are to be registered.
func (s *modeState) follow(text []byte, webhooks []*webhook.Webhook, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.next, s.since = text, webhooks, now
}

// change gives a registration the webhooks of the modes that changed. They count as those
// of a newer replica do: others, whose file changes a little later, let them be.
func (s *modeState) change(r *registration.Registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		r.Webhooks, r.Started, s.next = s.next, s.since, nil
	}
}

// watchModes reads the file of modes again until ctx ends. When it has changed, it calls
// change with the webhooks. If it is wrong, the modes stay as they were.
func (m *Manager) watchModes(ctx context.Context, change func([]*webhook.Webhook)) {
	if m.options.Registration.ModesFile == "" {
		return
	}
	ticker := time.NewTicker(modesInterval)
	defer ticker.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		webhooks, err := m.changedModes()
		switch {
		case err == nil:
			told = ""
			modesRead.Set(1)
		case err.Error() != told:
			told = err.Error()
			modesRead.Set(0)
			m.options.Logger.Errorw("the modes stay as they were: their file is wrong", "error", err)
			m.event("ModesNotRead", told)
		}
		if webhooks != nil {
			m.tellModes(webhooks)
			change(webhooks)
		}
	}
}

// changedModes returns the webhooks if the file has changed, else nil.
func (m *Manager) changedModes() ([]*webhook.Webhook, error) {
	text, err := m.readModes()
	if err != nil || bytes.Equal(text, m.modes.text) {
		return nil, err
	}
	webhooks, err := m.webhooksIn(text)
	if err == nil {
		err = m.guardOwnPods(webhooks)
	}
	if err != nil {
		return nil, err
	}
	m.modes.follow(text, webhooks, m.clock.Now())
	return webhooks, nil
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
		for _, h := range w.Handlers {
			name := host.Open(h).Name
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

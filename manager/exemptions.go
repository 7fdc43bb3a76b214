package manager

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/admitkit/admitkit/webhook"
)

// Exemption lets requests pass extensions until it ends.
type Exemption = webhook.Exemption

// readExemptions sets the exemptions at the start.
func (m *Manager) readExemptions() error {
	text, err := m.exemptionsFile.read()
	if err == nil {
		err = m.setExemptions(text)
	}
	m.exemptionsFile.text = text
	return err
}

// setExemptions sets those of the options and of a file.
func (m *Manager) setExemptions(text []byte) error {
	all, err := entries(&m.exemptionsFile, text, "Serving.Exemptions", m.options.Serving.Exemptions, func(all []Exemption) error {
		return webhook.CheckExemptions(m.parts.Handlers, all)
	})
	if err == nil {
		err = m.named(all)
	}
	if err == nil {
		m.exemptions.Set(all)
	}
	return err
}

// named returns an error for an exemption of the file whose name is that of one of the
// options: a metric would be about both.
func (m *Manager) named(all []Exemption) error {
	own := m.options.Serving.Exemptions
	for i, x := range all[len(own):] {
		if slices.ContainsFunc(own, func(other Exemption) bool { return other.Name == x.Name }) {
			return fmt.Errorf("%s: %s: exemptions[%d].name: %q is in Serving.Exemptions, too: choose another", m.exemptionsFile.option, m.exemptionsFile.path, i, x.Name)
		}
	}
	return nil
}

// Exemptions returns the exemptions, for a program that sends requests of its own to the
// handlers of [Manager.Webhooks].
func (m *Manager) Exemptions() *webhook.Exemptions { return m.exemptions }

// tellEnded says, until ctx ends, when an exemption has ended.
func (m *Manager) tellEnded(ctx context.Context) {
	told := map[string]time.Time{}
	for {
		for _, x := range m.exemptions.All() {
			if until := x.Until.Time; !m.clock.Now().Before(until) && !told[x.Name].Equal(until) {
				told[x.Name] = until
				const why = "an exemption has ended, and counts no more: remove it, or give it another end"
				m.options.Logger.Warnw(why, "exemption", x.Name, "until", until, "reason", x.Reason)
				m.event("ExemptionEnded", fmt.Sprintf("%s: %s", x.Name, why))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(followInterval):
		}
	}
}

package manager

import "github.com/admitkit/admitkit/webhook"

// Webhooks registers the handlers with this manager and returns their webhooks,
// for a program that sends them requests of its own, as `review` does. No API
// server is asked, unless a handler does. The manager cannot be started any more.
func (m *Manager) Webhooks() ([]*webhook.Webhook, error) {
	ctx, err := m.begin(m.options.Context)
	if err != nil {
		return nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	kube, err := m.newKubeManager(newHealth())
	if err != nil {
		return nil, err
	}
	m.enter(ctx, kube)
	return webhooks, m.parts.Register(m)
}

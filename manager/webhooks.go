package manager

import (
	"context"

	"github.com/admitkit/admitkit/manager/internal/health"
	"github.com/admitkit/admitkit/webhook"
)

// Webhooks returns the webhooks of the handlers, for a program that sends them
// requests of its own, as `review` does. It does not call the API server, unless a
// handler does. The manager cannot be started afterwards.
func (m *Manager) Webhooks(ctx context.Context) ([]*webhook.Webhook, error) {
	ctx, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	kube, err := m.newKubeManager(health.New())
	if err != nil {
		return nil, err
	}
	m.enter(ctx, kube, nil)
	return webhooks, m.parts.Register(m)
}

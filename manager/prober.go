package manager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/internal/registration"
)

// probeInterval is the pause after a failed probe.
const probeInterval = time.Second

// prober sends requests to the API server until one has come back through a webhook
// of this installation. From then on it has passed, for good.
type prober struct {
	mu     sync.Mutex
	passed bool
	err    error
}

var errNotProbed = errors.New("no probe has come back through the API server yet")

// run probes until one has passed, and then calls told.
func (p *prober) run(ctx context.Context, probe func(context.Context) error, told func(), failed func(error)) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		err := probe(ctx)
		p.mu.Lock()
		p.passed, p.err = err == nil, err
		p.mu.Unlock()
		if err == nil {
			told()
			return
		}
		if ctx.Err() != nil {
			return
		}
		failed(err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *prober) hasPassed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// ready returns nil if a probe has passed, or if it reached nobody through the Service.
// A Service has only ready endpoints, so the first replica would otherwise wait for
// itself forever. A network policy that blocks the API server looks the same. A probe
// that reached a webhook and failed is an error.
func (p *prober) ready(throughService bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.passed, throughService && unreached(p.err):
		return nil
	case p.err != nil:
		return p.err
	}
	return errNotProbed
}

// unreached reports whether the API server got no response. For a Service without
// endpoints the error depends on the network: it refuses the connection (kube-proxy
// with iptables) or drops it, or the API server looks up the endpoints itself.
func unreached(err error) bool {
	return err != nil && slices.ContainsFunc([]string{
		"no endpoints available for service", "dial tcp", "context deadline exceeded", "Client.Timeout exceeded",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// probeFailed returns a function that reports failed probes: each one in the metric,
// and in the log only if the error differs from the last one.
func (m *Manager) probeFailed() func(error) {
	var said string
	return func(err error) {
		lastError.WithLabelValues("probe").SetToCurrentTime()
		if text := err.Error(); text != said {
			said = text
			m.options.Logger.Warnw("no probe has come back through the API server yet; trying again", zap.Error(err))
		}
	}
}

// probes reports whether this process probes: the one that registers webhooks does.
func (m *Manager) probes() bool {
	return *m.options.RegisterWebHook && *m.options.Registration.Probe && len(m.parts.Handlers) > 0
}

func (m *Manager) probe(r *registration.Registration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, reachTimeout)
		defer cancel()
		return r.Probe(ctx, m.clients.core.ConfigMaps(m.options.WebhookNamespace))
	}
}

package manager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/webhook/registration"
)

// probeInterval is how long after a probe that failed the next is sent.
const probeInterval = time.Second

// prober asks the API server until a request has come back through a webhook of
// this installation. Once it has, it stays so.
type prober struct {
	mu     sync.Mutex
	passed bool
	err    error
}

var errNotProbed = errors.New("no probe has come back yet")

// run probes until one has passed. told is called then.
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

// ready is nil when a probe has passed, or reached nobody through the Service: it
// has only endpoints that are ready, so the first replica would wait for itself for
// ever. Something in between that lets nobody through looks the same. What was
// reached and failed is an error.
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

// unreached reports whether the API server got no answer. For a Service without
// endpoints it says what the network does then: to refuse (kube-proxy with
// iptables), to drop, or nothing at all, if it looks up endpoints by itself.
func unreached(err error) bool {
	return err != nil && slices.ContainsFunc([]string{
		"no endpoints available for service", "dial tcp", "context deadline exceeded", "Client.Timeout exceeded",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// probeFailed returns what tells of probes that fail: each in the metric, and in the
// log what was not said last.
func (m *Manager) probeFailed() func(error) {
	var said string
	return func(err error) {
		lastError.WithLabelValues("probe").SetToCurrentTime()
		if text := err.Error(); text != said {
			said = text
			m.options.Logger.Warnw("no probe has come back through the API server yet; trying on", zap.Error(err))
		}
	}
}

// probes reports whether this process probes: who registers does.
func (m *Manager) probes() bool { return *m.options.RegisterWebHook && *m.options.Registration.Probe }

func (m *Manager) probe(r *registration.Registration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, reachTimeout)
		defer cancel()
		return r.Probe(ctx, m.clientset.CoreV1().ConfigMaps(m.options.WebhookNamespace))
	}
}

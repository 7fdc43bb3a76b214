package health

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// probeInterval is the pause after a failed probe.
const probeInterval = time.Second

// Prober sends requests to the API server until one has come back through a webhook
// of this installation. From then on it has passed, for good.
type Prober struct {
	mu     sync.Mutex
	passed bool
	err    error
}

var errNotProbed = errors.New("no probe has come back through the API server yet")

// Run probes until one has passed, and then calls told.
func (p *Prober) Run(ctx context.Context, probe func(context.Context) error, told func(), failed func(error)) {
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

// HasPassed reports whether a probe has come back.
func (p *Prober) HasPassed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// Ready returns nil if a probe has passed, or if it reached nobody through the Service.
// A Service has only ready endpoints, so the first replica would otherwise wait for
// itself forever. A network policy that blocks the API server looks the same. A probe
// that reached a webhook and failed is an error.
func (p *Prober) Ready(throughService bool) error {
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

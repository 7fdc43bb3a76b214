package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

const (
	// refreshEvery is how soon a change of a policy holds, and maxAge how long the last answer
	// of the broker counts.
	refreshEvery = 5 * time.Second
	maxAge       = 20 * time.Second
)

// policy is what the run may reach, as the broker last said.
type policy struct {
	broker Broker
	// within is what the template of the run lists, which bounds what the broker says; nil is no bound.
	within []protocol.Name
	log    *zap.Logger

	mu   sync.RWMutex
	last *protocol.Egress
	at   time.Time
}

func newPolicy(o *Options) *policy {
	return &policy{broker: o.Broker, within: o.Within, log: o.Logger}
}

// refresh asks the broker. An answer that the run has ended counts at once.
func (p *policy) refresh(ctx context.Context) error {
	egress, err := p.broker.Egress(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if refused := (*protocol.Error)(nil); errors.As(err, &refused) && refused.Code.Fatal() {
		p.last = nil
	}
	if err == nil {
		p.last, p.at = egress, time.Now()
	}
	return err
}

// follow refreshes until ctx ends, and calls changed after each attempt.
func (p *policy) follow(ctx context.Context, changed func()) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := p.refresh(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("the broker does not say what the run may reach", zap.Error(err))
		}
		changed()
	}
}

// current returns what the broker last said, or why that does not count.
func (p *policy) current() (*protocol.Egress, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.last == nil || time.Since(p.at) > maxAge {
		return nil, errors.New("the broker does not say what the run may reach")
	}
	return p.last, nil
}

// errDiscovered says that no policy allows a name, and a discovery lets it through.
var errDiscovered = errors.New("no policy allows it, and a discovery lets it through")

// allows returns nil if a policy allows a name, errDiscovered, or why it is refused.
func (p *policy) allows(host string, port int32) error {
	egress, err := p.current()
	if err != nil {
		return err
	}
	if problem := checkName(host); problem != nil {
		return problem
	}
	of := func(name protocol.Name) bool { return name.Allows(host, port) }
	if p.within != nil && !slices.ContainsFunc(p.within, of) {
		return fmt.Errorf("egress.hosts does not list %s, port %d", host, port)
	}
	if slices.ContainsFunc(egress.Allow, of) {
		return nil
	}
	if until := egress.DiscoverUntil; until != nil && time.Now().Before(*until) {
		return errDiscovered
	}
	return fmt.Errorf("no policy allows %s, port %d", host, port)
}

// checkName refuses what is not a full DNS name in lower case.
func checkName(host string) error {
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return errors.New("an address is not a name")
	}
	if len(host) == 0 || len(host) > 253 || !strings.Contains(host, ".") || strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) {
		return errors.New("it is not a full DNS name")
	}
	return nil
}

// normal brings a host into the form of policies.
func normal(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// injected returns the credentials that requests to a host get.
func (p *policy) injected(host string) ([]protocol.Injected, error) {
	egress, err := p.current()
	if err != nil {
		return nil, err
	}
	var found []protocol.Injected
	for _, credential := range egress.Credentials {
		if slices.ContainsFunc(credential.Hosts, func(pattern string) bool { return protocol.CoversHost(pattern, host) }) {
			found = append(found, credential)
		}
	}
	return found, nil
}

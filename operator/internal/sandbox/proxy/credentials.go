package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// renewBefore is how long before the end of a lease the proxy asks for another.
const renewBefore = 15 * time.Second

// leases are the credentials that the proxy has, in memory alone.
type leases struct {
	broker Broker
	mu     sync.Mutex
	held   map[string]*held
}

// held is a credential, or the wait for it.
type held struct {
	mu     sync.Mutex
	issued *protocol.Issued
}

// get returns a credential that is valid now.
func (l *leases) get(ctx context.Context, name string) (*protocol.Issued, error) {
	l.mu.Lock()
	h := l.held[name]
	if h == nil {
		h = &held{}
		l.held[name] = h
	}
	l.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.issued != nil && time.Until(h.issued.ExpiresAt) > renewBefore {
		return h.issued, nil
	}
	issued, err := l.broker.Issue(ctx, protocol.IssueRequest{Name: name})
	if err == nil && issued.Header == nil {
		err = fmt.Errorf("credential %s is not for a header", name)
	}
	if err == nil {
		h.issued = issued
		return issued, nil
	}
	if h.issued != nil && time.Now().Before(h.issued.ExpiresAt) {
		return h.issued, nil // it is still valid, and renewed a moment later
	}
	h.issued = nil
	return nil, err
}

// keep forgets the credentials that are not granted any more.
func (l *leases) keep(granted []protocol.Injected) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.held {
		if !slices.ContainsFunc(granted, func(c protocol.Injected) bool { return c.Name == name }) {
			delete(l.held, name)
		}
	}
}

// inject sets the credentials of a host, in place of what the run sent. If it lacks one, the
// request must not go on: the server would take it for another's.
func (p *Proxy) inject(ctx context.Context, host string, header http.Header) error {
	credentials, err := p.policy.injected(host)
	if err != nil {
		return err
	}
	for i, credential := range credentials {
		if j := slices.IndexFunc(credentials[:i], func(c protocol.Injected) bool { return strings.EqualFold(c.Header, credential.Header) }); j >= 0 {
			// Of several policies: admission judges each alone. Which of the two it is must not be chance.
			return fmt.Errorf("credentials %s and %s of BrokerPolicies are both set in the header %s at %s: give them hosts or headers of their own", credentials[j].Name, credential.Name, credential.Header, host)
		}
		issued, err := p.leases.get(ctx, credential.Name)
		if err != nil {
			return fmt.Errorf("credential %s: %w", credential.Name, err)
		}
		if !slices.ContainsFunc(issued.Hosts, func(pattern string) bool { return protocol.CoversHost(pattern, host) }) {
			return fmt.Errorf("credential %s is not for this host any more", credential.Name)
		}
		header.Set(issued.Header.Name, issued.Header.Value)
	}
	return nil
}

// Package proxy is what the connections of a run go through: it lets names through that the
// BrokerPolicies of the run allow, sets the credentials that these grant, and has the broker
// record what it refuses. It runs beside work that nobody trusts, so it holds no right on
// the cluster, and asks the broker for everything.
//
//	p, err := proxy.New(proxy.Options{Broker: client, CACert: cert, CAKey: key})
//	err = p.Run(ctx, listener)
//
// A connection comes in by CONNECT or as a request to a proxy ([ModeCooperative]), or because
// the kernel redirects it ([ModeTransparent]). Its name is checked (policy.go), its TLS
// opened with the authority of the run (intercept.go), each request checked again and given
// its credentials (credentials.go), and the name resolved and its addresses checked when the
// proxy connects (dial.go). What is refused is folded and reported (report.go).
//
// While the broker does not answer, nothing goes through.
package proxy

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

// Mode says how connections come in.
type Mode string

// The modes.
const (
	// ModeCooperative is a proxy that clients are told of, by HTTPS_PROXY.
	ModeCooperative Mode = "cooperative"
	// ModeTransparent takes connections that are redirected: TLS of port 443, and HTTP of port 80.
	ModeTransparent Mode = "transparent"
)

// Broker is what the proxy asks. [protocol.Client] is one.
type Broker interface {
	Egress(ctx context.Context) (*protocol.Egress, error)
	Issue(ctx context.Context, request protocol.IssueRequest) (*protocol.Issued, error)
	Report(ctx context.Context, report protocol.Report) error
}

// Resolver finds the addresses of names. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options are the options of New.
type Options struct {
	// Mode says how connections come in. Required.
	Mode Mode
	// Broker is required. [Listed] is one where there is none.
	Broker Broker
	// Within are names beyond which nothing goes, whatever the broker says. Default: no bound.
	Within []protocol.Name
	// CA is the authority of the run. Required.
	CA runca.Pair
	// Roots are the authorities of servers. Default: those of the system.
	Roots *x509.CertPool
	// Deny are ranges of addresses that no name leads to, besides those that are not public:
	// those of Pods, Services and nodes where these are.
	Deny []netip.Prefix
	// Resolver finds addresses. Default: net.DefaultResolver.
	Resolver Resolver
	// MaxConnections is how many can be open at a time. Default: 256.
	MaxConnections int
	// Logger logs. Default: nothing.
	Logger *zap.Logger
}

// Limits of a connection.
const (
	defaultConnections = 256
	idleTimeout        = 60 * time.Second
	headerTimeout      = 10 * time.Second
	maxHeader          = 64 << 10
)

// Proxy is the proxy of one run. Make one with [New].
type Proxy struct {
	options     Options
	log         *zap.Logger
	policy      *policy
	leases      *leases
	reports     *reports
	authority   *authority
	dialer      *dialer
	transport   *http.Transport
	connections *connections
}

// New returns a proxy.
func New(options Options) (*Proxy, error) {
	if options.Mode != ModeCooperative && options.Mode != ModeTransparent {
		return nil, fmt.Errorf("proxy: Mode: %q is neither %s nor %s", options.Mode, ModeCooperative, ModeTransparent)
	}
	if options.Broker == nil {
		return nil, errors.New("proxy: Broker: required")
	}
	authority, err := newAuthority(&options.CA)
	if err != nil {
		return nil, fmt.Errorf("proxy: CA: %w", err)
	}
	if options.Resolver == nil {
		options.Resolver = net.DefaultResolver
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	options.MaxConnections = cmp.Or(options.MaxConnections, defaultConnections)
	p := &Proxy{options: options, log: options.Logger, authority: authority, connections: newConnections()}
	p.reports = newReports(options.Broker, p.log)
	p.policy = newPolicy(&p.options)
	p.leases = &leases{broker: options.Broker, held: map[string]*held{}}
	p.dialer = &dialer{resolver: options.Resolver, refused: refusedRanges(options.Deny)}
	p.transport = p.newTransport()
	return p, nil
}

// Run serves until ctx ends, which is no error. It returns an error at once if the broker
// does not say what the run may reach.
func (p *Proxy) Run(ctx context.Context, listener net.Listener) error {
	if err := p.policy.refresh(ctx); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	listener = netutil.LimitListener(listener, p.options.MaxConnections)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		p.policy.follow(ctx, p.changed)
		return nil
	})
	group.Go(func() error {
		p.reports.follow(ctx)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		p.connections.closeUnless(func(string, int32) error { return context.Canceled })
		return listener.Close()
	})
	group.Go(func() error {
		var err error
		if p.options.Mode == ModeTransparent {
			err = p.acceptAll(ctx, listener)
		} else {
			err = newServer(http.HandlerFunc(p.serveProxy)).Serve(listener)
		}
		if ctx.Err() != nil {
			err = nil // the listener was closed
		}
		return err
	})
	return group.Wait()
}

// changed brings what is open, and the credentials in memory, to what the broker has said.
func (p *Proxy) changed() {
	p.connections.closeUnless(p.policy.allows)
	var granted []protocol.Injected
	if egress, err := p.policy.current(); err == nil {
		granted = egress.Credentials
	}
	p.leases.keep(granted)
}

// newServer returns a server with the limits of a connection.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: discard,
	}
}

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/admitkit/admitkit/operator/internal/notpublic"
)

// refusedRanges returns what refuses an address. A public name that leads to one that is not public would lead into the
// cluster, or to the metadata of its cloud.
func refusedRanges(deny []netip.Prefix) func(netip.Addr) bool {
	return func(addr netip.Addr) bool {
		plain := addr.Unmap()
		return notpublic.Contains(addr) || slices.ContainsFunc(deny, func(prefix netip.Prefix) bool { return prefix.Contains(plain) })
	}
}

// dialer resolves a name once, and connects to one of the addresses that it has checked.
type dialer struct {
	resolver Resolver
	refused  func(netip.Addr) bool
}

const (
	// resolveTimeout is for each of resolveAttempts: of what is lost on the way to the DNS, a resolver hears only when its
	// time is over.
	resolveTimeout  = 2 * time.Second
	resolveAttempts = 4
	dialTimeout     = 5 * time.Second
	maxAddresses    = 4
)

// errRange says that a name leads where no run may go.
var errRange = errors.New("the name leads to an address that is private, or the cluster's")

func (d *dialer) dial(ctx context.Context, host string, port int32) (net.Conn, error) {
	addresses, err := d.resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	// One address that is refused refuses the name: it may be there to be tried.
	if slices.ContainsFunc(addresses, d.refused) {
		return nil, errRange
	}
	errs := []error{fmt.Errorf("no address of %s answers", host)}
	for _, address := range addresses[:min(len(addresses), maxAddresses)] {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", netip.AddrPortFrom(address.Unmap(), uint16(port)).String()) //nolint:gosec // it is a port
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// resolve asks for the addresses of a name, and again if there is no answer.
func (d *dialer) resolve(ctx context.Context, host string) (addresses []netip.Addr, err error) {
	for range resolveAttempts {
		looking, cancel := context.WithTimeout(ctx, resolveTimeout)
		addresses, err = d.resolver.LookupNetIP(looking, "ip", host)
		cancel()
		if late, is := errors.AsType[net.Error](err); !is || !late.Timeout() || ctx.Err() != nil {
			break
		}
	}
	return addresses, err
}

// newTransport connects to servers. It keeps connections by name, so that one of them
// serves no other name, and takes no proxy of the environment.
func (p *Proxy) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, text, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, err
			}
			return p.dialer.dial(ctx, host, int32(port))
		},
		TLSClientConfig:   &tls.Config{RootCAs: p.options.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, TLSHandshakeTimeout: headerTimeout, IdleConnTimeout: idleTimeout, MaxIdleConns: 64,
		MaxIdleConnsPerHost: 16, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
	}
}

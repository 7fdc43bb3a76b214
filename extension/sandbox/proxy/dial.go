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
)

// notPublic are the ranges of addresses that a public name does not lead to. One that did
// would lead into the cluster, to its cloud's metadata, or, by way of a gateway between
// families, to any of these.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"),
	// Of IPv6, 2000::/3 is public; the rest is refused by refuseAddress.
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
}

// publicIPv6 is what is assigned for the internet.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// refusedRanges returns what refuses an address.
func refusedRanges(deny []netip.Prefix) func(netip.Addr) bool {
	ranges := slices.Concat(notPublic, deny)
	return func(addr netip.Addr) bool {
		if addr.Zone() != "" || addr.Is6() && !addr.Is4In6() && !publicIPv6.Contains(addr) {
			return true
		}
		addr = addr.Unmap()
		return slices.ContainsFunc(ranges, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
	}
}

// dialer resolves a name once, and connects to one of the addresses that it has checked.
type dialer struct {
	resolver Resolver
	refused  func(netip.Addr) bool
}

const (
	resolveTimeout = 5 * time.Second
	dialTimeout    = 5 * time.Second
	maxAddresses   = 4
)

// errRange says that a name leads where no run may go.
var errRange = errors.New("the name leads to an address that is private, or the cluster's")

func (d *dialer) dial(ctx context.Context, host string, port int32) (net.Conn, error) {
	looking, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addresses, err := d.resolver.LookupNetIP(looking, "ip", host)
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

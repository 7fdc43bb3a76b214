// Package notpublic knows the addresses that are not those of hosts on the internet. Network policies of egress leave them
// out, and the proxy of sandboxed runs connects to none of them.
package notpublic

import (
	"net/netip"
	"slices"
)

// Ranges are special (RFC 6890 and its successors), or ways to reach IPv4 addresses over IPv6. 168.63.129.16 is public, but
// in Azure it is the WireServer, which gives the settings of the node to who asks:
// https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
var Ranges = parse(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16",
	"3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

// Metadata are the addresses at which clouds give credentials to who asks.
var Metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("169.254.170.2"), netip.MustParseAddr("168.63.129.16"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

// assigned is what of IPv6 is assigned for the internet.
var assigned = netip.MustParsePrefix("2000::/3")

// Contains reports whether an address is not public.
func Contains(addr netip.Addr) bool {
	if addr.Zone() != "" || addr.Is6() && !addr.Is4In6() && !assigned.Contains(addr) {
		return true
	}
	addr = addr.Unmap()
	return slices.ContainsFunc(Ranges, func(r netip.Prefix) bool { return r.Contains(addr) })
}

func parse(texts ...string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}

package egress

import (
	"fmt"
	"net/netip"
	"slices"
)

// Mode says whether network policies are taken to be enforced.
type Mode string

// The modes.
const (
	// ModeNone is the default: no Pod with egress is made.
	ModeNone Mode = ""
	// ModeOn takes policies to be enforced.
	ModeOn Mode = "on"
	// ModeOff makes Pods without a policy: nothing holds them, and each says so.
	ModeOff Mode = "off"
	// ModeAuto looks for a network plugin that enforces policies; see [Probe].
	ModeAuto Mode = "auto"
)

// Options are the operator's. The zero value has no Pod with egress made.
type Options struct {
	// Mode says whether network policies are enforced in this cluster: on, off or auto.
	// Default: nobody has said, and Pods with egress are refused.
	Mode Mode
	// Cilium makes CiliumNetworkPolicies if the API server serves them at the start, and
	// NetworkPolicies otherwise. Default: NetworkPolicies, which Cilium enforces too.
	Cilium bool
	// PodCIDRs and ServiceCIDRs are the addresses of Pods and Services in this cluster, of
	// both families where it has both: public addresses do not include them. Default: none,
	// and no Pod may have the internet.
	PodCIDRs, ServiceCIDRs []string
}

// maxRanges bounds what each policy for the internet repeats.
const maxRanges = 64

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if !slices.Contains([]Mode{ModeNone, ModeOn, ModeOff, ModeAuto}, o.Mode) {
		return fmt.Errorf("Mode: %q: must be on, off or auto, or empty, by which Pods with egress are refused", o.Mode)
	}
	for field, cidrs := range map[string][]string{"PodCIDRs": o.PodCIDRs, "ServiceCIDRs": o.ServiceCIDRs} {
		if len(cidrs) > maxRanges {
			return fmt.Errorf("%s: %d ranges, at most %d are allowed", field, len(cidrs), maxRanges)
		}
		for _, text := range cidrs {
			if _, err := parse(text); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		}
	}
	return nil
}

// On reports whether Pods with egress are held by policies.
func (o *Options) On() bool { return o.Mode == ModeOn || o.Mode == ModeAuto }

// ranges returns the ranges of the cluster. They are valid.
func (o *Options) ranges() (ranges []netip.Prefix) {
	for _, text := range slices.Concat(o.PodCIDRs, o.ServiceCIDRs) {
		if prefix, err := parse(text); err == nil {
			ranges = append(ranges, prefix)
		}
	}
	return ranges
}

// families returns the IP families of which the ranges of Pods are known. Only for
// these can public addresses be told from the cluster's: where Pods have public IPv6
// addresses, ::/0 would be all Pods.
func (o *Options) families() (v4, v6 bool) {
	for _, text := range o.PodCIDRs {
		if prefix, err := parse(text); err == nil {
			v4, v6 = v4 || prefix.Addr().Is4(), v6 || prefix.Addr().Is6()
		}
	}
	return v4, v6
}

// parse parses a block of addresses in its canonical form. The API server takes others,
// too, but network plugins do not agree on what they mean.
func parse(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return prefix, fmt.Errorf("%q is not a block of addresses such as 192.0.2.0/24 or 2001:db8::/64", text)
	case prefix.Addr().Is4In6():
		return prefix, fmt.Errorf("%q is IPv4 written as IPv6; write it as IPv4", text)
	case prefix != prefix.Masked() || prefix.String() != text:
		return prefix, fmt.Errorf("%q is not in its canonical form; write %s", text, prefix.Masked())
	}
	return prefix, nil
}

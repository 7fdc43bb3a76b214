package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/notpublic"
)

// The limits of an Egress, which its CRD has too.
const (
	maxCIDRs  = 32
	maxPods   = 16
	maxPorts  = 16
	maxLabels = 8
)

// Check says what is wrong with an Egress, field by field, and what to do. The CRD says most of it, but
// an object may be older than its CRD.
func Check(e *v1alpha1.Egress, options *Options) error {
	if len(e.CIDRs) > maxCIDRs {
		return fmt.Errorf("cidrs: %d items, at most %d are allowed", len(e.CIDRs), maxCIDRs)
	}
	for i, c := range e.CIDRs {
		if err := checkCIDR(c); err != nil {
			return fmt.Errorf("cidrs[%d].%w", i, err)
		}
	}
	if len(e.Pods) > maxPods {
		return fmt.Errorf("pods: %d items, at most %d are allowed", len(e.Pods), maxPods)
	}
	for i, pods := range e.Pods {
		if err := errors.Join(checkLabels(pods.MatchLabels), checkPorts(pods.Ports)); err != nil {
			return fmt.Errorf("pods[%d].%w", i, err)
		}
	}
	if v4, v6 := options.families(); e.Internet && (!v4 && !v6 || len(options.ServiceCIDRs) == 0) {
		return errors.New("internet: the addresses of the cluster are not known, and so not which ones are public: " +
			"let the operator set --cluster-pod-cidrs and --cluster-service-cidrs, or name the addresses in cidrs")
	}
	return nil
}

func checkCIDR(c v1alpha1.EgressCIDR) error {
	block, err := parse(string(c.CIDR))
	if err != nil {
		return fmt.Errorf("cidr: %w", err)
	}
	if len(c.Except) > maxCIDRs {
		return fmt.Errorf("except: %d items, at most %d are allowed", len(c.Except), maxCIDRs)
	}
	for i, text := range c.Except {
		except, err := parse(string(text))
		if err != nil {
			return fmt.Errorf("except[%d]: %w", i, err)
		}
		if !block.Contains(except.Addr()) || except.Bits() <= block.Bits() {
			return fmt.Errorf("except[%d]: %s is not a part of %s, or all of it; leave it out", i, text, c.CIDR)
		}
	}
	return checkPorts(c.Ports)
}

func checkLabels(labels map[string]v1alpha1.LabelValue) error {
	if len(labels) == 0 || len(labels) > maxLabels {
		return fmt.Errorf("matchLabels: %d labels: 1 to %d must be named", len(labels), maxLabels)
	}
	for key, value := range labels {
		if problems := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(string(value))); len(problems) > 0 {
			return fmt.Errorf("matchLabels: %.100q: %s", key+"="+string(value), strings.Join(problems, ", "))
		}
	}
	return nil
}

func checkPorts(ports []v1alpha1.EgressPort) error {
	if len(ports) == 0 || len(ports) > maxPorts {
		return fmt.Errorf("ports: %d ports: 1 to %d must be named", len(ports), maxPorts)
	}
	for i, port := range ports {
		switch {
		case !slices.Contains([]string{"TCP", "UDP", "SCTP"}, protocolOf(port)):
			return fmt.Errorf("ports[%d].protocol: %q is not TCP, UDP or SCTP", i, port.Protocol)
		case port.Port < 1 || port.Port > 65535:
			return fmt.Errorf("ports[%d].port: %d is not a port, 1 to 65535", i, port.Port)
		case port.EndPort != 0 && (port.EndPort < port.Port || port.EndPort > 65535):
			return fmt.Errorf("ports[%d].endPort: %d must be from port, %d, to 65535", i, port.EndPort, port.Port)
		}
	}
	return nil
}

// Warnings says what an Egress allows that its author may not expect.
func Warnings(e *v1alpha1.Egress, options *Options) (warnings []string) {
	for i, c := range e.CIDRs {
		reaches := func(addr netip.Addr) bool {
			within := func(text v1alpha1.CIDR) bool {
				block, err := parse(string(text))
				return err == nil && block.Contains(addr)
			}
			return within(c.CIDR) && !slices.ContainsFunc(c.Except, within)
		}
		for _, addr := range notpublic.Metadata {
			if reaches(addr) {
				warnings = append(warnings, fmt.Sprintf("cidrs[%d]: %s has the address %s, at which clouds give the credentials of the node; add it to except", i, c.CIDR, addr))
				break
			}
		}
		for _, block := range options.ranges() {
			if reaches(block.Addr()) {
				warnings = append(warnings, fmt.Sprintf("cidrs[%d]: %s has %s, which is the cluster's own; add it to except unless that is meant", i, c.CIDR, block))
			}
		}
	}
	return warnings
}

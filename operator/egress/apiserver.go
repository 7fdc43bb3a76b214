package egress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// APIServerService is the Service of the API server, in the namespace default. The
// API server itself keeps it and its EndpointSlice.
const APIServerService = "kubernetes"

// APIServerNamespace is where that Service is.
const APIServerNamespace = metav1.NamespaceDefault

// APIServerSlices selects the EndpointSlices of that Service.
func APIServerSlices() labels.Selector {
	return labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: APIServerService})
}

// maxEndpoints bounds the addresses of the API server in a policy.
const maxEndpoints = 64

// APIServerOf returns where Pods reach the API server: the ready addresses and TCP ports of the
// EndpointSlices, and the cluster's addresses of the Service with its ports, since it is open
// whether a network plugin looks at a connection before or after it is redirected to an
// endpoint. Both change while a cluster lives. The result is sorted. service may be nil.
func APIServerOf(service *corev1.Service, slicesOf []discoveryv1.EndpointSlice) []netip.AddrPort {
	var found []netip.AddrPort
	add := func(address string, port int32) {
		if addr, err := netip.ParseAddr(address); err == nil && isPlace(addr.Unmap()) && port > 0 && port <= 65535 {
			found = append(found, netip.AddrPortFrom(addr.Unmap(), uint16(port)))
		}
	}
	for i := range slicesOf {
		visit(&slicesOf[i], add)
	}
	if service != nil && len(found) > 0 {
		for _, address := range service.Spec.ClusterIPs {
			for _, port := range service.Spec.Ports {
				add(address, port.Port)
			}
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	found = slices.Compact(found)
	return found[:min(len(found), maxEndpoints)]
}

// visit calls add with the ready addresses of an EndpointSlice, and each of its TCP ports.
func visit(slice *discoveryv1.EndpointSlice, add func(address string, port int32)) {
	if slice.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	for _, port := range slice.Ports {
		if port.Port == nil || port.Protocol != nil && *port.Protocol != corev1.ProtocolTCP {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, address := range endpoint.Addresses {
				add(address, *port.Port)
			}
		}
	}
}

// isPlace reports whether an address is that of a host, and not of every one or of the
// Pod itself.
func isPlace(addr netip.Addr) bool {
	return !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLoopback() && addr.Zone() == ""
}

// formatEndpoints writes addresses into an annotation, and parseEndpoints reads them.
func formatEndpoints(endpoints []netip.AddrPort) string {
	var texts []string
	for _, e := range endpoints {
		texts = append(texts, e.String())
	}
	return strings.Join(texts, ",")
}

// parseEndpoints reads what formatEndpoints has written.
func parseEndpoints(text string) (endpoints []netip.AddrPort, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		endpoint, err := netip.ParseAddrPort(part)
		if err != nil || len(endpoints) == maxEndpoints {
			return nil, fmt.Errorf("%.200q: %w", text, cmp.Or(err, fmt.Errorf("more than %d addresses", maxEndpoints)))
		}
		endpoints = append(endpoints, endpoint)
	}
	return endpoints, nil
}

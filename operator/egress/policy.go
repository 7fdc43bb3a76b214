package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/notpublic"
)

// Policy is the policy of the Pods that have [v1alpha1.LabelEgress] with one value.
type Policy struct {
	// Kind is [NetworkPolicy] or [CiliumNetworkPolicy].
	Kind schema.GroupVersionKind
	// Label is the value of the label.
	Label string
	// Egress is what the Pods may reach.
	Egress *v1alpha1.Egress
	// Broker is a broker that they may reach besides, nil for none.
	Broker *v1alpha1.EgressBroker
	// Collector is a collector of recorded sessions that they may reach besides, nil for none.
	Collector *v1alpha1.EgressCollector
	// Options has the ranges of the cluster.
	Options *Options
	// APIServer are the API server's addresses; see [APIServerOf].
	APIServer []netip.AddrPort
}

// Compose returns the object, without metadata. It reads nothing, and the same
// Policy always has the same object, with all that the API server would fill in: what
// differs from it was changed.
func (p *Policy) Compose() (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(p.Kind)
	spec := p.ciliumSpec()
	if p.Kind == NetworkPolicy {
		var err error
		if spec, err = runtime.DefaultUnstructuredConverter.ToUnstructured(p.spec()); err != nil {
			return nil, fmt.Errorf("composing a %s: %w", p.Kind.Kind, err)
		}
	}
	object.Object["spec"] = spec
	return object, nil
}

// The Pods that answer for names, wherever a cluster has them by the conventions of
// Kubernetes.
var (
	dnsPods  = map[string]string{"k8s-app": "kube-dns"}
	dnsPorts = []v1alpha1.EgressPort{{Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 53}}
	webPorts = []v1alpha1.EgressPort{{Protocol: "TCP", Port: 443}, {Protocol: "TCP", Port: 80}}
)

// spec is the spec of a NetworkPolicy.
func (p *Policy) spec() *networkingv1.NetworkPolicySpec {
	spec := &networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelEgress: p.Label}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
	}
	allow := func(ports []v1alpha1.EgressPort, to ...networkingv1.NetworkPolicyPeer) {
		spec.Egress = append(spec.Egress, networkingv1.NetworkPolicyEgressRule{To: to, Ports: portsOf(ports)})
	}
	block := func(cidr string, except []string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	if p.Egress.AllowsDNS() {
		allow(dnsPorts, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: dnsPods},
		})
	}
	if p.Egress.APIServer {
		for _, at := range p.APIServer {
			allow([]v1alpha1.EgressPort{{Port: int32(at.Port())}}, block(host(at.Addr()), nil))
		}
	}
	for _, c := range p.Egress.CIDRs {
		allow(c.Ports, block(string(c.CIDR), texts(c.Except)))
	}
	for _, pods := range p.Egress.Pods {
		allow(pods.Ports, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: labelsOf(pods.MatchLabels)}})
	}
	for _, open := range p.internet() {
		allow(webPorts, block(open.cidr, open.except))
	}
	for _, s := range p.servers() {
		allow([]v1alpha1.EgressPort{{Port: s.port}}, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}},
		})
	}
	return spec
}

// ciliumSpec is the spec of a CiliumNetworkPolicy. Cilium knows the API server by itself, and
// no block of addresses is about Pods, nodes or the API server there.
func (p *Policy) ciliumSpec() map[string]any {
	var rules []any
	allow := func(to string, peers any, ports []any) {
		rules = append(rules, map[string]any{to: peers, "toPorts": []any{map[string]any{"ports": ports}}})
	}
	endpoints := func(labels map[string]any) []any { return []any{map[string]any{"matchLabels": labels}} }
	if p.Egress.AllowsDNS() {
		allow("toEndpoints", endpoints(map[string]any{"k8s:io.kubernetes.pod.namespace": metav1.NamespaceSystem, "k8s:k8s-app": dnsPods["k8s-app"]}), ciliumPorts(dnsPorts))
	}
	if p.Egress.APIServer && len(p.APIServer) > 0 {
		var ports []v1alpha1.EgressPort
		for _, at := range p.APIServer {
			if port := (v1alpha1.EgressPort{Port: int32(at.Port())}); !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		}
		allow("toEntities", []any{"kube-apiserver"}, ciliumPorts(ports))
	}
	for _, c := range p.Egress.CIDRs {
		allow("toCIDRSet", []any{ciliumBlock(string(c.CIDR), texts(c.Except))}, ciliumPorts(c.Ports))
	}
	for _, pods := range p.Egress.Pods {
		labels := map[string]any{}
		for key, value := range pods.MatchLabels {
			labels["k8s:"+key] = string(value)
		}
		allow("toEndpoints", endpoints(labels), ciliumPorts(pods.Ports))
	}
	for _, open := range p.internet() {
		allow("toCIDRSet", []any{ciliumBlock(open.cidr, open.except)}, ciliumPorts(webPorts))
	}
	for _, s := range p.servers() {
		allow("toEndpoints", endpoints(map[string]any{"k8s:io.kubernetes.pod.namespace": s.namespace}), ciliumPorts([]v1alpha1.EgressPort{{Port: s.port}}))
	}
	if rules == nil {
		rules = []any{map[string]any{}} // selects nothing, and so nothing is allowed
	}
	return map[string]any{
		"endpointSelector": map[string]any{"matchLabels": map[string]any{"k8s:" + v1alpha1.LabelEgress: p.Label}},
		"egress":           rules,
	}
}

// inNamespace is a port of the Pods of a namespace.
type inNamespace struct {
	namespace string
	port      int32
}

// servers are those of the operator that the Pods may reach.
func (p *Policy) servers() (servers []inNamespace) {
	if b := p.Broker; b != nil {
		servers = append(servers, inNamespace{b.Namespace, b.Port})
	}
	if c := p.Collector; c != nil {
		servers = append(servers, inNamespace{c.Namespace, c.Port})
	}
	return servers
}

// opening is a block of addresses without some of them.
type opening struct {
	cidr   string
	except []string
}

// internet returns the public addresses: of each family for which those of the cluster's Pods
// are known, without the cluster's.
func (p *Policy) internet() (open []opening) {
	if !p.Egress.Internet {
		return nil
	}
	closed := slices.Concat(p.Options.ranges(), notpublic.Ranges)
	for _, at := range p.APIServer {
		closed = append(closed, netip.PrefixFrom(at.Addr(), at.Addr().BitLen()))
	}
	v4, v6 := p.Options.families()
	if v4 {
		open = append(open, opening{"0.0.0.0/0", outermost(closed, netip.Addr.Is4)})
	}
	if v6 {
		open = append(open, opening{"::/0", outermost(closed, netip.Addr.Is6)})
	}
	return open
}

// outermost returns the blocks of a family that are in no other, sorted.
func outermost(blocks []netip.Prefix, is func(netip.Addr) bool) (texts []string) {
	var kept []netip.Prefix
	blocks = slices.Clone(blocks)
	slices.SortFunc(blocks, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	for _, block := range blocks {
		if is(block.Addr()) && !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Contains(block.Addr()) }) {
			kept = append(kept, block)
			texts = append(texts, block.String())
		}
	}
	return texts
}

// host is the block of one address.
func host(addr netip.Addr) string { return netip.PrefixFrom(addr, addr.BitLen()).String() }

func texts(cidrs []v1alpha1.CIDR) (texts []string) {
	for _, cidr := range cidrs {
		texts = append(texts, string(cidr))
	}
	return texts
}

func labelsOf(labels map[string]v1alpha1.LabelValue) map[string]string {
	texts := make(map[string]string, len(labels))
	for key, value := range labels {
		texts[key] = string(value)
	}
	return texts
}

func protocolOf(port v1alpha1.EgressPort) string {
	if port.Protocol == "" {
		return string(corev1.ProtocolTCP)
	}
	return strings.ToUpper(port.Protocol)
}

func portsOf(ports []v1alpha1.EgressPort) []networkingv1.NetworkPolicyPort {
	var result []networkingv1.NetworkPolicyPort
	for _, port := range ports {
		protocol, number := corev1.Protocol(protocolOf(port)), intstr.FromInt32(port.Port)
		made := networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &number}
		if port.EndPort != 0 {
			made.EndPort = &port.EndPort
		}
		result = append(result, made)
	}
	return result
}

func ciliumPorts(ports []v1alpha1.EgressPort) (result []any) {
	for _, port := range ports {
		made := map[string]any{"port": strconv.Itoa(int(port.Port)), "protocol": protocolOf(port)}
		if port.EndPort != 0 {
			made["endPort"] = int64(port.EndPort)
		}
		result = append(result, made)
	}
	return result
}

func ciliumBlock(cidr string, except []string) map[string]any {
	block := map[string]any{"cidr": cidr}
	if len(except) > 0 {
		var list []any
		for _, text := range except {
			list = append(list, text)
		}
		block["except"] = list
	}
	return block
}

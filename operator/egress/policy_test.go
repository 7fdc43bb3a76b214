package egress_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

var (
	no       = new(bool)
	dualCIDR = egress.Options{Mode: egress.ModeOn, PodCIDRs: []string{"100.200.0.0/16", "2600:1f00::/56"}, ServiceCIDRs: []string{"10.96.0.0/12", "2600:1f01::/108"}}
	server   = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:6443"), netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("[2a00::7]:6443")}
	https    = []v1alpha1.EgressPort{{Port: 443}}
)

func compose(t *testing.T, p egress.Policy) *unstructured.Unstructured {
	t.Helper()
	if p.Options == nil {
		p.Options = &dualCIDR
	}
	p.Label = "1"
	policy, err := p.Compose()
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// reaches evaluates a NetworkPolicy for an address, as the API defines it.
func reaches(t *testing.T, policy *unstructured.Unstructured, to string) bool {
	t.Helper()
	var p networkingv1.NetworkPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(policy.Object, &p); err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(to)
	for _, rule := range p.Spec.Egress {
		if len(rule.To) == 0 || len(rule.Ports) == 0 {
			t.Fatalf("a rule for everything: %+v", rule)
		}
		open := false
		for _, port := range rule.Ports {
			last := int32(port.Port.IntValue())
			if port.EndPort != nil {
				last = *port.EndPort
			}
			open = open || *port.Protocol == "TCP" && int(at.Port()) >= port.Port.IntValue() && int32(at.Port()) <= last
		}
		for _, peer := range rule.To {
			if peer.IPBlock == nil || !open || !netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(at.Addr()) {
				continue
			}
			within := false
			for _, except := range peer.IPBlock.Except {
				within = within || netip.MustParsePrefix(except).Contains(at.Addr())
			}
			if !within {
				return true
			}
		}
	}
	return false
}

func TestAPodReachesWhatItsEgressNamesAndNothingElse(t *testing.T) {
	internet := &v1alpha1.Egress{Internet: true}
	for sentence, test := range map[string]struct {
		egress  *v1alpha1.Egress
		reaches []string
		not     []string
	}{
		"the internet without the cluster's and special addresses": {
			internet,
			[]string{"1.1.1.1:443", "8.8.8.8:80", "168.63.129.15:80", "168.63.129.17:80", "[2606:4700::1111]:443", "[2600:1f02::1]:80"},
			[]string{
				"1.1.1.1:22", "1.1.1.1:6443", "10.0.0.1:443", "172.31.0.1:80", "192.168.1.1:443", "169.254.169.254:80", "168.63.129.16:80", "100.64.0.1:443", "127.0.0.1:80", "0.0.0.0:80", "224.0.0.1:80",
				"100.200.3.4:443", "10.96.0.1:443", "192.0.2.7:443", "192.0.2.7:6443",
				"[2600:1f00::5]:443", "[2600:1f01::1]:443", "[2a00::7]:443", "[fd00:ec2::254]:80", "[fe80::1]:80", "[::1]:80", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443", "[::10.0.0.1]:443",
			},
		},
		"the API server and no other port or host": {
			&v1alpha1.Egress{APIServer: true},
			[]string{"192.0.2.7:6443", "10.96.0.1:443", "[2a00::7]:6443"},
			[]string{"192.0.2.7:10250", "192.0.2.8:6443", "10.96.0.10:443", "[2a00::8]:6443", "1.1.1.1:443"},
		},
		"a block without a part of it": {
			&v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: "10.1.0.0/16", Except: []v1alpha1.CIDR{"10.1.2.0/24"}, Ports: []v1alpha1.EgressPort{{Port: 8000, EndPort: 8010}}}}},
			[]string{"10.1.1.1:8000", "10.1.3.3:8010"},
			[]string{"10.1.2.1:8000", "10.1.1.1:7999", "10.1.1.1:8011", "10.2.0.1:8000"},
		},
		"an IPv6 block": {
			&v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: "2001:db8::/64", Ports: https}}},
			[]string{"[2001:db8::1]:443"},
			[]string{"[2001:db8:0:1::1]:443", "1.1.1.1:443"},
		},
		"nothing at all": {&v1alpha1.Egress{DNS: no}, nil, []string{"1.1.1.1:443", "10.96.0.1:443", "[2606:4700::1111]:443"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			policy := compose(t, egress.Policy{Kind: egress.NetworkPolicy, Egress: test.egress, APIServer: server})
			for _, to := range test.reaches {
				if !reaches(t, policy, to) {
					t.Errorf("does not reach %s", to)
				}
			}
			for _, to := range test.not {
				if reaches(t, policy, to) {
					t.Errorf("reaches %s", to)
				}
			}
		})
	}
}

func TestTheInternetHasNoPrivateAddressWhateverItIs(t *testing.T) {
	policy := compose(t, egress.Policy{Kind: egress.NetworkPolicy, Egress: &v1alpha1.Egress{Internet: true}, APIServer: server})
	for range 2000 {
		var v4 [4]byte
		v4[0], v4[1], v4[2], v4[3] = byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())
		addr := netip.AddrFrom4(v4)
		private := addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() || v4[0] == 0
		if to := netip.AddrPortFrom(addr, 443).String(); private && reaches(t, policy, to) {
			t.Errorf("reaches %s", to)
		}
	}
}

func TestPublicAddressesNeedTheRangesOfTheirFamily(t *testing.T) {
	only4 := egress.Options{PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/12"}}
	policy := compose(t, egress.Policy{Kind: egress.NetworkPolicy, Egress: &v1alpha1.Egress{Internet: true}, Options: &only4})
	if !reaches(t, policy, "1.1.1.1:443") || reaches(t, policy, "[2606:4700::1111]:443") {
		t.Error("a cluster without IPv6 ranges has the IPv6 internet, or none")
	}
	for sentence, options := range map[string]egress.Options{"none": {}, "only Pods": {PodCIDRs: only4.PodCIDRs}, "only Services": {ServiceCIDRs: only4.ServiceCIDRs}} {
		if err := egress.Check(&v1alpha1.Egress{Internet: true}, &options); err == nil || !strings.Contains(err.Error(), "--cluster-pod-cidrs") {
			t.Errorf("%s: got %v", sentence, err)
		}
	}
}

// The API server keeps an object as it was composed, so that a difference is a change: the test
// of operator/access asks a real one. This one shows what it is.
func TestThePoliciesInBothForms(t *testing.T) {
	of := &v1alpha1.Egress{
		APIServer: true, CIDRs: []v1alpha1.EgressCIDR{{CIDR: "10.1.0.0/16", Except: []v1alpha1.CIDR{"10.1.2.0/24"}, Ports: []v1alpha1.EgressPort{{Protocol: "UDP", Port: 1, EndPort: 9}}}},
		Pods: []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"app": "db"}, Ports: []v1alpha1.EgressPort{{Port: 5432}}}},
	}
	broker, collector := &v1alpha1.EgressBroker{Namespace: "leases", Port: 8443}, &v1alpha1.EgressCollector{Namespace: "admitkit-system", Port: 8444}
	for want, kind := range map[string]egress.Policy{
		`
podSelector: {matchLabels: {admitkit.dev/egress: "1"}}
policyTypes: [Egress]
egress:
- {ports: [{port: 8443, protocol: TCP}], to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: leases}}}]}
- {ports: [{port: 8444, protocol: TCP}], to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: admitkit-system}}}]}
`: {Kind: egress.NetworkPolicy, Egress: &v1alpha1.Egress{DNS: no}, Broker: broker, Collector: collector},
		`
endpointSelector: {matchLabels: {"k8s:admitkit.dev/egress": "1"}}
egress:
- {toEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": admitkit-system}}], toPorts: [{ports: [{port: "8444", protocol: TCP}]}]}
`: {Kind: egress.CiliumNetworkPolicy, Egress: &v1alpha1.Egress{DNS: no}, Collector: collector},
		`
podSelector: {matchLabels: {admitkit.dev/egress: "1"}}
policyTypes: [Egress]
egress:
- {ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}], to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]}
- {ports: [{port: 6443, protocol: TCP}], to: [{ipBlock: {cidr: 192.0.2.7/32}}]}
- {ports: [{port: 443, protocol: TCP}], to: [{ipBlock: {cidr: 10.96.0.1/32}}]}
- {ports: [{port: 6443, protocol: TCP}], to: [{ipBlock: {cidr: 2a00::7/128}}]}
- {ports: [{port: 1, endPort: 9, protocol: UDP}], to: [{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.2.0/24]}}]}
- {ports: [{port: 5432, protocol: TCP}], to: [{podSelector: {matchLabels: {app: db}}}]}
`: {Kind: egress.NetworkPolicy, Egress: of, APIServer: server},
		`
endpointSelector: {matchLabels: {"k8s:admitkit.dev/egress": "1"}}
egress:
- {toEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": kube-system, "k8s:k8s-app": kube-dns}}], toPorts: [{ports: [{port: "53", protocol: UDP}, {port: "53", protocol: TCP}]}]}
- {toEntities: [kube-apiserver], toPorts: [{ports: [{port: "6443", protocol: TCP}, {port: "443", protocol: TCP}]}]}
- {toCIDRSet: [{cidr: 10.1.0.0/16, except: [10.1.2.0/24]}], toPorts: [{ports: [{port: "1", endPort: 9, protocol: UDP}]}]}
- {toEndpoints: [{matchLabels: {"k8s:app": db}}], toPorts: [{ports: [{port: "5432", protocol: TCP}]}]}
`: {Kind: egress.CiliumNetworkPolicy, Egress: of, APIServer: server},
		`
podSelector: {matchLabels: {admitkit.dev/egress: "1"}}
policyTypes: [Egress]
`: {Kind: egress.NetworkPolicy, Egress: &v1alpha1.Egress{DNS: no}},
		`
endpointSelector: {matchLabels: {"k8s:admitkit.dev/egress": "1"}}
egress: [{}]
`: {Kind: egress.CiliumNetworkPolicy, Egress: &v1alpha1.Egress{DNS: no}},
	} {
		policy := compose(t, kind)
		got, err := json.Marshal(policy.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := yaml.YAMLToJSON([]byte(want))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(wanted) {
			t.Errorf("%s:\ngot  %s\nwant %s", policy.GetKind(), got, wanted)
		}
	}
}

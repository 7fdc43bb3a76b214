package egress_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	discoveryfake "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

func TestOptionsNameWhatIsWrong(t *testing.T) {
	for want, options := range map[string]egress.Options{
		"":                                       {Mode: egress.ModeAuto, Cilium: true, PodCIDRs: []string{"10.244.0.0/16", "fd00::/48"}},
		`Mode: "maybe": must be on, off or auto`: {Mode: "maybe"},
		`PodCIDRs: "10.0.0.1/8" is not in its canonical form; write 10.0.0.0/8`: {PodCIDRs: []string{"10.0.0.1/8"}},
		`ServiceCIDRs: "10.0.0.1" is not a block`:                               {ServiceCIDRs: []string{"10.0.0.1"}},
		`PodCIDRs: "::ffff:10.0.0.0/104" is IPv4 written as IPv6`:               {PodCIDRs: []string{"::ffff:10.0.0.0/104"}},
		`PodCIDRs: "FD00::/48" is not in its canonical form; write fd00::/48`:   {PodCIDRs: []string{"FD00::/48"}},
		"PodCIDRs: 65 ranges, at most 64 are allowed":                           {PodCIDRs: make([]string, 65)},
	} {
		if err := options.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAnEgressThatIsWrongIsRefusedWithTheField(t *testing.T) {
	label := map[string]v1alpha1.LabelValue{"app": "db"}
	block := func(cidr string, except ...v1alpha1.CIDR) v1alpha1.Egress {
		return v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: v1alpha1.CIDR(cidr), Except: except, Ports: https}}}
	}
	for want, e := range map[string]v1alpha1.Egress{
		"":                          block("10.1.0.0/16", "10.1.2.0/24"),
		`cidrs[0].cidr: "10.1.0.0"`: block("10.1.0.0"),
		"cidrs[0].except[0]: 10.2.0.0/24 is not a part": block("10.1.0.0/16", "10.2.0.0/24"),
		"cidrs[0].except[0]: 10.1.0.0/16 is not a part": block("10.1.0.0/16", "10.1.0.0/16"),
		"cidrs[0].except[0]: fd00::/64 is not a part":   block("0.0.0.0/0", "fd00::/64"),
		"cidrs[0].ports: 0 ports":                       {CIDRs: []v1alpha1.EgressCIDR{{CIDR: "10.1.0.0/16"}}},
		"cidrs: 33 items, at most 32":                   {CIDRs: make([]v1alpha1.EgressCIDR, 33)},
		"pods: 17 items, at most 16":                    {Pods: make([]v1alpha1.EgressPods, 17)},
		"pods[0].matchLabels: 0 labels":                 {Pods: []v1alpha1.EgressPods{{Ports: https}}},
		`pods[0].matchLabels: "a/b/c=`:                  {Pods: []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"a/b/c": ""}, Ports: https}}},
		"pods[0].ports[0].port: 0":                      {Pods: []v1alpha1.EgressPods{{MatchLabels: label, Ports: []v1alpha1.EgressPort{{}}}}},
		"pods[0].ports[0].endPort: 1":                   {Pods: []v1alpha1.EgressPods{{MatchLabels: label, Ports: []v1alpha1.EgressPort{{Port: 2, EndPort: 1}}}}},
		"pods[0].ports[0].protocol":                     {Pods: []v1alpha1.EgressPods{{MatchLabels: label, Ports: []v1alpha1.EgressPort{{Port: 2, Protocol: "ICMP"}}}}},
	} {
		if err := egress.Check(&e, &dualCIDR); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestABlockThatHasMoreThanItsAuthorMayThinkWarns(t *testing.T) {
	for cidr, want := range map[v1alpha1.CIDR][]string{
		"0.0.0.0/0": {"169.254.169.254", "100.200.0.0/16", "10.96.0.0/12"}, "203.0.113.0/24": nil, "168.63.129.0/24": {"168.63.129.16"}, "::/0": {"fd00:ec2::254", "2600:1f00::/56", "2600:1f01::/108"},
	} {
		e := v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: cidr, Ports: https}}}
		warnings := strings.Join(egress.Warnings(&e, &dualCIDR), "\n")
		for _, text := range want {
			if !strings.Contains(warnings, text) {
				t.Errorf("%s: nothing about %s in %q", cidr, text, warnings)
			}
		}
		if want == nil && warnings != "" {
			t.Errorf("%s: %s", cidr, warnings)
		}
	}
}

// The API server of operator/access's tests serves the kind.
func TestCiliumsPoliciesAreServedOrNot(t *testing.T) {
	for sentence, test := range map[string]struct {
		served []*metav1.APIResourceList
		want   bool
	}{
		"nothing of Cilium's": {nil, false},
		"another kind":        {[]*metav1.APIResourceList{{GroupVersion: "cilium.io/v2", APIResources: []metav1.APIResource{{Kind: "CiliumNode"}}}}, false},
		"another version":     {[]*metav1.APIResourceList{{GroupVersion: "cilium.io/v1", APIResources: []metav1.APIResource{{Kind: "CiliumNetworkPolicy"}}}}, false},
		"the kind":            {[]*metav1.APIResourceList{{GroupVersion: "cilium.io/v2", APIResources: []metav1.APIResource{{Kind: "CiliumNetworkPolicy"}}}}, true},
	} {
		got, err := egress.ServesCilium(&discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: test.served}})
		if err != nil || got != test.want {
			t.Errorf("%s: got %t, %v", sentence, got, err)
		}
	}
}

func TestTheAPIServerIsWhereItsSlicesSay(t *testing.T) {
	port, udp, no := int32(6443), corev1.ProtocolUDP, false
	ports := []discoveryv1.EndpointPort{{Port: &port}}
	list := []discoveryv1.EndpointSlice{
		{AddressType: discoveryv1.AddressTypeIPv4, Ports: ports, Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"192.0.2.2", "192.0.2.1"}}, {Addresses: []string{"192.0.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}, {Addresses: []string{"127.0.0.1", "0.0.0.0", "no address"}},
		}},
		{AddressType: discoveryv1.AddressTypeIPv6, Ports: append(ports, discoveryv1.EndpointPort{Port: &port, Protocol: &udp}), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"2001:db8::1"}}}},
		{AddressType: discoveryv1.AddressTypeFQDN, Ports: ports, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}}},
	}
	service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "fd00::1"}, Ports: []corev1.ServicePort{{Port: 443}}}}
	found := egress.APIServerOf(service, list)
	const want = "10.96.0.1:443,192.0.2.1:6443,192.0.2.2:6443,[2001:db8::1]:6443,[fd00::1]:443"
	if got := egress.FormatEndpoints(found); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if again, err := egress.ParseEndpoints(want); err != nil || egress.FormatEndpoints(again) != want {
		t.Errorf("read again: %v, %v", again, err)
	}
	if _, err := egress.ParseEndpoints(strings.Repeat("192.0.2.1:1,", 65)); err == nil {
		t.Error("65 addresses are read")
	}
	if found := egress.APIServerOf(service, nil); len(found) != 0 {
		t.Errorf("without endpoints: %v", found)
	}
}

func TestAnImageIsPinnedByADigestOfAnyAlgorithm(t *testing.T) {
	for image, want := range map[string]bool{
		"alpine@sha256:0123": true, "r.example.com:5000/a:tag@sha512:ab": true, "alpine": false, "alpine:3": false, "r.example.com:5000/a": false,
		"alpine@": false, "alpine@sha256": false, "alpine@sha256:": false, "alpine@:0123": false, "@sha256:0123": false, "": false,
	} {
		if got := egress.IsDigestPinned(image); got != want {
			t.Errorf("%s: got %t", image, got)
		}
	}
}

func TestAPolicyWidensIfItAllowsEgressToAPodThatWeMayHold(t *testing.T) {
	const networkPolicy, cilium = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, ", "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, "
	for sentence, test := range map[string]struct {
		policy string
		want   bool
	}{
		"every Pod, everything":                {networkPolicy + "spec: {podSelector: {}, policyTypes: [Egress], egress: [{}]}}", true},
		"every Pod, DNS, without policy types": {networkPolicy + "spec: {podSelector: {}, egress: [{ports: [{port: 53}]}]}}", true},
		"every Pod, nothing":                   {networkPolicy + "spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}", false},
		"every Pod, ingress":                   {networkPolicy + "spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{}]}}", false},
		"Pods that we do not hold":             {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: admitkit.dev/egress, operator: DoesNotExist}]}, egress: [{}]}}", false},
		"Pods of an app":                       {networkPolicy + "spec: {podSelector: {matchLabels: {app: web}}, egress: [{}]}}", false},
		"Pods that are not of an app":          {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}, egress: [{}]}}", true},
		"one that we hold":                     {networkPolicy + "spec: {podSelector: {matchLabels: {admitkit.dev/egress: abc}}, egress: [{}]}}", true},
		"all that we hold":                     {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: admitkit.dev/egress, operator: Exists}]}, egress: [{}]}}", true},
		"all but one that we hold":             {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: admitkit.dev/egress, operator: NotIn, values: [a]}]}, egress: [{}]}}", true},
		"by who manages":                       {networkPolicy + "spec: {podSelector: {matchLabels: {by: us}}, egress: [{}]}}", true},
		"by another who manages":               {networkPolicy + "spec: {podSelector: {matchLabels: {by: them}}, egress: [{}]}}", false},
		"not of us":                            {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: by, operator: NotIn, values: [us]}]}, egress: [{}]}}", false},
		"of us and an app":                     {networkPolicy + "spec: {podSelector: {matchLabels: {by: us, app: web}}, egress: [{}]}}", false},
		"by a request":                         {networkPolicy + "spec: {podSelector: {matchLabels: {of: a}}, egress: [{}]}}", true},
		"without a label that all have":        {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: of, operator: DoesNotExist}]}, egress: [{}]}}", false},
		"without a label that none has":        {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}, egress: [{}]}}", true},
		"not of one request":                   {networkPolicy + "spec: {podSelector: {matchExpressions: [{key: of, operator: NotIn, values: [a]}]}, egress: [{}]}}", true},
		"by the zone":                          {networkPolicy + "spec: {podSelector: {matchLabels: {topology.kubernetes.io/zone: a}}, egress: [{}]}}", true},
		"what cannot be read":                  {networkPolicy + "spec: {podSelector: 1, egress: [{}]}}", true},
		"Cilium: every Pod":                    {cilium + "spec: {endpointSelector: {}, egress: [{toEntities: [world]}]}}", true},
		"Cilium: every Pod, nothing":           {cilium + "spec: {endpointSelector: {}, egress: [{}], egressDeny: [{toEntities: [world]}]}}", false},
		"Cilium: every Pod, ingress":           {cilium + "spec: {endpointSelector: {}, ingress: [{fromEntities: [world]}]}}", false},
		"Cilium: one of several rules":         {cilium + "specs: [{endpointSelector: {matchLabels: {app: web}}, egress: [{toEntities: [all]}]}, {endpointSelector: {}, egress: [{toEntities: [all]}]}]}", true},
		"Cilium: Pods of an app":               {cilium + "spec: {endpointSelector: {matchLabels: {'k8s:app': web}}, egress: [{toEntities: [all]}]}}", false},
		"Cilium: by the namespace":             {cilium + "spec: {endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': shop}}, egress: [{toEntities: [all]}]}}", true},
		"Cilium: all that we hold":             {cilium + "spec: {endpointSelector: {matchExpressions: [{key: 'any:admitkit.dev/egress', operator: Exists}]}, egress: [{toEntities: [all]}]}}", true},
		"Cilium: those that we do not hold":    {cilium + "spec: {endpointSelector: {matchExpressions: [{key: 'k8s:admitkit.dev/egress', operator: DoesNotExist}]}, egress: [{toEntities: [all]}]}}", false},
		"Cilium: what cannot be read":          {cilium + "spec: {endpointSelector: {}, egress: all}}", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			policy := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(test.policy), &policy.Object); err != nil {
				t.Fatal(err)
			}
			if got := egress.Widens(policy, map[string]string{"by": "us", "of": ""}); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

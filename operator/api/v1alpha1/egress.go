package v1alpha1

// Conditions and reasons about what a Pod may reach.
const (
	// ConditionEgressHeld says whether a network policy keeps the access Pod to its
	// template's egress. Only requests by templates with egress have it.
	ConditionEgressHeld = "EgressHeld"
	// ReasonPolicyInForce: the policy is in force.
	ReasonPolicyInForce = "PolicyInForce"
	// ReasonEgressNotEnforced: nothing here enforces network policies, or the operator has
	// said that nothing is to.
	ReasonEgressNotEnforced = "EgressNotEnforced"
	// ReasonEgressWidened: a policy of somebody else allows the access Pod more, since
	// policies add up.
	ReasonEgressWidened = "EgressWidened"
	// ReasonEgressChanged: the template's egress has changed since the request's was decided.
	ReasonEgressChanged = "EgressChanged"
	// ReasonEgressInvalid: the egress cannot be held, as for a Pod on the host's network.
	ReasonEgressInvalid = "EgressInvalid"
)

// LabelEgress is on each Pod that a network policy of admitkit's selects, with a value of
// its own. Policies that allow egress leave these Pods out: their podSelector has
// {key: admitkit.dev/egress, operator: DoesNotExist}.
const LabelEgress = "admitkit.dev/egress"

// Egress says what a Pod may reach. It reaches nothing else, with IPv4 and IPv6.
// Connections to the Pod, such as kubectl port-forward, are not its matter.
type Egress struct {
	// DNS lets the Pod ask the DNS Pods of the cluster, those in kube-system with the label
	// k8s-app=kube-dns, at port 53. Whoever may ask names can send what is in them to who
	// answers: set it to false where that matters.
	// +optional
	// +kubebuilder:default=true
	DNS *bool `json:"dns,omitempty"`

	// APIServer lets the Pod reach the API server, by the Service kubernetes and its
	// endpoints, which are followed.
	// +optional
	APIServer bool `json:"apiServer,omitempty"`

	// Internet lets the Pod reach public addresses at the TCP ports 443 and 80: neither
	// private, link-local and other special ones, nor those of the cluster and its API
	// server. It needs the operator's --cluster-pod-cidrs and --cluster-service-cidrs, and
	// is for the IP families of these.
	// +optional
	Internet bool `json:"internet,omitempty"`

	// CIDRs are addresses that the Pod may reach at the ports named, private ones too.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	CIDRs []EgressCIDR `json:"cidrs,omitempty"`

	// Pods are Pods of its own namespace that the Pod may reach at the ports named.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Pods []EgressPods `json:"pods,omitempty"`
}

// CIDR is a block of IPv4 or IPv6 addresses, such as 192.0.2.0/24 or 2001:db8::/64.
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a block of addresses in its canonical form, such as 192.0.2.0/24 or 2001:db8::/64, without bits beyond its length"
type CIDR string

// EgressCIDR is a block of addresses, without some of them.
// +kubebuilder:validation:XValidation:rule="!has(self.except) || !isCIDR(self.cidr) || self.except.all(e, isCIDR(e) && cidr(self.cidr).containsCIDR(e) && e != self.cidr)",message="except must name parts of cidr, and not all of it"
type EgressCIDR struct {
	// CIDR is the block.
	CIDR CIDR `json:"cidr"`
	// Except are parts of it that stay out of reach.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Except []CIDR `json:"except,omitempty"`
	// Ports are the ports.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Ports []EgressPort `json:"ports"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// EgressPods are Pods of the same namespace.
type EgressPods struct {
	// MatchLabels are the labels that the Pods have, at least one: whoever may give a Pod
	// these labels lets it be reached.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	MatchLabels map[string]LabelValue `json:"matchLabels"`
	// Ports are the ports of the Pods, not those of a Service in front of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Ports []EgressPort `json:"ports"`
}

// EgressPort is a port, or a range of ports.
// +kubebuilder:validation:XValidation:rule="!has(self.endPort) || self.endPort >= self.port",message="endPort must not be less than port"
type EgressPort struct {
	// Protocol is TCP, UDP or SCTP.
	// +optional
	// +kubebuilder:default=TCP
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol string `json:"protocol,omitempty"`
	// Port is the port, or the first one.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// EndPort is the last port of a range. Default: port alone.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	EndPort int32 `json:"endPort,omitempty"`
}

// EgressDecision is what was decided about the egress of an access Pod. It is written
// before there is a Pod, and never changes: neither the template nor the operator's options
// change it later.
type EgressDecision struct {
	// Policy is the kind of the policy that holds the Pod: NetworkPolicy or
	// CiliumNetworkPolicy. Without one nothing holds it, because the operator has said so.
	// +optional
	// +kubebuilder:validation:Enum=NetworkPolicy;CiliumNetworkPolicy
	Policy string `json:"policy,omitempty"`
	// Reason says why policies are taken to be enforced, or why not.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason,omitempty"`
	// Egress is what the template said, and what the proxy of a SandboxRun needs besides.
	Egress Egress `json:"egress"`
	// Hosts are the names beyond which the proxy of a SandboxRun, or of a seed, lets nothing through.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Hosts []EgressName `json:"hosts,omitempty"`
	// Broker is what the proxy of a SandboxRun asks.
	// +optional
	Broker *EgressBroker `json:"broker,omitempty"`
	// Collector is where the recorder of sessions in a SandboxRun sends what it records.
	// +optional
	Collector *EgressCollector `json:"collector,omitempty"`
}

// AllowsDNS reports whether the Pod may ask the DNS Pods, which is the default.
func (e *Egress) AllowsDNS() bool { return e.DNS == nil || *e.DNS }

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Conditions of a SandboxRun to whose template a BrokerPolicy applies.
const (
	// ConditionBrokerReady says whether the broker has answered the controller.
	ConditionBrokerReady = "BrokerReady"
	// ConditionCredentialsReady says whether the run has the credentials that its template requires, or whether policies
	// grant the seed of a Workspace those of its repositories.
	ConditionCredentialsReady = "CredentialsReady"
	// ConditionInterceptionUnavailable is True if the connections of the run cannot be brought to its proxy, so that the
	// run fails. Else its reason says how they are.
	ConditionInterceptionUnavailable = "InterceptionUnavailable"
)

// Reasons of these conditions.
const (
	// BrokerAnswers: the broker has issued what the run needs, or the run needs nothing of it to begin.
	BrokerAnswers = "BrokerAnswers"
	// BrokerUnavailable: the broker does not answer, or not now. The run waits.
	BrokerUnavailable = "BrokerUnavailable"
	// BrokerNotConfigured: the controller has no broker. The run fails.
	BrokerNotConfigured = "BrokerNotConfigured"
	// CredentialsIssued: the run has its credentials, or its proxy gets them when they are used.
	CredentialsIssued = "Issued"
	// CredentialsNotGranted: no BrokerPolicy that applies to the template grants what it requires, or none that applies to
	// the Workspace what its repositories need. The run, or the Workspace, waits.
	CredentialsNotGranted = "NotGranted"
	// InterceptionPodSecurity: the Pod Security standard of the namespace forbids the redirect.
	InterceptionPodSecurity = "PodSecurity"
	// InterceptionNotConfigured: the controller makes no proxies.
	InterceptionNotConfigured = "ProxyNotConfigured"
	// InterceptionTooLong: the run may take longer than the certificate authority of its proxy is valid.
	InterceptionTooLong = "RunTooLong"
	// InterceptionChanged: BrokerPolicies or the template have changed since the egress of the run was decided.
	InterceptionChanged = "Changed"
)

// InterceptionMode says how the connections of a run come to its proxy.
// +kubebuilder:validation:Enum=Transparent;Cooperative
type InterceptionMode string

// The modes.
const (
	// InterceptionTransparent has the kernel redirect them.
	InterceptionTransparent InterceptionMode = "Transparent"
	// InterceptionCooperative tells the run of the proxy by variables of its environment.
	InterceptionCooperative InterceptionMode = "Cooperative"
)

// SandboxEgress is what the Pod of a run, or of a seed, may reach: by address, and by name.
type SandboxEgress struct {
	Egress `json:",inline"`

	// Hosts are names that the Pod may reach at the ports 443 and 80, through a proxy, which refuses and records every other
	// name. Where BrokerPolicies apply, it reaches the names that are both here and there. It needs the operator's
	// --sandbox-proxy-image. Default: no names, or where BrokerPolicies apply those that they allow.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=host
	Hosts []EgressName `json:"hosts,omitempty"`
}

// SandboxRequires is what runs cannot be without.
type SandboxRequires struct {
	// Credentials are the names of credentials that BrokerPolicies grant.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z_]([-A-Za-z0-9_]*[A-Za-z0-9_])?$`
	// +listType=set
	Credentials []string `json:"credentials,omitempty"`
}

// SandboxCredential is a credential that the container of a run has.
type SandboxCredential struct {
	// Name is what the template calls it, and the variable of the environment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Lease is its CredentialLease, in the namespace of the broker.
	// +kubebuilder:validation:MaxLength=253
	Lease string `json:"lease"`
	// ExpiresAt is when the lease ends.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ExpiresAt metav1.Time `json:"expiresAt"`
	// Digest tells the value from another that somebody puts into its place. It is keyed, and so tells nothing of the value.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest,omitempty"`
}

// EgressBroker is the broker that a Pod may reach.
type EgressBroker struct {
	// Namespace is that of its Pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Port is theirs.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

package v1alpha1

import (
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of a BrokerPolicy.
const (
	// ConditionDiscoveryModeActive is True while runs may reach names that nobody allows.
	ConditionDiscoveryModeActive = "DiscoveryModeActive"
	// ConditionDiscoveryExpired is True when the time of discovery is over.
	ConditionDiscoveryExpired = "DiscoveryExpired"
)

// Reasons of these conditions.
const (
	// DiscoveryNone: the policy has no discovery.
	DiscoveryNone = "NoDiscovery"
	// DiscoveryActive: its end has not come.
	DiscoveryActive = "Active"
	// DiscoveryExpired: its end has passed, and it allows nothing.
	DiscoveryExpired = "Expired"
)

// MaxDiscovery is how far ahead the end of a discovery may be.
const MaxDiscovery = 7 * 24 * time.Hour

// SecretKey is a key of a Secret in the namespace of the object.
type SecretKey struct {
	// Name is the Secret's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
	// Key is the key in its data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// TokenPool has tokens of which each is given to one run at a time.
type TokenPool struct {
	// SecretName is the Secret whose keys have a token each. Two keys must not have the same.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	SecretName string `json:"secretName"`
}

// GitHubApp makes installation tokens of a GitHub App. Each lives for at most an hour, and
// is revoked when its run has ended.
type GitHubApp struct {
	// AppID is the number of the App.
	// +kubebuilder:validation:Minimum=1
	AppID int64 `json:"appID"`
	// InstallationID is the number of its installation.
	// +kubebuilder:validation:Minimum=1
	InstallationID int64 `json:"installationID"`
	// PrivateKey is the App's RSA key, in PEM.
	PrivateKey SecretKey `json:"privateKey"`
	// Repositories are the names of those that a token reaches, without their owner. Default:
	// all of the installation.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=100
	// +kubebuilder:validation:items:Pattern=`^[-._A-Za-z0-9]+$`
	// +listType=set
	Repositories []string `json:"repositories,omitempty"`
	// Permissions of a token, such as contents: read. Default: all of the installation.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, size(name) <= 64)",message="the name of a permission has at most 64 characters"
	Permissions map[string]GitHubAccess `json:"permissions,omitempty"`
}

// GitHubAccess is what a permission allows.
// +kubebuilder:validation:Enum=read;write;admin
type GitHubAccess string

// ProxyInjected delivers a credential as a header that the proxy of the run sets. The run
// never sees it.
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || !has(self.basicUser) || size(self.prefix) == 0 || size(self.basicUser) == 0",message="prefix and basicUser exclude each other: basicUser makes the header that of HTTP Basic"
type ProxyInjected struct {
	// Hosts are the names of the servers that get the header. Each must be one that egress
	// of the same policy allows.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Hosts []string `json:"hosts"`
	// Header is its name. The proxy removes what the run itself sends in it.
	// +optional
	// +kubebuilder:default=Authorization
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][-A-Za-z0-9]*$`
	Header string `json:"header,omitempty"`
	// Prefix comes before the credential, such as "Bearer " with its space. Default: nothing.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Prefix string `json:"prefix,omitempty"`
	// BasicUser makes the header that of HTTP Basic, with this user and the credential as the
	// password. git over HTTPS wants that: x-access-token is the user of a GitHub App's token.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-9;-~]*$`
	BasicUser string `json:"basicUser,omitempty"`
}

// InContainer delivers a credential into the container of the run, as a variable of its
// environment: whoever controls that can take it away, and use it until it ends.
type InContainer struct {
	// Accepted says in words that this is wanted; it must be true.
	// +kubebuilder:validation:XValidation:rule="self",message="must be true: the run, which nobody trusts, gets the credential itself"
	Accepted bool `json:"accepted"`
	// Reason is why, for those who review the policy.
	// +kubebuilder:validation:MinLength=20
	// +kubebuilder:validation:MaxLength=500
	Reason string `json:"reason"`
}

// CredentialDelivery says how a run gets to use a credential. It is exactly one of the two.
// +kubebuilder:validation:XValidation:rule="has(self.proxyInjected) != has(self.inContainer)",message="delivery: set exactly one of proxyInjected and inContainer"
type CredentialDelivery struct {
	// ProxyInjected has the proxy of the run set a header.
	// +optional
	ProxyInjected *ProxyInjected `json:"proxyInjected,omitempty"`
	// InContainer gives the credential to the run.
	// +optional
	InContainer *InContainer `json:"inContainer,omitempty"`
}

// CredentialGrant is a credential that runs may use. Exactly one provider has it.
// +kubebuilder:validation:XValidation:rule="[has(self.secret), has(self.tokenPool), has(self.gitHubApp)].filter(x, x).size() == 1",message="set exactly one of secret, tokenPool and gitHubApp"
type CredentialGrant struct {
	// Name is what a template calls the credential.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z_]([-A-Za-z0-9_]*[A-Za-z0-9_])?$`
	Name string `json:"name"`
	// Secret is a fixed credential.
	// +optional
	Secret *SecretKey `json:"secret,omitempty"`
	// TokenPool has tokens of which each is given to one run at a time.
	// +optional
	TokenPool *TokenPool `json:"tokenPool,omitempty"`
	// GitHubApp makes a token for the run.
	// +optional
	GitHubApp *GitHubApp `json:"gitHubApp,omitempty"`
	// Delivery says how the run gets to use it.
	Delivery CredentialDelivery `json:"delivery"`
}

// SecretName returns the Secret that the credential comes from.
func (g *CredentialGrant) SecretName() string {
	switch {
	case g.Secret != nil:
		return g.Secret.Name
	case g.TokenPool != nil:
		return g.TokenPool.SecretName
	case g.GitHubApp != nil:
		return g.GitHubApp.PrivateKey.Name
	}
	return ""
}

// BrokerGrants is what runs may use.
type BrokerGrants struct {
	// Credentials that runs may use.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Credentials []CredentialGrant `json:"credentials,omitempty"`
}

// EgressName is a name that runs may reach.
type EgressName struct {
	// Host is a DNS name in lower case, or *. and a name of at least two labels, which stands
	// for every name below it, and not for itself.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// Ports are the TCP ports. Default: 443. What comes in on port 80 is HTTP, on any other TLS.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	// +listType=set
	Ports []int32 `json:"ports,omitempty"`
	// OwnCredentials are the headers and keys of the query by which a run may sign itself in there, with what it has or
	// finds. Default: none, and the proxy removes whatever a server may take for a credential.
	// +optional
	OwnCredentials *OwnCredentials `json:"ownCredentials,omitempty"`
}

// OwnCredentials are what goes on from a run although it may sign the run in: as somebody whom nobody here knows, to whom it
// may then send what it has read.
// +kubebuilder:validation:XValidation:rule="has(self.headers) || has(self.queryKeys)",message="set headers, queryKeys, or both"
type OwnCredentials struct {
	// Headers are their names, such as Authorization.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z][-_A-Za-z0-9]*$`
	// +listType=set
	Headers []string `json:"headers,omitempty"`
	// QueryKeys are keys of the query, such as sig.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	QueryKeys []string `json:"queryKeys,omitempty"`
}

// Allows reports whether a run may connect to a port of a host, which is in lower case and
// has no dot at its end.
func (e *EgressName) Allows(host string, port int32) bool {
	if len(e.Ports) == 0 && port != 443 || len(e.Ports) > 0 && !slices.Contains(e.Ports, port) {
		return false
	}
	return CoversHost(e.Host, host)
}

// Own returns the headers and the keys of the query of OwnCredentials, none by default.
func (e *EgressName) Own() (headers, queryKeys []string) {
	if e.OwnCredentials == nil {
		return nil, nil
	}
	return e.OwnCredentials.Headers, e.OwnCredentials.QueryKeys
}

// CoversHost reports whether a pattern, a name or *. and a name, stands for a host. A host
// that is such a pattern itself is covered if all names that it stands for are.
func CoversHost(pattern, host string) bool {
	if below, ok := strings.CutPrefix(pattern, "*"); ok {
		return pattern == host || strings.HasSuffix(strings.TrimPrefix(host, "*"), below) && len(strings.TrimPrefix(host, "*")) > len(below)
	}
	return pattern == host
}

// EgressDiscovery lets runs reach names that nobody allows, each on record, so that the
// authors of a policy learn what their runs need. Addresses stay refused.
type EgressDiscovery struct {
	// Reason is why, for those who review the policy.
	// +kubebuilder:validation:MinLength=20
	// +kubebuilder:validation:MaxLength=500
	Reason string `json:"reason"`
	// ExpiresAt is its end, at most 7 days ahead.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ExpiresAt metav1.Time `json:"expiresAt"`
}

// Acceptance is what somebody accepts in words.
type Acceptance struct {
	// Accepted must be true.
	// +kubebuilder:validation:XValidation:rule="self",message="must be true, or leave the field around it out"
	Accepted bool `json:"accepted"`
	// Reason is why, for those who review the policy.
	// +kubebuilder:validation:MinLength=20
	// +kubebuilder:validation:MaxLength=500
	Reason string `json:"reason"`
}

// BrokerInterception says how the connections of runs come to their proxy.
type BrokerInterception struct {
	// CooperativeAccepted accepts that runs are told of the proxy by variables of their
	// environment, and nothing redirects what ignores them: only the policy of addresses holds
	// that. Every policy that applies to a template must accept it. Default: connections are
	// redirected, and a run that cannot have that fails.
	// +optional
	CooperativeAccepted *Acceptance `json:"cooperativeAccepted,omitempty"`
}

// BrokerPolicySpec says which names and credentials the runs of which templates have, and the seeds of which Workspaces.
// +kubebuilder:validation:XValidation:rule="has(self.appliesToTemplates) || has(self.appliesToWorkspaces)",message="set appliesToTemplates, appliesToWorkspaces, or both: the policy applies to nothing"
type BrokerPolicySpec struct {
	// AppliesToTemplates are the names of templates: * stands for any characters, ? for one. Default: the policy is not
	// about runs.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9.*?]+$`
	// +listType=set
	AppliesToTemplates []string `json:"appliesToTemplates,omitempty"`
	// AppliesToWorkspaces are the names of Workspaces, as for templates. Their seeds have a proxy as runs have, and the names
	// and credentials that are proxyInjected. Default: none.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-a-z0-9.*?]+$`
	// +listType=set
	AppliesToWorkspaces []string `json:"appliesToWorkspaces,omitempty"`
	// Grants is what the runs may use.
	// +optional
	Grants BrokerGrants `json:"grants,omitempty"`
	// Egress are the names that the runs may reach. What several policies allow adds up.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=host
	Egress []EgressName `json:"egress,omitempty"`
	// EgressDiscovery lets the runs reach other names, too, for a while.
	// +optional
	EgressDiscovery *EgressDiscovery `json:"egressDiscovery,omitempty"`
	// Interception says how the connections of the runs come to their proxy.
	// +optional
	Interception BrokerInterception `json:"interception,omitempty"`
	// Runs says who gets into the runs, besides having the right to exec. Every policy that applies to a template must
	// allow it. Default: nobody, since a person in a run uses its names and credentials as the run does.
	// +optional
	Runs BrokerRuns `json:"runs,omitempty"`
}

// BrokerRuns says who gets into runs.
type BrokerRuns struct {
	// Interact lets runs be Interactive.
	// +optional
	Interact bool `json:"interact,omitempty"`
	// Shell lets people into Batch runs.
	// +optional
	Shell bool `json:"shell,omitempty"`
}

// BrokerPolicyStatus says how things are with a policy.
type BrokerPolicyStatus struct {
	// ObservedGeneration is the generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are DiscoveryModeActive and DiscoveryExpired.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BrokerPolicy says which names the runs of templates in its namespace may reach, and which
// credentials they, and the seeds of Workspaces, may use.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=bpol,categories={admitkit}
// +kubebuilder:printcolumn:name="Templates",type=string,JSONPath=`.spec.appliesToTemplates`
// +kubebuilder:printcolumn:name="Workspaces",type=string,JSONPath=`.spec.appliesToWorkspaces`
// +kubebuilder:printcolumn:name="Discovery",type=string,JSONPath=`.status.conditions[?(@.type=="DiscoveryModeActive")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BrokerPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BrokerPolicySpec `json:"spec"`
	// +optional
	Status BrokerPolicyStatus `json:"status,omitempty"`
}

// AppliesTo reports whether the policy is about a template of this name.
func (p *BrokerPolicy) AppliesTo(template string) bool {
	return anyMatches(p.Spec.AppliesToTemplates, template)
}

// AppliesToWorkspace reports whether the policy is about a Workspace of this name.
func (p *BrokerPolicy) AppliesToWorkspace(workspace string) bool {
	return anyMatches(p.Spec.AppliesToWorkspaces, workspace)
}

func anyMatches(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		matched, err := path.Match(glob, name)
		return matched && err == nil
	})
}

// ForTemplate returns the policies that apply to a template of this name, and those that do not, in the order of their
// names. One that is being deleted applies to none, whoever holds it back by a finalizer.
func (l *BrokerPolicyList) ForTemplate(template string) (apply, others []BrokerPolicy) {
	return l.divide(func(p *BrokerPolicy) bool { return p.AppliesTo(template) })
}

// ForWorkspace is ForTemplate for a Workspace of this name.
func (l *BrokerPolicyList) ForWorkspace(workspace string) (apply, others []BrokerPolicy) {
	return l.divide(func(p *BrokerPolicy) bool { return p.AppliesToWorkspace(workspace) })
}

func (l *BrokerPolicyList) divide(applies func(*BrokerPolicy) bool) (apply, others []BrokerPolicy) {
	for i := range l.Items {
		if l.Items[i].DeletionTimestamp.IsZero() && applies(&l.Items[i]) {
			apply = append(apply, l.Items[i])
		} else {
			others = append(others, l.Items[i])
		}
	}
	byName := func(a, b BrokerPolicy) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(apply, byName)
	slices.SortFunc(others, byName)
	return apply, others
}

// Discovers reports whether its runs may reach any name at this time.
func (p *BrokerPolicy) Discovers(now time.Time) bool {
	return p.Spec.EgressDiscovery != nil && now.Before(p.Spec.EgressDiscovery.ExpiresAt.Time)
}

// Credential returns the credential that the policy grants by this name, or nil.
func (p *BrokerPolicy) Credential(name string) *CredentialGrant {
	for i := range p.Spec.Grants.Credentials {
		if grant := &p.Spec.Grants.Credentials[i]; grant.Name == name {
			return grant
		}
	}
	return nil
}

// BrokerPolicyList is a list of BrokerPolicies.
// +kubebuilder:object:root=true
type BrokerPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BrokerPolicy `json:"items"`
}

package brokerpolicy

import (
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// agentPolicy is a policy of templates that is as wanted, with these changes.
func agentPolicy(changes ...func(*v1alpha1.BrokerPolicySpec)) *v1alpha1.BrokerPolicySpec {
	spec := &v1alpha1.BrokerPolicySpec{
		AppliesToTemplates: []string{"agent-*"},
		Egress:             []v1alpha1.EgressName{{Host: "api.example.com"}, {Host: "*.git.example.com"}},
		Grants:             v1alpha1.BrokerGrants{Credentials: []v1alpha1.CredentialGrant{proxied("model", "X-Api-Key", "api.example.com")}},
	}
	for _, change := range changes {
		change(spec)
	}
	return spec
}

func proxied(name, header string, hosts ...string) v1alpha1.CredentialGrant {
	return v1alpha1.CredentialGrant{Name: name, Secret: &v1alpha1.SecretKey{Name: "s", Key: "key"}, Delivery: v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{Hosts: hosts, Header: header}}}
}

func contained(name string) v1alpha1.CredentialGrant {
	return v1alpha1.CredentialGrant{Name: name, Secret: &v1alpha1.SecretKey{Name: "s", Key: "key"}, Delivery: v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{}}}
}

func withGrants(grants ...v1alpha1.CredentialGrant) func(*v1alpha1.BrokerPolicySpec) {
	return func(spec *v1alpha1.BrokerPolicySpec) {
		spec.Grants.Credentials = append(spec.Grants.Credentials, grants...)
	}
}

func ofWorkspaces(spec *v1alpha1.BrokerPolicySpec) {
	spec.AppliesToTemplates, spec.AppliesToWorkspaces = nil, []string{"app"}
}

func TestAPolicyWhoseCredentialNobodyWouldGetIsRefused(t *testing.T) {
	for sentence, test := range map[string]struct {
		spec *v1alpha1.BrokerPolicySpec
		want string
	}{
		"it is as wanted":                           {agentPolicy(), ""},
		"other hosts have the header":               {agentPolicy(withGrants(proxied("git", "X-Api-Key", "a.git.example.com"))), ""},
		"the host has other headers":                {agentPolicy(withGrants(proxied("git", "Authorization", "api.example.com"))), ""},
		"a header is that of another":               {agentPolicy(withGrants(proxied("git", "x-api-key", "api.example.com"))), "spec.grants.credentials[1].delivery.proxyInjected.hosts[0]: \"api.example.com\" gets the header x-api-key of spec.grants.credentials[0]"},
		"a header is that of another below a name":  {agentPolicy(withGrants(proxied("a", "A", "*.git.example.com"), proxied("b", "A", "b.git.example.com"))), "spec.grants.credentials[1], too"},
		"HTTP has the header":                       {agentPolicy(withGrants(proxied("git", "host", "api.example.com"))), "delivery.proxyInjected.header: HTTP itself uses host"},
		"proxies have the header":                   {agentPolicy(withGrants(proxied("git", "Proxy-Authorization", "api.example.com"))), "HTTP itself uses Proxy-Authorization"},
		"the sandbox sets the variable":             {agentPolicy(withGrants(contained("SSL_CERT_FILE"))), "spec.grants.credentials[1].name: SSL_CERT_FILE is reserved"},
		"the sandbox sets the variable, lower case": {agentPolicy(withGrants(contained("https_proxy"))), "https_proxy is reserved"},
		"a seed would have it itself":               {agentPolicy(withGrants(contained("git")), ofWorkspaces), "spec.grants.credentials[1].delivery.inContainer: the policy applies to no template, and a seed has its credentials by its proxy alone"},
		"a run has it itself, and a seed has not":   {agentPolicy(withGrants(contained("git")), ofWorkspaces, func(s *v1alpha1.BrokerPolicySpec) { s.AppliesToTemplates = []string{"a"} }), ""},
	} {
		if problem := refuse(test.spec); (problem == "") != (test.want == "") || !strings.Contains(problem, test.want) {
			t.Errorf("%s: %q, want %q", sentence, problem, test.want)
		}
	}
}

func TestAPolicySaysWhatItsAuthorMayNotExpect(t *testing.T) {
	app := contained("app")
	app.Secret, app.GitHubApp = nil, &v1alpha1.GitHubApp{}
	narrow := *app.DeepCopy()
	narrow.GitHubApp.Repositories, narrow.GitHubApp.Permissions = []string{"a"}, map[string]v1alpha1.GitHubAccess{"contents": "read"}
	for sentence, test := range map[string]struct {
		spec *v1alpha1.BrokerPolicySpec
		want []string
	}{
		"it is as wanted":                   {agentPolicy(withGrants(narrow)), nil},
		"a port that no policy opens":       {agentPolicy(func(s *v1alpha1.BrokerPolicySpec) { s.Egress[0].Ports = []int32{443, 22} }), []string{"spec.egress[0].ports: "}},
		"a token with everything":           {agentPolicy(withGrants(app)), []string{"spec.grants.credentials[1].gitHubApp.repositories: ", "spec.grants.credentials[1].gitHubApp.permissions: "}},
		"a host that is never encrypted":    {agentPolicy(func(s *v1alpha1.BrokerPolicySpec) { s.Egress[0].Ports = []int32{80} }), []string{"hosts[0]: spec.egress allows api.example.com at port 80 only"}},
		"a variable that no shell can read": {agentPolicy(withGrants(contained("my-key"))), []string{"spec.grants.credentials[1].name: shells"}},
		"what is about runs alone": {agentPolicy(ofWorkspaces, func(s *v1alpha1.BrokerPolicySpec) {
			s.Grants.Credentials, s.Runs.Shell, s.Interception.CooperativeAccepted, s.EgressDiscovery = nil, true, &v1alpha1.Acceptance{}, &v1alpha1.EgressDiscovery{}
		}), []string{"spec.runs: has no effect"}},
		"the names and credentials of a seed": {agentPolicy(ofWorkspaces), nil},
	} {
		got := warnings(test.spec)
		if !slices.EqualFunc(got, test.want, strings.Contains) {
			t.Errorf("%s: %q, want %q", sentence, got, test.want)
		}
	}
}

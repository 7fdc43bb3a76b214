package brokerpolicy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// warnings says what a policy has that its author may not expect.
func warnings(spec *v1alpha1.BrokerPolicySpec) (warnings []string) {
	warnings = NameWarnings("spec.egress", spec.Egress)
	for i := range spec.Grants.Credentials {
		for _, warning := range grantWarnings(spec, &spec.Grants.Credentials[i]) {
			warnings = append(warnings, fmt.Sprintf("spec.grants.credentials[%d].%s", i, warning))
		}
	}
	if len(spec.AppliesToTemplates) > 0 {
		return warnings
	}
	if (spec.Runs != v1alpha1.BrokerRuns{}) {
		warnings = append(warnings, "spec.runs: has no effect: it is about runs, and the policy applies to no template: set appliesToTemplates, or leave it out")
	}
	return warnings
}

// grantWarnings are those of a credential, each with the field in it.
func grantWarnings(spec *v1alpha1.BrokerPolicySpec, grant *v1alpha1.CredentialGrant) (warnings []string) {
	if app := grant.GitHubApp; app != nil {
		if len(app.Repositories) == 0 {
			warnings = append(warnings, "gitHubApp.repositories: none is named, so a token reaches all of the installation: name those that are needed")
		}
		if len(app.Permissions) == 0 {
			warnings = append(warnings, "gitHubApp.permissions: none is named, so a token has all of the installation: name those that are needed, such as contents: read")
		}
	}
	inject := grant.Delivery.ProxyInjected
	switch {
	case inject == nil && strings.Contains(grant.Name, "-"):
		warnings = append(warnings, fmt.Sprintf("name: shells cannot read a variable named %s: use _ in place of -", grant.Name))
	case inject == nil:
		return warnings
	}
	if inject != nil {
		for i, host := range inject.Hosts {
			if !encrypts(spec.Egress, host) {
				warnings = append(warnings, fmt.Sprintf("delivery.proxyInjected.hosts[%d]: spec.egress allows %s at port 80 only, and credentials are set over TLS alone: add another port", i, host))
			}
		}
	}
	return warnings
}

// encrypts reports whether a host is allowed at a port that is not for HTTP alone.
func encrypts(allowed []v1alpha1.EgressName, host string) bool {
	return slices.ContainsFunc(allowed, func(e v1alpha1.EgressName) bool {
		return v1alpha1.CoversHost(e.Host, host) && (len(e.Ports) == 0 || slices.ContainsFunc(e.Ports, func(port int32) bool { return port != 80 }))
	})
}

package brokerpolicy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// ForTemplate returns the BrokerPolicies that apply to a template, and those that do not, by name.
func ForTemplate(ctx context.Context, reader client.Reader, namespace, template string) (apply, others []v1alpha1.BrokerPolicy, err error) {
	var list v1alpha1.BrokerPolicyList
	if err := reader.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing BrokerPolicies in namespace %s: %w", namespace, err)
	}
	apply, others = list.ForTemplate(template)
	return apply, others, nil
}

// Applicant is what a policy applies to, by a field of its spec.
type Applicant struct{ kind, name, field string }

// OfTemplate is a template that runs name.
func OfTemplate(name string) Applicant { return Applicant{"template", name, "appliesToTemplates"} }

// OfWorkspace is a Workspace with a seed.
func OfWorkspace(name string) Applicant {
	return Applicant{"Workspace", name, "appliesToWorkspaces"}
}

// Shortfall says what is required and no policy grants, and which policy could; "" if nothing is missing.
func Shortfall(namespace string, of Applicant, requires []string, apply, others []v1alpha1.BrokerPolicy) string {
	var problems []string
	for _, name := range requires {
		switch by := granting(name, apply); {
		case len(by) == 1:
		case len(by) > 1:
			problems = append(problems, fmt.Sprintf("%s is granted by several of them (%s): remove all but one", name, strings.Join(by, ", ")))
		default:
			problems = append(problems, fmt.Sprintf("%s is granted by none: %s", name, remedy(name, of, apply, others)))
		}
	}
	if len(problems) == 0 {
		return ""
	}
	return fmt.Sprintf("of the BrokerPolicies in namespace %s that apply to %s %s, %s", namespace, of.kind, of.name, strings.Join(problems, "; "))
}

func granting(name string, policies []v1alpha1.BrokerPolicy) (by []string) {
	for i := range policies {
		if policies[i].Credential(name) != nil {
			by = append(by, policies[i].Name)
		}
	}
	return by
}

func remedy(name string, of Applicant, apply, others []v1alpha1.BrokerPolicy) string {
	if by := granting(name, others); len(by) > 0 {
		return fmt.Sprintf("add %s to spec.%s of %s, which grants it", of.name, of.field, by[0])
	}
	if len(apply) > 0 {
		return fmt.Sprintf("add it to spec.grants.credentials of %s", apply[0].Name)
	}
	return fmt.Sprintf("make a BrokerPolicy with spec.%s and spec.grants.credentials for it", of.field)
}

// NotConfigured says that there is no broker.
const NotConfigured = "the controller has no broker: let the operator set --broker-namespace and --sandbox-proxy-image"

// ClosedBy says which policies let nobody into runs of a mode by a template, and the remedy; "" if none does.
func ClosedBy(mode v1alpha1.SandboxMode, template string, apply []v1alpha1.BrokerPolicy) string {
	field, open := "shell", func(r *v1alpha1.BrokerRuns) bool { return r.Shell }
	if mode == v1alpha1.SandboxInteractive {
		field, open = "interact", func(r *v1alpha1.BrokerRuns) bool { return r.Interact }
	}
	var closed []string
	for i := range apply {
		if !open(&apply[i].Spec.Runs) {
			closed = append(closed, apply[i].Name)
		}
	}
	if len(closed) == 0 {
		return ""
	}
	return fmt.Sprintf("BrokerPolicies apply to template %s that let nobody in, since a person there would use its credentials: set spec.runs.%s in %s", template, field, strings.Join(closed, ", "))
}

// ForSeed returns the BrokerPolicies that apply to a Workspace, and what is missing of the credentials of its repositories, with
// the remedy. wanted are their names, each with the hosts at which it is used. A policy of templates grants a Workspace
// nothing: its author has said nothing of Workspaces.
func ForSeed(ctx context.Context, reader client.Reader, namespace, name string, wanted map[string][]string) (apply []v1alpha1.BrokerPolicy, problem string, err error) {
	var list v1alpha1.BrokerPolicyList
	if err := reader.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, "", fmt.Errorf("listing BrokerPolicies in namespace %s: %w", namespace, err)
	}
	apply, others := list.ForWorkspace(name)
	names := slices.Sorted(maps.Keys(wanted))
	if problem := Shortfall(namespace, OfWorkspace(name), names, apply, others); problem != "" {
		return apply, problem, nil
	}
	for i := range apply {
		for _, name := range names {
			if grant := apply[i].Credential(name); grant != nil {
				if problem := unused(grant, wanted[name]); problem != "" {
					return apply, fmt.Sprintf("BrokerPolicy %s: credential %s: %s", apply[i].Name, name, problem), nil
				}
			}
		}
	}
	return apply, "", nil
}

// unused says why a seed would not have a credential at its hosts, "" if it has.
func unused(grant *v1alpha1.CredentialGrant, hosts []string) string {
	inject := grant.Delivery.ProxyInjected
	if inject == nil {
		return inSeed
	}
	for _, host := range hosts {
		if !slices.ContainsFunc(inject.Hosts, func(of string) bool { return v1alpha1.CoversHost(of, host) }) {
			return fmt.Sprintf("add %s to delivery.proxyInjected.hosts, of which a repository is", host)
		}
	}
	return ""
}

// inSeed says that no seed has a credential itself.
const inSeed = "a seed has its credentials by its proxy alone: grant it with delivery.proxyInjected in place of inContainer"

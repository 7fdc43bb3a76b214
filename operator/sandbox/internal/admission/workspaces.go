package admission

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// workspaceRules judges Workspaces.
type workspaceRules struct{ admitted }

// Validate refuses a Workspace that could not be seeded, and changes.
func (r *workspaceRules) Validate(ctx context.Context, ws *v1alpha1.Workspace, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		return r.validateUpdate(ctx, ws, req)
	}
	if !r.runsIn(req.Namespace) {
		return denied("Workspace", "namespace %s: nothing runs SandboxRuns there; let the operator add it to --sandbox-namespaces", req.Namespace)
	}
	if _, err := workload.Claim(ws); err != nil {
		return denied("Workspace", "spec.%w", err)
	}
	seed := ws.Spec.Seed
	if seed == nil {
		return nil
	}
	if err := workload.CheckSeed(seed); err != nil {
		return denied("Workspace", "spec.%w", err)
	}
	if err := egress.Check(workload.SeedEgress(seed), r.Egress); err != nil {
		return denied("Workspace", "spec.seed.egress.%w", err)
	}
	switch {
	case seed.Egress != nil && len(seed.Egress.Hosts) > 0 && !r.Proxy:
		return denied("Workspace", "spec.seed.egress.hosts: %s", workload.NoProxies)
	case seed.Image == "" && r.SeedImage == "":
		return denied("Workspace", "spec.seed.image: must be set, because the operator has no --sandbox-seed-image")
	case seed.Image != "" && !egress.IsDigestPinned(seed.Image):
		req.Warnf("spec.seed.image: %.80s names no digest: what fetches can change; it is pulled always", seed.Image)
	}
	if err := r.checkPolicies(ctx, ws, req); err != nil {
		return err
	}
	return r.checkRights(ctx, seed, req)
}

// unreached says why a seed without a proxy cannot reach its servers: they have names.
func unreached(e *v1alpha1.SandboxEgress) []string {
	switch {
	case e == nil:
		return []string{"hosts: without egress the seed reaches no server: name yours, or their addresses in cidrs"}
	case e.DNS != nil && !*e.DNS:
		return []string{"dns: false: the seed cannot look up the names of its servers, unless its image has other means"}
	case len(e.CIDRs) == 0 && len(e.Pods) == 0 && !e.Internet:
		return []string{"hosts: the seed reaches no server: name yours, or their addresses in cidrs"}
	}
	return nil
}

// checkPolicies refuses what no broker would lease, and says what the author may not expect. A Workspace whose credentials
// nobody grants yet waits for that.
func (r *workspaceRules) checkPolicies(ctx context.Context, ws *v1alpha1.Workspace, req *extension.Request) error {
	seed, wanted := ws.Spec.Seed, workload.SeedCredentials(ws.Spec.Seed)
	if len(wanted) > 0 && !r.Broker {
		i := slices.IndexFunc(seed.Repos, func(of v1alpha1.WorkspaceRepo) bool { return of.Credential != "" })
		return denied("Workspace", "spec.seed.repos[%d].credential: %s; or name a Secret in credentialsFrom", i, brokerpolicy.NotConfigured)
	}
	apply, problem, err := brokerpolicy.ForSeed(ctx, r.asker, req.Namespace, ws.Name, wanted)
	if err != nil {
		return err
	}
	if problem != "" {
		req.Warnf("spec.seed: the Workspace waits: %s", problem)
	}
	warnings := egress.Warnings(workload.SeedEgress(seed), r.Egress)
	switch {
	case seed.Egress != nil && len(seed.Egress.Hosts) > 0:
		warnings = append(warnings, brokerpolicy.NameWarnings("hosts", seed.Egress.Hosts)...)
	case len(apply) == 0 && len(wanted) == 0:
		warnings = append(warnings, unreached(seed.Egress)...)
	}
	for _, warning := range warnings {
		req.Warnf("spec.seed.egress.%s", warning)
	}
	switch {
	case len(apply) > 0 && !r.Broker:
		return denied("Workspace", "spec.seed: BrokerPolicy %s applies to the Workspace, and %s", apply[0].Name, brokerpolicy.NotConfigured)
	case len(apply) > 0 && seed.CAFrom != nil:
		return denied("Workspace", "spec.seed.%s", workload.CAFromOfProxied)
	}
	return nil
}

// checkRights refuses a seed that says what runs or reaches out in the name of somebody who may not say so, and
// what its author may not read.
func (r *workspaceRules) checkRights(ctx context.Context, seed *v1alpha1.WorkspaceSeed, req *extension.Request) error {
	may, err := r.may(ctx, req, "create", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "sandboxruntemplates", "")
	if err != nil {
		return err
	}
	if !may {
		return denied("Workspace", "spec.seed: user %q has not the right to create sandboxruntemplates in namespace %s, which a seed needs, too: it says what runs, and what that reaches", req.User().Username, req.Namespace)
	}
	asked := map[string]bool{}
	get := func(field, resource, name string) error {
		if asked[resource+name] {
			return nil
		}
		asked[resource+name] = true
		may, err := r.may(ctx, req, "get", "", "v1", resource, name)
		if err == nil && !may {
			err = denied("Workspace", "spec.seed.%s: user %q has not the right to get %s %s/%s, which the seed would read for them", field, req.User().Username, resource, req.Namespace, name)
		}
		return err
	}
	for i := range seed.Repos {
		if c := seed.Repos[i].CredentialsFrom; c != nil {
			if err := get(fmt.Sprintf("repos[%d].credentialsFrom", i), "secrets", c.Name); err != nil {
				return err
			}
		}
	}
	if ca := seed.CAFrom; ca != nil {
		return get("caFrom", "configmaps", ca.Name)
	}
	return nil
}

// validateUpdate lets nothing of the spec change, and the finalizer go only when nothing uses the Workspace.
func (r *workspaceRules) validateUpdate(ctx context.Context, ws *v1alpha1.Workspace, req *extension.Request) error {
	old, err := extension.Old[*v1alpha1.Workspace](req)
	if err != nil {
		return err
	}
	if !apiequality.Semantic.DeepEqual(old.Spec, ws.Spec) {
		return denied("Workspace", "spec cannot be changed; make another Workspace")
	}
	loses := slices.Contains(old.Finalizers, v1alpha1.FinalizerWorkspace) && !slices.Contains(ws.Finalizers, v1alpha1.FinalizerWorkspace)
	if !loses || !r.runsIn(req.Namespace) {
		return nil
	}
	for _, uid := range []string{string(old.UID), owned.HolderUID(old)} {
		if uid == "" {
			continue
		}
		pod, err := onePod(ctx, r.asker, client.InNamespace(req.Namespace), client.MatchingLabels{v1alpha1.LabelEgress: uid})
		if err != nil {
			return err
		}
		if pod != "" {
			return denied("Workspace", "metadata.finalizers: %s stays until Pod %s is gone, which uses the Workspace", v1alpha1.FinalizerWorkspace, pod)
		}
	}
	return nil
}

// workspaceReport lets only the manager write the status, in which it is who has the Workspace.
type workspaceReport struct{ admitted }

// Validate denies what the manager does not write.
func (r *workspaceReport) Validate(ctx context.Context, _ *v1alpha1.Workspace, req *extension.Request) error {
	me, err := r.asker.Reconciler(ctx)
	if err == nil && req.User().Username != me {
		err = denied("Workspace", "status: only admitkit writes it, as %s", me)
	}
	return err
}

package admission

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// templateRules judges templates of a namespace.
type templateRules struct{ admitted }

// Validate refuses what no run could use.
func (r *templateRules) Validate(ctx context.Context, template *v1alpha1.SandboxRunTemplate, req *extension.Request) error {
	if err := r.checkPod(ctx, template.Spec.Pod, req); err != nil {
		return err
	}
	base, err := workload.Base(ctx, r.asker, &template.Spec)
	if err != nil {
		return err
	}
	if ref := template.Spec.BaseTemplateRef; ref != nil && base == nil {
		req.Warnf("spec.baseTemplateRef: there is no ClusterSandboxRunTemplate %s: runs wait for it", ref.Name)
		return r.check("SandboxRunTemplate", &template.Spec, nil, req)
	}
	return r.check("SandboxRunTemplate", &template.Spec, base, req)
}

// clusterTemplateRules judges those of the cluster.
type clusterTemplateRules struct{ admitted }

// Validate refuses what no run could use.
func (r *clusterTemplateRules) Validate(_ context.Context, template *v1alpha1.ClusterSandboxRunTemplate, req *extension.Request) error {
	return r.check("ClusterSandboxRunTemplate", &template.Spec, nil, req)
}

// checkPod refuses to let somebody say where Pods run, such as on which nodes and with which
// priority, who may not create Pods.
func (r *templateRules) checkPod(ctx context.Context, pod *v1alpha1.SandboxPod, req *extension.Request) error {
	if pod == nil {
		return nil
	}
	if req.Operation == admissionv1.Update {
		var old v1alpha1.SandboxRunTemplate
		if err := req.Old(&old); err != nil || equality.Semantic.DeepEqual(pod, old.Spec.Pod) {
			return err
		}
	}
	may, err := r.may(ctx, req, "create", "", "v1", "pods", "")
	if err == nil && !may {
		err = denied("SandboxRunTemplate", "spec.pod: user %q has not the right to create pods in namespace %s, and so cannot say where Pods run: leave it out, or use a base that says it", req.User().Username, req.Namespace)
	}
	return err
}

// check judges a template.
func (g *gate) check(kind string, template, base *v1alpha1.SandboxRunTemplateSpec, req *extension.Request) error {
	if base == nil && template.BaseTemplateRef != nil {
		if err := workload.CheckEnv(template.Env, "env"); err != nil {
			return denied(kind, "spec.%w", err)
		}
		return nil
	}
	p, err := workload.Of(template, base)
	if err != nil {
		return denied(kind, "spec.%w", err)
	}
	if err := egress.Check(&p.Egress, g.Egress); err != nil {
		return denied(kind, "spec.egress.%w", err)
	}
	if len(p.Hosts) > 0 && !g.Proxy {
		return denied(kind, "spec.egress.hosts: %s", workload.NoProxies)
	}
	if most := int64(workload.MaxProxied.Seconds()); len(p.Hosts) > 0 && p.Timeout > most {
		return denied(kind, "spec.timeoutSeconds: %d, and a run with egress.hosts has at most %d, since the authority of its proxy ends then", p.Timeout, most)
	}
	for _, warning := range append(egress.Warnings(&p.Egress, g.Egress), brokerpolicy.NameWarnings("hosts", p.Hosts)...) {
		req.Warnf("spec.egress.%s", warning)
	}
	if p.Interactive != nil && !g.Interactive {
		req.Warnf("spec.interactive: Interactive runs are off: let the operator set --sandbox-interactive")
	}
	if len(p.Requires) > 0 && !g.Broker {
		req.Warnf("spec.requires: runs fail: %s", brokerpolicy.NotConfigured)
	}
	if !egress.IsDigestPinned(p.Image) {
		req.Warnf("spec.image: %.80s names no digest: what runs can change; it is pulled always", p.Image)
	}
	return nil
}

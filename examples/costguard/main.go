// Command costguard guards what workloads request: CPU times replicas. Above --budget it
// warns, above --limit it denies what costs more than before. The annotation
// costguard.example.com/override, with a reason for the audit log, lifts the limit for users
// who have the verb override on limits.costguard.example.com in the namespace.
package main

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const group, override = "costguard.example.com", "costguard.example.com/override"

var _ extension.Hosted = (*guard)(nil)

type guard struct {
	budget, limit float64
	mgr           extension.Manager
}

func (g *guard) Register(mgr extension.Manager) error {
	g.mgr = mgr
	return nil
}

func (*guard) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets"}, Verbs: []string{"get"}}}
}

func (*guard) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}}}
}

func (g *guard) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	cores, workload, err := g.cost(ctx, obj, req)
	if err != nil || cores <= min(g.budget, g.limit) {
		return err
	}
	if req.Operation == "UPDATE" {
		old := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
		if err := req.Old(old); err != nil {
			return err
		}
		if before, _, err := g.cost(ctx, old, req); err != nil || cores <= before {
			return err
		}
	}
	text := fmt.Sprintf("all replicas together request %.5g CPUs; the budget is %g, the limit %g", cores, g.budget, g.limit)
	req.Warnf("%s", text)
	reason, user := workload.GetAnnotations()[override], req.User()
	if cores <= g.limit {
		return nil
	} else if reason == "" || len(reason) > 256 {
		return extension.Denyf("%s; request less, or give a reason of at most 256 bytes in the annotation %s", text, override)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: req.Namespace, Verb: "override", Group: group, Resource: "limits"},
	}}
	for key, values := range user.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	if err := g.mgr.GetKubeManager().GetClient().Create(ctx, review); err != nil || !review.Status.Allowed {
		return cmp.Or(err, extension.Denyf("%s; %s may not override it, without the verb override on limits.%s", text, user.Username, group))
	}
	req.AddAuditAnnotation("override", reason)
	return nil
}

// cost returns the CPUs that all replicas request, and the workload of a Scale.
func (g *guard) cost(ctx context.Context, obj runtime.Object, req *extension.Request) (float64, client.Object, error) {
	scale, scales := obj.(*autoscalingv1.Scale)
	if scales {
		workload := map[string]client.Object{"deployments": &appsv1.Deployment{}, "statefulsets": &appsv1.StatefulSet{}}[req.Resource.Resource]
		if err := g.mgr.GetKubeManager().GetAPIReader().Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: req.Name}, workload); err != nil {
			return 0, nil, err
		}
		obj = workload
	}
	replicas, pod := (*int32)(nil), (*corev1.PodSpec)(nil)
	switch w := obj.(type) {
	case *appsv1.Deployment:
		replicas, pod = w.Spec.Replicas, &w.Spec.Template.Spec
	case *appsv1.StatefulSet:
		replicas, pod = w.Spec.Replicas, &w.Spec.Template.Spec
	case *batchv1.Job:
		replicas, pod = w.Spec.Parallelism, &w.Spec.Template.Spec
	default:
		return 0, nil, fmt.Errorf("%T: unknown", obj)
	}
	if scales {
		replicas = &scale.Spec.Replicas
	}
	return float64(ptr.Deref(replicas, 1)) * coresOf(pod), obj.(client.Object), nil
}

// coresOf returns what a Pod requests. A sidecar runs on, another init container does not.
func coresOf(pod *corev1.PodSpec) float64 {
	sum, peak := 0.0, requested(cmp.Or(pod.Resources, &corev1.ResourceRequirements{}))
	for i, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		peak = max(peak, sum+requested(&c.Resources))
		if i >= len(pod.InitContainers) || ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			sum += requested(&c.Resources)
		}
	}
	return peak
}

// requested returns the CPUs of a request. Without one, the limit is the request.
func requested(r *corev1.ResourceRequirements) float64 {
	cpu, ok := r.Requests[corev1.ResourceCPU]
	if !ok {
		cpu = r.Limits[corev1.ResourceCPU]
	}
	return cpu.AsApproximateFloat64()
}

func (g *guard) handler() *extension.Handler {
	own, writes := *g, []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	rules := append(extension.Resources("batch", "v1", []string{"jobs"}, writes...),
		extension.Resources("apps", "v1", []string{"deployments", "deployments/scale", "statefulsets", "statefulsets/scale"}, writes...)...)
	return extension.Validating(&own, extension.Scope{Name: "costguard", Rules: rules})
}

func main() {
	g := &guard{}
	cmd := command.New("costguard", func(mgr *manager.Manager) error { return mgr.AddExtension(g.handler()) })
	cmd.PersistentFlags().Float64Var(&g.budget, "budget", 8, "CPUs of a workload above which its user is warned")
	cmd.PersistentFlags().Float64Var(&g.limit, "limit", 32, "CPUs of a workload above which it takes an override")
	command.Main(cmd)
}

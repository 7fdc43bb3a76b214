package sandbox

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// compose returns the policy of a run.
func (f *facts) compose(e *v1alpha1.EgressDecision, apiServer []netip.AddrPort) (*unstructured.Unstructured, error) {
	return policyOf(metaOf(f.run), f.run.UID, e, f.options, apiServer)
}

// policyOf returns the policy that holds the Pods of an owner to what was decided.
func policyOf(of metav1.ObjectMeta, owner types.UID, e *v1alpha1.EgressDecision, options *egress.Options, apiServer []netip.AddrPort) (*unstructured.Unstructured, error) {
	made := egress.Policy{Kind: kindOf(e), Label: string(owner), Egress: &e.Egress, Broker: e.Broker, Collector: e.Collector, Options: options, APIServer: apiServer}
	policy, err := made.Compose()
	if err != nil {
		return nil, err
	}
	policy.SetNamespace(of.Namespace)
	policy.SetName(of.Name)
	policy.SetLabels(of.Labels)
	policy.SetOwnerReferences(of.OwnerReferences)
	if egress.NamesAPIServer(&e.Egress) {
		policy.SetAnnotations(map[string]string{egress.AnnotationAPIServer: egress.FormatEndpoints(apiServer)})
	}
	return policy, nil
}

// kindOf is the kind of the policy that was decided.
func kindOf(e *v1alpha1.EgressDecision) schema.GroupVersionKind {
	if e.Policy == egress.CiliumNetworkPolicy.Kind {
		return egress.CiliumNetworkPolicy
	}
	return egress.NetworkPolicy
}

// What has become of a policy.
const (
	policyDeleted = "deleted"
	policyChanged = "changed"
	policyBehind  = "behind" // the API server has other addresses now
)

// restoration is how a policy is to be, and what had become of it. err says why it cannot be composed.
type restoration struct {
	want, current *unstructured.Unstructured
	what          string
	err           error
}

// restores says what there is to restore of a run that has a Job or Pods, nil for nothing. The Job is made after the policy, so
// a policy that is not there was withdrawn; before that it is only not made yet.
func (f *facts) restores() *restoration {
	e := f.run.Status.Egress
	if e == nil || e.Policy == "" || !f.options.On() {
		return nil
	}
	return f.restorationOf(f.policy)
}

// restorationOf compares a policy, nil for none, with the one that the run is to have.
func (f *facts) restorationOf(policy *unstructured.Unstructured) *restoration {
	return restorationOf(policy, f.apiServer, func(apiServer []netip.AddrPort) (*unstructured.Unstructured, error) {
		return f.compose(f.run.Status.Egress, apiServer)
	})
}

// restorationOf compares a policy, nil for none, with what it would be composed of now, and with what it was composed of.
func restorationOf(policy *unstructured.Unstructured, apiServer []netip.AddrPort, compose func([]netip.AddrPort) (*unstructured.Unstructured, error)) *restoration {
	if policy == nil {
		want, err := compose(apiServer)
		return &restoration{want, nil, policyDeleted, err}
	}
	before, unreadable := egress.ParseEndpoints(policy.GetAnnotations()[egress.AnnotationAPIServer])
	if len(apiServer) == 0 && unreadable == nil { // a moment without any
		apiServer = before
	}
	want, err := compose(apiServer)
	if err != nil {
		return &restoration{err: err}
	}
	if isSamePolicy(policy, want) {
		return nil
	}
	if unreadable == nil {
		if earlier, err := compose(before); err == nil && isSamePolicy(policy, earlier) {
			return &restoration{want, policy, policyBehind, nil}
		}
	}
	return &restoration{want, policy, policyChanged, nil}
}

// isSamePolicy reports whether a policy is as it was made: others may add labels and annotations of their own.
func isSamePolicy(is, made *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(is.Object["spec"], made.Object["spec"]) && is.Object["specs"] == nil &&
		has(is.GetLabels(), made.GetLabels()) && has(is.GetAnnotations(), made.GetAnnotations()) &&
		apiequality.Semantic.DeepEqual(is.GetOwnerReferences(), made.GetOwnerReferences())
}

func has(is, made map[string]string) bool {
	for key, value := range made {
		if is[key] != value {
			return false
		}
	}
	return true
}

// restore writes a policy as it was, and says so.
func (r *runs) restore(ctx context.Context, f *facts, of *restoration) error {
	if of.err != nil {
		return of.err
	}
	name := fmt.Sprintf("%s %s/%s", of.want.GetKind(), of.want.GetNamespace(), of.want.GetName())
	if err := r.writePolicy(ctx, of); err != nil {
		return fmt.Errorf("restoring %s: %w", name, err)
	}
	if of.what == policyBehind {
		return nil
	}
	restoredTotal.WithLabelValues(of.what).Inc()
	record := recordOf(f.run, actionRestored, fmt.Sprintf("%s was %s, and holds the Pods of the run again: what they reached meanwhile is not known", name, of.what))
	record.ID += "-" + strings.ToLower(string(of.want.GetUID())) + "-" + of.want.GetResourceVersion()
	r.tell(ctx, &record)
	r.event(f.run, corev1.EventTypeWarning, "EgressRestored", "Hold", record.Reason)
	return nil
}

// writePolicy makes a policy, or changes the one that there is.
func (r *runs) writePolicy(ctx context.Context, of *restoration) error {
	if of.current == nil {
		err := r.writer.Create(ctx, of.want)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// Somebody took away what tells that it is ours.
		of.current = egress.NewPolicy(of.want.GroupVersionKind())
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(of.want), of.current); err != nil {
			return err
		}
	}
	labels, annotations := maps.Clone(of.current.GetLabels()), maps.Clone(of.current.GetAnnotations())
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(labels, of.want.GetLabels())
	maps.Copy(annotations, of.want.GetAnnotations())
	of.want.SetLabels(labels)
	of.want.SetAnnotations(annotations)
	of.want.SetResourceVersion(of.current.GetResourceVersion())
	return r.writer.Update(ctx, of.want)
}

// takenError says that an object of somebody else has the name of ours.
type takenError struct{ kind, name string }

func (e *takenError) Error() string {
	return fmt.Sprintf("%s %s is not the run's: it stays untouched; delete it, or make a run of another name", e.kind, e.name)
}

// hold makes the policy of a run that has none. One that is there, and is not as it is to be, is somebody's who made it
// ahead: it is written over before there is a Job.
func (r *runs) hold(ctx context.Context, f *facts) error {
	if f.run.Status.Egress.Policy == "" {
		return nil
	}
	there := f.policy
	if there == nil {
		made := f.restorationOf(nil)
		if made.err != nil {
			return made.err
		}
		err := r.writer.Create(ctx, made.want)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		there = egress.NewPolicy(made.want.GroupVersionKind())
		if err := r.adopt(ctx, f.run, there.GetKind(), there); err != nil {
			return err
		}
	}
	if of := f.restorationOf(there); of != nil {
		return r.restore(ctx, f, of)
	}
	return nil
}

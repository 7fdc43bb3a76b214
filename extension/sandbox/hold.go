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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/egress"
)

// compose returns the policy of a run.
func (f *facts) compose(e *v1alpha1.EgressDecision, apiServer []netip.AddrPort) (*unstructured.Unstructured, error) {
	kind := egress.NetworkPolicy
	if e.Policy == egress.CiliumNetworkPolicy.Kind {
		kind = egress.CiliumNetworkPolicy
	}
	made := egress.Policy{Kind: kind, Label: string(f.run.UID), Egress: &e.Egress, Options: f.options, APIServer: apiServer}
	policy, err := made.Compose()
	if err != nil {
		return nil, err
	}
	of := metaOf(f.run)
	policy.SetNamespace(of.Namespace)
	policy.SetName(of.Name)
	policy.SetLabels(of.Labels)
	policy.SetOwnerReferences(of.OwnerReferences)
	if egress.NamesAPIServer(&e.Egress) {
		policy.SetAnnotations(map[string]string{egress.AnnotationAPIServer: egress.FormatEndpoints(apiServer)})
	}
	return policy, nil
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
	if f.policy == nil {
		want, err := f.compose(e, f.apiServer)
		return &restoration{want, nil, policyDeleted, err}
	}
	apiServer := f.apiServer
	before, unreadable := egress.ParseEndpoints(f.policy.GetAnnotations()[egress.AnnotationAPIServer])
	if len(apiServer) == 0 && unreadable == nil { // a moment without any
		apiServer = before
	}
	want, err := f.compose(e, apiServer)
	if err != nil {
		return &restoration{err: err}
	}
	if isSamePolicy(f.policy, want) {
		return nil
	}
	if unreadable == nil {
		if earlier, err := f.compose(e, before); err == nil && isSamePolicy(f.policy, earlier) {
			return &restoration{want, f.policy, policyBehind, nil}
		}
	}
	return &restoration{want, f.policy, policyChanged, nil}
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
	if err := r.writePolicy(ctx, f, of); err != nil {
		return fmt.Errorf("restoring %s: %w", name, err)
	}
	if of.what == policyBehind {
		return nil
	}
	restoredTotal.WithLabelValues(of.what).Inc()
	record := recordOf(f.run, "restored", fmt.Sprintf("%s was %s, and holds the Pods of the run again: what they reached meanwhile is not known", name, of.what))
	record.ID += "-" + strings.ToLower(string(of.want.GetUID())) + "-" + of.want.GetResourceVersion()
	r.tell(ctx, &record)
	r.event(f.run, corev1.EventTypeWarning, "EgressRestored", "Hold", record.Reason)
	return nil
}

// writePolicy makes a policy, or changes the one that there is.
func (r *runs) writePolicy(ctx context.Context, f *facts, of *restoration) error {
	if of.current == nil {
		err := r.writer.Create(ctx, of.want)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// Somebody took away what tells that it is ours.
		of.current = egress.NewPolicy(of.want.GroupVersionKind())
		if err := r.live.Get(ctx, nameOf(f.run), of.current); err != nil {
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

// hold makes the policy of a run that has none.
func (r *runs) hold(ctx context.Context, f *facts, e *v1alpha1.EgressDecision) error {
	if e.Policy == "" || f.policy != nil {
		return nil
	}
	policy, err := f.compose(e, f.apiServer)
	if err != nil {
		return err
	}
	err = r.writer.Create(ctx, policy)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := egress.NewPolicy(policy.GroupVersionKind())
	return r.adopt(ctx, f.run, policy.GetKind(), there)
}

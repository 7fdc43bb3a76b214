package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
)

// Who may delete or evict a Pod says how long it may still run: with a grace period of a day its processes go on for a
// day, since they need not heed the first signal, and a later deletion shortens that only if it says so. Where a Pod has
// to end on time, a Validator refuses such a deletion. [GracePeriodScope] covers it, and [Lengthened] finds it.

// GracePeriodScope covers the deletions and evictions that may give a Pod longer than its
// terminationGracePeriodSeconds, and asks about no others. The Pods are those whose names begin with one of the prefixes,
// or all without any. An eviction counts if it names a period at all, as [Evict] does: with prefixes, evictions of other
// Pods do not need the webhook.
func GracePeriodScope(name string, namespaces *metav1.LabelSelector, prefixes ...string) extension.Scope {
	fail := admissionregistrationv1.Fail
	conditions := []admissionregistrationv1.MatchCondition{{
		Name: "longer-grace", Expression: "request.operation == 'DELETE'" +
			" ? has(request.options.gracePeriodSeconds) && request.options.gracePeriodSeconds > oldObject.spec.terminationGracePeriodSeconds" +
			" : has(object.deleteOptions) && has(object.deleteOptions.gracePeriodSeconds)",
	}}
	if len(prefixes) > 0 { // the deletion of a collection has no name
		conditions = append(conditions, admissionregistrationv1.MatchCondition{
			Name: "its-name", Expression: fmt.Sprintf("['%s'].exists(p, (request.operation == 'DELETE' ? oldObject.metadata.name : request.name).startsWith(p))", strings.Join(prefixes, "', '")),
		})
	}
	return extension.Scope{
		Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: namespaces, MatchConditions: conditions,
		Rules: append(extension.Resources("", "v1", []string{"pods"}, admissionregistrationv1.Delete),
			extension.Resources("", "v1", []string{"pods/eviction"}, admissionregistrationv1.Create)...),
	}
}

// Lengthened returns the Pod that a request in a [GracePeriodScope] gives longer than its terminationGracePeriodSeconds, and
// nil if there is none. object is that of the request. The Pod of an eviction is read with reader, which needs the
// right to get Pods.
func Lengthened(ctx context.Context, reader client.Reader, object *unstructured.Unstructured, req *extension.Request) (*corev1.Pod, error) {
	grace, err := graceIn(object, req)
	pod := &corev1.Pod{}
	switch {
	case err != nil || grace == nil:
	case req.Operation == admissionv1.Delete:
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod)
	default:
		err = client.IgnoreNotFound(reader.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: req.Name}, pod))
	}
	if err != nil {
		return nil, fmt.Errorf("how long Pod %s/%s is to have after its deletion: %w", req.Namespace, req.Name, err)
	}
	if !outlasts(grace, pod) {
		return nil, nil //nolint:nilnil // it ends as it should
	}
	return pod, nil
}

// graceIn returns the grace period that a deletion or an eviction asks for, nil for that of the Pod.
func graceIn(object *unstructured.Unstructured, req *extension.Request) (*int64, error) {
	if req.Operation != admissionv1.Delete {
		var eviction policyv1.Eviction
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &eviction)
		if err != nil || eviction.DeleteOptions == nil {
			return nil, err
		}
		return eviction.DeleteOptions.GracePeriodSeconds, nil
	}
	if len(req.Options.Raw) == 0 {
		return nil, nil //nolint:nilnil // it asks for nothing
	}
	var options metav1.DeleteOptions
	err := json.Unmarshal(req.Options.Raw, &options)
	return options.GracePeriodSeconds, err
}

// Ends reports whether a Pod is being deleted, and within its terminationGracePeriodSeconds. One that has longer for it
// goes on: [Evict] shortens that.
func Ends(pod *corev1.Pod) bool {
	return !pod.DeletionTimestamp.IsZero() && !outlasts(pod.DeletionGracePeriodSeconds, pod)
}

func outlasts(grace *int64, pod *corev1.Pod) bool {
	own := pod.Spec.TerminationGracePeriodSeconds
	return grace != nil && own != nil && *grace > *own
}

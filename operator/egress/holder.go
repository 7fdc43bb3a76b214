package egress

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// Holder decides how Pods are held, and writes their policies, for an extension that makes Pods. It
// has the rights of that extension ([Options.Rights], [Options.RightsElsewhere]).
type Holder struct {
	Options *Options
	// Flag sets Options.Mode, for the messages.
	Flag string
	// Kinds are those that there are, none if nothing holds Pods: [Holder.Connect] sets them. New policies are of the first.
	Kinds []schema.GroupVersionKind

	live   client.Reader
	writer client.Writer
	prober *Prober
}

// Use sets who reads from the API server, and who writes.
func (h *Holder) Use(live client.Reader, writer client.Writer, clock clock.PassiveClock) {
	h.live, h.writer, h.prober = live, writer, &Prober{Mode: h.Options.Mode, Reader: live, Clock: clock}
}

// Unheld is an error: why a Pod cannot be held to its egress.
type Unheld struct {
	// Reason is that of the condition [v1alpha1.ConditionEgressHeld].
	Reason, Message string
}

func (u *Unheld) Error() string { return u.Message }

// maxReason is the length of a reason in the status.
const maxReason = 512

// Decide says how Pods are to be held, or returns an [Unheld]. It is to be asked once: what it says is kept
// with what makes the Pods. Where nothing enforces policies, there is to be no Pod, unless the operator has said so.
func (h *Holder) Decide(ctx context.Context, wanted *v1alpha1.Egress, apiServer []netip.AddrPort) (*v1alpha1.EgressDecision, error) {
	enforced, reason, err := h.prober.Enforced(ctx)
	decided := &v1alpha1.EgressDecision{Reason: truncate.Text(reason, maxReason), Egress: *wanted.DeepCopy()}
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot determine whether network policies are enforced: %w", err)
	case enforced:
		decided.Policy = h.Kinds[0].Kind
		if err := CheckAPIServer(decided, apiServer); err != nil {
			return nil, err
		}
		return decided, nil
	case h.Options.Mode == ModeOff:
		return decided, nil
	}
	return nil, &Unheld{v1alpha1.ReasonEgressNotEnforced, fmt.Sprintf("nothing would hold the Pod to its egress: %s. Let the operator set %s to on where network policies are enforced, "+
		"or to off to have the Pod without", reason, h.Flag)}
}

// CheckAPIServer returns an [Unheld] if a policy cannot be composed, since nobody knows where the API server is.
func CheckAPIServer(e *v1alpha1.EgressDecision, apiServer []netip.AddrPort) error {
	if e.Policy == "" || len(apiServer) > 0 || !NamesAPIServer(&e.Egress) {
		return nil
	}
	message := fmt.Sprintf("the addresses of the API server are not known: the Service %s/%s has no ready EndpointSlice", APIServerNamespace, APIServerService)
	return &Unheld{v1alpha1.ReasonEgressNotEnforced, message}
}

// pageSize bounds a page of the policies of others.
const pageSize = 500

// CheckOthers returns an [Unheld] if a policy of somebody else would allow Pods with these labels more; own is the
// name of theirs. Admission refuses such a policy, but one may be older than that. pods says whose they are.
func (h *Holder) CheckOthers(ctx context.Context, own types.NamespacedName, labels map[string]string, pods string) error {
	for _, kind := range h.Kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		for more := true; more; more = list.GetContinue() != "" {
			if err := h.live.List(ctx, list, client.InNamespace(own.Namespace), client.Limit(pageSize), client.Continue(list.GetContinue())); err != nil {
				return fmt.Errorf("listing the policies of others: %w", err)
			}
			for i := range list.Items {
				if policy := &list.Items[i]; policy.GetName() != own.Name && Widens(policy, labels) {
					return &Unheld{v1alpha1.ReasonEgressWidened, WidensMessage(policy, pods)}
				}
			}
		}
	}
	return nil
}

// WidensMessage says what is wrong with a policy that [Widens], and what to do. pods says whose Pods it may select.
func WidensMessage(policy *unstructured.Unstructured, pods string) string {
	return fmt.Sprintf("%s %s/%s allows egress and may select %s, which it would allow more than their template does, since policies add up: "+
		"add {key: %s, operator: DoesNotExist} to the matchExpressions of its selector", policy.GetKind(), policy.GetNamespace(), policy.GetName(), pods, v1alpha1.LabelEgress)
}

// AllowsTheSame reports whether two states of a policy allow the same to the same Pods.
func AllowsTheSame(a, b *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(a.Object["spec"], b.Object["spec"]) && apiequality.Semantic.DeepEqual(a.Object["specs"], b.Object["specs"])
}

// Held is what a policy is made of, and for.
type Held struct {
	// ObjectMeta is that of the policy.
	metav1.ObjectMeta
	// Label is the value of [v1alpha1.LabelEgress] of the Pods.
	Label types.UID
	// Decision is what was decided. Without a decision, or with one without a policy, there is to be none.
	Decision *v1alpha1.EgressDecision
	Options  *Options
}

// Kind is the kind of the policy.
func (h *Held) Kind() schema.GroupVersionKind {
	if h.Decision.Policy == CiliumNetworkPolicy.Kind {
		return CiliumNetworkPolicy
	}
	return NetworkPolicy
}

// Compose returns the policy, for an API server at these addresses.
func (h *Held) Compose(apiServer []netip.AddrPort) (*unstructured.Unstructured, error) {
	e := h.Decision
	made := Policy{Kind: h.Kind(), Label: string(h.Label), Egress: &e.Egress, Broker: e.Broker, Collector: e.Collector, Options: h.Options, APIServer: apiServer}
	policy, err := made.Compose()
	if err != nil {
		return nil, err
	}
	policy.SetNamespace(h.Namespace)
	policy.SetName(h.Name)
	policy.SetLabels(h.Labels)
	annotations := map[string]string{}
	maps.Copy(annotations, h.Annotations)
	if NamesAPIServer(&e.Egress) {
		annotations[AnnotationAPIServer] = formatEndpoints(apiServer)
	}
	policy.SetAnnotations(annotations)
	policy.SetOwnerReferences(h.OwnerReferences)
	return policy, nil
}

// The changes of a policy that [Held.Restore] finds.
const (
	Deleted = "deleted"
	Changed = "changed"
	// Behind is said of a policy that nobody changed: the API server has other addresses now.
	Behind = "behind"
)

// Restoration is how a policy is to be, and what had become of it: [Deleted], [Changed] or [Behind].
type Restoration struct {
	// Want is what [Held.Compose] returns, and Current what there is, nil for nothing.
	Want, Current *unstructured.Unstructured
	Was           string
}

// Name is the kind and the name of the policy.
func (r *Restoration) Name() string { return nameOf(r.Want) }

func nameOf(policy *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", policy.GetKind(), policy.GetNamespace(), policy.GetName())
}

// Restore compares the policy that there is, nil for none, with what it is to be now, and with what it was made of. It
// returns nil if there is nothing to write.
func (h *Held) Restore(current *unstructured.Unstructured, apiServer []netip.AddrPort) (*Restoration, error) {
	if current == nil {
		want, err := h.Compose(apiServer)
		return &Restoration{want, nil, Deleted}, err
	}
	before, unreadable := parseEndpoints(current.GetAnnotations()[AnnotationAPIServer])
	if len(apiServer) == 0 && unreadable == nil { // a moment without any
		apiServer = before
	}
	want, err := h.Compose(apiServer)
	if err != nil || IsAsMade(current, want) {
		return nil, err
	}
	if unreadable == nil {
		if earlier, err := h.Compose(before); err == nil && IsAsMade(current, earlier) {
			return &Restoration{want, current, Behind}, nil
		}
	}
	return &Restoration{want, current, Changed}, nil
}

// IsAsMade reports whether a policy is as it was made: others may add labels and annotations of their own.
func IsAsMade(is, made *unstructured.Unstructured) bool {
	return AllowsTheSame(is, made) && maps.Equal(v1alpha1.Ours(is.GetLabels()), v1alpha1.Ours(made.GetLabels())) &&
		maps.Equal(v1alpha1.Ours(is.GetAnnotations()), v1alpha1.Ours(made.GetAnnotations())) &&
		apiequality.Semantic.DeepEqual(is.GetOwnerReferences(), made.GetOwnerReferences())
}

// Write writes a policy as it is to be over what there is, whoever wrote that, and returns it as it was written: labels,
// annotations and finalizers of others stay.
func (h *Holder) Write(ctx context.Context, r *Restoration) (*unstructured.Unstructured, error) {
	made, current := r.Want.DeepCopy(), r.Current
	if current == nil {
		err := h.writer.Create(ctx, made)
		if !apierrors.IsAlreadyExists(err) {
			return made, err
		}
		// A cache of what has our label does not see it once somebody took that away.
		made, current = r.Want.DeepCopy(), NewPolicy(r.Want.GroupVersionKind())
		if err := h.live.Get(ctx, client.ObjectKeyFromObject(made), current); err != nil {
			return nil, fmt.Errorf("reading %s, which exists: %w", r.Name(), err)
		}
	}
	made.SetLabels(withOthers(made.GetLabels(), current.GetLabels()))
	made.SetAnnotations(withOthers(made.GetAnnotations(), current.GetAnnotations()))
	made.SetFinalizers(current.GetFinalizers())
	made.SetUID(current.GetUID())
	made.SetResourceVersion(current.GetResourceVersion())
	return made, h.writer.Update(ctx, made)
}

// withOthers returns our labels or annotations with those of others.
func withOthers(own, there map[string]string) map[string]string {
	made := maps.Clone(there)
	maps.DeleteFunc(made, func(key, _ string) bool { return len(v1alpha1.Ours(map[string]string{key: ""})) > 0 })
	if made == nil {
		return own
	}
	maps.Copy(made, own)
	return made
}

// Rules covers policies of both kinds, for a webhook that keeps them.
func Rules() []admissionregistrationv1.RuleWithOperations {
	all := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete}
	return slices.Concat(
		extension.Resources(NetworkPolicy.Group, NetworkPolicy.Version, []string{"networkpolicies"}, all...),
		extension.Resources(CiliumNetworkPolicy.Group, CiliumNetworkPolicy.Version, []string{"ciliumnetworkpolicies"}, all...))
}

// Rights are the rights of a [Holder] where its Pods are. Policies that nobody owns take more: to delete them.
func (o *Options) Rights(more ...string) []rbacv1.PolicyRule {
	if !o.On() {
		return nil
	}
	verbs := slices.Concat([]string{"get", "list", "watch", "create", "update"}, more)
	rules := []rbacv1.PolicyRule{{APIGroups: []string{NetworkPolicy.Group}, Resources: []string{"networkpolicies"}, Verbs: verbs}}
	if o.Cilium {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{CiliumNetworkPolicy.Group}, Resources: []string{"ciliumnetworkpolicies"}, Verbs: verbs})
	}
	return rules
}

// RightsElsewhere are the rights of a [Holder] in other namespaces: to follow the API server's addresses, and to look for a
// network plugin.
func (o *Options) RightsElsewhere() map[string][]rbacv1.PolicyRule {
	if !o.On() {
		return nil
	}
	rights := map[string][]rbacv1.PolicyRule{APIServerNamespace: {
		{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, ResourceNames: []string{APIServerService}, Verbs: []string{"get", "list", "watch"}},
	}}
	if o.Mode == ModeAuto {
		rights[metav1.NamespaceSystem] = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}
	}
	return rights
}

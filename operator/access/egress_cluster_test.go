package access_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// heldOptions are those of a cluster of both families.
func heldOptions() access.Options {
	return access.Options{Egress: egress.Options{
		Mode: egress.ModeOn, PodCIDRs: []string{"10.244.0.0/16", "2001:db8:1::/48"}, ServiceCIDRs: []string{"10.0.0.0/24", "2001:db8:2::/112"},
	}}
}

// heldTemplate is a template whose Pods reach the API server, the internet, a block, and Pods.
func heldTemplate(namespace, name string) *v1alpha1.PodAccessTemplate {
	t := podTemplate(namespace, name, v1alpha1.ControllerTargetRef{}, "devs")
	t.Spec.ControllerTargetRef = nil
	t.Spec.PodSpec = &corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}}
	ports := []v1alpha1.EgressPort{{Port: 5432}, {Port: 8000, EndPort: 8010, Protocol: "UDP"}}
	t.Spec.Egress = &v1alpha1.Egress{
		APIServer: true, Internet: true,
		CIDRs: []v1alpha1.EgressCIDR{{CIDR: "203.0.113.0/24", Except: []v1alpha1.CIDR{"203.0.113.7/32"}, Ports: ports}, {CIDR: "2001:db8:3::/64", Ports: ports}},
		Pods:  []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"app": "db"}, Ports: ports}},
	}
	return t
}

// apiServerAt says in the EndpointSlice of a family where the API server is, as it does itself.
func apiServerAt(t *testing.T, family discoveryv1.AddressType, address string) {
	t.Helper()
	port, name := int32(6443), "https"
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-" + strings.ToLower(string(family))}}
	made := func() {
		slice.Labels, slice.AddressType = map[string]string{discoveryv1.LabelServiceName: "kubernetes"}, family
		slice.Ports, slice.Endpoints = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}, []discoveryv1.Endpoint{{Addresses: []string{address}}}
	}
	made()
	err := admin.Create(t.Context(), slice)
	if apierrors.IsAlreadyExists(err) {
		if err = admin.Get(t.Context(), client.ObjectKeyFromObject(slice), slice); err == nil {
			made()
			err = admin.Update(t.Context(), slice)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// anAPIServer makes sure that the API server is somewhere.
func anAPIServer(t *testing.T) {
	t.Helper()
	port := int32(6443)
	err := admin.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-ipv4", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func policyOf(req request) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: resourceOf(req)}
}

// has reports whether a policy is there and names an address.
func has(ctx context.Context, policy client.Object, text string) bool {
	if admin.Get(ctx, client.ObjectKeyFromObject(policy), policy) != nil {
		return false
	}
	written, err := yaml.Marshal(policy)
	return err == nil && strings.Contains(string(written), text)
}

// eventsOf counts the Events of a request with a reason.
func eventsOf(t *testing.T, req request, reason string) (count int) {
	t.Helper()
	var events eventsv1.EventList
	if err := admin.List(t.Context(), &events, client.InNamespace(req.GetNamespace()), client.MatchingFields{"reason": reason}); err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Regarding.UID == req.GetUID() {
			count++
			if e.Series != nil {
				count += int(e.Series.Count) - 1
			}
		}
	}
	return count
}

// object reads YAML.
func fromYAML(t *testing.T, namespace, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetNamespace(namespace)
	return o
}

const (
	networkPolicyYAML = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
	ciliumPolicyYAML  = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\n"
)

func TestAnAccessPodIsHeldToTheEgressOfItsTemplate(t *testing.T) {
	t.Parallel()
	apiServerAt(t, discoveryv1.AddressTypeIPv4, "192.0.2.1")
	apiServerAt(t, discoveryv1.AddressTypeIPv6, "2001:db8::1")
	namespace := testkit.ManagerNamespace(t, admin)
	records := &chronicle{}
	port := freeport.For(t)
	startOn(t, namespace, port, heldOptions(), nil, records)
	template := heldTemplate(namespace, "held")
	testkit.Create(t, admin, template)
	req := granted(t, alice, podRequest(namespace, "a", "held"))
	policy, pod := policyOf(req), &corev1.Pod{ObjectMeta: resourceOf(req)}
	h := held{namespace, template, req, policy, pod, records}

	t.Run("by a policy that was made before it, and goes with it", h.isMade)
	t.Run("whatever others try", h.isKept)
	t.Run("and it comes back at once where nobody was kept from it", h.isRestored)
	t.Run("at the addresses that the API server has now", h.follows)
	t.Run("as it was decided, whatever the template says later", h.isPinned)
	t.Run("until it is gone", h.ends)
}

// held is a request whose Pod is held.
type held struct {
	namespace string
	template  *v1alpha1.PodAccessTemplate
	req       *v1alpha1.PodAccessRequest
	policy    *networkingv1.NetworkPolicy
	pod       *corev1.Pod
	records   *chronicle
}

func (h held) read(t *testing.T) {
	t.Helper()
	for _, o := range []client.Object{h.policy, h.pod, h.req} {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
	}
}

func (h held) isMade(t *testing.T) {
	h.read(t)
	if !holds(h.req, v1alpha1.ConditionEgressHeld) || h.req.Status.Egress == nil || h.req.Status.Egress.Policy != "NetworkPolicy" {
		t.Errorf("the status says %+v", h.req.Status)
	}
	if h.pod.CreationTimestamp.Before(&h.policy.CreationTimestamp) {
		t.Errorf("the Pod was made at %s, the policy at %s", h.pod.CreationTimestamp, h.policy.CreationTimestamp)
	}
	if label := string(h.req.UID); h.pod.Labels[v1alpha1.LabelEgress] != label || h.policy.Spec.PodSelector.MatchLabels[v1alpha1.LabelEgress] != label || len(h.policy.Spec.PodSelector.MatchLabels) != 1 {
		t.Errorf("the policy selects %v, the Pod has %v", h.policy.Spec.PodSelector, h.pod.Labels)
	}
	owners := h.policy.OwnerReferences
	if len(owners) != 2 || owners[0].UID != h.req.UID || owners[1].UID != h.pod.UID {
		t.Errorf("its owners are %+v", owners)
	}
	written, err := yaml.Marshal(h.policy.Spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cidr: 192.0.2.1/32", "cidr: 2001:db8::1/128", "port: 6443", "cidr: 203.0.113.0/24", "- 203.0.113.7/32", "cidr: 2001:db8:3::/64", "app: db", "endPort: 8010", "k8s-app: kube-dns", "- 10.0.0.0/8", "- 2001:db8::/32"} {
		if !strings.Contains(string(written), want) {
			t.Errorf("the policy has not %q:\n%s", want, written)
		}
	}
	if n := eventsOf(t, h.req, "EgressRestored"); n != 0 {
		t.Errorf("its first creation is %d times told as a withdrawal", n)
	}
}

func (h held) isKept(t *testing.T) {
	all := networkPolicyYAML + "metadata: {name: NAME}\nspec: {podSelector: SELECTOR, policyTypes: [Egress], egress: [{}]}\n"
	foreign := func(name, selector string) *unstructured.Unstructured {
		return fromYAML(t, h.namespace, strings.NewReplacer("NAME", name, "SELECTOR", selector).Replace(all))
	}
	create := func(o client.Object) func() error { return func() error { return admin.Create(t.Context(), o) } }
	merge := func(o client.Object, text string) func() error {
		return func() error { return admin.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text))) }
	}
	status := func(o client.Object, text string) func() error {
		return func() error {
			return admin.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text)))
		}
	}
	policy, pod, req := func() client.Object { return policyOf(h.req) }, func() client.Object { return h.pod.DeepCopy() }, func() client.Object { return h.req.DeepCopy() }
	testkit.Create(t, admin, foreign("app", "{matchLabels: {app: web}}"), foreign("others", "{matchExpressions: [{key: admitkit.dev/egress, operator: DoesNotExist}]}"),
		fromYAML(t, h.namespace, networkPolicyYAML+"metadata: {name: deny}\nspec: {podSelector: {}, policyTypes: [Ingress, Egress]}"),
		fromYAML(t, h.namespace, ciliumPolicyYAML+"metadata: {name: deny}\nspec: {endpointSelector: {}, egress: [{}]}"))
	const ours, widens = "belong to the policies of access Pods", "add {key: admitkit.dev/egress, operator: DoesNotExist}"
	for sentence, test := range map[string]struct {
		attack func() error
		want   string
	}{
		"a policy for every Pod":               {create(foreign("every", "{}")), widens},
		"a policy for our label":               {create(foreign("ours", "{matchLabels: {admitkit.dev/egress: "+string(h.req.UID)+"}}")), widens},
		"a policy by who manages":              {create(foreign("manager", "{matchLabels: {app.kubernetes.io/managed-by: admitkit-access}}")), widens},
		"a policy of Cilium's for every Pod":   {create(fromYAML(t, h.namespace, ciliumPolicyYAML+"metadata: {name: every}\nspec: {endpointSelector: {}, egress: [{toEntities: [all]}]}")), widens},
		"a policy that is turned to every Pod": {merge(foreign("app", "{}"), `{"spec":{"podSelector":{"matchLabels":null}}}`), widens},
		"a policy that denied, and allows":     {merge(foreign("deny", "{}"), `{"spec":{"egress":[{"ports":[{"port":22}]}]}}`), widens},
		"a policy with a name of ours":         {create(foreign("podaccess-b", "{matchLabels: {app: web}}")), ours},
		"more in the policy":                   {merge(policy(), `{"spec":{"egress":[{}]}}`), ours},
		"other Pods for the policy":            {merge(policy(), `{"spec":{"podSelector":{"matchLabels":{"admitkit.dev/egress":"x"}}}}`), ours},
		"the policy without our label":         {merge(policy(), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`), ours},
		"another owner of the policy":          {merge(policy(), `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"1"}]}}`), ours},
		"a finalizer of the policy":            {merge(policy(), `{"metadata":{"finalizers":["example.com/stay"]}}`), ours},
		"no policy":                            {func() error { return admin.Delete(t.Context(), policy()) }, "holds the access Pod of its name"},
		"no policies at all": {func() error {
			return admin.DeleteAllOf(t.Context(), &networkingv1.NetworkPolicy{}, client.InNamespace(h.namespace), client.MatchingFields{"metadata.name": h.policy.Name})
		}, "holds the access Pod of its name"},
		"a label of the Pod":                        {merge(pod(), `{"metadata":{"labels":{"app":"web"}}}`), "belong to grants"},
		"the Pod without our label":                 {merge(pod(), `{"metadata":{"labels":{"admitkit.dev/egress":null}}}`), "belong to grants"},
		"a label of the Pod with its status":        {status(pod(), `{"metadata":{"labels":{"app":"web"}}}`), "belong to grants"},
		"the Pod without our label with its status": {status(pod(), `{"metadata":{"labels":{"admitkit.dev/egress":"x"}}}`), "belong to grants"},
		"a label of the Pod by a binding": {func() error {
			return admin.SubResource("binding").Create(t.Context(), pod(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: h.pod.Name, Labels: map[string]string{"app": "web"}}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}})
		}, "leave out app"},
		"another decision in the status": {status(req(), `{"status":{"egress":{"egress":{"internet":false}}}}`), "egress"},
		"no decision in the status":      {status(req(), `{"status":{"egress":null}}`), "status.egress cannot be changed"},
	} {
		t.Run(sentence, func(t *testing.T) { refused(t, test.attack(), test.want) })
	}
	ephemeral := h.pod.DeepCopy()
	ephemeral.Labels["app"], ephemeral.Spec.EphemeralContainers = "web", []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "more", Image: "example.com/more"}}}
	_ = admin.SubResource("ephemeralcontainers").Update(t.Context(), ephemeral)
	if err := merge(h.pod.DeepCopy(), `{"metadata":{"annotations":{"example.com/ip":"1"}}}`)(); err != nil {
		t.Errorf("a network plugin cannot annotate the Pod: %v", err)
	}
	before := h.policy.ResourceVersion
	h.read(t)
	if h.policy.ResourceVersion != before || h.pod.Labels["app"] != "" {
		t.Errorf("something went through: %v %v", h.policy, h.pod.Labels)
	}
}

// isRestored acts as the manager's user, whom no webhook holds.
func (h held) isRestored(t *testing.T) {
	manager := as(t, managerUser)
	spec := h.policy.Spec.DeepCopy()
	for sentence, attack := range map[string]func(p *networkingv1.NetworkPolicy) error{
		"deleted": func(p *networkingv1.NetworkPolicy) error { return manager.Delete(t.Context(), p) },
		"edited": func(p *networkingv1.NetworkPolicy) error {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{})
			return manager.Update(t.Context(), p)
		},
		"for other Pods": func(p *networkingv1.NetworkPolicy) error {
			p.Spec.PodSelector.MatchLabels = map[string]string{"a": "b"}
			return manager.Update(t.Context(), p)
		},
		"without labels": func(p *networkingv1.NetworkPolicy) error {
			p.Labels, p.Spec.Egress = nil, nil
			return manager.Update(t.Context(), p)
		},
		"without owners": func(p *networkingv1.NetworkPolicy) error {
			p.OwnerReferences = nil
			return manager.Update(t.Context(), p)
		},
		"replaced by another's": func(p *networkingv1.NetworkPolicy) error {
			if err := manager.Delete(t.Context(), p); err != nil {
				return err
			}
			err := manager.Create(t.Context(), &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: p.Namespace, Name: p.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": "admitkit-access"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: h.pod.Name, UID: h.pod.UID}},
				},
				Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}, Egress: []networkingv1.NetworkPolicyEgressRule{{}}},
			})
			if apierrors.IsAlreadyExists(err) {
				return nil // it is back already
			}
			return err
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			h.read(t)
			labels, owners, before, told := h.policy.Labels, h.policy.OwnerReferences, h.policy.ResourceVersion, h.restorations()
			if err := attack(h.policy.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			testkit.Within(t, soon(), "it is as it was", func(ctx context.Context) bool {
				p := policyOf(h.req)
				return admin.Get(ctx, client.ObjectKeyFromObject(p), p) == nil && p.ResourceVersion != before && equal(p.Spec, *spec) && equal(p.Labels, labels) && equal(p.OwnerReferences, owners)
			})
			testkit.Eventually(t, "it is on record", func(context.Context) bool { return h.restorations() > told })
		})
	}
	testkit.Eventually(t, "an Event says so", func(context.Context) bool { return eventsOf(t, h.req, "EgressRestored") >= 2 })
}

func equal(a, b any) bool {
	x, errX := yaml.Marshal(a)
	y, errY := yaml.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// restorations counts the records of policies that were restored.
func (h held) restorations() (count int) {
	for _, told := range h.records.of(h.req) {
		if strings.HasPrefix(told, "restored") {
			count++
		}
	}
	return count
}

func (h held) follows(t *testing.T) {
	told := h.restorations()
	apiServerAt(t, discoveryv1.AddressTypeIPv4, "192.0.2.2")
	testkit.Within(t, soon(), "the policy has the new address", func(ctx context.Context) bool { return has(ctx, policyOf(h.req), "cidr: 192.0.2.2/32") })
	if has(t.Context(), policyOf(h.req), "cidr: 192.0.2.1/32") || !has(t.Context(), policyOf(h.req), "cidr: 2001:db8::1/128") {
		t.Error("the old address is still there, or that of IPv6 is not")
	}
	testkit.Eventually(t, "an Event says so", func(context.Context) bool { return eventsOf(t, h.req, "EgressFollowed") > 0 })
	if h.restorations() != told {
		t.Error("that is told as a withdrawal")
	}
}

func (h held) isPinned(t *testing.T) {
	h.read(t)
	before := h.policy.DeepCopy()
	if err := admin.Patch(t.Context(), h.template, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"egress":{"internet":false,"cidrs":[{"cidr":"0.0.0.0/0","ports":[{"port":22}]}]}}}`))); err != nil {
		t.Fatal(err)
	}
	// Something that makes the request be looked at.
	if err := patch(t, alice, h.req.DeepCopy(), `{"spec":{"duration":"50m"}}`); err != nil {
		t.Fatal(err)
	}
	await(t, h.req, "was looked at", func() bool { return h.req.Status.ObservedGeneration == h.req.Generation && h.req.Generation > 1 })
	h.read(t)
	if !equal(h.policy.Spec, before.Spec) || !h.req.Status.Egress.Egress.Internet {
		t.Errorf("it changed with the template: %+v", h.policy.Spec)
	}
	other := granted(t, bob, podRequest(h.namespace, "b", "held"))
	if !has(t.Context(), policyOf(other), "cidr: 0.0.0.0/0") || has(t.Context(), policyOf(other), "169.254.0.0/16") {
		t.Error("a new request is not held to what the template says now")
	}
}

func (h held) ends(t *testing.T) {
	if err := patch(t, alice, h.req.DeepCopy(), `{"spec":{"revoked":{}}}`); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the Pod is gone", func(ctx context.Context) bool {
		gone := apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(h.pod), &corev1.Pod{}))
		if !gone && apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(h.policy), &networkingv1.NetworkPolicy{})) {
			// The Pod may have gone between the two questions.
			if admin.Get(ctx, client.ObjectKeyFromObject(h.pod), &corev1.Pod{}) == nil {
				t.Error("the policy went before its Pod")
			}
		}
		return gone
	})
	testkit.Eventually(t, "so is the policy", func(context.Context) bool { return gone(t, policyOf(h.req)) })
}

func TestWithoutAnEnforcedPolicyNothingIsGrantedUnlessTheOperatorSaysSo(t *testing.T) {
	t.Parallel()
	anAPIServer(t)
	nobodyHasSaid(t)
	theOperatorSaysOff(t)
	aNetworkPluginIsFound(t)
}

func nobodyHasSaid(t *testing.T) {
	refused(t, admin.Create(t.Context(), heldTemplate(common(t), "held")), "spec.egress: nobody has said whether network policies are enforced here", "--access-network-policy")
}

func theOperatorSaysOff(t *testing.T) {
	options := heldOptions()
	options.Egress.Mode = egress.ModeOff
	namespace := testkit.ManagerNamespace(t, admin)
	r := start(t, namespace, options)
	testkit.Create(t, admin, heldTemplate(namespace, "held"))
	req := granted(t, alice, podRequest(namespace, "a", "held"))
	if !fails(req, v1alpha1.ConditionEgressHeld, v1alpha1.ReasonEgressNotEnforced) || req.Status.Egress == nil || req.Status.Egress.Policy != "" || !gone(t, policyOf(req)) {
		t.Errorf("the status is %+v", req.Status)
	}
	testkit.Eventually(t, "an Event says so", func(context.Context) bool { return eventsOf(t, req, v1alpha1.ReasonEgressNotEnforced) == 1 })
	r.stop()
}

func aNetworkPluginIsFound(t *testing.T) {
	options := heldOptions()
	options.Egress.Mode = egress.ModeAuto
	namespace := testkit.ManagerNamespace(t, admin)
	start(t, namespace, options)
	testkit.Create(t, admin, heldTemplate(namespace, "held"))
	req := podRequest(namespace, "a", "held")
	testkit.Create(t, as(t, alice), req)
	await(t, req, "is refused", func() bool {
		return fails(req, v1alpha1.ConditionEgressHeld, v1alpha1.ReasonEgressNotEnforced) && fails(req, v1alpha1.ConditionAccessResourcesCreated, v1alpha1.ReasonEgressNotEnforced)
	})
	if !gone(t, &corev1.Pod{ObjectMeta: resourceOf(req)}) {
		t.Error("there is a Pod")
	}
	plugin := plainPod("kube-system", "calico")
	plugin.Labels = map[string]string{"k8s-app": "calico-node"}
	testkit.Create(t, admin, plugin)
	t.Cleanup(func() { _ = admin.Delete(context.Background(), plugin, client.GracePeriodSeconds(0)) })
	await(t, req, "is granted", func() bool { return req.Status.Ready && holds(req, v1alpha1.ConditionEgressHeld) })
	if reason := req.Status.Egress.Reason; !strings.Contains(reason, "calico") || !strings.Contains(reason, "Calico") {
		t.Errorf("the reason is %q", reason)
	}
}

func TestWhatWasThereBeforeAPolicyKeepsThePodFromBeingMade(t *testing.T) {
	t.Parallel()
	anAPIServer(t)
	namespace := testkit.ManagerNamespace(t, admin)
	every := fromYAML(t, namespace, networkPolicyYAML+"metadata: {name: every}\nspec: {podSelector: {}, egress: [{}]}")
	foreign := fromYAML(t, namespace, networkPolicyYAML+"metadata: {name: podaccess-a, labels: {app.kubernetes.io/managed-by: admitkit-access}}\nspec: {podSelector: {matchLabels: {app: web}}, egress: [{}]}")
	testkit.Create(t, admin, every, foreign)
	start(t, namespace, heldOptions())
	// Nobody takes a policy with our label for what is left of a request, although there is none of that name yet.
	testkit.Create(t, admin, heldTemplate(namespace, "held"))
	req := podRequest(namespace, "a", "held")
	testkit.Create(t, as(t, alice), req)
	pod := &corev1.Pod{ObjectMeta: resourceOf(req)}
	await(t, req, "is refused for a policy that widens", func() bool { return fails(req, v1alpha1.ConditionEgressHeld, v1alpha1.ReasonEgressWidened) })
	refused(t, admin.Create(t.Context(), fromYAML(t, namespace, networkPolicyYAML+"metadata: {name: more}\nspec: {podSelector: {}, egress: [{}]}")), "since policies add up")
	if err := admin.Patch(t.Context(), every, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))); err != nil {
		t.Errorf("who had it before cannot label it: %v", err)
	}
	if err := admin.Delete(t.Context(), every); err != nil {
		t.Fatal(err)
	}
	await(t, req, "is refused for a policy of its name", func() bool { return fails(req, v1alpha1.ConditionEgressHeld, v1alpha1.ReasonNameTaken) })
	if !gone(t, pod) || !has(t.Context(), policyOf(req), "app: web") {
		t.Error("there is a Pod, or the policy was touched")
	}
	if err := admin.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	await(t, req, "is granted", func() bool { return req.Status.Ready && holds(req, v1alpha1.ConditionEgressHeld) })
}

func TestAPodIsHeldByAPolicyOfCilium(t *testing.T) {
	t.Parallel()
	anAPIServer(t)
	namespace := testkit.ManagerNamespace(t, admin)
	options := heldOptions()
	options.Egress.Cilium = true
	r := start(t, namespace, options)
	testkit.Create(t, admin, heldTemplate(namespace, "held"))
	req := granted(t, alice, podRequest(namespace, "a", "held"))
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(egress.CiliumNetworkPolicy)
	policy.SetNamespace(namespace)
	policy.SetName("podaccess-a")
	if !has(t.Context(), policy, "kube-apiserver") || req.Status.Egress.Policy != "CiliumNetworkPolicy" || !gone(t, policyOf(req)) {
		t.Errorf("%v\n%+v", policy, req.Status)
	}
	refused(t, admin.Delete(t.Context(), policy.DeepCopy()), "holds the access Pod of its name")
	before := policy.GetUID()
	if err := as(t, managerUser).Delete(t.Context(), policy.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, soon(), "it is there again", func(ctx context.Context) bool { return has(ctx, policy, "kube-apiserver") && policy.GetUID() != before })
	r.stop()
}

package access

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// isHeld gives a request a decision, a Pod and the policy that it was held by.
func isHeld(f *facts) {
	f.request.GetRequestStatus().Egress = &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}}
	f.egressOptions = &egress.Options{Mode: egress.ModeOn}
	f.apiServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}
	f.there = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podaccess-a", UID: "p"}}
	policy, err := f.policyOf(f.kept(), f.there).Compose(f.apiServer)
	if err != nil {
		panic(err)
	}
	f.policies = []*unstructured.Unstructured{policy}
}

func podIsGone(f *facts)     { f.there = nil }
func policyIsGone(f *facts)  { f.policies = nil }
func serverMoved(f *facts)   { f.apiServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6443")} }
func serverUnknown(f *facts) { f.apiServer = nil }
func policyIsForeign(f *facts) {
	f.policies[0].SetOwnerReferences(nil)
	f.policies[0].SetLabels(nil)
}

func policyHasOurLabel(f *facts) {
	f.policies[0].SetOwnerReferences(nil)
	f.policies[0].SetAnnotations(nil)
}

func policyIsWider(f *facts) {
	_ = unstructured.SetNestedSlice(f.policies[0].Object, []any{map[string]any{}}, "spec", "egress")
}

func policyIsAnnotated(f *facts) {
	annotations := f.policies[0].GetAnnotations()
	annotations["example.com/seen"] = "1"
	f.policies[0].SetAnnotations(annotations)
}

func TestAPolicyIsRestoredWhileItsPodIsThereAndDeletedAfterwards(t *testing.T) {
	for sentence, test := range map[string]struct {
		changes  []func(*facts)
		restores string
		leaves   int
	}{
		"as it was made":                                   {[]func(*facts){isHeld}, "", 0},
		"with an annotation of others":                     {[]func(*facts){isHeld, policyIsAnnotated}, "", 0},
		"deleted":                                          {[]func(*facts){isHeld, policyIsGone}, egress.Deleted, 0},
		"changed":                                          {[]func(*facts){isHeld, policyIsWider}, egress.Changed, 0},
		"of nobody":                                        {[]func(*facts){isHeld, policyIsForeign}, egress.Changed, 0},
		"with the addresses of before":                     {[]func(*facts){isHeld, serverMoved}, egress.Behind, 0},
		"changed, with the addresses of before":            {[]func(*facts){isHeld, serverMoved, policyIsWider}, egress.Changed, 0},
		"while no address is known":                        {[]func(*facts){isHeld, serverUnknown}, "", 0},
		"changed, after access has ended":                  {[]func(*facts){isHeld, saysEnded, policyIsWider}, egress.Changed, 0},
		"while its Pod is yet to come":                     {[]func(*facts){isHeld, podIsGone}, "", 0},
		"when its Pod is gone":                             {[]func(*facts){isHeld, podIsGone, settledOn("podaccess-a", "p")}, "", 1},
		"when access has ended before there was a Pod":     {[]func(*facts){isHeld, podIsGone, saysEnded}, "", 1},
		"when the request is gone, and not its Pod":        {[]func(*facts){isHeld, isGone}, "", 0},
		"when both are gone":                               {[]func(*facts){isHeld, podIsGone, isGone}, "", 1},
		"of nobody, when both are gone":                    {[]func(*facts){isHeld, podIsGone, policyIsForeign, isGone}, "", 0},
		"of nobody, with our label, when both are gone":    {[]func(*facts){isHeld, podIsGone, policyHasOurLabel, isGone}, "", 0},
		"of nobody, when the Pod is gone":                  {[]func(*facts){isHeld, podIsGone, policyIsForeign, settledOn("podaccess-a", "p")}, "", 0},
		"where the operator said that nothing is enforced": {[]func(*facts){isHeld, policyIsGone, func(f *facts) { f.request.GetRequestStatus().Egress.Policy = "" }}, "", 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := about(podAccess, test.changes...)
			restored, err := f.restores()
			if err != nil {
				t.Fatal(err)
			}
			what := ""
			if restored != nil {
				what = restored.Was
			}
			if what != test.restores || len(f.leaves()) != test.leaves {
				t.Errorf("it was %q and leaves %d policies, want %q and %d", what, len(f.leaves()), test.restores, test.leaves)
			}
		})
	}
}

func TestNothingIsGrantedWhereNothingHoldsThePodUnlessTheOperatorSaysSo(t *testing.T) {
	wants := func(f *facts) {
		f.template.(*v1alpha1.PodAccessTemplate).Spec.Egress = &v1alpha1.Egress{APIServer: true}
		f.apiServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}
	}
	plugin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "p", Labels: map[string]string{"k8s-app": "cilium"}}}
	for sentence, test := range map[string]struct {
		mode    egress.Mode
		there   []client.Object
		more    []func(*facts)
		granted bool
	}{
		"on":                                  {egress.ModeOn, nil, nil, true},
		"auto, with a plugin":                 {egress.ModeAuto, []client.Object{plugin}, nil, true},
		"auto, without":                       {egress.ModeAuto, nil, nil, false},
		"off":                                 {egress.ModeOff, nil, nil, true},
		"nobody has said":                     {egress.ModeNone, nil, nil, false},
		"on, and the API server is not known": {egress.ModeOn, nil, []func(*facts){serverUnknown}, false},
		"off since it was decided":            {egress.ModeOff, nil, []func(*facts){isDecided}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := about(podAccess, append([]func(*facts){wants}, test.more...)...)
			f.egressOptions = &egress.Options{Mode: test.mode}
			of := &shared{options: Options{Egress: *f.egressOptions}, holder: egress.Holder{Options: f.egressOptions, Kinds: f.egressOptions.Kinds()}}
			of.holder.Use(fake.NewClientBuilder().WithObjects(test.there...).Build(), nil, clock.RealClock{})
			(&requests{shared: of, kind: podAccess}).readHold(t.Context(), f)
			d := decide(f, created)
			if (d.grant != nil) != test.granted {
				t.Errorf("it is granted: %t", d.grant != nil)
			}
			if held := f.hold != nil && f.hold.Policy != ""; test.granted && held != (test.mode != egress.ModeOff) {
				t.Errorf("a policy holds the Pod: %t", held)
			}
			if c := d.status.wanted[v1alpha1.ConditionEgressHeld]; !test.granted && c.Status != metav1.ConditionFalse {
				t.Errorf("the condition says %+v", c)
			}
		})
	}
}

// isDecided gives a request, which has no Pod yet, a decision for a policy.
func isDecided(f *facts) {
	f.request.GetRequestStatus().Egress = &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}}
}

package facts_test

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// isHeld gives a request a decision, a Pod and the policy that it was held by.
func isHeld(f *facts.Facts) {
	f.Request.GetRequestStatus().Egress = &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}}
	f.EgressOptions = &egress.Options{Mode: egress.ModeOn}
	f.APIServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}
	f.There = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podaccess-a", UID: "p"}}
	policy, err := f.PolicyOf(f.Request.GetRequestStatus().Egress, f.There).Compose(f.APIServer)
	if err != nil {
		panic(err)
	}
	f.Policies = []*unstructured.Unstructured{policy}
}

func podIsGone(f *facts.Facts)    { f.There = nil }
func policyIsGone(f *facts.Facts) { f.Policies = nil }
func serverMoved(f *facts.Facts) {
	f.APIServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6443")}
}
func serverUnknown(f *facts.Facts) { f.APIServer = nil }
func policyIsForeign(f *facts.Facts) {
	f.Policies[0].SetOwnerReferences(nil)
	f.Policies[0].SetLabels(nil)
}

func policyHasOurLabel(f *facts.Facts) {
	f.Policies[0].SetOwnerReferences(nil)
	f.Policies[0].SetAnnotations(nil)
}

func policyIsWider(f *facts.Facts) {
	_ = unstructured.SetNestedSlice(f.Policies[0].Object, []any{map[string]any{}}, "spec", "egress")
}

func policyIsAnnotated(f *facts.Facts) {
	annotations := f.Policies[0].GetAnnotations()
	annotations["example.com/seen"] = "1"
	f.Policies[0].SetAnnotations(annotations)
}

func TestAPolicyIsRestoredWhileItsPodIsThereAndDeletedAfterwards(t *testing.T) {
	for sentence, test := range map[string]struct {
		changes  []func(*facts.Facts)
		restores string
		leaves   int
	}{
		"as it was made":                                   {[]func(*facts.Facts){isHeld}, "", 0},
		"with an annotation of others":                     {[]func(*facts.Facts){isHeld, policyIsAnnotated}, "", 0},
		"deleted":                                          {[]func(*facts.Facts){isHeld, policyIsGone}, egress.Deleted, 0},
		"changed":                                          {[]func(*facts.Facts){isHeld, policyIsWider}, egress.Changed, 0},
		"of nobody":                                        {[]func(*facts.Facts){isHeld, policyIsForeign}, egress.Changed, 0},
		"with the addresses of before":                     {[]func(*facts.Facts){isHeld, serverMoved}, egress.Behind, 0},
		"changed, with the addresses of before":            {[]func(*facts.Facts){isHeld, serverMoved, policyIsWider}, egress.Changed, 0},
		"while no address is known":                        {[]func(*facts.Facts){isHeld, serverUnknown}, "", 0},
		"changed, after access has ended":                  {[]func(*facts.Facts){isHeld, factstest.SaysEnded, policyIsWider}, egress.Changed, 0},
		"while its Pod is yet to come":                     {[]func(*facts.Facts){isHeld, podIsGone}, "", 0},
		"when its Pod is gone":                             {[]func(*facts.Facts){isHeld, podIsGone, factstest.SettledOn("podaccess-a", "p")}, "", 1},
		"when access has ended before there was a Pod":     {[]func(*facts.Facts){isHeld, podIsGone, factstest.SaysEnded}, "", 1},
		"when the request is gone, and not its Pod":        {[]func(*facts.Facts){isHeld, factstest.IsGone}, "", 0},
		"when both are gone":                               {[]func(*facts.Facts){isHeld, podIsGone, factstest.IsGone}, "", 1},
		"of nobody, when both are gone":                    {[]func(*facts.Facts){isHeld, podIsGone, policyIsForeign, factstest.IsGone}, "", 0},
		"of nobody, with our label, when both are gone":    {[]func(*facts.Facts){isHeld, podIsGone, policyHasOurLabel, factstest.IsGone}, "", 0},
		"of nobody, when the Pod is gone":                  {[]func(*facts.Facts){isHeld, podIsGone, policyIsForeign, factstest.SettledOn("podaccess-a", "p")}, "", 0},
		"where the operator said that nothing is enforced": {[]func(*facts.Facts){isHeld, policyIsGone, func(f *facts.Facts) { f.Request.GetRequestStatus().Egress.Policy = "" }}, "", 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := factstest.About(grant.PodAccess, test.changes...)
			restored, err := f.Restores()
			if err != nil {
				t.Fatal(err)
			}
			what := ""
			if restored != nil {
				what = restored.Was
			}
			if what != test.restores || len(f.Leaves()) != test.leaves {
				t.Errorf("it was %q and leaves %d policies, want %q and %d", what, len(f.Leaves()), test.restores, test.leaves)
			}
		})
	}
}

func TestNothingIsGrantedWhereNothingHoldsThePodUnlessTheOperatorSaysSo(t *testing.T) {
	wants := func(f *facts.Facts) {
		f.Template.(*v1alpha1.PodAccessTemplate).Spec.Egress = &v1alpha1.Egress{APIServer: true}
		f.APIServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}
	}
	plugin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "p", Labels: map[string]string{"k8s-app": "cilium"}}}
	for sentence, test := range map[string]struct {
		mode    egress.Mode
		there   []client.Object
		more    []func(*facts.Facts)
		granted bool
	}{
		"on":                                  {egress.ModeOn, nil, nil, true},
		"auto, with a plugin":                 {egress.ModeAuto, []client.Object{plugin}, nil, true},
		"auto, without":                       {egress.ModeAuto, nil, nil, false},
		"off":                                 {egress.ModeOff, nil, nil, true},
		"nobody has said":                     {egress.ModeNone, nil, nil, false},
		"on, and the API server is not known": {egress.ModeOn, nil, []func(*facts.Facts){serverUnknown}, false},
		"off since it was decided":            {egress.ModeOff, nil, []func(*facts.Facts){isDecided}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := factstest.About(grant.PodAccess, append([]func(*facts.Facts){wants}, test.more...)...)
			f.EgressOptions = &egress.Options{Mode: test.mode}
			conn := &kube.Connection{Settings: kube.Settings{Egress: *f.EgressOptions}, Holder: egress.Holder{Options: f.EgressOptions, Kinds: f.EgressOptions.Kinds()}}
			conn.Holder.Use(fake.NewClientBuilder().WithObjects(test.there...).Build(), nil, clock.RealClock{})
			facts.NewReader(conn, grant.PodAccess, nil, facts.Retention{}).ReadHold(t.Context(), f)
			d := decision.Of(f, factstest.Created)
			if (d.Grant != nil) != test.granted {
				t.Errorf("it is granted: %t", d.Grant != nil)
			}
			if held := f.Hold != nil && f.Hold.Policy != ""; test.granted && held != (test.mode != egress.ModeOff) {
				t.Errorf("a policy holds the Pod: %t", held)
			}
			if c := d.Status.Wanted[v1alpha1.ConditionEgressHeld]; !test.granted && c.Status != metav1.ConditionFalse {
				t.Errorf("the condition says %+v", c)
			}
		})
	}
}

// isDecided gives a request, which has no Pod yet, a decision for a policy.
func isDecided(f *facts.Facts) {
	f.Request.GetRequestStatus().Egress = &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}}
}

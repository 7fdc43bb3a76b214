package facts

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

func TestInterceptionIsTransparentUnlessEveryPolicyAcceptsOther(t *testing.T) {
	accepts := func(a *v1alpha1.Acceptance) v1alpha1.BrokerPolicy {
		return v1alpha1.BrokerPolicy{Spec: v1alpha1.BrokerPolicySpec{Interception: v1alpha1.BrokerInterception{CooperativeAccepted: a}}}
	}
	yes, no, silent := accepts(&v1alpha1.Acceptance{Accepted: true}), accepts(&v1alpha1.Acceptance{}), accepts(nil)
	for sentence, test := range map[string]struct {
		of   []v1alpha1.BrokerPolicy
		want v1alpha1.InterceptionMode
	}{
		"no policy":     {nil, v1alpha1.InterceptionTransparent},
		"all accept":    {[]v1alpha1.BrokerPolicy{yes, yes}, v1alpha1.InterceptionCooperative},
		"one is silent": {[]v1alpha1.BrokerPolicy{yes, silent}, v1alpha1.InterceptionTransparent},
		"one says no":   {[]v1alpha1.BrokerPolicy{no, yes}, v1alpha1.InterceptionTransparent},
		"the only one":  {[]v1alpha1.BrokerPolicy{silent}, v1alpha1.InterceptionTransparent},
		"one that does": {[]v1alpha1.BrokerPolicy{yes}, v1alpha1.InterceptionCooperative},
	} {
		if got := modeOf(test.of); got != test.want {
			t.Errorf("%s: %s", sentence, got)
		}
	}
}

func TestPodSecurityForbidsTheRedirectAndTheRunFails(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for level, permits := range map[string]bool{"": true, "privileged": true, "baseline": false, "restricted": false, "of a later Kubernetes": false} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{labelPodSecurity: level}}}
		r := &Reader{Live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(namespace).Build()}
		for mode, want := range map[v1alpha1.InterceptionMode]bool{v1alpha1.InterceptionTransparent: permits, v1alpha1.InterceptionCooperative: true} {
			of, err := r.permits(t.Context(), "a", mode)
			if err != nil || (of == nil) != want || of != nil && (!of.Fatal || of.Condition != v1alpha1.ConditionInterceptionUnavailable) {
				t.Errorf("%q, %s: %+v, %v", level, mode, of, err)
			}
		}
	}
}

// A controller without a broker fails the run at once: no time brings it one.
func TestWithoutABrokerARunThatRequiresCredentialsFails(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: v1alpha1.BrokerPolicySpec{AppliesToTemplates: []string{"governed"}}}
	r := &Reader{Cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy).Build()}
	for sentence, test := range map[string]struct {
		template string
		requires []string
		fails    bool
	}{
		"one that requires a credential":   {"plain", []string{"MODEL"}, true},
		"one to which a policy applies":    {"governed", nil, true},
		"one that has nothing of a broker": {"plain", nil, false},
	} {
		f := &Facts{Run: &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}, Plan: &workload.Plan{Requires: test.requires}}
		f.Run.Spec.TemplateRef.Name = test.template
		if err := r.readBrokered(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if of := f.Unbrokered; (of != nil) != test.fails || of != nil && (!of.Fatal || of.Reason != v1alpha1.BrokerNotConfigured) {
			t.Errorf("%s: %+v", sentence, of)
		}
	}
}

func TestCredentialsForTheContainerAreSortedAndAloneThere(t *testing.T) {
	into, injected := v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true}}, v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{}}
	policy := func(grants ...v1alpha1.CredentialGrant) v1alpha1.BrokerPolicy {
		return v1alpha1.BrokerPolicy{Spec: v1alpha1.BrokerPolicySpec{Grants: v1alpha1.BrokerGrants{Credentials: grants}}}
	}
	apply := []v1alpha1.BrokerPolicy{
		policy(v1alpha1.CredentialGrant{Name: "B", Delivery: into}, v1alpha1.CredentialGrant{Name: "git", Delivery: injected}),
		policy(v1alpha1.CredentialGrant{Name: "A", Delivery: into}, v1alpha1.CredentialGrant{Name: "unasked", Delivery: into}),
	}
	if got := delivered([]string{"B", "git", "A", "B"}, apply); strings.Join(got, " ") != "A B" {
		t.Errorf("%q", got)
	}
}

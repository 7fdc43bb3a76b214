package facts

import (
	"reflect"
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
			of, err := r.permits(t.Context(), "a", mode, true)
			if err != nil || (of == nil) != want || of != nil && (!of.Fatal || of.Condition != v1alpha1.ConditionInterceptionUnavailable) {
				t.Errorf("%q, %s: %+v, %v", level, mode, of, err)
			}
		}
	}
}

// A controller without a broker, or without proxies, fails the run at once: no time brings it one.
func TestWhatGovernsARunIsDecidedOnceAndWithoutItTheRunFails(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: v1alpha1.BrokerPolicySpec{AppliesToTemplates: []string{"governed"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Build()
	broker, names, others := &v1alpha1.EgressBroker{Namespace: "broker", Port: 8443}, []v1alpha1.EgressName{{Host: "api.example.com"}}, []v1alpha1.EgressName{{Host: "other.example.com"}}
	const transparent, none = v1alpha1.InterceptionTransparent, v1alpha1.InterceptionMode("")
	for sentence, test := range map[string]struct {
		template string
		plan     workload.Plan
		proxies  bool
		broker   *v1alpha1.EgressBroker
		decided  *v1alpha1.EgressDecision
		was      v1alpha1.InterceptionMode
		// fails is the reason, "" if proxied is the proxy, if there is one.
		fails   string
		proxied *Proxied
	}{
		"one that requires a credential, without a broker": {"plain", workload.Plan{Requires: []string{"MODEL"}}, true, nil, nil, none, v1alpha1.BrokerNotConfigured, nil},
		"one to which a policy applies, without a broker":  {"governed", workload.Plan{Hosts: names}, true, nil, nil, none, v1alpha1.BrokerNotConfigured, nil},
		"one that has nothing of a broker":                 {"plain", workload.Plan{}, false, nil, nil, none, "", nil},
		"one with names, without proxies":                  {"plain", workload.Plan{Hosts: names}, false, nil, nil, none, v1alpha1.InterceptionNotConfigured, nil},
		"one with names":                                   {"plain", workload.Plan{Hosts: names}, true, broker, nil, none, "", &Proxied{Mode: transparent, Hosts: names}},
		"one with names, too long":                         {"plain", workload.Plan{Hosts: names, Timeout: 48 * 3600}, true, broker, nil, none, v1alpha1.InterceptionTooLong, nil},
		"one with names, to which a policy applies":        {"governed", workload.Plan{Hosts: names}, true, broker, nil, none, "", &Proxied{Mode: transparent, Hosts: names, Broker: broker}},
		"one to which a policy applies":                    {"governed", workload.Plan{}, true, broker, nil, none, "", &Proxied{Mode: transparent, Broker: broker}},
		"one whose template lists others since": {
			"plain", workload.Plan{Hosts: others}, true, nil, &v1alpha1.EgressDecision{Hosts: names}, transparent, "", &Proxied{Mode: transparent, Hosts: names},
		},
		"one whose template lists none any more": {"plain", workload.Plan{}, true, nil, &v1alpha1.EgressDecision{Hosts: names}, transparent, "", &Proxied{Mode: transparent, Hosts: names}},
		"one without names, whose template lists some since": {
			"plain", workload.Plan{Hosts: names}, true, nil, &v1alpha1.EgressDecision{}, none, "", nil,
		},
		"one with names, to which a policy applies since": {"governed", workload.Plan{Hosts: names}, true, broker, &v1alpha1.EgressDecision{Hosts: names}, transparent, v1alpha1.InterceptionChanged, nil},
		"one without, to which a policy applies since":    {"governed", workload.Plan{}, true, broker, &v1alpha1.EgressDecision{}, none, v1alpha1.InterceptionChanged, nil},
		"one whose policies are gone since": {
			"plain", workload.Plan{}, true, broker, &v1alpha1.EgressDecision{Broker: broker}, transparent, "", &Proxied{Mode: transparent, Broker: broker},
		},
		"one whose policies and broker are gone since": {"plain", workload.Plan{}, true, nil, &v1alpha1.EgressDecision{Broker: broker}, transparent, v1alpha1.BrokerNotConfigured, nil},
	} {
		r := &Reader{Cached: c, Live: c, Proxies: test.proxies, Broker: test.broker}
		f := &Facts{Run: &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}, Plan: &test.plan}
		f.Run.Spec.TemplateRef.Name, f.Run.Status.Egress, f.Run.Status.Interception = test.template, test.decided, test.was
		if err := r.readProxied(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if of := f.Unproxied; (of != nil) != (test.fails != "") || of != nil && (!of.Fatal || of.Reason != test.fails) {
			t.Errorf("%s: %+v", sentence, of)
		}
		if f.Proxied != nil {
			f.Proxied.How = ""
		}
		if !reflect.DeepEqual(f.Proxied, test.proxied) || f.Proxied != nil && (!f.Plan.Egress.Internet || !f.Plan.Egress.AllowsDNS()) {
			t.Errorf("%s: %+v, and the Pod reaches %+v", sentence, f.Proxied, f.Plan.Egress)
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

// A seed waits for what it lacks, and has a proxy by the rules of runs.
func TestASeedHasAProxyByItsNamesOrItsPolicies(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: v1alpha1.BrokerPolicySpec{AppliesToWorkspaces: []string{"governed"}}}
	policy.Spec.Grants.Credentials = []v1alpha1.CredentialGrant{
		{Name: "git", Delivery: v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{Hosts: []string{"*.example.com"}}}},
		{Name: "env", Delivery: v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{}}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Build()
	broker, names := &v1alpha1.EgressBroker{Namespace: "broker", Port: 8443}, []v1alpha1.EgressName{{Host: "git.example.com"}}
	const transparent = v1alpha1.InterceptionTransparent
	type seed = v1alpha1.WorkspaceSeed
	needing := func(credential, url string) *seed {
		return &seed{Repos: []v1alpha1.WorkspaceRepo{{URL: url, Credential: credential}}}
	}
	for sentence, test := range map[string]struct {
		name    string
		seed    *seed
		broker  *v1alpha1.EgressBroker
		decided *v1alpha1.EgressDecision
		waits   string
		proxied *Proxied
	}{
		"one by addresses":                      {"plain", &seed{Egress: &v1alpha1.SandboxEgress{}}, broker, nil, "", nil},
		"one with names":                        {"plain", &seed{Egress: &v1alpha1.SandboxEgress{Hosts: names}}, nil, nil, "", &Proxied{Mode: transparent, Hosts: names}},
		"one to which a policy applies":         {"governed", &seed{}, broker, nil, "", &Proxied{Mode: transparent, Broker: broker}},
		"both":                                  {"governed", &seed{Egress: &v1alpha1.SandboxEgress{Hosts: names}}, broker, nil, "", &Proxied{Mode: transparent, Hosts: names, Broker: broker}},
		"one that is granted what it needs":     {"governed", needing("git", "https://git.example.com/a"), broker, nil, "", &Proxied{Mode: transparent, Broker: broker}},
		"one whose host does not get it":        {"governed", needing("git", "https://git.example.org/a"), broker, nil, "BrokerPolicy p: credential git: add git.example.org to delivery.proxyInjected.hosts", nil},
		"one that would get it itself":          {"governed", needing("env", "https://git.example.com/a"), broker, nil, "credential env: a seed has its credentials by its proxy alone", nil},
		"one to which nobody grants it":         {"plain", needing("git", "https://git.example.com/a"), broker, nil, "git is granted by none: add plain to spec.appliesToWorkspaces of p", nil},
		"one without a broker":                  {"governed", &seed{}, nil, nil, "the controller has no broker", nil},
		"one with authorities of its own":       {"governed", &seed{CAFrom: &v1alpha1.SandboxKey{}}, broker, nil, "spec.seed.caFrom: the seed has a proxy", nil},
		"one by addresses, with a policy since": {"governed", &seed{}, broker, &v1alpha1.EgressDecision{}, "make another Workspace", nil},
	} {
		r := &Reader{Cached: c, Live: c, Proxies: true, Broker: test.broker}
		ws := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: test.name}, Spec: v1alpha1.WorkspaceSpec{Seed: test.seed}, Status: v1alpha1.WorkspaceStatus{Egress: test.decided}}
		got, blocked, err := r.Seed(t.Context(), ws)
		if err != nil || (blocked != nil) != (test.waits != "") || blocked != nil && !strings.Contains(blocked.Message, test.waits) {
			t.Errorf("%s: %+v, %v", sentence, blocked, err)
		}
		if got != nil {
			got.How = ""
		}
		if !reflect.DeepEqual(got, test.proxied) {
			t.Errorf("%s: %+v", sentence, got)
		}
	}
}

package broker_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox"
	"github.com/admitkit/admitkit/testing/managertest"
)

const why = "the client of this service has no other way"

// policy is one that admission accepts.
func policy(namespace, name string, changes ...func(*v1alpha1.BrokerPolicySpec)) *v1alpha1.BrokerPolicy {
	p := &v1alpha1.BrokerPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.BrokerPolicySpec{
			AppliesToTemplates: []string{"agent-*"},
			Egress:             []v1alpha1.EgressName{{Host: "api.example.com"}, {Host: "*.git.example.com"}},
			Grants:             v1alpha1.BrokerGrants{Credentials: []v1alpha1.CredentialGrant{injected("model", "model-key", "api.example.com")}},
		},
	}
	for _, change := range changes {
		change(&p.Spec)
	}
	return p
}

// injected is a credential of a Secret that the proxy sets.
func injected(name, secret string, hosts ...string) v1alpha1.CredentialGrant {
	return v1alpha1.CredentialGrant{
		Name: name, Secret: &v1alpha1.SecretKey{Name: secret, Key: "key"},
		Delivery: v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{Hosts: hosts, Header: "X-Api-Key"}},
	}
}

func discovering(d time.Duration) func(*v1alpha1.BrokerPolicySpec) {
	return func(spec *v1alpha1.BrokerPolicySpec) {
		spec.EgressDiscovery = &v1alpha1.EgressDiscovery{Reason: why, ExpiresAt: metav1.NewTime(time.Now().Add(d).Truncate(time.Second))}
	}
}

func TestBrokerPolicies(t *testing.T) {
	// Not in parallel: the webhooks are for every namespace.
	run := managertest.Run(t, server, managertest.Options{AllNamespaces: true}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(sandbox.BrokerPolicies{})
	})
	namespace := run.Namespace
	grant(t, namespace, "authors", "author",
		rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"brokerpolicies"}, Verbs: []string{"create", "update", "patch", "get"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"model-key"}, Verbs: []string{"get"}})
	author := user(t, "author")
	testkit.Succeeds(t, time.Minute, "the author gets their rights", func(ctx context.Context) error {
		return author.Create(ctx, policy(namespace, "probe"), client.DryRunAll)
	})
	const brief = 12 * time.Second // on a busy machine it takes a while to be seen
	changes, over := policy(namespace, "changes"), policy(namespace, "over", discovering(brief))
	testkit.Create(t, admin, changes, over)
	t.Run("say in conditions whether runs discover names", func(t *testing.T) {
		becomes(t, changes, v1alpha1.DiscoveryNone)
		testkit.Change(t, admin, changes, func(p *v1alpha1.BrokerPolicy) { discovering(brief)(&p.Spec) })
		becomes(t, changes, v1alpha1.DiscoveryActive)
	})
	t.Run("are refused with the field and the remedy", func(t *testing.T) { refusals(t, namespace, author) })
	t.Run("are judged and apply to nothing while a finalizer holds them back", func(t *testing.T) {
		held := policy(namespace, "held")
		held.Finalizers = []string{"example.com/author"}
		testkit.Create(t, author, held)
		if err := admin.Delete(t.Context(), held.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		stolen := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/grants/credentials/0/secret/name","value":"payroll"}]`))
		if err := author.Patch(t.Context(), held.DeepCopy(), stolen); !apierrors.IsForbidden(err) {
			t.Errorf("the author names a Secret that they may not read: %v", err)
		}
		var all v1alpha1.BrokerPolicyList
		if err := admin.List(t.Context(), &all, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		if apply, _ := all.ForTemplate("agent-1"); slices.ContainsFunc(apply, func(p v1alpha1.BrokerPolicy) bool { return p.Name == held.Name }) {
			t.Error("it applies")
		}
		if err := author.Patch(t.Context(), held, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Errorf("the author takes the finalizer away: %v", err)
		}
	})
	t.Run("say in conditions that a discovery is over", func(t *testing.T) { becomes(t, changes, v1alpha1.DiscoveryExpired) })
	t.Run("keep a discovery that is over while the rest changes", func(t *testing.T) {
		becomes(t, over, v1alpha1.DiscoveryExpired)
		over.Spec.Egress = over.Spec.Egress[:1]
		over.ResourceVersion = ""
		if err := admin.Patch(t.Context(), over, client.Merge); err != nil {
			t.Error(err)
		}
	})
}

func refusals(t *testing.T, namespace string, author client.Client) {
	type spec = v1alpha1.BrokerPolicySpec
	egress := func(host string) func(*spec) {
		return func(s *spec) { s.Egress = append(s.Egress, v1alpha1.EgressName{Host: host}) }
	}
	first := func(change func(*v1alpha1.CredentialGrant)) func(*spec) {
		return func(s *spec) { change(&s.Grants.Credentials[0]) }
	}
	for sentence, c := range map[string]struct {
		change func(*spec)
		part   string
	}{
		"a policy for no template":              {func(s *spec) { s.AppliesToTemplates = nil }, "set appliesToTemplates, appliesToWorkspaces, or both"},
		"a Workspace's name with a class":       {func(s *spec) { s.AppliesToWorkspaces = []string{"[a-z]"} }, "appliesToWorkspaces"},
		"a template's name with a class":        {func(s *spec) { s.AppliesToTemplates = []string{"[a-z]"} }, "appliesToTemplates"},
		"an IPv4 address":                       {egress("192.0.2.1"), "is an address"},
		"an IPv6 address":                       {egress("2001:db8::1"), "is an address"},
		"a number that clients take for one":    {egress("0x7f.1"), "ends with a number"},
		"every name":                            {egress("*"), "would allow every name"},
		"a top-level domain":                    {egress("*.com"), "at least two labels"},
		"a name with a port":                    {egress("api.example.com:8443"), "into the field ports"},
		"a URL":                                 {egress("https://api.example.com"), "leave out scheme and path"},
		"a name in capitals":                    {egress("API.example.com"), "lower case"},
		"a star in the middle":                  {egress("a.*.example.com"), "lower case"},
		"a Service":                             {egress("db.shop.svc"), "ends with .svc"},
		"a Service in full":                     {egress("db.shop.svc.cluster.local"), "ends with .local"},
		"the metadata server":                   {egress("metadata.google.internal"), "ends with .internal"},
		"a name of one label":                   {egress("kubernetes"), "only one label"},
		"a host of a credential without egress": {first(func(g *v1alpha1.CredentialGrant) { g.Delivery.ProxyInjected.Hosts = []string{"other.example.com"} }), "not allowed by spec.egress"},
		"a pattern of a credential that is wider than egress": {first(func(g *v1alpha1.CredentialGrant) { g.Delivery.ProxyInjected.Hosts = []string{"*.example.com"} }), "not allowed by spec.egress"},
		"a Secret that the author may not read":               {first(func(g *v1alpha1.CredentialGrant) { g.Secret.Name = "admin-token" }), "may not read Secret"},
		"a credential without a provider":                     {first(func(g *v1alpha1.CredentialGrant) { g.Secret = nil }), "exactly one of secret"},
		"a credential of two providers":                       {first(func(g *v1alpha1.CredentialGrant) { g.TokenPool = &v1alpha1.TokenPool{SecretName: "model-key"} }), "exactly one of secret"},
		"a pool without hosts": {first(func(g *v1alpha1.CredentialGrant) {
			g.Secret, g.TokenPool, g.Delivery.ProxyInjected.Hosts = nil, &v1alpha1.TokenPool{SecretName: "model-key"}, nil
		}), "hosts"},
		"an App without numbers": {first(func(g *v1alpha1.CredentialGrant) {
			g.Secret, g.GitHubApp = nil, &v1alpha1.GitHubApp{PrivateKey: v1alpha1.SecretKey{Name: "model-key", Key: "key"}}
		}), "appID"},
		"a credential that goes both ways": {first(func(g *v1alpha1.CredentialGrant) {
			g.Delivery.InContainer = &v1alpha1.InContainer{Accepted: true, Reason: why}
		}), "exactly one of proxyInjected"},
		"a credential in the container that nobody accepts": {first(func(g *v1alpha1.CredentialGrant) {
			g.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Reason: why}}
		}), "must be true"},
		"a credential in the container without a reason": {first(func(g *v1alpha1.CredentialGrant) {
			g.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: "because"}}
		}), "at least 20"},
		"cooperation without a reason": {func(s *spec) { s.Interception.CooperativeAccepted = &v1alpha1.Acceptance{Accepted: true} }, "at least 20"},
		"a discovery for 8 days":       {discovering(8 * 24 * time.Hour), "more than 168h0m0s ahead"},
		"a discovery that is over":     {discovering(-time.Minute), "is over"},
		"a discovery without a reason": {func(s *spec) { discovering(time.Hour)(s); s.EgressDiscovery.Reason = "" }, "at least 20"},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := author.Create(t.Context(), policy(namespace, "refused", c.change), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), c.part) {
				t.Errorf("the answer is %v, and not that it %q", err, c.part)
			}
		})
	}
	if err := author.Create(t.Context(), policy(namespace, "fine", discovering(6*24*time.Hour), egress("*.cdn.example.com"), func(s *spec) {
		s.Grants.Credentials = append(s.Grants.Credentials, injected("git", "model-key", "a.git.example.com", "*.git.example.com"))
	}), client.DryRunAll); err != nil {
		t.Error(err)
	}
	if err := author.Create(t.Context(), policy(namespace, "workspaces-alone", func(s *spec) {
		s.AppliesToTemplates, s.AppliesToWorkspaces = nil, []string{"app-*"}
	}), client.DryRunAll); err != nil {
		t.Error(err)
	}
}

func reason(ctx context.Context, t *testing.T, of *v1alpha1.BrokerPolicy) string {
	t.Helper()
	p := &v1alpha1.BrokerPolicy{}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(of), p); err != nil {
		t.Fatal(err)
	}
	active, expired := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionDiscoveryModeActive), meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionDiscoveryExpired)
	if active == nil || expired == nil || p.Status.ObservedGeneration != p.Generation {
		return ""
	}
	if (active.Status == metav1.ConditionTrue) != (active.Reason == v1alpha1.DiscoveryActive) || (expired.Status == metav1.ConditionTrue) != (expired.Reason == v1alpha1.DiscoveryExpired) || active.Reason != expired.Reason {
		t.Fatalf("the conditions contradict each other: %+v, %+v", active, expired)
	}
	return active.Reason
}

func becomes(t *testing.T, p *v1alpha1.BrokerPolicy, want string) {
	t.Helper()
	testkit.Eventually(t, p.Name+" becomes "+want, func(ctx context.Context) bool { return reason(ctx, t, p) == want })
}

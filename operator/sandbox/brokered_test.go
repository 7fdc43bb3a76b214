package sandbox_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/sandbox"
	"github.com/admitkit/admitkit/testing/managertest"
)

// leased is a sandbox whose runs have a broker.
type leased struct {
	*story
	broker string // namespace
	port   int32
	// upstream is the private authority of servers.
	upstream string
	enforce  func(t *testing.T, level string)
}

// TestBrokeredRuns has the real broker, which makes its own certificate, beside the sandbox.
func TestBrokeredRuns(t *testing.T) {
	kept := &records{}
	fail := admissionregistrationv1.Fail
	gate := extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if strings.HasPrefix(pod.Labels[sandbox.LabelRun], listedNode) {
			pod.Spec.NodeName = listedNode
			return nil
		}
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/test"}}
		return nil
	}, extension.Scope{Name: "gate", FailurePolicy: &fail, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gated": "yes"}}})
	sealing := extension.ValidatingFunc(func(_ context.Context, _ *corev1.Secret, _ *extension.Request) error {
		return extension.Denyf("nobody fills this")
	}, extension.Scope{
		Name: "sealing", FailurePolicy: &fail, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gated": "yes"}},
		Rules:           extension.Resources("", "v1", []string{"secrets"}, admissionregistrationv1.Update),
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "sealed", Expression: "request.name == 'sandbox-sealed-credentials'"}},
	})
	l := &leased{broker: testkit.ManagerNamespace(t, admin), port: freeport.For(t)}
	i := install(t, sandbox.Options{
		Interactive: true, SeedImage: pinned,
		Egress: egress.Options{Mode: egress.ModeOn, PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/12"}},
		Proxy:  sandbox.ProxyOptions{Image: "example.com/sandbox:1", UpstreamCA: "upstream"},
		Broker: sandbox.BrokerOptions{Namespace: l.broker, URL: fmt.Sprintf("https://localhost:%d", l.port), ServiceAccount: "testbrokeredruns-reconciler"},
	}, func() any { return kept }, func() any { return gate }, func() any { return sealing }, func() any { return sandbox.BrokerPolicies{} })
	l.story = &story{i, kept}
	port := int32(6443)
	testkit.Create(t, admin, &discoveryv1.EndpointSlice{ // as the API server of a cluster makes it
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-ipv4", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	})
	private := testkit.NewClientCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	private.Write(t, file)
	authority, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l.upstream = string(authority)
	testkit.Create(t, admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: i.WebhookNamespace, Name: "upstream"}, Data: map[string]string{"ca.crt": l.upstream}})
	root := sandbox.RootSecret()
	root.Namespace = i.WebhookNamespace
	l.enforce = func(t *testing.T, level string) {
		label := fmt.Sprintf(`{"metadata": {"labels": {"gated": "yes", "pod-security.kubernetes.io/enforce": %q}}}`, level)
		if err := admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.here}}, client.RawPatch("application/merge-patch+json", []byte(label))); err != nil {
			t.Fatal(err)
		}
	}
	l.enforce(t, "privileged")
	plain, coded, other := template(i.here, "plain-1"), template(i.here, "coder-1"), template(i.here, "other")
	coded.Spec.Requires = &v1alpha1.SandboxRequires{Credentials: []string{"MODEL", "git"}}
	other.Spec.Requires = &v1alpha1.SandboxRequires{Credentials: []string{"MODEL", "ghost"}}
	testkit.Create(t, admin, plain, coded, other,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: i.here, Name: "keys"}, StringData: map[string]string{"model": "sesame", "git": "open"}},
		policyOf(i.here, "coders", "coder-*"), policyOf(i.here, "plains", "plain-*"))
	first := run(i.here, "waits", "coder-1")
	testkit.Create(t, i.alice, first)
	await(t, first, "waits for the broker", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionBrokerReady)
		return run.Status.Phase == v1alpha1.SandboxPending && c != nil && c.Reason == v1alpha1.BrokerUnavailable && run.Status.JobUID == ""
	})
	var survivor *v1alpha1.SandboxRun
	var fetching *v1alpha1.Workspace
	t.Run("with the broker", func(t *testing.T) {
		l.serve(t, "broker")
		touched := 0
		await(t, first, "says what the operator has to make", func(run *v1alpha1.SandboxRun) bool {
			touched++ // so that it asks now
			testkit.Change(t, admin, run.DeepCopy(), func(r *v1alpha1.SandboxRun) {
				r.Annotations = map[string]string{"example.com/touched": fmt.Sprint(touched)}
			})
			c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionBrokerReady)
			return c != nil && strings.Contains(c.Message, "kubectl create secret generic sandbox-proxy-root") && run.Status.JobUID == ""
		})
		testkit.Create(t, admin, root)
		// These change Pod Security in the namespace of all.
		t.Run("they have a proxy, and the credentials that were accepted", l.equipped)
		t.Run("they are redirected", l.redirected)
		testkit.Parallel(t, map[string]func(*testing.T){
			"they ask again by themselves": func(t *testing.T) {
				await(t, first, "has its Job", func(run *v1alpha1.SandboxRun) bool { return run.Status.JobUID != "" })
			},
			"they are refused if nobody grants what they require":           l.requires,
			"they heed an acceptance that is withdrawn while they wait":     l.withdrawn,
			"they keep their credentials as they were":                      l.tampered,
			"their output has no credential":                                l.discreet,
			"they lease nothing that they cannot keep":                      l.unkept,
			"nobody gets into them unless every policy says so":             l.closed,
			"their proxy has what it needs":                                 l.proxied,
			"they reach the names of their template without a policy":       l.listed,
			"they leave no lease":                                           l.revoked,
			"nobody can claim to be one":                                    l.forged,
			"the seeds of Workspaces have theirs for as long as they fetch": l.seeded,
		})
		survivor, fetching = l.started(t, "survivor", "coder-1"), l.fetches(t, "lent-survivor")
		l.borrowed(t, fetching)
	})
	t.Run("without the broker they can go", func(t *testing.T) {
		for _, object := range []client.Object{survivor, fetching} {
			if err := admin.Delete(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
		for _, object := range []client.Object{survivor, fetching} {
			gone(t, object)
			if len(l.leases(t, object)) == 0 {
				t.Errorf("nobody accounts for the lease of a %T that went while the broker was down", object)
			}
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := sandbox.EndLeases(short, admin, l.here, l.broker)
		if err == nil || !strings.Contains(err.Error(), "leases are not revoked yet: see that the broker in namespace "+l.broker+" runs") {
			t.Errorf("an uninstall leaves leases, and says %v", err)
		}
	})
	t.Run("the broker revokes when it is back", func(t *testing.T) {
		l.serve(t, "broker-again")
		testkit.Within(t, patience, "no lease is left", func(context.Context) bool { return len(l.leases(t, survivor))+len(l.leases(t, fetching)) == 0 })
		t.Run("and an uninstall has it revoke the rest", l.uninstalled)
	})
}

func (l *leased) uninstalled(t *testing.T) {
	works, fetching := l.started(t, "works-still", "coder-1"), l.fetches(t, "lent-still")
	l.borrowed(t, fetching)
	if len(l.leases(t, works)) == 0 || len(l.leases(t, fetching)) == 0 {
		t.Fatal("there is no lease that could be left")
	}
	l.Stop()
	var list v1alpha1.CredentialLeaseList
	if err := admin.List(t.Context(), &list, client.InNamespace(l.broker)); err != nil || len(list.Items) > 0 {
		t.Errorf("%v: left are %+v", err, list.Items)
	}
	for _, suffix := range []string{"-proxy", "-credentials"} {
		gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "sandbox-" + works.Name + suffix}})
	}
	await(t, works, "says why it has ended", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionCompleted)
		return run.Status.Phase == v1alpha1.SandboxCancelled && c.Reason == v1alpha1.SandboxUninstalled && len(run.Finalizers) == 0
	})
	awaitWorkspace(t, fetching, "says why it has failed", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSeeded)
		return s.Phase == v1alpha1.WorkspaceFailed && c.Reason == v1alpha1.SandboxUninstalled
	})
}

func policyOf(namespace, name, templates string) *v1alpha1.BrokerPolicy {
	words := "the tests of the sandbox want to see this"
	p := &v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.AppliesToTemplates = []string{templates}
	p.Spec.Egress = []v1alpha1.EgressName{{Host: "api.example.com"}}
	if name == "plains" {
		return p
	}
	p.Spec.Interception.CooperativeAccepted = &v1alpha1.Acceptance{Accepted: true, Reason: words}
	p.Spec.Grants.Credentials = []v1alpha1.CredentialGrant{
		{Name: "MODEL", Secret: &v1alpha1.SecretKey{Name: "keys", Key: "model"}, Delivery: v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: words}}},
		{Name: "git", Secret: &v1alpha1.SecretKey{Name: "keys", Key: "git"}, Delivery: v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{Hosts: []string{"api.example.com"}, Header: "Authorization"}}},
	}
	return p
}

// serve runs the broker until the test ends.
func (l *leased) serve(t *testing.T, name string) {
	t.Helper()
	managertest.Run(t, server, managertest.Options{Name: name, Manager: manager.Options{Namespaces: []string{l.here}, WebhookNamespace: l.broker}}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(broker.New(broker.Options{
			Address: fmt.Sprintf("127.0.0.1:%d", l.port), ServingNames: []string{"localhost"}, Namespaces: []string{l.here},
			Controllers: []string{"system:serviceaccount:" + l.WebhookNamespace + ":" + l.name + "-reconciler"},
		}))
	})
}

func (l *leased) leases(t *testing.T, of client.Object) (found []v1alpha1.CredentialLease) {
	t.Helper()
	var list v1alpha1.CredentialLeaseList
	if err := admin.List(t.Context(), &list, client.InNamespace(l.broker)); err != nil {
		t.Error(err)
	}
	for _, lease := range list.Items {
		if lease.Spec.Run.UID == of.GetUID() {
			found = append(found, lease)
		}
	}
	return found
}

// started makes a run, whose Pod waits.
func (l *leased) started(t *testing.T, name, template string) *v1alpha1.SandboxRun {
	t.Helper()
	r := run(l.here, name, template)
	testkit.Create(t, l.alice, r)
	await(t, r, "has its Pod", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	return r
}

func (l *leased) secret(t *testing.T, run *v1alpha1.SandboxRun, suffix string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.here, Name: "sandbox-" + run.Name + suffix}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func (l *leased) requires(t *testing.T) {
	err := l.alice.Create(t.Context(), run(l.here, "short", "other"))
	refused(t, err, "MODEL is granted by none: add other to spec.appliesToTemplates of coders")
	refused(t, err, "ghost is granted by none: make a BrokerPolicy")
	twice := template(l.here, "twice")
	twice.Spec.Requires = &v1alpha1.SandboxRequires{Credentials: []string{"MODEL"}}
	testkit.Create(t, admin, twice, policyOf(l.here, "one", "twice"), policyOf(l.here, "two", "twice"))
	refused(t, l.alice.Create(t.Context(), run(l.here, "twice", "twice")), "MODEL is granted by several of them (one, two)")
}

func (l *leased) equipped(t *testing.T) {
	l.enforce(t, "restricted") // the API server itself judges the Pod
	defer l.enforce(t, "privileged")
	r := l.started(t, "equipped", "coder-1")
	if r.Status.Interception != v1alpha1.InterceptionCooperative || len(r.Status.Credentials) != 1 || r.Status.Credentials[0].Name != "MODEL" {
		t.Errorf("%+v", r.Status)
	}
	how := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionInterceptionUnavailable)
	if how == nil || how.Status != metav1.ConditionFalse || !strings.Contains(how.Message, "reaches every public address") || !strings.Contains(how.Message, "coders") {
		t.Errorf("%+v", how)
	}
	if leases := l.leases(t, r); len(leases) != 1 || leases[0].Name != r.Status.Credentials[0].Lease {
		t.Errorf("%+v", leases)
	}
	testkit.Within(t, patience, "the record of its start names its credentials", func(context.Context) bool {
		l.kept.mu.Lock()
		defer l.kept.mu.Unlock()
		return slices.ContainsFunc(l.kept.kept, func(record extension.Record) bool {
			return record.Object.UID == r.UID && record.Action == "started" && strings.HasSuffix(record.Reason, ", with 1 credentials in its container: MODEL (lease "+r.Status.Credentials[0].Lease+")")
		})
	})
	if credentials := l.secret(t, r, "-credentials"); len(credentials.Data) != 1 || string(credentials.Data["MODEL"]) != "sesame" {
		t.Errorf("the Secret has %d keys", len(credentials.Data))
	}
	l.checkAuthority(t, l.secret(t, r, "-proxy"))
	pod := l.job(t, r).Spec.Template.Spec
	if len(pod.InitContainers) != 1 || pod.InitContainers[0].Name != "egress-proxy" {
		t.Fatalf("%+v", pod.InitContainers)
	}
	if !slices.Contains(pod.InitContainers[0].Args, "--upstream-ca-file=/run/admitkit/upstream/ca.crt") || string(l.secret(t, r, "-proxy").Data["upstream-ca.crt"]) != l.upstream {
		t.Errorf("%q: the proxy does not accept the servers that the operator names", pod.InitContainers[0].Args)
	}
	work, mounts := pod.Containers[0], map[string][]string{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			mounts[m.Name] = append(mounts[m.Name], c.Name)
		}
	}
	if !slices.Equal(mounts["proxy"], []string{"egress-proxy"}) || !slices.Equal(mounts["ca"], []string{"sandbox"}) {
		t.Errorf("%v", mounts)
	}
	env := map[string]string{}
	for _, e := range work.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			env[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	if env["MODEL"] != "sandbox-equipped-credentials/MODEL" || env["git"] != "" || env["HTTPS_PROXY"] != "http://127.0.0.1:15001" || env["GIT_SSL_CAINFO"] != "/admitkit/ca/ca.crt" {
		t.Errorf("%v", env)
	}
	for _, v := range pod.Volumes {
		if v.Name == "ca" && (len(v.Secret.Items) != 1 || v.Secret.Items[0].Key != "ca.crt") {
			t.Errorf("the work mounts %+v", v.Secret.Items)
		}
	}
	l.checkPolicy(t, r)
}

// checkAuthority verifies a certificate of a server as the work would, with and without the root.
func (l *leased) checkAuthority(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	block, _ := pem.Decode(secret.Data["tls.crt"])
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !authority.IsCA || !authority.MaxPathLenZero || authority.NotAfter.Sub(authority.NotBefore).Hours() > 49 {
		t.Errorf("%v, %+v", err, authority)
	}
	root := &corev1.Secret{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.WebhookNamespace, Name: "sandbox-proxy-root"}, root); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(secret.Data["ca.crt"], root.Data["tls.crt"]) || !bytes.HasPrefix(secret.Data["ca.crt"], secret.Data["tls.crt"]) {
		t.Error("the bundle of the work is not the authority and its root")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root.Data["tls.crt"])
	if _, err := authority.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Error(err)
	}
}

func (l *leased) checkPolicy(t *testing.T, r *v1alpha1.SandboxRun) {
	t.Helper()
	var peers []string
	for _, rule := range l.policy(t, r).Spec.Egress {
		for _, to := range rule.To {
			switch {
			case to.IPBlock != nil:
				peers = append(peers, to.IPBlock.CIDR)
				if !slices.Contains(to.IPBlock.Except, "10.0.0.0/8") || !slices.Contains(to.IPBlock.Except, "169.254.0.0/16") {
					t.Errorf("%+v", to.IPBlock)
				}
			case to.NamespaceSelector != nil:
				peers = append(peers, to.NamespaceSelector.MatchLabels[corev1.LabelMetadataName]+":"+rule.Ports[0].Port.String())
			}
		}
	}
	if want := []string{"kube-system:53", "0.0.0.0/0", fmt.Sprintf("%s:%d", l.broker, l.port)}; !slices.Equal(peers, want) {
		t.Errorf("the Pod reaches %q, want %q", peers, want)
	}
}

// Where Pod Security forbids the redirect the run fails: it does not run without.
func (l *leased) redirected(t *testing.T) {
	r := l.started(t, "redirected", "plain-1")
	pod := l.job(t, r).Spec.Template.Spec
	if len(pod.InitContainers) != 2 || pod.InitContainers[0].Name != "egress-redirect" || pod.InitContainers[1].Name != "egress-proxy" || r.Status.Interception != v1alpha1.InterceptionTransparent {
		t.Fatalf("%+v", pod.InitContainers)
	}
	if broker := fmt.Sprintf("--broker-port=%d", l.port); !slices.Contains(pod.InitContainers[0].Args, broker) {
		t.Errorf("%q lacks %s: work reaches the broker past its proxy", pod.InitContainers[0].Args, broker)
	}
	for name, users := range map[string]int64{"egress-redirect": 0, "egress-proxy": 1337} {
		for _, c := range pod.InitContainers {
			if c.Name == name && (*c.SecurityContext.RunAsUser != users || (len(c.SecurityContext.Capabilities.Add) > 0) != (users == 0)) {
				t.Errorf("%+v", c.SecurityContext)
			}
		}
	}
	if slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "HTTPS_PROXY" }) {
		t.Error("redirected work is told of the proxy")
	}
	l.enforce(t, "baseline")
	defer l.enforce(t, "privileged")
	unable := run(l.here, "unable", "plain-1")
	testkit.Create(t, l.alice, unable)
	await(t, unable, "has failed", in(v1alpha1.SandboxFailed))
	c := meta.FindStatusCondition(unable.Status.Conditions, v1alpha1.ConditionInterceptionUnavailable)
	if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "enforce=baseline") || unable.Status.JobUID != "" {
		t.Errorf("%+v", unable.Status)
	}
}

func (l *leased) discreet(t *testing.T) {
	r := l.started(t, "discreet", "coder-1")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: r.Status.PodName}}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	ends(t, pod, corev1.PodFailed, 1, "it said sesame")
	await(t, r, "has failed", in(v1alpha1.SandboxFailed))
	if r.Status.Output != "it said ***" {
		t.Errorf("%q", r.Status.Output)
	}
}

func (l *leased) withdrawn(t *testing.T) {
	policy, r := policyOf(l.here, "fickle", "fickle-*"), run(l.here, "fickle", "fickle-1")
	r.Spec.WorkspaceRef = &v1alpha1.SandboxWorkspaceRef{Name: "none"} // so that it waits
	testkit.Create(t, admin, policy, template(l.here, "fickle-1"), r)
	is := func(mode string) func(*v1alpha1.SandboxRun) bool {
		return func(run *v1alpha1.SandboxRun) bool {
			c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionInterceptionUnavailable)
			return run.Status.Interception == "" && run.Status.Egress == nil && (c == nil && mode == "" || c != nil && c.Reason == mode)
		}
	}
	await(t, r, "is to cooperate", is("Cooperative"))
	for _, step := range []struct{ mode, text string }{
		{"Transparent", `{"spec": {"interception": {"cooperativeAccepted": null}}}`},
		{"Cooperative", `{"spec": {"interception": {"cooperativeAccepted": {"accepted": true, "reason": "it was withdrawn by mistake"}}}}`},
		{"", `{"spec": {"appliesToTemplates": ["another"]}}`},
	} {
		if err := admin.Patch(t.Context(), policy, client.RawPatch("application/merge-patch+json", []byte(step.text))); err != nil {
			t.Fatal(err)
		}
		await(t, r, "follows the policy", is(step.mode))
	}
	if err := admin.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	self := l.As("system:serviceaccount:"+l.WebhookNamespace+":"+l.name+"-reconciler", "system:masters")
	for text, started := range map[string]*v1alpha1.SandboxRun{
		`{"status": {"interception": null}}`:          l.started(t, "settled", "coder-1"),
		`{"status": {"interception": "Transparent"}}`: l.started(t, "settled-2", "coder-1"),
	} {
		of := &unstructured.Unstructured{}
		of.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("SandboxRun"))
		of.SetNamespace(started.Namespace)
		of.SetName(started.Name)
		refused(t, self.Status().Patch(t.Context(), of, client.RawPatch("application/merge-patch+json", []byte(text))), "decided once")
	}
}

// The Pods wait before a node, so that nobody who is let through gets far.
func (l *leased) closed(t *testing.T) {
	r := l.started(t, "closed", "coder-1")
	try := func(args ...string) string {
		out, _ := server.Kubectl(t.Context(), nil, append([]string{"-n", l.here}, args...)...).CombinedOutput()
		return string(out)
	}
	expect := func(want string, args ...string) {
		t.Helper()
		if got := try(args...); !strings.Contains(got, want) {
			t.Errorf("%q: %s", args, got)
		}
	}
	expect("set spec.runs.shell in coders", "exec", r.Status.PodName, "--", "true")
	expect("container: egress-proxy of Pod", "exec", r.Status.PodName, "-c", "egress-proxy", "--", "true")
	expect("container: egress-proxy of Pod", "attach", r.Status.PodName, "-c", "egress-proxy")
	shared := template(l.here, "coder-shared")
	shared.Spec.Interactive = &v1alpha1.InteractiveLimits{}
	testkit.Create(t, admin, shared)
	live := run(l.here, "live", "coder-shared")
	live.Spec.Mode = v1alpha1.SandboxInteractive
	refused(t, l.alice.Create(t.Context(), live.DeepCopy()), "spec.mode: BrokerPolicies apply to template coder-shared that let nobody in, since a person there would use its credentials: set spec.runs.interact in coders")
	policy := &v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "coders"}}
	open := func(text string) {
		if err := admin.Patch(t.Context(), policy.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	open(`{"spec": {"runs": {"interact": true, "shell": true}}}`)
	defer open(`{"spec": {"runs": null}}`)
	if err := l.alice.Create(t.Context(), live, client.DryRunAll); err != nil {
		t.Error(err)
	}
	if got := try("exec", r.Status.PodName, "--", "true"); strings.Contains(got, "spec.runs.shell") || !strings.Contains(got, "does not have a host assigned") {
		t.Errorf("with the word of the policy: %s", got)
	}
	expect("container: egress-proxy of Pod", "exec", r.Status.PodName, "-c", "egress-proxy", "--", "true")
}

func (l *leased) tampered(t *testing.T) {
	r := l.started(t, "tampered", "coder-1")
	lease := r.Status.Credentials[0].Lease
	changes := 0
	change := func(text string) {
		changes++
		if err := admin.Patch(t.Context(), l.secret(t, r, "-credentials"), client.RawPatch("application/merge-patch+json", []byte(text))); err != nil {
			t.Fatal(err)
		}
		touch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"annotations": {"example.com/touched": "%d"}}}`, changes))
		if err := admin.Patch(t.Context(), &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}, touch); err != nil {
			t.Fatal(err)
		}
	}
	change(`{"stringData": {"LD_PRELOAD": "evil"}}`)
	testkit.Succeeds(t, patience, "the key is out again", func(context.Context) error {
		if data := l.secret(t, r, "-credentials").Data; len(data) != 1 || string(data["MODEL"]) != "sesame" {
			return fmt.Errorf("%d keys", len(data))
		}
		return nil
	})
	l.recorded(t, r, "started", "credentials-tampered")
	l.kept.mu.Lock()
	for _, record := range l.kept.kept {
		if record.Object.UID == r.UID && record.Action == "credentials-tampered" && (!strings.Contains(record.Reason, "LD_PRELOAD") || strings.Contains(record.Reason, "evil")) {
			t.Errorf("%+v", record)
		}
	}
	l.kept.mu.Unlock()
	records := []string{"started", "credentials-tampered"}
	for _, text := range []string{`{"stringData": {"MODEL": "evil twin"}}`, `{"data": {"MODEL": ""}}`} {
		change(text)
		testkit.Succeeds(t, patience, "the credential is as it was", func(context.Context) error {
			if data := l.secret(t, r, "-credentials").Data; string(data["MODEL"]) != "sesame" {
				return errors.New("it is not")
			}
			return nil
		})
		records = append(records, "credentials-tampered")
		l.recorded(t, r, records...)
	}
	l.kept.mu.Lock()
	for _, record := range l.kept.kept {
		if record.Object.UID == r.UID && (strings.Contains(record.Reason, "evil") || strings.Contains(record.Reason, "sesame")) {
			t.Errorf("a value is on record: %+v", record)
		}
	}
	l.kept.mu.Unlock()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil || r.Status.Credentials[0].Digest == "" {
		t.Errorf("%v, %+v", err, r.Status.Credentials)
	}
	if leases := l.leases(t, r); len(leases) != 1 || leases[0].Name != lease { // a Secret cannot be revoked: its lease is renewed
		t.Errorf("%+v", leases)
	}
}

// The pool has one token, so that whoever has it in vain keeps it from the others.
func (l *leased) unkept(t *testing.T) {
	pool := policyOf(l.here, "pools", "pooled")
	pool.Spec.Grants.Credentials[0].Name, pool.Spec.Grants.Credentials[0].Secret, pool.Spec.Grants.Credentials[0].TokenPool = "TOKEN", nil, &v1alpha1.TokenPool{SecretName: "pool"}
	pool.Spec.Grants.Credentials = pool.Spec.Grants.Credentials[:1]
	pooled := template(l.here, "pooled")
	pooled.Spec.Requires = &v1alpha1.SandboxRequires{Credentials: []string{"TOKEN"}}
	made := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "sandbox-" + name + "-credentials"}, StringData: map[string]string{"TOKEN": "theirs"}}
	}
	testkit.Create(t, admin, pool, pooled, made("robbed"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "pool"}, StringData: map[string]string{"one": "only"}})
	waits := func(reason, text string) func(*v1alpha1.SandboxRun) bool {
		return func(run *v1alpha1.SandboxRun) bool {
			c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionJobCreated)
			return c != nil && c.Reason == reason && strings.Contains(c.Message, text) && run.Status.JobUID == ""
		}
	}
	robbed, sealed, misled := run(l.here, "robbed", "pooled"), run(l.here, "sealed", "pooled"), run(l.here, "misled", "pooled")
	testkit.Create(t, l.alice, robbed, sealed)
	await(t, robbed, "says that the name is taken", waits(v1alpha1.SandboxNameTaken, "Secret"))
	await(t, sealed, "says that its Secret is refused", waits(v1alpha1.SandboxRefused, "nobody fills this"))
	testkit.Within(t, patience, "neither has the token", func(context.Context) bool { return len(l.leases(t, robbed))+len(l.leases(t, sealed)) == 0 })
	for _, r := range []*v1alpha1.SandboxRun{robbed, sealed} {
		if err := admin.Delete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	// One that names the run as its owner, and cannot be written.
	misled.Spec.TemplateRef.Name = "pooled-later"
	testkit.Create(t, l.alice, misled)
	await(t, misled, "waits for its template", in(v1alpha1.SandboxPending))
	forged := made("misled")
	forged.Immutable, forged.OwnerReferences = new(true), []metav1.OwnerReference{*metav1.NewControllerRef(misled, v1alpha1.GroupVersion.WithKind("SandboxRun"))}
	pool.Spec.AppliesToTemplates = []string{"pooled*"}
	later := pooled.DeepCopy()
	later.ObjectMeta = metav1.ObjectMeta{Namespace: l.here, Name: "pooled-later"}
	if err := admin.Patch(t.Context(), pool, client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"appliesToTemplates": ["pooled*"]}}`))); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, forged, later)
	await(t, misled, "has its Pod", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	if data := l.secret(t, misled, "-credentials").Data; string(data["TOKEN"]) != "only" {
		t.Errorf("the Secret has %d keys, and another's token", len(data))
	}
	// Somebody who puts another Secret in its place does not keep the run from its end.
	testkit.Create(t, admin, func() client.Object {
		if err := admin.Delete(t.Context(), l.secret(t, misled, "-credentials")); err != nil {
			t.Fatal(err)
		}
		return made("misled")
	}())
	if err := l.alice.Delete(t.Context(), misled.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	gone(t, misled)
}

func (l *leased) revoked(t *testing.T) {
	r := l.started(t, "revoked", "coder-1")
	if len(l.leases(t, r)) != 1 {
		t.Fatal("there is no lease")
	}
	if err := l.alice.Delete(t.Context(), r.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	gone(t, r)
	if left := l.leases(t, r); len(left) > 0 {
		t.Errorf("the run is gone, and %+v is left", left)
	}
	for _, suffix := range []string{"-proxy", "-credentials"} {
		gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "sandbox-revoked" + suffix}})
	}
}

func (l *leased) forged(t *testing.T) {
	r := l.started(t, "genuine", "coder-1")
	grant(t, "alice", rbacv1.PolicyRule{APIGroups: []string{"", "batch"}, Resources: []string{"jobs", "jobs/status", "pods/binding", "pods/ephemeralcontainers", "pods/resize"}, Verbs: []string{"create", "update", "patch"}})
	job := l.job(t, r)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, GenerateName: "forged-"}}
		p.Spec.Containers = []corev1.Container{{Name: "work", Image: image}}
		change(p)
		return p
	}
	owner := *metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))
	refused(t, l.alice.Create(t.Context(), pod(func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{owner} })), "claims to be of a SandboxRun")
	refused(t, l.alice.Create(t.Context(), pod(func(p *corev1.Pod) { p.Labels = map[string]string{sandbox.LabelRun: r.Name} })), "only Pods of SandboxRuns and Workspaces")
	plain := pod(func(*corev1.Pod) {})
	testkit.Create(t, l.alice, plain)
	plain.OwnerReferences, plain.ResourceVersion = []metav1.OwnerReference{owner}, "" // the scheduler and the kubelet write it, too
	refused(t, l.alice.Update(t.Context(), plain), "only the controller of Jobs makes Pods")
	disguised := pod(func(p *corev1.Pod) {
		other := owner
		other.APIVersion, other.Kind = "example.com/v1", "Foo"
		p.OwnerReferences = []metav1.OwnerReference{other}
	})
	testkit.Create(t, l.alice, disguised)
	disguised.OwnerReferences, disguised.ResourceVersion = []metav1.OwnerReference{owner}, ""
	refused(t, l.alice.Update(t.Context(), disguised), "only the controller of Jobs makes Pods")
	if err := admin.Delete(t.Context(), disguised, client.GracePeriodSeconds(0)); err != nil { // the deletion of the Job would wait for it
		t.Fatal(err)
	}
	forged := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "forged", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r, v1alpha1.GroupVersion.WithKind("SandboxRun"))}}}
	forged.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: image}}}
	refused(t, l.alice.Create(t.Context(), forged), "only admitkit makes Jobs of SandboxRuns")
	unbound := pod(func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" })
	testkit.Create(t, l.alice, unbound)
	refused(t, l.alice.SubResource("binding").Create(t.Context(), unbound, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: unbound.Name, Labels: map[string]string{sandbox.LabelRun: r.Name}}, Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"},
	}), "leave out "+sandbox.LabelRun)
	adopted := forged.DeepCopy()
	adopted.OwnerReferences = nil
	testkit.Create(t, l.alice, adopted)
	before := adopted.DeepCopy()
	adopted.OwnerReferences = forged.OwnerReferences
	refused(t, l.alice.Status().Patch(t.Context(), adopted, client.MergeFrom(before)), "only admitkit makes Jobs of SandboxRuns")
	genuine := &corev1.Pod{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.here, Name: r.Status.PodName}, genuine); err != nil {
		t.Fatal(err)
	}
	genuine.ResourceVersion = ""
	changed := genuine.DeepCopy()
	changed.Spec.InitContainers[0].Image = "example.com/evil:1"
	refused(t, l.alice.Update(t.Context(), changed), "its images cannot be changed")
	changed = genuine.DeepCopy()
	changed.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: image}}}
	refused(t, l.alice.SubResource("ephemeralcontainers").Update(t.Context(), changed), "could read what its proxy has")
	changed = genuine.DeepCopy()
	changed.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("64")
	refused(t, l.alice.SubResource("resize").Update(t.Context(), changed), "what it may use is its template's")
	orphan := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`)) // it would outlive the run
	refused(t, l.alice.Patch(t.Context(), job.DeepCopy(), orphan), "ends with it")
	refused(t, l.alice.Status().Patch(t.Context(), job.DeepCopy(), orphan), "ends with it")
}

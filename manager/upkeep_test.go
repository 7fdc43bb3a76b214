package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

func liveConfiguration(t *testing.T, namespace string) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	return liveConfigurationAt(t, clientset, namespace)
}

func liveConfigurationAt(t *testing.T, clientset *kubernetes.Clientset, namespace string) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestEveryDriftOfTheRegistrationIsRepairedWithinTenSeconds(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{Name: "one"}), mark("b", extension.Scope{Name: "two", Timeout: time.Second}))
	eventuallyCalled(t, namespace, "marked")
	configs := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations()
	content := func() string {
		config, err := configs.Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		text, err := json.Marshal(config.Webhooks)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	edit := func(change func(*admissionregistrationv1.MutatingWebhookConfiguration)) func() {
		return func() {
			for {
				config := liveConfiguration(t, namespace)
				change(config)
				_, err := configs.Update(t.Context(), config, metav1.UpdateOptions{FieldManager: "somebody"})
				if err == nil {
					return
				}
				if !apierrors.IsConflict(err) {
					t.Fatal(err)
				}
			}
		}
	}
	ignore := admissionregistrationv1.Ignore
	slowest := 0.0
	for name, damage := range map[string]func(){
		"deleted": func() {
			if err := configs.Delete(t.Context(), "admitkit."+namespace, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"edited rules": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}
		}),
		"a wrong caBundle": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			ca, err := certs.NewCA(time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			c.Webhooks[0].ClientConfig.CABundle = ca.Bundle()
		}),
		"a removed entry": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks = c.Webhooks[1:] }),
		"a match condition that is never true": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "never", Expression: "false"}}
		}),
		"Ignore in place of Fail": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[0].FailurePolicy = &ignore }),
		"a selector that matches nothing": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}
		}),
		"our annotations removed as well": edit(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Annotations = nil
			c.Webhooks[0].Rules[0].Resources = []string{"nodes"}
		}),
	} {
		before := content()
		began := time.Now()
		damage()
		if content() == before && time.Since(began) < 10*time.Millisecond {
			t.Errorf("%s: nothing was damaged", name)
		}
		testkit.Eventually(t, name+" is repaired", func(context.Context) bool { return content() == before })
		took := time.Since(began).Seconds()
		slowest = max(slowest, took)
		t.Logf("%s: repaired after %.2f s", name, took)
		if took > 10 {
			t.Errorf("%s: repaired after %.2f s only", name, took)
		}
	}
	fmt.Printf("FIGURE drift.max_s=%.2f s\n", slowest)
}

func TestASecondInstallationOfTheSameNameSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}))
	before := liveConfiguration(t, namespace).ResourceVersion
	second := newManager(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{AdvertiseHost: "localhost"}}, mark("b", extension.Scope{}))
	err := second.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), `it belongs to "host 127.0.0.1:`) {
		t.Errorf("the second says %v", err)
	}
	if err := second.UnregisterExtensions(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to") {
		t.Errorf("the second may unregister the first: %v", err)
	}
	if after := liveConfiguration(t, namespace).ResourceVersion; after != before {
		t.Error("the second has written the configuration of the first")
	}
}

func TestABundleThatSomeoneElseInjectsIsLeftAlone(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	ca, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	port := freeport.For(t)
	registrar := newManager(t, manager.Options{Namespaces: []string{namespace}, Port: port, Certificates: manager.CertificateOptions{LeafSecretName: "cert-manager-leaf"}, Serving: manager.ServingOptions{AdvertiseHost: "127.0.0.1"}}, mark("a", extension.Scope{}))
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := newManager(t, manager.Options{
		Namespaces: []string{namespace}, Port: port, Certificates: manager.CertificateOptions{LeafSecretName: "cert-manager-leaf"}, Registration: manager.RegistrationOptions{ForeignCABundle: true, Annotations: map[string]string{"cert-manager.io/inject-ca-from": namespace + "/leaf"}},
	}, mark("b", extension.Scope{}))
	r.run(t)
	r.await(t)
	patch := fmt.Sprintf(`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":%q}]`, jsonBytes(t, ca.Bundle()))
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), "admitkit."+namespace,
		types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "cainjector"}); err != nil {
		t.Fatal(err)
	}
	// A drift in another field makes it write.
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), "admitkit."+namespace,
		types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":3}]`), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the timeout is repaired", func(context.Context) bool { return *liveConfiguration(t, namespace).Webhooks[0].TimeoutSeconds == 10 })
	config := liveConfiguration(t, namespace)
	if string(config.Webhooks[0].ClientConfig.CABundle) != string(ca.Bundle()) || config.Annotations["cert-manager.io/inject-ca-from"] == "" {
		t.Error("the injected caBundle, or the annotation that asks for it, is gone")
	}
	if err := registrar.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
}

func jsonBytes(t *testing.T, b []byte) string {
	t.Helper()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(string(text), `"`)
}

func TestManyReplicasThatStartTogetherMakeOneCAWithFewWrites(t *testing.T) {
	t.Parallel()
	var writes, probes atomic.Int64
	count := func(r *http.Request) {
		switch {
		case r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases"):
		// What a user may or is asks the API server, which stores nothing.
		case strings.HasPrefix(r.URL.Path, "/apis/authorization.k8s.io/") || strings.HasPrefix(r.URL.Path, "/apis/authentication.k8s.io/"):
		case r.URL.Query().Has("dryRun"):
			probes.Add(1)
		default:
			writes.Add(1)
		}
	}
	replicas, most := 50, int64(60)
	if testing.Short() {
		replicas, most = 20, 100 // beside other packages' tests, fifty are late by seconds, and conflict more often
	}
	cas := startTogether(t, replicas, count)
	fmt.Printf("FIGURE startup%d.cas=%d CAs\n", replicas, cas)
	fmt.Printf("FIGURE startup%d.writes=%d writes\n", replicas, writes.Load())
	t.Logf("%d dry-run probes", probes.Load())
	if cas != 1 || writes.Load() > most {
		t.Errorf("%d CAs, %d writes", cas, writes.Load())
	}
}

func TestASecretThatIsDamagedWhileItRunsIsHealedWithAReasonAndAnEvent(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := start(t, manager.Options{Namespaces: []string{namespace}, Certificates: manager.CertificateOptions{PropagationDelay: time.Second}}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	secrets := clientset.CoreV1().Secrets(namespace)
	healed := 0
	for name, damage := range map[string]func(*corev1.Secret){
		"deleted": nil,
		"emptied": func(s *corev1.Secret) { s.Data = nil },
		"garbage": func(s *corev1.Secret) {
			s.Data = map[string][]byte{certs.CertKey: []byte("garbage"), certs.KeyKey: []byte("rubble")}
		},
		"expired": func(s *corev1.Secret) {
			old, err := certs.NewCA(time.Now().Add(-48*time.Hour), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			key, err := old.KeyPEM()
			if err != nil {
				t.Fatal(err)
			}
			s.Data = map[string][]byte{certs.CertKey: old.Bundle(), certs.KeyKey: key}
		},
		"a key that does not match": func(s *corev1.Secret) {
			other, err := certs.NewCA(time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if s.Data[certs.KeyKey], err = other.KeyPEM(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		testkit.Eventually(t, "the Secret is whole", func(context.Context) bool {
			s, err := secrets.Get(t.Context(), secretName, metav1.GetOptions{})
			return err == nil && len(s.Data[certs.KeyKey]) > 0
		})
		if damage == nil {
			if err := secrets.Delete(t.Context(), secretName, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		} else {
			for {
				secret, err := secrets.Get(t.Context(), secretName, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				damage(secret)
				if _, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err == nil {
					break
				}
				if !apierrors.IsConflict(err) {
					t.Fatal(err)
				}
			}
		}
		healed++
		testkit.Eventually(t, name+": healed", func(context.Context) bool { return r.logs.FilterMessage("certificates: Restored").Len() == healed })
		if _, err := dryRunPod(t.Context(), namespace); err != nil {
			t.Errorf("%s: a call fails: %v", name, err)
		}
		testkit.Eventually(t, name+": there is an Event", func(context.Context) bool {
			events, err := clientset.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Restored"})
			return err == nil && len(events.Items) == healed
		})
	}
	for _, entry := range r.logs.FilterMessage("certificates: Restored").All() {
		t.Log(entry.ContextMap()["reason"])
	}
}

// body returns the response of an address.
func body(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestTheManagerComesBackByItselfAfterTheAPIServerAndEtcdWereAway(t *testing.T) {
	t.Parallel()
	away := testkit.Long(20*time.Second, 5*time.Second)
	cluster := controlplane.Run(t, controlplane.Options{})
	clientset, namespace := clientsetOf(cluster), metav1.NamespaceDefault
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	r := start(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: cluster.Config(), Serving: manager.ServingOptions{HealthAddress: health}}, mark("a", extension.Scope{}), newRecorder())
	works := func(ctx context.Context) bool {
		status, _ := body(t, "http://"+health+"/readyz")
		pod, err := dryRunPodAt(ctx, clientset, namespace)
		return status == http.StatusOK && err == nil && pod.Annotations["marked"] != ""
	}
	testkit.Eventually(t, "it works", works)
	before := liveConfigurationAt(t, clientset, namespace)
	if err := cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	pause := time.NewTimer(away) // the outage itself, which has a length
	<-pause.C
	if err := cluster.StartEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	testkit.Eventually(t, "it works after etcd's outage", works)
	fmt.Printf("FIGURE etcd.recovery_s=%.2f s\n", time.Since(began).Seconds())
	if err := cluster.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	testkit.Eventually(t, "it works after kube-apiserver's restart", works)
	fmt.Printf("FIGURE apiserver.recovery_s=%.2f s\n", time.Since(began).Seconds())
	if after := liveConfigurationAt(t, clientset, namespace); after.UID != before.UID || string(after.Webhooks[0].ClientConfig.CABundle) != string(before.Webhooks[0].ClientConfig.CABundle) {
		t.Error("the registration was lost")
	}
	if err := r.GetContext().Err(); err != nil {
		t.Fatalf("the manager ended: %v", err)
	}
}

func TestReadinessSaysWhyAManagerIsNotReady(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	// Nobody listens at the address that the API server calls.
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{AdvertiseHost: "admitkit.invalid", HealthAddress: health}, Host: "127.0.0.1"}, mark("a", extension.Scope{}))
	testkit.Eventually(t, "readyz names the probe and its error", func(context.Context) bool {
		status, text := body(t, "http://"+health+"/readyz")
		return status == http.StatusInternalServerError && strings.Contains(text, "[-]probe failed:") && strings.Contains(text, "admitkit.invalid") &&
			strings.Contains(text, "[+]certificate ok") && strings.Contains(text, "[+]caches ok")
	})
	_ = r
}

func TestTheFailurePolicyTurnsFromIgnoreToFailOnceAProbeCameBack(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	policy := func() admissionregistrationv1.FailurePolicyType {
		return *liveConfiguration(t, namespace).Webhooks[0].FailurePolicy
	}
	port := freeport.For(t)
	unreachable := newManager(t, manager.Options{Namespaces: []string{namespace}, Port: port, Registration: manager.RegistrationOptions{IgnoreUntilProbed: true}}, mark("a", extension.Scope{}))
	if err := unreachable.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if policy() != admissionregistrationv1.Ignore {
		t.Error("it is not Ignore at first")
	}
	r := start(t, manager.Options{Namespaces: []string{namespace}, Port: port, Registration: manager.RegistrationOptions{IgnoreUntilProbed: true}}, mark("a", extension.Scope{}))
	testkit.Eventually(t, "it is Fail after the probe", func(context.Context) bool { return policy() == admissionregistrationv1.Fail })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := unreachable.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if policy() != admissionregistrationv1.Fail {
		t.Error("it went back to Ignore")
	}
	if liveConfiguration(t, namespace).Annotations[registration.ProbedAnnotation] != "true" {
		t.Error("it is not written down that a probe came back")
	}
}

func TestUnregisterLeavesNothingWithOurLabel(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, Certificates: manager.CertificateOptions{LeafSecretName: "leaf"}, Watching: manager.WatchingOptions{LeaderElection: true}}
	r := start(t, options, mark("a", extension.Scope{}), &recorder{events: make(chan string, 100)})
	eventuallyCalled(t, namespace, "marked")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if left := labelled(t, namespace); len(left) < 4 {
		t.Fatalf("there is less than expected to remove: %v", left)
	}
	if err := r.UnregisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := labelled(t, namespace)
	fmt.Printf("FIGURE unregister.left=%d objects\n", len(left))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if removed := r.logs.FilterMessage("removed").Len(); removed < 4 {
		t.Errorf("it says of %d objects that they were removed", removed)
	}
}

// labelled lists every object in the namespace and the cluster that has our label, and
// the Lease, which client-go creates without it.
func labelled(t *testing.T, namespace string) []string {
	t.Helper()
	lists, err := clientset.Discovery().ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // other tests remove their kinds meanwhile
		t.Fatal(err)
	}
	all, err := metadata.NewForConfigAndClient(cluster.Config(), clientset.RESTClient().(*rest.RESTClient).Client)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for resource := range resources {
		list, err := all.Resource(resource).List(t.Context(), metav1.ListOptions{LabelSelector: "admitkit.dev/fingerprint"})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range list.Items {
			// Only those of the installation in this namespace.
			if object.Namespace == namespace || object.Namespace == "" && strings.Contains(object.Name, namespace) {
				left = append(left, resource.Resource+"/"+object.Name)
			}
		}
	}
	leases, err := clientset.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range leases.Items {
		left = append(left, "lease/"+lease.Name)
	}
	return left
}

func TestAServerMayReadNothingButItsLeaf(t *testing.T) {
	t.Parallel()
	apps, home := newNamespace(t), newNamespace(t)
	for _, args := range [][]string{
		{"create", "role", "leaf-only", "--verb=get,watch", "--resource=secrets", "--resource-name=leaf", "--resource-name=admitkit-paths", "-n", home},
		{"create", "rolebinding", "leaf-only", "--role=leaf-only", "--user=system:serviceaccount:" + home + ":server", "-n", home},
	} {
		if output, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	var seen forbidden
	no := false
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	options := manager.Options{Namespaces: []string{apps}, WebhookNamespace: home, Port: freeport.For(t), Certificates: manager.CertificateOptions{LeafSecretName: "leaf"}}
	serverOptions := options
	serverOptions.RegisterWebHook, serverOptions.Serving.HealthAddress = &no, health
	serverOptions.RESTConfig = seen.watch(serviceAccount(t, home, "server"))
	server := newManager(t, serverOptions, mark("a", extension.Scope{}))
	serving := make(chan error, 1)
	go func() { serving <- server.Start(t.Context()) }()
	registrarHealth := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	options.Serving.HealthAddress, options.Serving.MetricsAddress = registrarHealth, fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	registrar := newManager(t, options, mark("a", extension.Scope{}))
	keeping := make(chan error, 1)
	go func() { keeping <- registrar.KeepRegistered(t.Context()) }()
	eventuallyCalled(t, apps, "marked")
	testkit.Eventually(t, "the server is ready", func(context.Context) bool {
		status, _ := body(t, "http://"+health+"/readyz")
		return status == http.StatusOK
	})
	testkit.Eventually(t, "the registrar is ready, and says of what", func(context.Context) bool {
		status, text := body(t, "http://"+registrarHealth+"/readyz")
		return status == http.StatusOK && strings.Contains(text, "[+]registration ok") && strings.Contains(text, "[+]probe ok")
	})
	if status, text := body(t, "http://"+options.Serving.MetricsAddress+"/metrics"); status != http.StatusOK || !strings.Contains(text, "admitkit_certificate_expiry") {
		t.Errorf("the registrar's metrics: HTTP %d, and nothing of certificates: %.300s", status, text)
	}
	server.Stop()
	registrar.Stop()
	for _, err := range []error{<-serving, <-keeping} {
		if err != nil {
			t.Error(err)
		}
	}
	seen.check(t, "server")
	if err := registrar.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAWebhookThatCouldKeepTheManagersOwnPodsAwayIsRefused(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, ServiceName: "my-ext"}
	r := newManager(t, options, mark("a", extension.Scope{Name: "guarded"}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), `name "guarded" in Registration.AllowOwnPods`) {
		t.Errorf("got %v", err)
	}
	options.Registration.AllowOwnPods = []string{"guraded"}
	if err := newManager(t, options, mark("a", extension.Scope{Name: "guarded"})).Start(t.Context()); err == nil || !strings.Contains(err.Error(), `there is no webhook "guraded"; there are guarded`) {
		t.Errorf("a name that is none: %v", err)
	}
	options.Registration.AllowOwnPods = []string{"guarded"}
	if err := newManager(t, options, mark("a", extension.Scope{Name: "guarded"})).RegisterExtensions(t.Context()); err != nil {
		t.Errorf("allowed by name: %v", err)
	}
	if err := newManager(t, options).UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAReplicaThatLosesTheLeaseGoesOnAnswering(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	seen := newRecorder()
	r := start(t, manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}}, mark("a", extension.Scope{}), seen)
	eventuallyCalled(t, namespace, "marked")
	createPod(t, namespace, newPod("first"))
	seen.expect(t, "ADDED first")
	leases := clientset.CoordinationV1().Leases(namespace)
	taken := false
	testkit.Eventually(t, "the Lease is lost", func(context.Context) bool {
		if !taken { // its holder may renew it meanwhile
			lease, err := leases.Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
			if err != nil {
				return false
			}
			other, now, seconds := "somebody-else", metav1.NowMicro(), int32(60)
			lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &other, &now, &seconds
			_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
			taken = err == nil
		}
		return r.logs.FilterMessage("leader election failed").Len() > 0
	})
	for range 20 {
		if pod, err := dryRunPod(context.WithoutCancel(t.Context()), namespace); err != nil || pod.Annotations["marked"] == "" {
			t.Fatalf("without the Lease an admission is not answered: %v", err)
		}
	}
}

// line is the connection of one manager to the API server. It can be cut.
type line struct {
	next http.RoundTripper
	down *atomic.Bool
}

func (l line) WrappedRoundTripper() http.RoundTripper { return l.next }

func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.down.Load() {
		return nil, errors.New("the line is down")
	}
	response, err := l.next.RoundTrip(r)
	if err == nil {
		response.Body = cutBody{response.Body, l.down}
	}
	return response, err
}

// cutBody is the rest of an answer, of a watch above all, on such a line.
type cutBody struct {
	io.ReadCloser
	down *atomic.Bool
}

func (b cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.down.Load() {
		return 0, errors.New("the line is down")
	}
	return n, err
}

// asking is a Reconciler that asks the API server while it registers.
type asking struct{ times *atomic.Int32 }

func (a asking) Register(mgr extension.Manager) error {
	kube, err := mgr.GetKubeClient()
	if err != nil {
		return err
	}
	if _, err = kube.Namespaces().Get(mgr.GetContext(), metav1.NamespaceDefault, metav1.GetOptions{}); err == nil {
		a.times.Add(1)
	}
	return err
}

func (asking) Reconcile(context.Context, ctrl.Request) (ctrl.Result, error) {
	return ctrl.Result{}, nil
}

func TestAReplicaThatLosesTheLeaseWithItsAPIServerWatchesAgainWhenItIsBack(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	config, down := cluster.Config(), &atomic.Bool{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return line{next, down} })
	seen, reconciler := newRecorder(), asking{&atomic.Int32{}}
	r := start(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: config, Watching: manager.WatchingOptions{LeaderElection: true}}, mark("a", extension.Scope{}), seen, reconciler)
	eventuallyCalled(t, namespace, "marked")
	createPod(t, namespace, newPod("first"))
	seen.expect(t, "ADDED first")
	down.Store(true)
	testkit.Eventually(t, "the Lease is lost, and cannot be asked for", func(context.Context) bool {
		return r.logs.FilterMessage("leader election failed").Len() > 1
	})
	if pod, err := dryRunPod(t.Context(), namespace); err != nil || pod.Annotations["marked"] == "" {
		t.Errorf("without the API server an admission is not answered: %v", err)
	}
	down.Store(false)
	createPod(t, namespace, newPod("second"))
	seen.expectLast(t, "ADDED first", "ADDED second")
	if registered := reconciler.times.Load(); registered != 2 {
		t.Errorf("the Reconciler was registered %d times, want 2", registered)
	}
}

// datedBefore makes every response look two days old.
type datedBefore struct{ next http.RoundTripper }

func (d datedBefore) WrappedRoundTripper() http.RoundTripper { return d.next }

func (d datedBefore) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(r)
	if err == nil {
		response.Header.Set("Date", time.Now().Add(-48*time.Hour).UTC().Format(http.TimeFormat))
	}
	return response, err
}

func TestValidityGoesByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	config := cluster.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return datedBefore{next} })
	start(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: config}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	secret, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begins, err := time.Parse(time.RFC3339, secret.Annotations[certs.NotBeforeAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(begins); age < 48*time.Hour || age > 50*time.Hour {
		t.Errorf("by a clock that is two days behind, the CA begins %s ago", age)
	}
}

func TestTheMetricsTellOfCertificatesAndRepairs(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	metrics := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{MetricsAddress: metrics}}, mark("a", extension.Scope{}))
	for _, want := range []string{
		`admitkit_certificate_expiry_timestamp_seconds{certificate="ca",source="` + namespace,
		`admitkit_certificate_expiry_timestamp_seconds{certificate="leaf",source="` + namespace,
		`admitkit_certificate_changes_total{reason="the Secret does not exist",step="Created"}`,
		`admitkit_build_info{commit="`, `goversion="` + runtime.Version(),
		`admitkit_registration_repairs_total{kind="missing"}`,
		"process_resident_memory_bytes", "go_goroutines",
	} {
		testkit.Eventually(t, "the metrics have "+want, func(context.Context) bool {
			_, text := body(t, "http://"+metrics+"/metrics")
			return strings.Contains(text, want)
		})
	}
}

func TestAProcessThatIsSupersededSaysSoAndIsNotReady(t *testing.T) {
	t.Parallel()
	namespace, health := newNamespace(t), fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{HealthAddress: health}}, mark("a", extension.Scope{}))
	// What an older program, which does not ask, does at its start.
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), "admitkit."+namespace, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"admitkit.dev/owner":"host 192.0.2.1:9443"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { // so that the test can remove it
		_, _ = clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(context.WithoutCancel(t.Context()), "admitkit."+namespace, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"admitkit.dev/owner":null}}}`), metav1.PatchOptions{})
	}()
	testkit.Eventually(t, "it is not ready", func(context.Context) bool {
		status, text := body(t, "http://"+health+"/readyz")
		return status == http.StatusInternalServerError && strings.Contains(text, "[-]registration failed:") && strings.Contains(text, "host 192.0.2.1:9443")
	})
	if r.logs.FilterMessageSnippet("another installation has taken its webhook configurations").Len() != 1 {
		t.Error("the log does not say so, or again and again")
	}
}

func TestASecondProgramOnOneHostDoesNotDisplaceTheFirst(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}))
	second := newManager(t, manager.Options{Namespaces: []string{namespace}}, mark("b", extension.Scope{}))
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another OperatorFingerprint") {
		t.Errorf("the second ends with %v", err)
	}
}

// A process that is stopped has not failed, at whatever step that finds it.
func TestAManagerThatIsStoppedWhileItStartsEndsWithoutAnError(t *testing.T) {
	t.Parallel()
	for step, path := range map[string]string{"reaching the API server": "/", "reading the CA": "/secrets/", "registering": "/mutatingwebhookconfigurations"} {
		for way, run := range map[string]func(*manager.Manager, context.Context) error{"start": (*manager.Manager).Start, "register": (*manager.Manager).KeepRegistered} {
			t.Run(way+", "+step, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				var reached atomic.Bool
				r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, RESTConfig: watched(func(req *http.Request) {
					if strings.Contains(req.URL.Path, path) {
						reached.Store(true)
						cancel()
					}
				})}, mark("a", extension.Scope{}))
				if err := run(r.Manager, ctx); err != nil || !reached.Load() {
					t.Errorf("it reached this step: %t, and returned %v", reached.Load(), err)
				}
			})
		}
	}
}

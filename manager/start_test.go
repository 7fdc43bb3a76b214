package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

func TestTheAPIServerReachesTheWebhookThroughAService(t *testing.T) {
	t.Parallel()
	home, apps := newNamespace(t), newNamespace(t)
	port := freeport.For(t)
	// An ExternalName Service stands in for kube-proxy: the API server dials its
	// name but still expects the certificate of the Service.
	if _, err := clientset.CoreV1().Services(home).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "my-ext"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	start(t, manager.Options{Namespaces: []string{apps}, WebhookNamespace: home, ServiceName: "my-ext", Serving: manager.ServingOptions{ServicePort: port}, Port: port},
		mark("a", extension.Scope{}))
	eventuallyCalled(t, apps, "marked")
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+home, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if client := config.Webhooks[0].ClientConfig; client.URL != nil || client.Service == nil || client.Service.Name != "my-ext" || client.Service.Namespace != home {
		t.Errorf("client config is %+v, want the Service %s/my-ext", client, home)
	}
}

func TestTheAPIServerReachesTheWebhookByURL(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	port := freeport.For(t)
	start(t, manager.Options{Namespaces: []string{namespace}, Host: "127.0.0.1", Serving: manager.ServingOptions{AdvertiseHost: "localhost"}, Port: port}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if url := config.Webhooks[0].ClientConfig.URL; url == nil || !strings.HasPrefix(*url, fmt.Sprintf("https://localhost:%d/", port)) || !strings.Contains(*url, "/mutate/") {
		t.Errorf("client config is %+v, want the advertised URL", config.Webhooks[0].ClientConfig)
	}
}

func TestAnUpgradeThatChangesScopesAndAddsExtensionsIsNoOutage(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, Port: freeport.For(t)}
	old := start(t, options, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	// The replica of the newer revision registers, but only the old one serves yet.
	slow := extension.Scope{Timeout: 7 * time.Second}
	refuse := extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error {
		return extension.Deny("the newer revision would refuse it")
	}), extension.Scope{})
	if err := newManager(t, options, mark("b", slow), mark("c", slow), refuse).RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked := func() int {
		return old.logs.FilterMessage("admission").FilterField(zap.String("webhook", "other-revision")).Len()
	}
	testkit.Eventually(t, "the old replica is asked for both of the new webhooks", func(context.Context) bool {
		before := asked()
		pod, err := dryRunPod(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		if pod.Annotations["marked"] != "a" {
			t.Fatalf("a Pod has the annotations %v", pod.Annotations)
		}
		return asked() == before+2
	})
	if warnings := old.logs.FilterMessageSnippet("another revision registered").Len(); warnings != 1 {
		t.Errorf("%d warnings, want 1 a minute", warnings)
	}
}

// forbidden records the refused calls of a client.
type forbidden struct {
	mu   sync.Mutex
	urls []string
}

func (f *forbidden) watch(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper{next, f}
	})
	return config
}

type roundTripper struct {
	next http.RoundTripper
	seen *forbidden
}

func (rt roundTripper) WrappedRoundTripper() http.RoundTripper { return rt.next }

func (rt roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := rt.next.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusForbidden {
		rt.seen.mu.Lock()
		defer rt.seen.mu.Unlock()
		rt.seen.urls = append(rt.seen.urls, r.Method+" "+r.URL.String())
	}
	return response, err
}

func (f *forbidden) check(t *testing.T, who string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.urls {
		t.Errorf("the %s makes a call that its role forbids: %s", who, call)
	}
}

// readmeRoles returns the YAML blocks of docs/security.md that hold RBAC objects.
func readmeRoles(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		if strings.Contains(block[1], "rbac.authorization.k8s.io") {
			blocks = append(blocks, block[1])
		}
	}
	if len(blocks) != 2 {
		t.Fatalf("docs/security.md has %d blocks of roles, want the registrar's and the server's", len(blocks))
	}
	return strings.Join(blocks, "---\n")
}

// serviceAccount returns a connection as a ServiceAccount.
func serviceAccount(t *testing.T, namespace, name string) *rest.Config {
	t.Helper()
	user, err := cluster.AddUser("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	if err != nil {
		t.Fatal(err)
	}
	return user.Config
}

func TestRegisteringAndServingAreSplitBetweenTwoUsersWithTheRolesOfTheREADME(t *testing.T) {
	t.Parallel()
	apps := newNamespace(t)
	if _, err := clientset.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "my-system"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply := cluster.Kubectl(t.Context(), nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(readmeRoles(t))
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("applying the roles of the README: %v: %s", err, output)
	}
	var registrarSeen, serverSeen forbidden
	options := manager.Options{OperatorFingerprint: "my-ext", Namespaces: []string{apps}, WebhookNamespace: "my-system", Port: freeport.For(t)}

	serverOptions := options
	register := false
	serverOptions.RegisterWebHook = &register
	serverOptions.RESTConfig = serverSeen.watch(serviceAccount(t, "my-system", "my-ext"))
	server := newManager(t, serverOptions, mark("a", extension.Scope{}))
	done := make(chan error, 1)
	go func() { done <- server.Start(t.Context()) }()
	testkit.Eventually(t, "the server waits for the registrar", func(context.Context) bool {
		return server.logs.FilterMessage("no CA yet").Len() == 1
	})

	registrarOptions := options
	registrarOptions.RESTConfig = registrarSeen.watch(serviceAccount(t, "my-system", "my-ext-registrar"))
	registrar := newManager(t, registrarOptions, mark("a", extension.Scope{}))
	for range 2 { // again, as after an upgrade
		if err := registrar.RegisterExtensions(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventuallyCalled(t, apps, "marked")
	createPod(t, apps, newPod("pod"))

	server.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := registrar.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := clientset.CoreV1().Secrets("my-system").Get(t.Context(), "my-ext-setupcertificate", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("unregister leaves the Secret: %v", err)
	}
	serverSeen.check(t, "server")
	registrarSeen.check(t, "registrar")
}

// startTogether starts replicas of one manager at the same moment in a new namespace. Each calls request for its requests.
// It returns how many different CAs they use, of which one must be the Secret's.
func startTogether(t *testing.T, replicas int, request func(*http.Request)) int {
	t.Helper()
	namespace, home := newNamespace(t), newNamespace(t)
	gate := make(chan struct{})
	var group sync.WaitGroup
	managers := make([]*running, replicas)
	results := make([]error, replicas)
	for i := range managers {
		// Behind one Service, like real replicas.
		managers[i] = newManager(t, manager.Options{
			Namespaces: []string{namespace}, WebhookNamespace: home, ServiceName: "my-ext", Serving: manager.ServingOptions{AdvertiseHost: "127.0.0.1"},
			RESTConfig: watched(request),
		}, mark("a", extension.Scope{}))
		group.Go(func() {
			<-gate
			results[i] = managers[i].Start(t.Context())
		})
	}
	close(gate)
	for _, m := range managers {
		select {
		case <-m.Ready():
		case <-time.After(time.Minute):
			t.Fatal("a replica is not ready after a minute")
		}
	}
	secret, err := clientset.CoreV1().Secrets(home).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bundle := secret.Data[certs.CertKey]
	issuers := map[string]bool{}
	for _, m := range managers {
		issuers[issuerOf(t, m, bundle)] = true
	}
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+home, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(config.Webhooks[0].ClientConfig.CABundle, bundle) {
		t.Error("the registered bundle is not the Secret's")
	}
	for _, m := range managers {
		m.Stop()
	}
	group.Wait()
	for _, err := range results {
		if err != nil {
			t.Errorf("a replica that started together with others failed: %v", err)
		}
	}
	if err := managers[0].UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
	return len(issuers)
}

// issuerOf returns the key identifier of the CA that signed the certificate which a
// manager serves. It fails the test if the bundle does not verify that.
func issuerOf(t *testing.T, r *running, bundle []byte) string {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots}}
	conn, err := dialer.DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		t.Fatalf("the Secret's CA does not verify a replica's certificate: %v", err)
	}
	defer conn.Close()
	return string(conn.(*tls.Conn).ConnectionState().PeerCertificates[0].AuthorityKeyId)
}

func TestTwoReplicasThatStartAtTheSameMomentShareOneCA(t *testing.T) {
	t.Parallel()
	rounds := testkit.Long(20, 6)
	cas := make([]int, rounds)
	t.Run("in each round", func(t *testing.T) {
		for i := range rounds {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				t.Parallel()
				cas[i] = startTogether(t, 2, func(*http.Request) {})
			})
		}
	})
	most := slices.Max(cas)
	if most != 1 {
		t.Errorf("two replicas came to %d CAs", most)
	}
	fmt.Printf("FIGURE startup2.rounds=%d rounds\n", rounds)
	fmt.Printf("FIGURE startup2.cas=%d CAs\n", most)
}

const secretName = "admitkit-setupcertificate"

func TestTheCAOfAnExistingSecretIsUsed(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, Port: freeport.For(t)}
	first := start(t, options, mark("a", extension.Scope{}))
	before, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, options, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	after, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.ResourceVersion != after.ResourceVersion {
		t.Error("the second start wrote the Secret of the first")
	}
}

func TestAMalformedSecretIsRepairedAndTheReasonLogged(t *testing.T) {
	t.Parallel()
	other, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := other.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	expired, err := certs.NewCA(time.Now().Add(-48*time.Hour), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	expiredKey, err := expired.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data   map[string][]byte
		reason string
	}{
		"an empty Secret":                      {nil, "the CA's certificate is missing"},
		"garbage for a certificate":            {map[string][]byte{certs.CertKey: []byte("garbage"), certs.KeyKey: otherKey}, "the CA's certificate is not PEM"},
		"a key that is missing":                {map[string][]byte{certs.CertKey: ca.Bundle()}, "the CA's key is missing"},
		"a key that belongs to something else": {map[string][]byte{certs.CertKey: ca.Bundle(), certs.KeyKey: otherKey}, "does not belong to its certificate"},
		"an expired CA":                        {map[string][]byte{certs.CertKey: expired.Bundle(), certs.KeyKey: expiredKey}, "the CA has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			data := map[string][]byte{"other": []byte("kept")}
			maps.Copy(data, test.data)
			if _, err := clientset.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName}, Data: data}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			r := start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}))
			eventuallyCalled(t, namespace, "marked")
			logged := r.logs.FilterMessage("certificates: Created").All()
			if len(logged) != 1 || !strings.Contains(logged[0].ContextMap()["reason"].(string), test.reason) {
				t.Errorf("logged %v, want one repair because %s", logged, test.reason)
			}
			secret, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if string(secret.Data["other"]) != "kept" {
				t.Error("the repair dropped a key that is not ours")
			}
		})
	}
}

func refuses(r *running) bool {
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		return true
	}
	_ = conn.Close()
	return false
}

func TestStopIsGracefulAndMayBeCalledTwice(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	entered, release := make(chan struct{}, 100), make(chan struct{})
	drain, recordings := 100*time.Millisecond, t.TempDir()
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{DrainPeriod: &drain, RecordDir: recordings}}, mark("a", extension.Scope{Name: "mark"}),
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(ctx context.Context, pod *corev1.Pod, _ *extension.Request) error {
			if pod.Name != "slow" {
				return nil
			}
			entered <- struct{}{}
			<-release
			return ctx.Err()
		}), extension.Scope{Name: "slow"}))
	eventuallyCalled(t, namespace, "marked")
	created := make(chan error, 1)
	testkit.Eventually(t, "a request is in flight", func(context.Context) bool {
		go func() {
			_, err := clientset.CoreV1().Pods(namespace).Create(context.WithoutCancel(t.Context()), newPod("slow"), metav1.CreateOptions{})
			select {
			case created <- err:
			default:
			}
		}()
		select {
		case <-entered:
			return true
		case err := <-created:
			if err != nil {
				t.Logf("not called yet: %v", err)
			}
			zero := int64(0)
			_ = clientset.CoreV1().Pods(namespace).Delete(t.Context(), "slow", metav1.DeleteOptions{GracePeriodSeconds: &zero})
			return false
		}
	})
	r.Stop()
	r.Stop()
	testkit.Eventually(t, "the server is past its drain period", func(context.Context) bool { return refuses(r) })
	if err := r.GetContext().Err(); err != nil {
		t.Errorf("the extensions' context ended before the last request: %v", err)
	}
	close(release)
	if err := <-created; err != nil {
		t.Errorf("the request in flight failed: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	inFlight := 0
	damages, err := recording.Read([]string{recordings}, func(e *recording.Entry) error {
		if e.Webhook.Name == "slow" && bytes.Contains(e.Request, []byte(`"name":"slow"`)) && e.Answer.Outcome == recording.Allowed {
			inFlight++
		}
		return nil
	})
	if err != nil || len(damages) > 0 || inFlight == 0 {
		t.Errorf("%v, %v: the request in flight is not recorded", err, damages)
	}
	r.Stop()
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "started before") {
		t.Errorf("a second start gives %v", err)
	}
}

func TestAManagerThatHasStoppedLeavesNoGoroutineAndNoConnectionInUse(t *testing.T) { // alone: every new goroutine is its own
	own, err := cluster.AddUser("leaves-nothing", "system:masters") // and so are its connections
	if err != nil {
		t.Fatal(err)
	}
	namespace, before := newNamespace(t), goleak.IgnoreCurrent()
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", freeport.For(t)) }
	r := start(t, manager.Options{
		Namespaces: []string{namespace}, RESTConfig: own.Config, Watching: manager.WatchingOptions{LeaderElection: true},
		Serving: manager.ServingOptions{HealthAddress: address(), MetricsAddress: address(), MetricsSecure: true},
	}, mark("a", extension.Scope{}), allowAll("b"), &annotator{}, newRecorder(), everywhere{newRecorder()},
		extension.Mutating(&library{read: team, reads: []client.Object{&corev1.Namespace{}}}, extension.Scope{Name: "library"}))
	eventuallyCalled(t, namespace, "marked")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	connections, err := rest.HTTPClientFor(own.Config)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "nothing is left", func(context.Context) error {
		utilnet.CloseIdleConnectionsFor(connections.Transport)
		return goleak.Find(before, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
	})
}

func TestAManagerThatComesAndGoesUnregistersWhenItStops(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := start(t, manager.Options{Namespaces: []string{namespace}, Registration: manager.RegistrationOptions{UnregisterOnStop: true}}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the configuration is left behind: %v", err)
	}
	if _, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{}); err != nil {
		t.Errorf("the CA of the next start is gone: %v", err)
	}
}

func TestHealthReadinessAndMetricsAreServedWhereAsked(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	metrics := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	drain := 10 * time.Second
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{HealthAddress: health, MetricsAddress: metrics, DrainPeriod: &drain}}, mark("a", extension.Scope{}))
	status := func(url string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	for _, url := range []string{"http://" + health + "/healthz", "http://" + health + "/readyz", "http://" + metrics + "/metrics"} {
		testkit.Eventually(t, url+" says 200", func(context.Context) bool { return status(url) == http.StatusOK })
	}
	r.Stop()
	testkit.Eventually(t, "a manager that drains is not ready", func(context.Context) bool {
		return status("http://"+health+"/readyz") == http.StatusInternalServerError
	})
	if got := status("http://" + health + "/healthz"); got != http.StatusOK {
		t.Errorf("a manager that drains is healthy, but says %d", got)
	}
}

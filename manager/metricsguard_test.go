package manager_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/internal/metricsguard/guardtest"
)

// scraper makes a ServiceAccount and returns its token.
func scraper(t *testing.T, namespace, name string, mayScrape bool) string {
	t.Helper()
	if _, err := clientset.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if mayScrape {
		meta := metav1.ObjectMeta{Name: namespace + "-" + name}
		rules := []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}
		if _, err := clientset.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := clientset.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	token, err := clientset.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// fetch gets a URL with a token, over TLS by the roots, and returns status and text.
func fetch(t *testing.T, url, token string, roots *x509.CertPool) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestSecureMetricsAreForThoseWhomRBACLetsGetThem(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{MetricsAddress: address, MetricsSecure: true}}, mark("a", extension.Scope{}))
	bundles, err := registration.Bundles(t.Context(), clientset.AdmissionregistrationV1().RESTClient(), "admitkit."+namespace)
	if err != nil || len(bundles) == 0 {
		t.Fatalf("%v: %d bundles", err, len(bundles))
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundles[0])
	stranger := scraper(t, namespace, "stranger", false)
	for who, c := range map[string]struct {
		token, url string
		code       int
		says       string
	}{
		"nobody":                             {"", "https://" + address + "/metrics", http.StatusUnauthorized, "Authorization: Bearer TOKEN"},
		"somebody with a made-up token":      {"x.y.z", "https://" + address + "/metrics", http.StatusUnauthorized, "Authorization: Bearer TOKEN"},
		"a token that is too long":           {strings.Repeat("x", 16<<10+1), "https://" + address + "/metrics", http.StatusUnauthorized, "Authorization: Bearer TOKEN"},
		"a ServiceAccount without the right": {stranger, "https://" + address + "/metrics", http.StatusForbidden, "nonResourceURLs: [/metrics]"},
		"a ServiceAccount with the right":    {scraper(t, namespace, "prometheus", true), "https://" + address + "/metrics", http.StatusOK, "admitkit_certificate_expiry_timestamp_seconds"},
	} {
		t.Run(who, func(t *testing.T) {
			if code, text := fetch(t, c.url, c.token, roots); code != c.code || !strings.Contains(text, c.says) {
				t.Errorf("got %d %.300s, want %d and %q", code, text, c.code, c.says)
			}
		})
	}
}

func TestSecureMetricsAreNotThereWithoutTLS(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{MetricsAddress: address, MetricsSecure: true}}, mark("a", extension.Scope{}))
	if code, text := fetch(t, "http://"+address+"/metrics", "", nil); code == http.StatusOK || strings.Contains(text, "admitkit_") {
		t.Errorf("got %d %.300s", code, text)
	}
}

func TestAManagerThatMayNotAskSaysSo(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	r := start(t, manager.Options{
		Namespaces: []string{namespace}, RESTConfig: userWith(t, "cannot-ask-"+namespace), Serving: manager.ServingOptions{MetricsAddress: address, MetricsSecure: true},
		Registration: manager.RegistrationOptions{Probe: new(bool)},
	}, mark("a", extension.Scope{}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+scraper(t, namespace, "prometheus", true))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	logged := r.logs.FilterMessage("metrics failed").All()
	if response.StatusCode != http.StatusServiceUnavailable || len(logged) == 0 || !strings.Contains(fmt.Sprint(logged[0].ContextMap()), "tokenreviews") {
		t.Errorf("got %s, and the log has %v", response.Status, logged)
	}
}

// Each made-up token is a question to the API server, of which there are only so many a second.
func TestAFloodOfMadeUpTokensDoesNotDelayANewScraper(t *testing.T) {
	t.Parallel()
	token := scraper(t, newNamespace(t), "prometheus", true)
	get := guardtest.Guarded(t, cluster.Config(), clock.RealClock{})
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var sent atomic.Int64
	for range 100 {
		flood.Go(func() {
			for ctx.Err() == nil {
				get(t.Context(), "192.0.2.1", fmt.Sprint("made-up-", sent.Add(1)))
			}
		})
	}
	testkit.Within(t, time.Minute, "the flood is there", func(context.Context) bool { return sent.Load() > 110 })
	if code := get(t.Context(), "192.0.2.100", token); code != http.StatusOK {
		t.Errorf("the scraper got %d after %d made-up tokens", code, sent.Load())
	}
	stop()
	flood.Wait()
}

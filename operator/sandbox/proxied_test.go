package sandbox_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/proxy"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

// inward resolves every name to a private address: the proxy gets as far as to refuse that.
type inward struct{}

func (inward) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
}

// ask returns a client of the broker that shows what a volume of the run's Pod would have: the token, and the
// authorities of the broker.
func (l *leased) ask(t *testing.T, run *v1alpha1.SandboxRun) *protocol.Client {
	t.Helper()
	pod := &corev1.Pod{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.here, Name: run.Status.PodName}, pod); err != nil {
		t.Fatal(err)
	}
	return l.askAs(t, pod, l.secret(t, run, "-proxy").Data["broker-ca.crt"])
}

// askAs returns one as a Pod, which trusts this authority.
func (l *leased) askAs(t *testing.T, pod *corev1.Pod, ca []byte) *protocol.Client {
	t.Helper()
	_ = admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "default"}}) // unless a controller did
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{protocol.Audience}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: pod.Spec.ServiceAccountName}}
	if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	asker, err := protocol.NewClient(protocol.ClientOptions{
		URL: fmt.Sprintf("https://localhost:%d", l.port), CA: ca,
		Token: func(context.Context) (string, error) { return request.Status.Token, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return asker
}

// proxied has the proxy of a run, with what its Pod mounts, before the real broker.
func (l *leased) proxied(t *testing.T) {
	r := l.started(t, "proxied", "coder-1")
	asker, secret := l.ask(t, r), l.secret(t, r, "-proxy")
	p, err := proxy.New(proxy.Options{
		Mode: proxy.ModeCooperative, Broker: asker, CA: runca.Pair{Certificate: secret.Data["tls.crt"], Key: secret.Data["tls.key"]}, Resolver: inward{},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, listener) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(secret.Data["ca.crt"])
	status, answer := through(t, listener.Addr().String(), "other.example.com", trust)
	if status != http.StatusForbidden || !strings.Contains(answer, "no policy allows") {
		t.Errorf("a name that no policy allows: %d %q", status, answer)
	}
	status, answer = through(t, listener.Addr().String(), "api.example.com", trust)
	if status != http.StatusBadGateway && status != http.StatusForbidden || !strings.Contains(answer, "private") {
		t.Errorf("a name that leads inward: %d %q", status, answer)
	}
	var names []string
	for _, lease := range l.leases(t, r) {
		names = append(names, lease.Spec.Credential)
	}
	if len(names) != 2 {
		t.Errorf("the leases are for %q, want MODEL, for the container, and git, for the proxy", names)
	}
	if _, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "MODEL"}); err == nil {
		t.Error("the proxy gets what is for the container")
	}
	if err := l.alice.Delete(t.Context(), r.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	gone(t, r)
	testkit.Within(t, patience, "no lease is left", func(context.Context) bool { return len(l.leases(t, r)) == 0 })
	if _, err := asker.Egress(t.Context()); err == nil {
		t.Error("the broker answers the Pod of a run that is gone")
	}
}

// through asks a name for / by CONNECT, and returns the answer of the proxy, or of what is behind.
func through(t *testing.T, address, host string, trust *x509.CertPool) (status int, answer string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	read := func(from net.Conn, request string) (int, string) {
		if _, err := fmt.Fprint(from, request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(from), nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(request, "CONNECT") && response.StatusCode == http.StatusOK {
			return response.StatusCode, ""
		}
		defer response.Body.Close()
		text := make([]byte, 512)
		n, _ := response.Body.Read(text)
		return response.StatusCode, string(text[:n])
	}
	if status, answer = read(conn, "CONNECT "+host+":443 HTTP/1.1\r\nHost: "+host+":443\r\n\r\n"); status != http.StatusOK {
		return status, answer
	}
	secure := tls.Client(conn, &tls.Config{RootCAs: trust, ServerName: host, MinVersion: tls.VersionTLS12})
	return read(secure, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
}

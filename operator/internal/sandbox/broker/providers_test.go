package broker_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

const (
	appID, installationID = 17, 4711
)

// github is the part of GitHub's API that makes and revokes installation tokens.
type github struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu   sync.Mutex
	live map[string]bool
	// of says for which repository a token is: the first that it was asked for.
	of   map[string]string
	made int
	// slow is how long an answer takes.
	slow time.Duration
	// broken makes it answer 500 to revocations, and shaky to so many of each token.
	broken bool
	shaky  int
	shaken map[string]int
	// issuing has something while a token that was just made is on its way.
	issuing chan struct{}
	asked   map[string]any // by the last call for a token
}

func newGitHub(t testing.TB) *github {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g := &github{key: key, live: map[string]bool{}, of: map[string]string{}, shaken: map[string]int{}, issuing: make(chan struct{})}
	g.Server = httptest.NewTLSServer(g)
	t.Cleanup(g.Close)
	return g
}

func (g *github) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(g.key)}))
}

func (g *github) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer time.Sleep(g.slow)
	g.mu.Lock()
	defer g.mu.Unlock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	answer := func(status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	switch r.Method + " " + r.URL.Path {
	case fmt.Sprintf("POST /app/installations/%d/access_tokens", installationID):
		if err := g.check(token); err != nil {
			answer(http.StatusUnauthorized, `{"message":"`+err.Error()+`"}`)
			return
		}
		g.asked = nil
		_ = json.NewDecoder(r.Body).Decode(&g.asked)
		g.made++
		made := fmt.Sprintf("ghs_%d", g.made)
		g.live[made] = true
		if repositories, ok := g.asked["repositories"].([]any); ok {
			g.of[made] = fmt.Sprint(repositories[0])
		}
		select {
		case g.issuing <- struct{}{}:
		default:
		}
		answer(http.StatusCreated, fmt.Sprintf(`{"token":%q,"expires_at":%q}`, made, time.Now().Add(time.Hour).Format(time.RFC3339)))
	case "DELETE /installation/token":
		switch {
		case g.broken || g.live[token] && g.shaken[token] < g.shaky:
			g.shaken[token]++
			answer(http.StatusInternalServerError, `{"message":"unicorn"}`)
		case !g.live[token]:
			answer(http.StatusUnauthorized, `{"message":"Bad credentials"}`)
		default:
			delete(g.live, token)
			answer(http.StatusNoContent, "")
		}
	case "GET /installation/repositories": // what a token is for
		if !g.live[token] {
			answer(http.StatusUnauthorized, `{"message":"Bad credentials"}`)
			return
		}
		answer(http.StatusOK, `{"repositories":[]}`)
	default:
		answer(http.StatusNotFound, `{"message":"Not Found"}`)
	}
}

// check verifies a JWT as GitHub does.
func (g *github) check(jwt string) error {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return fmt.Errorf("not a JWT")
	}
	header, _ := base64.RawURLEncoding.DecodeString(parts[0])
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(&g.key.PublicKey, crypto.SHA256, sum[:], signature); err != nil {
		return fmt.Errorf("the signature is wrong")
	}
	var h struct{ Alg string }
	var claims struct {
		Iat, Exp int64
		Iss      string
	}
	if json.Unmarshal(header, &h) != nil || h.Alg != "RS256" || json.Unmarshal(payload, &claims) != nil || claims.Iss != fmt.Sprint(appID) {
		return fmt.Errorf("the claims are wrong")
	}
	if now := time.Now().Unix(); claims.Iat > now || claims.Exp <= now || claims.Exp-claims.Iat > 600 {
		return fmt.Errorf("the times are wrong")
	}
	return nil
}

func (g *github) isLive(token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live[token]
}

// allLive returns the tokens that are live, by their repository.
func (g *github) allLive() map[string][]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	live := map[string][]string{}
	for token := range g.live {
		live[g.of[token]] = append(live[g.of[token]], token)
	}
	return live
}

func (g *github) liveOf(repository string) []string { return g.allLive()[repository] }

// use reports whether GitHub takes a token.
func (g *github) use(ctx context.Context, token string) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+"/installation/repositories", http.NoBody)
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := g.Client().Do(request)
	if err != nil {
		return false, err
	}
	return response.StatusCode == http.StatusOK, response.Body.Close()
}

func (g *github) breakRevoking(broken bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = broken
}

// through makes a broker ask this GitHub.
func (g *github) through(o *broker.Options) {
	o.GitHubURL, o.GitHubTransport = g.URL, g.Client().Transport
}

// grant is a token of the App, for git over HTTPS.
func (g *github) grant(name string) v1alpha1.CredentialGrant {
	return v1alpha1.CredentialGrant{
		Name: name,
		GitHubApp: &v1alpha1.GitHubApp{
			AppID: appID, InstallationID: installationID, PrivateKey: v1alpha1.SecretKey{Name: "app", Key: "key"},
			Repositories: []string{"shop"}, Permissions: map[string]v1alpha1.GitHubAccess{"contents": "read"},
		},
		Delivery: v1alpha1.CredentialDelivery{ProxyInjected: &v1alpha1.ProxyInjected{Hosts: []string{"api.example.com"}, Header: "Authorization", Prefix: "Bearer "}},
	}
}

func TestProviders(t *testing.T) {
	t.Parallel()
	hub := newGitHub(t)
	w := install(t, hub.through, func(o *broker.Options) { o.LeaseDuration = 30 * time.Second })
	pool := injected("pool", "", "api.example.com")
	pool.Secret, pool.TokenPool = nil, &v1alpha1.TokenPool{SecretName: "tokens"}
	inside := pool
	inside.Name, inside.Delivery = "inside", v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: why}}
	twice := injected("twice", "", "api.example.com")
	twice.Secret, twice.TokenPool = nil, &v1alpha1.TokenPool{SecretName: "twice"}
	badKey := hub.grant("bad-key")
	badKey.GitHubApp.PrivateKey.Name = "tokens"
	badKey.GitHubApp.PrivateKey.Key = "one"
	testkit.Create(t, admin,
		secret(w.Namespace, "tokens", map[string]string{"one": "token-1", "two": "token-2"}),
		secret(w.Namespace, "twice", map[string]string{"one": "token-1", "two": "token-1\n"}),
		secret(w.Namespace, "app", map[string]string{"key": hub.pem()}),
		policy(w.Namespace, "agents", func(s *v1alpha1.BrokerPolicySpec) {
			s.Grants.Credentials = []v1alpha1.CredentialGrant{pool, inside, twice, hub.grant("git"), badKey}
		}))
	t.Run("give each token of a pool to one run at a time", func(t *testing.T) { w.pools(t) })
	t.Run("make tokens of a GitHub App, and revoke them", func(t *testing.T) { w.apps(t, hub) })
}

func (w *world) pools(t *testing.T) {
	one, two, three := w.start(t, "one", "agent-pool"), w.start(t, "two", "agent-pool"), w.start(t, "three", "agent-pool")
	ask := func(r *aRun) (string, error) {
		issued, err := w.proxyOf(t, r).Issue(t.Context(), protocol.IssueRequest{Name: "pool"})
		if err != nil {
			return "", err
		}
		return issued.Header.Value, nil
	}
	got := map[string]bool{}
	for _, r := range []*aRun{one, two, one, two} {
		token, err := ask(r)
		if err != nil {
			t.Fatal(err)
		}
		got[token] = true
	}
	if len(got) != 2 || !got["token-1"] || !got["token-2"] {
		t.Errorf("two runs have %v", got)
	}
	_, err := ask(three)
	refused(t, err, protocol.CodePoolExhausted)
	_, err = w.controller(t).Issue(t.Context(), protocol.IssueRequest{Run: three.named(), Name: "inside"})
	refused(t, err, protocol.CodePoolExhausted)
	_, err = w.proxyOf(t, three).Issue(t.Context(), protocol.IssueRequest{Name: "twice"})
	refused(t, err, protocol.CodeProviderFailed)
	// Its proxy has the token until it is gone, so nobody else gets it.
	queued, err := w.controller(t).Revoke(t.Context(), protocol.RevokeRequest{Run: one.named()})
	if err != nil || len(queued) != 1 {
		t.Errorf("%v (%v) are queued", queued, err)
	}
	_, err = ask(three)
	refused(t, err, protocol.CodePoolExhausted)
	if err := admin.Delete(t.Context(), one.pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.gone(t, one)
	if _, err := ask(three); err != nil {
		t.Error(err)
	}
	// A token in a container is there until the run has finished, whatever its lease says.
	if err := admin.Delete(t.Context(), two.pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	two.become(t, "Succeeded")
	w.gone(t, two)
	four := w.start(t, "four", "agent-pool")
	if _, err := w.controller(t).Issue(t.Context(), protocol.IssueRequest{Run: four.named(), Name: "inside"}); err != nil {
		t.Fatal(err)
	}
	if queued, err := w.controller(t).Revoke(t.Context(), protocol.RevokeRequest{Run: four.named()}); err != nil || len(queued) != 1 {
		t.Errorf("%v (%v) are queued", queued, err)
	}
	// The run is over, but not what somebody keeps of it: a Pod without its Job.
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "kept", Labels: map[string]string{v1alpha1.LabelSandboxRun: "four", v1alpha1.LabelEgress: string(four.object.GetUID())}}}
	kept.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "work", Image: "example.com/work:1"}}}
	stranger := kept.DeepCopy()
	stranger.Name, stranger.Labels = "stranger", map[string]string{v1alpha1.LabelEgress: string(four.object.GetUID())}
	testkit.Create(t, admin, kept, stranger)
	four.become(t, "Failed")
	attempts := w.leases(t, four)[0].Status.Attempts
	testkit.Within(t, patience, "the end of the run frees no token", func(context.Context) bool {
		held := w.leases(t, four)
		return len(held) == 0 || held[0].Status.Attempts > attempts
	})
	if len(w.leases(t, four)) != 1 {
		t.Error("another run can have the token that Pod kept has")
	}
	if err := admin.Delete(t.Context(), kept, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.gone(t, four)
}

func (w *world) apps(t *testing.T, hub *github) {
	r := w.start(t, "coder", "agent-code")
	proxy := w.proxyOf(t, r)
	issued, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "git"})
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimPrefix(issued.Header.Value, "Bearer ")
	asked, _ := json.Marshal(hub.asked)
	if !hub.isLive(token) || !bytes.Contains(asked, []byte(`"repositories":["shop"]`)) || !bytes.Contains(asked, []byte(`"contents":"read"`)) {
		t.Errorf("the token %q is live: %v; GitHub was asked for %s", token, hub.isLive(token), asked)
	}
	_, err = proxy.Issue(t.Context(), protocol.IssueRequest{Name: "bad-key"})
	refused(t, err, protocol.CodeProviderFailed)
	testkit.Within(t, patience, "what failed leaves no lease", func(context.Context) bool { return len(w.leases(t, r)) == 1 })
	// GitHub is broken: the lease waits in the queue, its run goes, and it is revoked all the same.
	hub.breakRevoking(true)
	if queued, err := w.controller(t).Revoke(t.Context(), protocol.RevokeRequest{Run: r.named()}); err != nil || len(queued) != 1 {
		t.Errorf("%v (%v) are queued", queued, err)
	}
	if err := admin.Delete(t.Context(), r.object); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, patience, "the failure is told", func(context.Context) bool {
		held := w.leases(t, r)
		return len(held) == 1 && held[0].Status.Attempts > 0 && strings.Contains(held[0].Status.Message, "unicorn")
	})
	if !hub.isLive(token) {
		t.Fatal("it was revoked by a server that is broken")
	}
	hub.breakRevoking(false)
	w.gone(t, r)
	if hub.isLive(token) {
		t.Error("the token is live, and its lease is gone")
	}
	_, text := w.records(t, r)
	if strings.Contains(text, token) {
		t.Error("the token is on record")
	}
}

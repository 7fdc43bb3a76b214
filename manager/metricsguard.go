package manager

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/certs"
)

// metricsOptions are the options of the server of /metrics.
func (m *Manager) metricsOptions() metricsserver.Options {
	s := &m.options.Serving
	options := metricsserver.Options{BindAddress: off(s.MetricsAddress)}
	if !s.MetricsSecure {
		return options
	}
	options.SecureServing = true
	options.TLSOpts = []func(*tls.Config){func(config *tls.Config) {
		config.MinVersion, config.NextProtos, config.GetCertificate = tls.VersionTLS12, []string{"http/1.1"}, m.metricsCertificate()
	}}
	options.FilterProvider = func(config *rest.Config, _ *http.Client) (metricsserver.Filter, error) {
		guard, err := newMetricsGuard(config, func(err error) { m.logError("metrics", err) })
		return func(_ logr.Logger, next http.Handler) (http.Handler, error) { return guard.around(next), nil }, err
	}
	return options
}

// metricsCertificate serves the webhooks' certificate, which is renewed and of a known
// authority. A process without webhooks signs one for itself.
func (m *Manager) metricsCertificate() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	const lifetime = 10 * 365 * 24 * time.Hour
	own := sync.OnceValues(func() (*tls.Certificate, error) {
		ca, err := certs.NewCA(time.Now(), lifetime)
		if err != nil {
			return nil, err
		}
		host, err := os.Hostname()
		if err != nil {
			host = "localhost"
		}
		return ca.IssueLeaf([]string{host}, time.Now(), lifetime)
	})
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		m.mu.Lock()
		source := m.source
		m.mu.Unlock()
		if source == nil {
			return own()
		}
		return source.GetCertificate(hello)
	}
}

// metricsGuard asks the API server who sends a request and whether they may read the
// metrics, as controller-runtime's package filters does. That package needs k8s.io/apiserver,
// with gRPC and OpenTelemetry, which every program of a library's user would have to link.
type metricsGuard struct {
	// strangers asks about tokens that were not good before, and renewals about those that
	// were: whoever makes up tokens must not hold up the monitoring.
	strangers, renewals *asker
	// turns are of the addresses of strangers, each of which has one question at a time.
	turns  turns
	failed func(error)
	clock  clock.PassiveClock
	// known has the verdict about a token, by its hash.
	known *lru.Cache
}

// asker asks the API server, with limits of its own.
type asker struct {
	tokens *authenticationv1client.AuthenticationV1Client
	access *authorizationv1client.AuthorizationV1Client
	// asking is held while the API server is asked.
	asking chan struct{}
}

func newAsker(config *rest.Config) (*asker, error) {
	own := rest.CopyConfig(config)
	own.QPS, own.Burst, own.RateLimiter = asksPerSecond, 2*asksPerSecond, nil
	a := &asker{asking: make(chan struct{}, askingAtOnce)}
	var errs [2]error
	a.tokens, errs[0] = authenticationv1client.NewForConfig(own)
	a.access, errs[1] = authorizationv1client.NewForConfig(own)
	return a, errors.Join(errs[:]...)
}

// turns lets one at a time ask for an address. Without them, one that sends many made-up
// tokens would be before everybody else in the line for the API server.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	taken chan struct{}
	users int // who has it or waits for it
}

// take waits for the turn of an address. done ends it.
func (t *turns) take(ctx context.Context, address string) (done func(), err error) {
	t.mu.Lock()
	own := t.of[address]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		t.of[address] = own
	}
	own.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.of, address)
		}
	}
	select {
	case own.taken <- struct{}{}:
		return func() { <-own.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// verdict is an HTTP status that holds for a while.
type verdict struct {
	code  int
	until time.Time
}

// Whoever reaches the port can make up tokens. So the questions have limits of their own,
// and what is known about a token is kept for a while; that it was good, until a thousand
// others have come since it was last sent.
const (
	askingAtOnce  = 4
	asksPerSecond = 5
	askTimeout    = 5 * time.Second
	knownTokens   = 1000
	maxToken      = 16 << 10
	allowedFor    = time.Minute
	deniedFor     = 10 * time.Second
)

func newMetricsGuard(config *rest.Config, failed func(error)) (*metricsGuard, error) {
	g := &metricsGuard{turns: turns{of: map[string]*turn{}}, failed: failed, clock: clock.RealClock{}, known: lru.New(knownTokens)}
	var errs [2]error
	g.strangers, errs[0] = newAsker(config)
	g.renewals, errs[1] = newAsker(config)
	return g, errors.Join(errs[:]...)
}

// around lets only those through who may read what next serves.
func (g *metricsGuard) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := g.judge(r)
		switch {
		case err != nil:
			g.failed(fmt.Errorf("cannot determine who may read them: %w", err))
			http.Error(w, "the API server does not say whether you may read this; see the log", http.StatusServiceUnavailable)
		case code == http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "send the token of a ServiceAccount that may get "+r.URL.Path+": Authorization: Bearer TOKEN", code)
		case code != http.StatusOK:
			http.Error(w, "you may not get "+r.URL.Path+": a ClusterRole with nonResourceURLs: ["+r.URL.Path+"] and verbs: [get] allows it", code)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (g *metricsGuard) judge(r *http.Request) (code int, err error) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found || token == "" || len(token) > maxToken {
		return http.StatusUnauthorized, nil
	}
	// The hash, so that no token stays in memory.
	key := sha256.Sum256([]byte(r.Method + " " + r.URL.Path + " " + token))
	last, known := verdict{}, false
	if found, ok := g.known.Get(key); ok {
		last, known = found.(verdict)
	}
	if known && g.clock.Now().Before(last.until) {
		return last.code, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	asker := g.strangers
	if known && last.code == http.StatusOK {
		asker = g.renewals
	} else {
		address, _, _ := net.SplitHostPort(r.RemoteAddr) // net/http sets it so
		done, err := g.turns.take(ctx, address)
		if err != nil {
			return 0, err
		}
		defer done()
	}
	code, err = asker.ask(ctx, token, strings.ToLower(r.Method), r.URL.Path)
	if err != nil {
		return 0, err
	}
	lasts := deniedFor
	if code == http.StatusOK {
		lasts = allowedFor
	}
	g.known.Add(key, verdict{code, g.clock.Now().Add(lasts)})
	return code, nil
}

func (a *asker) ask(ctx context.Context, token, verb, path string) (code int, err error) {
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	review, err := a.tokens.TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("TokenReview: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access, err := a.access.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: path},
	}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("SubjectAccessReview: %w", err)
	case !access.Status.Allowed:
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// metricsRights are what the guard needs.
func metricsRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("authentication.k8s.io", []string{"tokenreviews"}, []string{"create"}),
		rule("authorization.k8s.io", []string{"subjectaccessreviews"}, []string{"create"}),
	}
}

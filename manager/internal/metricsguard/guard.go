package metricsguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Guard asks the API server who sends a request and whether they may read the
// metrics, as controller-runtime's package filters does. That package needs k8s.io/apiserver,
// with gRPC and OpenTelemetry, which every program of a library's user would have to link.
type Guard struct {
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

// New returns a Guard that asks by config, and calls failed when that fails.
func New(config *rest.Config, failed func(error), now clock.PassiveClock) (*Guard, error) {
	g := &Guard{turns: turns{of: map[string]*turn{}}, failed: failed, clock: now, known: lru.New(knownTokens)}
	var errs [2]error
	g.strangers, errs[0] = newAsker(config)
	g.renewals, errs[1] = newAsker(config)
	return g, errors.Join(errs[:]...)
}

// Around lets only those through who may read what next serves.
func (g *Guard) Around(next http.Handler) http.Handler {
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

func (g *Guard) judge(r *http.Request) (code int, err error) {
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

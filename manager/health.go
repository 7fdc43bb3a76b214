package manager

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
)

// health serves /healthz and /readyz. Unlike controller-runtime's, its response says
// why a check fails.
type health struct {
	mu           sync.Mutex
	alive, ready map[string]healthz.Checker
}

func newHealth() *health {
	return &health{alive: map[string]healthz.Checker{"ping": healthz.Ping}, ready: map[string]healthz.Checker{}}
}

// listen takes the address and returns a function that serves on it.
func (h *health) listen(ctx context.Context, address string) (serve func(context.Context) error, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("Serving.HealthAddress: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", h.handler(h.alive))
	mux.Handle("/readyz", h.handler(h.ready))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("Serving.HealthAddress: %w", err)
		}
		return nil
	}, nil
}

func (h *health) handler(checks map[string]healthz.Checker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.mu.Lock()
		all := maps.Clone(checks)
		h.mu.Unlock()
		status, body := http.StatusOK, &strings.Builder{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if err := all[name](req); err != nil {
				status = http.StatusInternalServerError
				fmt.Fprintf(body, "[-]%s failed: %v\n", name, err)
			} else {
				fmt.Fprintf(body, "[+]%s ok\n", name)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body.String()))
	})
}

// checkTimeout limits each check. A kubelet waits 1 s by default.
const checkTimeout = 800 * time.Millisecond

// addChecks makes readiness depend on everything that an admission needs.
// r is nil in a process that does not register.
func (m *Manager) addChecks(kube ctrlmanager.Manager, source certs.Source, r *registration.Registration) error {
	checks := map[string]healthz.Checker{
		"certificate": m.certificateTrusted(source, r),
	}
	if r != nil && r.Conversions != nil {
		// A CustomResourceDefinition that goes later takes its objects with it: no reason
		// to take the webhooks out of service.
		checks["conversion"] = func(*http.Request) error { return r.Conversions.Check() }
	}
	if *m.options.RegisterWebHook {
		checks["registration"] = m.notSuperseded
	}
	if m.probes() {
		checks["probe"] = func(*http.Request) error { return m.prober.ready(m.options.ServiceName != "") }
	}
	for name, check := range checks {
		if err := kube.AddReadyzCheck(name, check); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) cachesSynced(kube ctrlmanager.Manager) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
		defer cancel()
		if !kube.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced")
		}
		var err error
		m.podsSynced.Range(func(synced, _ any) bool {
			if !(*synced.(*func() bool))() {
				err = errors.New("the watchers' cache is not synced")
			}
			return err == nil
		})
		return err
	}
}

// certificateTrusted checks the leaf against the bundle that API servers use. If the
// bundle cannot be read now, the last one that was read counts: an API server that is
// away for a moment must not make every replica unready at once.
func (m *Manager) certificateTrusted(source certs.Source, r *registration.Registration) healthz.Checker {
	var mu sync.Mutex
	var known [][]byte
	return func(req *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		bundles, err := m.trustedBundles(req.Context(), source, r)
		if err == nil {
			known = bundles
		} else if known == nil {
			return err
		}
		for _, bundle := range known {
			if err := m.verifyLeaf(source, bundle); err != nil {
				return err
			}
		}
		return nil
	}
}

// trustedBundles reads the bundles in the live configurations. A server without the
// right to do so uses the bundle that the registrar wrote, after reading it there.
func (m *Manager) trustedBundles(ctx context.Context, source certs.Source, r *registration.Registration) ([][]byte, error) {
	if r == nil {
		bundle, err := source.Bundle()
		return [][]byte{bundle}, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	converting := r.Conversions.Bundles()
	if len(r.Webhooks) == 0 {
		return converting, nil
	}
	bundles, err := registration.Bundles(ctx, m.clients.admissionregistration.RESTClient(), m.options.configurationName())
	return append(bundles, converting...), err
}

func (m *Manager) verifyLeaf(source certs.Source, bundle []byte) error {
	cert, err := source.GetCertificate(nil)
	if err != nil {
		return err
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the caBundle of the webhook configuration is empty")
	}
	leaf := cert.Leaf
	for i, der := range cert.Certificate {
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if i == 0 {
			leaf = parsed
		} else {
			intermediates.AddCert(parsed)
		}
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		DNSName: m.options.calledAs(), Roots: roots, Intermediates: intermediates, CurrentTime: m.clock.Now(),
	}); err != nil {
		return fmt.Errorf("the serving certificate does not verify against the caBundle of the webhook configuration: %w", err)
	}
	return nil
}

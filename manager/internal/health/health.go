package health

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

	"github.com/admitkit/admitkit/certs"
)

// Health serves /healthz and /readyz. Unlike controller-runtime's, its response says
// why a check fails.
type Health struct {
	mu           sync.Mutex
	alive, ready map[string]healthz.Checker
}

// New returns a Health that is alive, and ready as soon as its checks say so.
func New() *Health {
	return &Health{alive: map[string]healthz.Checker{"ping": healthz.Ping}, ready: map[string]healthz.Checker{}}
}

// AddAlive adds a check to /healthz.
func (h *Health) AddAlive(name string, check healthz.Checker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alive[name] = check
}

// AddReady adds a check to /readyz.
func (h *Health) AddReady(name string, check healthz.Checker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready[name] = check
}

// Unready returns why checks of /readyz fail whose names begin with a prefix.
func (h *Health) Unready(ctx context.Context, prefix string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", http.NoBody)
	if err != nil {
		return err
	}
	h.mu.Lock()
	all := maps.Clone(h.ready)
	h.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, prefix) {
			errs = append(errs, all[name](req))
		}
	}
	return errors.Join(errs...)
}

// Listen takes the address and returns a function that serves on it.
func (h *Health) Listen(ctx context.Context, address string) (serve func(context.Context) error, err error) {
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

func (h *Health) handler(checks map[string]healthz.Checker) http.Handler {
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

// VerifyLeaf checks the certificate of a server by a caBundle: those who call it by a name
// take it.
func VerifyLeaf(source certs.Source, bundle []byte, name string, now time.Time) error {
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
		DNSName: name, Roots: roots, Intermediates: intermediates, CurrentTime: now,
	}); err != nil {
		return fmt.Errorf("the serving certificate does not verify against the caBundle of the webhook configuration: %w", err)
	}
	return nil
}

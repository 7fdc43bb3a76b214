package manager

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
)

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
		checks["probe"] = func(*http.Request) error { return m.prober.Ready(m.options.ServiceName != "") }
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
			if err := health.VerifyLeaf(source, bundle, m.options.calledAs(), m.clock.Now()); err != nil {
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
	bundles, err := registration.Bundles(ctx, m.clients.Admissionregistration.RESTClient(), m.options.configurationName())
	return append(bundles, converting...), err
}

// probeFailed returns a function that reports failed probes: each one in the metric,
// and in the log only if the error differs from the last one.
func (m *Manager) probeFailed() func(error) {
	var said string
	return func(err error) {
		lastError.WithLabelValues("probe").SetToCurrentTime()
		if text := err.Error(); text != said {
			said = text
			m.options.Logger.Warnw("no probe has come back through the API server yet; trying again", zap.Error(err))
		}
	}
}

// probes reports whether this process probes: the one that registers webhooks does.
func (m *Manager) probes() bool {
	return *m.options.RegisterWebHook && *m.options.Registration.Probe && len(m.parts.Handlers) > 0
}

func (m *Manager) probe(r *registration.Registration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
		defer cancel()
		return r.Probe(ctx, m.clients.Core.ConfigMaps(m.options.WebhookNamespace))
	}
}

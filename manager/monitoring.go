package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
	"github.com/admitkit/admitkit/manager/internal/metricsguard"
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

// cachesSynced checks the caches of what runs beside the admissions. A server that converts
// does not wait for them: their objects may need the conversion, and a Service leads to a
// server only when that is ready.
func (m *Manager) cachesSynced(kube ctrlmanager.Manager) healthz.Checker {
	return func(req *http.Request) error {
		if len(m.parts.Converters) > 0 && m.certificates() != nil {
			return nil
		}
		if err := m.caches.Check(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
		defer cancel()
		if !kube.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches have not started")
		}
		return m.caches.Check()
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
			message := "no probe has come back through the API server yet; trying again"
			if name := m.options.ServiceName; strings.Contains(text, fmt.Sprintf("service %q not found", name)) {
				message += fmt.Sprintf(": create the Service %s, or correct ServiceName (--service-name)", name)
			}
			m.options.Logger.Warnw(message, zap.Error(err))
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

// Metrics of the registration, in controller-runtime's registry.
var (
	buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_build_info",
		Help: "Always 1. version is admitkit's; program is the import path of the program; program_version and commit are the program's own.",
	}, []string{"version", "program", "program_version", "commit", "goversion"})
	registrationRepairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_registration_repairs_total",
		Help: "Writes of a webhook configuration, by what was wrong with it.",
	}, []string{"kind"})
	scopeUnserved = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_scope_unserved_resources",
		Help: "1 for a resource of a webhook's scope for which no admission comes, because the API server does not serve it.",
	}, []string{"webhook", "resource"})
	extensionMode = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_extension_mode",
		Help: "1 for each mode (Enforce, Warn, Observe) that an extension has, in all namespaces or in some.",
	}, []string{"extension", "mode"})
	fileRead = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_file_read",
		Help: "0 if a file that is read again when it changes, of modes or of exemptions, is wrong, so that they stay as they were.",
	}, []string{"file"})
	conversionRegistered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_conversion_registered",
		Help: "1 if the CustomResourceDefinition names this installation as its converter, with the present CA.",
	}, []string{"crd"})
	lastError = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_last_error_timestamp_seconds",
		Help: "Time of the last failure of the upkeep, in seconds since the epoch, by part.",
	}, []string{"part"})
)

func init() {
	info := buildinfo.Get()
	buildInfo.WithLabelValues(info.Admitkit, info.Program, info.Version, info.Commit, info.GoVersion).Set(1)
	metrics.Registry.MustRegister(buildInfo, registrationRepairs, scopeUnserved, extensionMode, fileRead, conversionRegistered, lastError)
}

// addProcessMetrics adds the metrics of the process and of the Go runtime, unless
// controller-runtime already has, as it does in programs with controllers.
func addProcessMetrics() error {
	err := metrics.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return nil
	}
	return errors.Join(err, metrics.Registry.Register(collectors.NewGoCollector()))
}

// logError reports the failure of a part that is tried again.
func (m *Manager) logError(part string, err error) {
	lastError.WithLabelValues(part).SetToCurrentTime()
	m.options.Logger.Errorw(part+" failed", "error", err)
}

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
		guard, err := metricsguard.New(config, func(err error) { m.logError("metrics", err) }, clock.RealClock{})
		return func(_ logr.Logger, next http.Handler) (http.Handler, error) { return guard.Around(next), nil }, err
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

// off returns the address in controller-runtime's form, in which "0" means none.
func off(address string) string {
	if address == "" {
		return "0"
	}
	return address
}

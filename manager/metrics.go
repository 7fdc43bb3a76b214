package manager

import (
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/manager/internal/metricsguard"
)

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
	metrics.Registry.MustRegister(buildInfo, registrationRepairs, scopeUnserved, conversionRegistered, lastError)
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

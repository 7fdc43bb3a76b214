package admit

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"reflect"
	"testing"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline/memcluster"
	"github.com/admitkit/admitkit/webhook"
)

// standIn is the extensions' manager. Its clients talk to the cluster in memory, with the
// rights of the transport. Its controller-runtime manager never starts.
type standIn struct {
	ctx    context.Context
	kinds  *kinds.Table
	config *rest.Config
	core   corev1client.CoreV1Interface
	kube   ctrlmanager.Manager
	logger *zap.Logger
	guard  *host.Guard
}

var _ extension.Manager = (*standIn)(nil)

func newHost(t testing.TB, transport http.RoundTripper, known *kinds.Table, scheme *runtime.Scheme) (*standIn, error) {
	h := &standIn{
		ctx: t.Context(), kinds: known, logger: zaptest.NewLogger(t),
		config: memcluster.Config(transport), guard: host.NewGuard(scheme),
	}
	var err error
	if h.core, err = corev1client.NewForConfig(h.config); err != nil {
		return nil, err
	}
	h.kube, err = ctrlmanager.New(h.config, ctrlmanager.Options{
		Scheme: scheme, Logger: zapr.NewLogger(h.logger),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: new(true)}, // other tests have managers, too
		// As in manager: a client that reads through the cache needs an index for each field.
		NewCache: func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			options.DefaultTransform = cache.TransformStripManagedFields()
			objects, err := h.NewCache(config, options)
			return h.guard.Cache(objects), err
		},
		NewClient: func(config *rest.Config, options client.Options) (client.Client, error) {
			kube, err := client.New(config, options)
			return h.guard.Client(kube, options.Cache.Reader), err
		},
	})
	return h, err
}

func (h *standIn) GetContext() context.Context                          { return h.ctx }
func (h *standIn) GetKubeManager() ctrlmanager.Manager                  { return h.kube }
func (h *standIn) GetKubeConnection() (*rest.Config, error)             { return rest.CopyConfig(h.config), nil }
func (h *standIn) GetKubeClient() (corev1client.CoreV1Interface, error) { return h.core, nil }
func (h *standIn) GetLogger() *zap.SugaredLogger                        { return h.logger.Sugar() }

func (h *standIn) GetNamespaces() []string     { return nil }
func (h *standIn) GetWebhookNamespace() string { return "admitkit-system" }
func (h *standIn) GetFingerprint() string      { return "admitkit" }
func (h *standIn) GetReconcilerUser() string   { return "" }

func (h *standIn) GetExcludedNamespaces() []string { return nil }

// GetRecorder returns a recorder that logs.
func (h *standIn) GetRecorder() extension.Recorder { return h }

// Record implements extension.Recorder.
func (h *standIn) Record(_ context.Context, record extension.Record) error {
	h.logger.Info("record", zap.Any("record", record))
	return record.Validate()
}

// GetUnwrapper returns one that knows of no wrapped commands.
func (h *standIn) GetUnwrapper() extension.Unwrapper { return h }

// Unwrap implements extension.Unwrapper.
func (h *standIn) Unwrap(*corev1.PodExecOptions, *extension.Request) *extension.Unwrapped { return nil }

func (h *standIn) GetClock() clock.PassiveClock { return clock.RealClock{} }

// GetServingCertificate returns a certificate that nobody trusts.
func (h *standIn) GetServingCertificate(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if len(hosts) == 0 {
		return nil, errors.New("a serving certificate needs a host: name at least one")
	}
	chain, key, err := cert.GenerateSelfSignedCertKey(hosts[0], nil, hosts[1:])
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, key)
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, err
}

// GetServingCA returns an error: there is nobody to trust.
func (h *standIn) GetServingCA() ([]byte, error) {
	return nil, errors.New("there is no CA without a cluster")
}

func (h *standIn) PatchFromPod(req admission.Request, pod *corev1.Pod) admission.Response {
	return webhook.PatchFrom(req, pod)
}

// newLike returns an empty object of the same type.
func newLike(object runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
}

package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/zapr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/internal/host"
)

// reachTimeout is how long a start waits for an API server that does not answer: long
// enough for a restart, short enough to wait for the reason.
const reachTimeout = 8 * time.Second

// reach makes sure that an API server answers. A wrong address is then not reported
// as something else later.
func (m *Manager) reach(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, reachTimeout, true, func(ctx context.Context) (bool, error) {
		last = m.clients.discovery.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
		var status apierrors.APIStatus
		// Any response below 500 will do; what follows reports a 401.
		return last == nil || errors.As(last, &status) && status.Status().Code < 500, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("no API server answers at %s within %s: %w", m.options.RESTConfig.Host, reachTimeout, last)
}

// setLogger guards controller-runtime's SetLogger, which is not safe for managers that
// start at the same moment.
var setLogger sync.Once

// newKubeManager makes the controller-runtime manager that runs reconcilers and
// watchers. Its cache is limited to Options.Namespace and trimmed, so that memory
// grows only with the objects that the extensions read.
func (m *Manager) newKubeManager(health *health) (ctrlmanager.Manager, error) {
	if err := addProcessMetrics(); err != nil {
		return nil, err
	}
	options, err := m.kubeOptions()
	if err != nil {
		return nil, err
	}
	kube, err := ctrlmanager.New(m.options.RESTConfig, options)
	if err != nil {
		return nil, fmt.Errorf("Serving.MetricsAddress: %w", err)
	}
	health.ready["caches"] = m.cachesSynced(kube)
	made := kubeManager{Manager: kube, health: health}
	if m.options.Watching.LeaderElection {
		made.elected = make(chan struct{})
	}
	return made, nil
}

func (m *Manager) kubeOptions() (ctrlmanager.Options, error) {
	reads, err := m.parts.Reads(m.options.Scheme, host.Serves)
	if err != nil {
		return ctrlmanager.Options{}, err
	}
	guard := host.NewGuard(m.options.Scheme)
	guard.Declare(reads)
	// controller-runtime wants the names of controllers to be unique in the whole
	// process, so a second manager in it would fail.
	skipNameValidation := true
	logger := zapr.NewLogger(m.options.Logger.Desugar())
	// Parts of controller-runtime use a global logger and complain on standard error
	// while it is not set. The first call wins, so a logger that the author set before
	// stays.
	setLogger.Do(func() { ctrllog.SetLogger(logger) })
	options := ctrlmanager.Options{
		Scheme:                 m.options.Scheme,
		Logger:                 logger,
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                m.metricsOptions(),
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: &skipNameValidation},
		NewCache: func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			objects, err := cache.New(config, options)
			return guard.Cache(objects), err
		},
		NewClient: func(config *rest.Config, options client.Options) (client.Client, error) {
			kube, err := client.New(config, options)
			return guard.Client(kube, options.Cache.Reader), err
		},
	}
	if m.options.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{m.options.Namespace: {}}
	}
	return options, nil
}

// off returns the address in controller-runtime's form, in which "0" means none.
func off(address string) string {
	if address == "" {
		return "0"
	}
	return address
}

// kubeManager is a controller-runtime manager whose checks our health serves.
type kubeManager struct {
	ctrlmanager.Manager
	health *health
	// elected is closed when this replica leads for the first time. It is set if
	// another manager takes part in the election; see newBackground.
	elected chan struct{}
}

func (k kubeManager) Elected() <-chan struct{} {
	if k.elected == nil {
		return k.Manager.Elected()
	}
	return k.elected
}

func (k kubeManager) AddHealthzCheck(name string, check healthz.Checker) error {
	k.health.mu.Lock()
	defer k.health.mu.Unlock()
	k.health.alive[name] = check
	return nil
}

func (k kubeManager) AddReadyzCheck(name string, check healthz.Checker) error {
	k.health.mu.Lock()
	defer k.health.mu.Unlock()
	k.health.ready[name] = check
	return nil
}

package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/zapr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clientgocache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/admitkit/admitkit/internal/cachesync"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
)

func (m *Manager) reach(ctx context.Context) error {
	return apiserver.Reach(ctx, &m.clients, m.options.RESTConfig.Host)
}

// setLogger guards controller-runtime's SetLogger, which is not safe for managers that
// start at the same moment.
var setLogger sync.Once

// newKubeManager makes the controller-runtime manager that runs reconcilers and
// watchers. Its cache is limited to Options.Namespaces and trimmed, so that memory
// grows only with the objects that the extensions read.
func (m *Manager) newKubeManager(health *health.Health) (ctrlmanager.Manager, error) {
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
	health.AddReady(cachesCheck, m.cachesSynced(kube))
	made := kubeManager{Manager: kube, health: health, misplaced: &misplaced{}, added: &atomic.Int64{}, caches: &[]cache.Cache{kube.GetCache()}}
	if m.options.Watching.LeaderElection {
		made.elected = make(chan struct{})
	}
	return made, nil
}

// neverTimeout lets controllers wait for a kind that is not served yet. The default, two
// minutes, would end the process, and whatever else runs in it.
const neverTimeout = 10 * 365 * 24 * time.Hour

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
		Controller:             config.Controller{SkipNameValidation: &skipNameValidation, CacheSyncTimeout: neverTimeout},
		NewCache: func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			objects, err := m.caches.NewCache(config, options, cachesync.Timeout)
			return guard.Cache(objects), err
		},
		NewClient: func(config *rest.Config, options client.Options) (client.Client, error) {
			kube, err := client.New(config, options)
			return guard.Client(kube, options.Cache.Reader), err
		},
	}
	for _, namespace := range m.options.Namespaces {
		if options.Cache.DefaultNamespaces == nil {
			options.Cache.DefaultNamespaces = map[string]cache.Config{}
		}
		options.Cache.DefaultNamespaces[namespace] = cache.Config{}
	}
	return options, nil
}

// cachesCheck begins the names of the checks of caches, as package cluster has them, too.
const cachesCheck = "caches"

// kubeManager is a controller-runtime manager whose checks our health serves.
type kubeManager struct {
	ctrlmanager.Manager
	health *health.Health
	// elected is closed when this replica leads for the first time. It is set if
	// another manager takes part in the election; see newBackground.
	elected chan struct{}
	// misplaced takes the place of controller-runtime's webhook server.
	misplaced *misplaced
	// gate is what reconcilers and watchers wait for; nil for nothing.
	gate *conversionGate
	// added counts what was added, controllers among it.
	added *atomic.Int64
	// caches are its own and those that were added.
	caches *[]cache.Cache
}

// GetWebhookServer returns a server that makes [kubeManager.Start] fail if it gets a webhook.
func (k kubeManager) GetWebhookServer() ctrlwebhook.Server { return k.misplaced }

// misplaced is a webhook server in controller-runtime's sense. It serves nothing: nobody
// would register its webhooks, and its paths could be called by everybody.
type misplaced struct {
	ctrlwebhook.Server

	mu    sync.Mutex
	paths []string
}

func (s *misplaced) Register(path string, _ http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, path)
}

// WebhookMux returns nil: no path is taken.
func (s *misplaced) WebhookMux() *http.ServeMux { return nil }

func (s *misplaced) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.paths) == 0 {
		return nil
	}
	return fmt.Errorf("webhooks at %s: nothing serves what builder.WebhookManagedBy or GetWebhookServer registers: give its Defaulter to "+
		"AddExtension as an extension.Mutator, its Validator as an extension.Validator (docs/from-controller-runtime.md)", strings.Join(s.paths, ", "))
}

// Start runs it. Nothing else of it listens but its metrics.
func (k kubeManager) Start(ctx context.Context) error {
	if err := k.misplaced.err(); err != nil {
		return err
	}
	err := k.Manager.Start(ctx)
	if failed := (*net.OpError)(nil); errors.As(err, &failed) && failed.Op == "listen" {
		return fmt.Errorf("Serving.MetricsAddress: %w", err)
	}
	return err
}

func (k kubeManager) Elected() <-chan struct{} {
	if k.elected == nil {
		return k.Manager.Elected()
	}
	return k.elected
}

func (k kubeManager) AddHealthzCheck(name string, check healthz.Checker) error {
	k.health.AddAlive(name, check)
	return nil
}

func (k kubeManager) AddReadyzCheck(name string, check healthz.Checker) error {
	k.health.AddReady(name, check)
	return nil
}

// runKube runs a manager of controller-runtime, whose error for a cache that is not filled in
// time names at best a Go type.
func (m *Manager) runKube(ctx context.Context, kube ctrlmanager.Manager, health *health.Health) error {
	err := kube.Start(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if why := health.Unready(ctx, cachesCheck); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// startReads makes the informers of what extensions read in this process, which run as soon
// as kube does, and returns a function that waits until they have synced. It reports what
// would keep them from it: an informer tries again forever.
func (m *Manager) startReads(ctx context.Context, kube ctrlmanager.Manager, process host.Process) (synced func(context.Context) bool, err error) {
	reads, err := m.parts.Reads(m.options.Scheme, process)
	if err != nil {
		return nil, err
	}
	var all []clientgocache.InformerSynced
	for _, read := range reads {
		var err error
		if !m.converts(read.Kind.Group) { // else perhaps nobody but this process does, which begins later
			err = m.checkRead(ctx, kube.GetRESTMapper(), read)
		}
		if err != nil {
			return nil, fmt.Errorf("Reads of %s: %s: %w", read.Part, read.Kind.Kind, err)
		}
		informer, err := kube.GetCache().GetInformer(ctx, read.Object)
		if err != nil {
			return nil, fmt.Errorf("Reads of %s: %s: %w", read.Part, read.Kind.Kind, err)
		}
		all = append(all, informer.HasSynced)
	}
	return func(ctx context.Context) bool { return clientgocache.WaitForCacheSync(ctx.Done(), all...) }, nil
}

// converts reports whether a converter of this process is for a kind of a group.
func (m *Manager) converts(group string) bool {
	return slices.ContainsFunc(m.parts.Converters, func(c *host.Converter) bool { return c.Group == group })
}

// checkRead makes sure that the API server has a kind, and lets this process list and watch
// it.
func (m *Manager) checkRead(ctx context.Context, mapper meta.RESTMapper, read host.Read) error {
	mapping, err := mapper.RESTMapping(read.Kind.GroupKind(), read.Kind.Version)
	if err != nil {
		return cachesync.Explain(read.Kind, err)
	}
	all, err := metadata.NewForConfigAndClient(m.options.RESTConfig, m.httpClient)
	if err != nil {
		return err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return cachesync.Explain(read.Kind, listAndWatch(ctx, all.Resource(mapping.Resource)))
	}
	return m.inSome(read.Kind, m.namespaces(), func(namespace string) error {
		return listAndWatch(ctx, all.Resource(mapping.Resource).Namespace(namespace))
	})
}

// inSome calls a function that reads a kind for each namespace. It is an error if it fails in
// all. If it fails in some, that is logged alone: a namespace that is gone, or where somebody
// has deleted the manager's Role, must not hold up the others.
func (m *Manager) inSome(kind schema.GroupVersionKind, namespaces []string, read func(namespace string) error) error {
	failed := map[string]error{}
	for _, namespace := range namespaces {
		if err := read(namespace); err != nil {
			failed[namespace] = cachesync.Explain(kind, err)
		}
	}
	if len(failed) == len(namespaces) {
		return failed[namespaces[0]]
	}
	for namespace, err := range failed {
		m.options.Logger.Errorw("a watched namespace cannot be read; going on without it until it can", "namespace", namespace, "kind", kind.Kind, "error", err)
	}
	return nil
}

func listAndWatch(ctx context.Context, resource metadata.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	list, err := resource.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	watch, err := resource.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	watch.Stop()
	for range watch.ResultChan() { // until it is closed: whoever fills it waits
	}
	return nil
}

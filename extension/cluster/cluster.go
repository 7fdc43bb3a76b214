package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/cachesync"
)

// Options are the options of [New].
type Options struct {
	// Name is in the names of loggers.
	Name string
	// Scheme has the kinds that are read and written. Default: client-go's.
	Scheme *runtime.Scheme
	// Namespaces are those whose objects the cache holds; "" stands for all. Default: the
	// watched namespaces.
	Namespaces []string
	// ByObject says which objects of a kind the cache holds, and what of them. A
	// kind that is not in it is cached whole, once it is read.
	ByObject map[client.Object]cache.ByObject
}

// New returns a cluster of the extension's own: a cache, its client, and a reader
// that asks the API server. The cache of mgr.GetKubeManager would hold every Pod of
// the namespaces; this one holds what ByObject selects, without managed fields, in
// the watched namespaces. The manager starts it and waits until it is synced, and is not
// ready before: /readyz names the kinds that are missing. So New is to be called in
// Register, once for each name.
//
// A manager that starts nothing, such as that of testing/admit, has a method
// NewCache(*rest.Config, cache.Options) (cache.Cache, error), and the cluster has its cache.
func New(mgr extension.Manager, options Options) (cluster.Cluster, error) {
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return nil, err
	}
	kube := mgr.GetKubeManager()
	if kube == nil {
		return nil, fmt.Errorf("%s: cluster.New: the manager has not started: call it in Register", options.Name)
	}
	var status *cachesync.Status
	own, err := cluster.New(config, func(o *cluster.Options) {
		o.Scheme = options.Scheme
		if o.Scheme == nil {
			o.Scheme = clientgoscheme.Scheme
		}
		o.Logger = kube.GetLogger().WithName(options.Name)
		o.MapperProvider = mapperWithin(discoveryTimeout)
		o.Cache = cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: options.ByObject}
		namespaces := options.Namespaces
		if len(namespaces) == 0 {
			namespaces = mgr.GetNamespaces()
		}
		o.Cache.DefaultNamespaces = make(map[string]cache.Config, len(namespaces))
		for _, namespace := range namespaces {
			o.Cache.DefaultNamespaces[namespace] = cache.Config{}
		}
		status = cachesync.New(o.Scheme, o.Logger)
		o.NewCache = func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			if host, ok := mgr.(cacher); ok {
				return host.NewCache(config, options)
			}
			return status.NewCache(config, options, syncTimeout)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", options.Name, err)
	}
	ready := func(*http.Request) error { return status.Check() }
	if err := errors.Join(kube.Add(own), kube.AddReadyzCheck("caches of "+options.Name, ready)); err != nil {
		return nil, fmt.Errorf("%s: %w", options.Name, err)
	}
	return own, nil
}

// syncTimeout is how long controllers wait for namespaces that cannot be read. Only tests change it.
var syncTimeout = cachesync.Timeout

// cacher is a manager with caches of its own.
type cacher interface {
	NewCache(config *rest.Config, options cache.Options) (cache.Cache, error)
}

// NewClient returns a client that reads from the API server, without the rate limit of
// client-go: use it for what must be true at this moment. The scheme's default is
// client-go's.
func NewClient(mgr extension.Manager, scheme *runtime.Scheme, wrap ...func(http.RoundTripper) http.RoundTripper) (client.Client, error) {
	config, err := Unthrottled(mgr)
	if err != nil {
		return nil, err
	}
	for _, fn := range wrap {
		config.Wrap(fn)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	mapper, err := mapperWithin(discoveryTimeout)(config, httpClient)
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme, HTTPClient: httpClient, Mapper: mapper})
}

// discoveryTimeout is how long the API server may take to say which kinds it has.
const discoveryTimeout = 10 * time.Second

// mapperWithin makes a mapper whose questions to the API server, which kinds it has,
// end after limit. They mind no context, and hold a lock meanwhile: an answer that
// never came would stop all that uses the cluster.
func mapperWithin(limit time.Duration) func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	return func(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
		limited := *client
		limited.Timeout = limit
		return apiutil.NewDynamicRESTMapper(config, &limited)
	}
}

// TrimPod is the [cache.ByObject] Transform that leaves of a Pod what tells which
// one it is, whose, and whether it is ready: its metadata without managed fields,
// of its spec the grace period, and of its status the phase, the conditions and the
// reason. The rest of the spec, which is most of a Pod, is empty.
func TrimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels:                     pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, Conditions: pod.Status.Conditions, Reason: pod.Status.Reason, Message: pod.Status.Message,
		},
	}
	return trimmed, nil
}

// Package controller is what the controllers of access, bindings and runs have in common: how they are made, in which order
// their queue goes, with which kinds, and as whom they write.
package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// New makes a controller that watches objects through a cache. A replica that waits to lead has its cache already, and so
// loses no time.
func New(mgr extension.Manager, name string, of reconcile.Reconciler, workers int, objects cache.Cache, watches map[client.Object]handler.EventHandler) (controller.Controller, error) {
	c, err := controller.New(name, mgr.GetKubeManager(), controller.Options{Reconciler: of, MaxConcurrentReconciles: workers, EnableWarmup: new(true)})
	if err != nil {
		return nil, err
	}
	for object, handler := range watches {
		if err := c.Watch(source.Kind(objects, object, handler)); err != nil {
			return nil, fmt.Errorf("%s: watching %T: %w", name, object, err)
		}
	}
	return c, nil
}

// Priorities in the queue: ends first, then beginnings, then what happens, and last what a start finds, and the clean-up.
const (
	PriorityEnd     = 100
	PriorityBegin   = 50
	PriorityNormal  = 0
	PriorityInitial = -50
	PriorityCleanup = -100
)

// Queue is that of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Put puts an object into a queue.
func Put(q Queue, key types.NamespacedName, priority int) {
	item := reconcile.Request{NamespacedName: key}
	if prioritized, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, item)
		return
	}
	q.Add(item)
}

// Scheme has the kinds that are read and written.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

// Asker asks the API server, without a cache, for an admission. The zero value is ready for [Asker.Connect].
type Asker struct {
	client.Client

	once sync.Once
	err  error
	// user is as whom the reconcilers write, if not as this process.
	user string
	self cluster.Self
}

// NewAsker returns one that asks by a client.
func NewAsker(mgr extension.Manager, c client.Client) *Asker {
	return &Asker{Client: c, user: mgr.GetReconcilerUser()}
}

// Connect connects to the cluster, once.
func (a *Asker) Connect(mgr extension.Manager) error {
	a.once.Do(func() {
		var scheme *runtime.Scheme
		if scheme, a.err = Scheme(); a.err == nil {
			a.user = mgr.GetReconcilerUser()
			a.Client, a.err = cluster.NewClient(mgr, scheme)
		}
	})
	return a.err
}

// Reconciler returns as whom the reconcilers write.
func (a *Asker) Reconciler(ctx context.Context) (string, error) {
	if a.user != "" {
		return a.user, nil
	}
	return a.self.Username(ctx, a.Client)
}

// Rule is a rule of a Role.
func Rule(groups, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: groups, Resources: resources, Verbs: verbs}
}

// Package hook runs controllers that are made of hooks: CompositeControllers and
// DecoratorControllers in Metacontroller's protocol. A hook is a web server, or a policy
// in Rego that runs in this process.
//
//	err := mgr.AddExtension(hook.New(hook.Options{}))
//
// # How a parent is synced
//
// Read the code in this order. definition.go makes of a controller's object what runs:
// its kinds, its hooks, and what of it has no effect. watches.go has the informers, which
// controllers share and which go with the last of them. controller.go has the queue of one
// controller and its workers, so that a hook that hangs holds up nobody else's. sync.go asks
// the hook about one parent and does what it says, by the packages compose, which decides,
// and apply, which writes. ends.go, which runs in every replica, deletes children whose hook
// said until when they are. report.go writes the conditions of the controller's object.
//
// # What is trusted
//
// A hook acts with the rights of this process, on the kinds that its controller lists,
// [Options].Kinds allows, and RBAC grants. Who may write a controller, or what it refers
// to, acts with these rights, too.
package hook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
)

// Options are the options of [New]. The zero value runs webhooks about any kind, reads no
// Secret and no ConfigMap, and has no Rego.
type Options struct {
	// Kinds are the resources that hooks may be about, as parents, children or related
	// objects: pods, or rolebindings.rbac.authorization.k8s.io. Default: any that RBAC
	// grants.
	Kinds []string
	// Namespaces are those from which Secrets and ConfigMaps are read that a controller
	// refers to. Default: none.
	Namespaces []string
	// Workers is how many parents of a controller are worked on at a time. Default: 5.
	Workers int
	// TargetLabelSelector selects, by their labels, the CompositeControllers and
	// DecoratorControllers that this installation runs, as installation=blue. Installations
	// with selectors of which no two select the same can share a cluster. Default: all.
	TargetLabelSelector string
	// Compiler compiles policies, as that of operator/hook/rego. Without one a hook in
	// rego is an error of its controller.
	Compiler protocol.Compiler
}

// DefaultWorkers is the default of Options.Workers.
const DefaultWorkers = 5

// MaxWorkers is the most that Options.Workers can be.
const MaxWorkers = 1000

// Hooks is the extension. Make one with [New].
type Hooks struct {
	options Options
	target  labels.Selector

	mu     sync.Mutex
	engine *engine
	err    error
}

var (
	_ extension.Composite       = (*Hooks)(nil)
	_ extension.ClusterEntitled = (*part)(nil)
)

// New returns the extension. AddExtension reports invalid options.
func New(options Options) *Hooks {
	if options.Workers == 0 {
		options.Workers = DefaultWorkers
	}
	return &Hooks{options: options}
}

// Parts implements [extension.Composite].
func (h *Hooks) Parts(extension.Manager) ([]any, error) {
	if h.options.Workers < 0 || h.options.Workers > MaxWorkers {
		return nil, fmt.Errorf("hook options: Workers: %d is not from 1 to %d", h.options.Workers, MaxWorkers)
	}
	for field, all := range map[string][]string{"Kinds": h.options.Kinds, "Namespaces": h.options.Namespaces} {
		for _, each := range all {
			if each == "" || strings.ContainsAny(each, "*/ ") {
				return nil, fmt.Errorf("hook options: %s: %q: must be a name, without wildcards", field, each)
			}
		}
	}
	var err error
	if h.target, err = labels.Parse(h.options.TargetLabelSelector); err != nil {
		return nil, fmt.Errorf("hook options: TargetLabelSelector: %q: %w", h.options.TargetLabelSelector, err)
	}
	return []any{&part{hooks: h, kind: "CompositeController"}, &part{hooks: h, kind: "DecoratorController"}}, nil
}

// part registers the reconciler of one kind.
type part struct {
	reconcile.Reconciler // the one that was last registered
	hooks                *Hooks
	kind                 string
}

// Register implements [extension.Reconciler]. It is called again when the manager has lost
// its Lease, with another manager of controller-runtime: all begins anew then.
func (p *part) Register(mgr extension.Manager) error {
	e, err := p.hooks.engineFor(mgr)
	if err != nil {
		return err
	}
	r := &reconciler{e, p.kind}
	p.Reconciler = r
	return r.register(mgr.GetKubeManager())
}

// engineFor returns the engine that both parts have in a manager of controller-runtime.
func (h *Hooks) engineFor(mgr extension.Manager) (*engine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if kube := mgr.GetKubeManager(); h.engine == nil || h.engine.kube != kube {
		h.engine = &engine{
			options: h.options, target: h.target, kube: kube, running: map[string]*running{}, reports: map[string]*report{}, refused: map[string]string{},
			anew: map[string]chan event.GenericEvent{"CompositeController": make(chan event.GenericEvent), "DecoratorController": make(chan event.GenericEvent)},
		}
		h.err = h.engine.connect(mgr)
	}
	return h.engine, h.err
}

// engine is what the parts have in common.
type engine struct {
	options Options
	// target selects the controllers.
	target labels.Selector
	kube   ctrlmanager.Manager

	// The following are set by connect.
	ctx       context.Context
	log       *zap.Logger
	events    events.EventRecorder
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
	cluster   ctrlcluster.Cluster
	watches   *watches
	ends      *ends
	schemas   *apply.Schemas

	// anew has the controllers that are to begin anew, by their kind.
	anew map[string]chan event.GenericEvent

	mu      sync.Mutex
	running map[string]*running
	reports map[string]*report
	// refused are the digests of controllers that cannot run before their objects change.
	refused map[string]string
}

// running is a controller that runs.
type running struct {
	hash string
	*parents
}

func (e *engine) connect(mgr extension.Manager) error {
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return err
	}
	if e.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	if e.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	e.schemas = &apply.Schemas{Client: openapi.ToClientWithContext(e.discovery.OpenAPIV3())}
	if e.cluster, err = cluster.New(mgr, cluster.Options{Name: "hook", Namespaces: []string{""}}); err != nil {
		return err
	}
	e.ctx, e.log = mgr.GetContext(), mgr.GetLogger().Desugar().Named("hook")
	e.events = e.kube.GetEventRecorder("admitkit-hooks")
	e.watches = newWatches(e.dynamic)
	e.ends = newEnds(e)
	return errors.Join(e.kube.Add(e), e.kube.Add(e.ends))
}

// Start implements manager.Runnable: what the reconcilers have started ends with it.
func (e *engine) Start(ctx context.Context) error {
	e.watchKinds(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, r := range e.running {
		r.stop()
		delete(e.running, key)
	}
	e.running = nil
	for _, r := range e.reports {
		r.stop()
	}
	return nil
}

// reconciler starts and ends the controllers of one kind.
type reconciler struct {
	*engine
	kind string
}

func (r *reconciler) register(kube ctrlmanager.Manager) error {
	if err := r.registerEnds(kube); err != nil {
		return err
	}
	skip := true // of two managers in one process
	return ctrl.NewControllerManagedBy(kube).
		Named("hook-" + strings.ToLower(r.kind)).
		WithOptions(controller.Options{
			SkipNameValidation: &skip,
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstDelay, checkEvery),
		}).
		WatchesRawSource(source.Kind(r.cluster.GetCache(), client.Object(r.object()), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.anew[r.kind], &handler.EnqueueRequestForObject{})).
		Complete(r)
}

func (r *reconciler) object() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(r.kind))
	return object
}

// ClusterRights implements [extension.ClusterEntitled]: the controllers' own objects. What
// hooks are about, their authors grant.
func (p *part) ClusterRights() []rbacv1.PolicyRule {
	resource := strings.ToLower(p.kind) + "s"
	return []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource + "/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"controllerrevisions"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
}

// Reconcile implements [reconcile.Reconciler]: the controller of this name runs as its
// object says now.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key := r.kind + "/" + req.Name
	object := r.object()
	if err := r.cluster.GetCache().Get(ctx, req.NamespacedName, object); err != nil {
		if apierrors.IsNotFound(err) {
			r.gone(key)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	if object.GetDeletionTimestamp() != nil {
		r.gone(key)
		return reconcile.Result{}, nil
	}
	if !r.selects(object) { // its finalizers and its status are another installation's now
		if r.end(key) != nil {
			r.log.Info("a controller is not selected any more", zap.String("kind", r.kind), zap.String("controller", req.Name))
		}
		r.dropReport(key)
		return reconcile.Result{}, nil
	}
	hash := digest(object.Object["spec"], object.GetUID(), object.GetLabels(), object.GetAnnotations())
	r.mu.Lock()
	same := r.running[key] != nil && r.running[key].hash == hash || r.refused[key] == hash
	r.mu.Unlock()
	if same {
		return reconcile.Result{}, nil
	}
	old := r.end(key)
	report := r.reportOf(key, object)
	definition, err := r.define(ctx, object, report)
	if err != nil {
		if err = report.notReady(err); err == nil {
			r.mu.Lock()
			r.refused[key] = hash
			r.mu.Unlock()
		}
		return reconcile.Result{}, err
	}
	old.leaves(definition.parentKinds)
	return reconcile.Result{}, r.begin(key, hash, definition, report)
}

// gone ends a controller whose object is gone.
func (e *engine) gone(key string) {
	e.end(key).leaves(nil)
	e.dropReport(key)
}

// selects says whether this installation runs a controller.
func (e *engine) selects(object *unstructured.Unstructured) bool {
	return e.target.Matches(labels.Set(object.GetLabels()))
}

// begin starts a controller. After the end of the engine it starts none.
func (e *engine) begin(key, hash string, d *definition, report *report) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		d.close()
		return errors.New("the manager is stopping")
	}
	e.running[key] = &running{hash, startParents(e, d, report)}
	return nil
}

// end ends a controller, and returns what it was, or nil.
func (e *engine) end(key string) *parents {
	e.mu.Lock()
	r := e.running[key]
	delete(e.running, key)
	delete(e.refused, key)
	e.mu.Unlock()
	if r == nil {
		return nil
	}
	r.stop()
	r.report.stopped()
	return r.parents
}

// allows says why the operator does not want hooks to be about a resource.
func (e *engine) allows(resource, group string) error {
	name := resource
	if group != "" {
		name += "." + group
	}
	if len(e.options.Kinds) > 0 && !slices.Contains(e.options.Kinds, name) {
		return fault("KindNotAllowed", fmt.Sprintf("hooks may not be about %s: it is not in --hooks-kinds (hooks.kinds of the chart), which has plurals such as deployments.apps", name))
	}
	return nil
}

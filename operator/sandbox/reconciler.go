package sandbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/decision"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// runs reconciles SandboxRuns: it reads the facts about one, decides, and applies the decision.
type runs struct {
	*shared
	failures workqueue.TypedRateLimiter[types.NamespacedName]
	// refusals says when the broker is asked again that has said no.
	refusals workqueue.TypedRateLimiter[types.NamespacedName]
	// promptKey keeps the names of prompts secret until these are there.
	promptKey []byte

	// The following are set by Register.
	log      *zap.Logger
	events   events.EventRecorder
	recorder extension.Recorder
	// holder holds Pods to their egress.
	holder egress.Holder
	// cached reads what is ours from memory; live reads by name from the API server.
	lender  *credentials.Lender
	facts   *facts.Reader
	cluster ctrlcluster.Cluster
	cached  client.Reader
	live    client.Reader
	writer  client.Client
}

var _ extension.Reconciler = (*runs)(nil)

func newRuns(s *shared) *runs {
	return &runs{
		shared:    s,
		promptKey: []byte(rand.Text()),
		failures:  workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](20*time.Millisecond, 10*time.Second),
		refusals:  workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](facts.PollAfter, askAtLeast),
	}
}

const (
	// attemptTimeout bounds one attempt, so that an API server that does not answer holds a
	// worker no longer than that.
	attemptTimeout = 20 * time.Second
	// askAtLeast is how often a broker that says no is asked at least. Each time it may lease what comes before, and
	// take that back, on record: every 5 seconds a run that waits would fill the records, and use up GitHub's limits.
	askAtLeast = time.Minute
)

// Reconcile brings a run into the state that it should be in now, and returns when that changes.
func (r *runs) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	d, err := r.attempt(ctx, item.NamespacedName)
	switch {
	case ctx.Err() != nil:
		return reconcile.Result{}, nil //nolint:nilerr // the manager stops
	case err != nil:
		return r.retry(item.NamespacedName, zap.Stringer("run", item.NamespacedName), err), nil
	}
	r.failures.Forget(item.NamespacedName)
	if !d.Refused {
		r.refusals.Forget(item.NamespacedName)
	}
	switch {
	case d.Poll:
		return reconcile.Result{RequeueAfter: r.pollsAfter(item.NamespacedName, d.Refused)}, nil
	case !d.Next.IsZero() && !d.Discard:
		return reconcile.Result{RequeueAfter: max(d.Next.Sub(r.options.Clock.Now()), time.Nanosecond)}, nil
	}
	return reconcile.Result{}, nil
}

// pollsAfter says when to look again for what is not watched: for the broker that has refused, later from time to time.
func (r *runs) pollsAfter(key types.NamespacedName, refused bool) time.Duration {
	if refused {
		return r.refusals.When(key)
	}
	return facts.PollAfter
}

// retry says when to try again what has failed: later from time to time.
func (r *runs) retry(key types.NamespacedName, what zap.Field, err error) reconcile.Result {
	delay := r.failures.When(key)
	if !apierrors.IsConflict(err) { // else the cache is behind
		r.log.Warn("attempt failed", what, zap.Duration("retry", delay), zap.Error(err))
	}
	return reconcile.Result{RequeueAfter: delay}
}

// attempt reads, decides and applies.
func (r *runs) attempt(ctx context.Context, key types.NamespacedName) (decision.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	run := &v1alpha1.SandboxRun{}
	if err := r.cached.Get(ctx, key, run); err != nil {
		return decision.Decision{}, client.IgnoreNotFound(err)
	}
	if !run.DeletionTimestamp.IsZero() && !owned.HasFinalizer(run) {
		return decision.Decision{}, nil // only somebody else's finalizer keeps it
	}
	f, err := r.facts.Read(ctx, run)
	if err != nil {
		return decision.Decision{}, err
	}
	d := decision.Of(f, r.options.Clock.Now())
	return d, r.apply(ctx, f, &d)
}

// Register makes the controller.
func (r *runs) Register(mgr extension.Manager) error {
	if err := r.connect(mgr); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	beginCounting()
	if _, err := controller.New(mgr, "sandboxruns", r, r.options.Workers, r.cluster.GetCache(), r.watches()); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	return nil
}

// watches returns what is watched, and which runs that concerns.
func (r *runs) watches() map[client.Object]handler.EventHandler {
	ofLabel := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetLabels()[v1alpha1.LabelSandboxRun]}}}
	})
	waiting := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, template client.Object) []reconcile.Request {
		return r.which(ctx, template.GetNamespace(), facts.Startable)
	})
	reaching := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return r.which(ctx, "", func(run *v1alpha1.SandboxRun) bool {
			e := run.Status.Egress
			return facts.Startable(run) || !run.Status.Phase.Terminal() && e != nil && e.Policy != "" && egress.NamesAPIServer(&e.Egress)
		})
	})
	watches := map[client.Object]handler.EventHandler{
		&v1alpha1.SandboxRun{}: &handler.EnqueueRequestForObject{}, &v1alpha1.SandboxRunTemplate{}: waiting, &v1alpha1.ClusterSandboxRunTemplate{}: waiting, &v1alpha1.BrokerPolicy{}: waiting, &v1alpha1.Workspace{}: r.ofWorkspace(),
		&batchv1.Job{}: ofLabel, &corev1.Pod{}: ofLabel,
	}
	for _, kind := range r.holder.Kinds {
		watches[egress.NewPolicy(kind)] = ofLabel
	}
	if len(r.holder.Kinds) > 0 {
		watches[&discoveryv1.EndpointSlice{}], watches[&corev1.Service{}] = reaching, reaching
	}
	return watches
}

// which finds runs in a namespace, "" for all.
func (r *runs) which(ctx context.Context, namespace string, which func(*v1alpha1.SandboxRun) bool) (found []reconcile.Request) {
	var list v1alpha1.SandboxRunList
	if err := r.cached.List(ctx, &list, &client.ListOptions{Namespace: namespace, UnsafeDisableDeepCopy: new(true)}); err != nil {
		r.log.Warn("runs were not found", zap.Error(err))
		return nil
	}
	for i := range list.Items {
		if which(&list.Items[i]) {
			found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return found
}

// connect makes a cache that holds runs, templates, and what carries our label.
func (r *runs) connect(mgr extension.Manager) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return err
	}
	r.log = mgr.GetLogger().Desugar().Named("sandbox")
	r.warnOfImages(r.log)
	r.holder = egress.Holder{Options: &r.options.Egress, Flag: "--sandbox-network-policy"}
	if err := r.holder.Connect(mgr, r.log); err != nil {
		return err
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: owned.ManagedBy})}
	pods := ours
	pods.Transform = facts.TrimPod
	held := r.holder.Cache(ours)
	held[&batchv1.Job{}], held[&corev1.Pod{}], held[&corev1.PersistentVolumeClaim{}] = ours, pods, ours
	r.cluster, err = cluster.New(mgr, cluster.Options{Name: "sandbox", Scheme: scheme, Namespaces: r.namespaces, ByObject: held})
	if err != nil {
		return err
	}
	r.events, r.recorder = mgr.GetKubeManager().GetEventRecorder("admitkit-sandbox"), mgr.GetRecorder()
	r.cached, r.live, r.writer = r.cluster.GetCache(), r.cluster.GetAPIReader(), r.cluster.GetClient()
	self := &cluster.Self{}
	r.lender, r.facts = r.lends(), r.reads()
	r.lender.Broker = &credentials.Broker{
		Namespace: r.options.Broker.Namespace, URL: r.options.Broker.URL, CAFile: r.options.Broker.CAFile, Live: r.live,
		Token: credentials.TokenOf(r.writer, func(ctx context.Context) (string, error) { return self.Username(ctx, r.writer) }),
	}
	r.holder.Use(r.live, r.writer, r.options.Clock)
	return nil
}

// reads returns what reads the facts.
func (r *runs) reads() *facts.Reader {
	of := &facts.Reader{
		Cached: r.cached, Live: r.live, Holder: &r.holder, Egress: &r.options.Egress, Clock: r.options.Clock,
		StartTimeout: r.options.StartTimeout, Proxies: r.options.Proxy.on(), Collector: r.options.collector(),
	}
	if b := &r.options.Broker; b.on() {
		port, _ := b.port() // Parts has checked it
		of.Broker = &v1alpha1.EgressBroker{Namespace: b.Namespace, Port: port}
	}
	return of
}

// lends returns what lends, without a broker.
func (r *runs) lends() *credentials.Lender {
	return &credentials.Lender{Own: r.own, UpstreamCA: r.options.Proxy.UpstreamCA, Live: r.live, Writer: r.writer, Clock: r.options.Clock, Log: r.log}
}

// warnOfImages names the operator's own images that may be others tomorrow.
func (s *shared) warnOfImages(log *zap.Logger) {
	for flag, image := range map[string]string{"--sandbox-seed-image": s.options.SeedImage, "--sandbox-proxy-image": s.options.Proxy.Image} {
		if image != "" && !egress.IsDigestPinned(image) {
			log.Warn("an image names no digest: what runs with credentials can change; it is pulled always", zap.String("flag", flag), zap.String("image", image))
		}
	}
}

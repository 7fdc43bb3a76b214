package check

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

var (
	checksTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_checks_total", Help: "Questions to a check, by its answer: allowed, denied, or why there was none: unready (its credential or CA cannot be read), unreachable, timeout, status (not 200) or invalid.",
	}, []string{"check", "result"})
	checkSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_access_check_duration_seconds", Help: "How long a check took to answer, or to fail.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 8},
	}, []string{"check"})
)

func init() { metrics.Registry.MustRegister(checksTotal, checkSeconds) }

const (
	resultAllowed = "allowed"
	resultDenied  = "denied"
)

// checkWorkers is how many requests one check is asked about at a time. Each check has
// its own, so that one that hangs holds up no other.
const checkWorkers = 8

// The pauses after a check has failed, for each request.
const (
	checkBackoff    = 500 * time.Millisecond
	maxCheckBackoff = 30 * time.Second
)

// Subject is a request that a check is asked about.
type Subject struct {
	Kind string
	Key  types.NamespacedName
	UID  types.UID
}

// Queue asks the checks about requests that are otherwise ready to be granted, apart from
// the reconcilers, which must not wait for anybody. An answer is written into the status,
// where nobody can change it, and only a request without one is asked about.
type Queue struct {
	*kube.Connection
	of map[string]*checkQueue

	mu    sync.Mutex
	kinds map[string]checkedKind
	// open has the questions that are asked now, or will be, with the last failure.
	open map[Subject]string
}

type checkQueue struct {
	name   string
	client *Client
	queue  workqueue.TypedRateLimitingInterface[Subject]
}

// checkedKind are the requests of a kind, and what has one of them looked at.
type checkedKind struct {
	kind grant.Kind
	wake func(context.Context, types.NamespacedName)
}

// NewQueue returns what asks the endpoints, by the names of their checks.
func NewQueue(conn *kube.Connection, endpoints map[string]Endpoint) *Queue {
	c := &Queue{Connection: conn, of: map[string]*checkQueue{}, kinds: map[string]checkedKind{}, open: map[Subject]string{}}
	for name, endpoint := range endpoints {
		endpoint.Connections = checkWorkers
		c.of[name] = &checkQueue{name: name, client: NewClient(endpoint)}
	}
	return c
}

// Register makes the checks known to a controller, and begins their counts. With the
// first controller comes what asks.
func (c *Queue) Register(mgr extension.Manager, k grant.Kind, wake func(context.Context, types.NamespacedName)) error {
	for name, q := range c.of {
		if err := q.client.Ready(); err != nil {
			return fmt.Errorf("access: check %s: %w", name, err)
		}
		for _, result := range append([]string{resultAllowed, resultDenied}, Failures...) {
			checksTotal.WithLabelValues(name, result)
		}
		checkSeconds.WithLabelValues(name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[k.Name] = checkedKind{k, wake}
	if len(c.of) == 0 || len(c.kinds) > 1 {
		return nil
	}
	return mgr.GetKubeManager().Add(c)
}

var _ manager.LeaderElectionRunnable = (*Queue)(nil)

// NeedLeaderElection is true: only who grants asks.
func (*Queue) NeedLeaderElection() bool { return true }

// Start asks until ctx ends.
func (c *Queue) Start(ctx context.Context) error {
	var group sync.WaitGroup
	c.mu.Lock()
	for _, q := range c.of {
		q.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Subject](checkBackoff, maxCheckBackoff))
		for range checkWorkers {
			group.Go(func() { c.work(ctx, q) })
		}
	}
	c.mu.Unlock()
	<-ctx.Done()
	for _, q := range c.of {
		q.queue.ShutDown()
	}
	group.Wait()
	for _, q := range c.of {
		q.client.Close()
	}
	return nil
}

// Ask has a check asked about a request, unless it is asked already. Before Start nobody
// is asked: the request comes back.
func (c *Queue) Ask(name string, about Subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of[name]
	if _, asked := c.open[about]; asked || q == nil || q.queue == nil {
		return
	}
	c.open[about] = ""
	q.queue.Add(about)
}

// Trouble returns why a check has not answered yet, "" if it has not failed.
func (c *Queue) Trouble(about Subject) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[about]
}

func (c *Queue) work(ctx context.Context, q *checkQueue) {
	for {
		about, over := q.queue.Get()
		if over {
			return
		}
		c.mu.Lock()
		of := c.kinds[about.Kind]
		c.mu.Unlock()
		trouble, err := c.settle(ctx, q, of.kind, about)
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("a check has not answered", zap.String("check", q.name), zap.String("kind", of.kind.RequestKind), zap.Stringer("request", about.Key), zap.Error(err))
		}
		c.mu.Lock()
		news := c.open[about] != trouble
		if err == nil {
			delete(c.open, about)
			q.queue.Forget(about)
		} else {
			c.open[about] = trouble
			q.queue.AddRateLimited(about)
		}
		c.mu.Unlock()
		q.queue.Done(about)
		if news || err == nil {
			of.wake(ctx, about.Key)
		}
	}
}

// settle asks a check about a request, and writes the answer into its status. The error is
// why it must be asked again, and trouble what the request says of it. No error means that
// there is an answer, or nothing to ask any more.
func (c *Queue) settle(ctx context.Context, q *checkQueue, k grant.Kind, about Subject) (trouble string, err error) {
	const unwritten = "its answer cannot be recorded"
	reading, cancel := context.WithTimeout(ctx, kube.AttemptTimeout)
	defer cancel()
	req, err := c.asked(reading, k, about)
	if err != nil || req == nil {
		return unwritten, err
	}
	began := c.Clock.Now()
	answer, err := q.client.Ask(ctx, questionAbout(k, req, q.name))
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	checkSeconds.WithLabelValues(q.name).Observe(c.Clock.Since(began).Seconds())
	if failed, ok := errors.AsType[*Failure](err); ok {
		checksTotal.WithLabelValues(q.name, failed.Reason).Inc()
		return failed.Error(), err
	}
	result := &v1alpha1.CheckResult{Name: q.name, Decision: answer.Decision, Message: answer.Message, Time: metav1.Time{Time: c.Clock.Now()}}
	if most := answer.MaxDurationSeconds; most != nil && answer.Decision == v1alpha1.CheckAllow {
		result.MaxDurationSeconds = *most
	}
	counted := resultAllowed
	if answer.Decision == v1alpha1.CheckDeny {
		counted = resultDenied
	}
	checksTotal.WithLabelValues(q.name, counted).Inc()
	if err = c.writeCheck(ctx, k, about, req, result); errors.Is(err, errChanged) {
		return "", err
	}
	return unwritten, err
}

// errChanged means that the answer is about a request that has changed since.
var errChanged = errors.New("the request has changed since the check was asked")

// writeCheck writes an answer into the request that it is about. Others may write the
// status at the same time, which changes nothing; another duration would.
func (c *Queue) writeCheck(ctx context.Context, k grant.Kind, about Subject, asked v1alpha1.Request, result *v1alpha1.CheckResult) error {
	writing, cancel := context.WithTimeout(ctx, kube.AttemptTimeout)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		req, err := c.asked(writing, k, about)
		switch {
		case err != nil || req == nil:
			return err
		case req.GetGeneration() != asked.GetGeneration():
			return errChanged
		}
		status := req.GetRequestStatus().DeepCopy()
		status.Check = result
		return client.IgnoreNotFound(c.PatchStatus(writing, req, status))
	})
}

// asked returns a request as the API server has it, nil if it waits for no check: it is
// gone, over, not approved, or has its answer. The cache could be behind, and a check is
// asked no more about what is on record.
func (c *Queue) asked(ctx context.Context, k grant.Kind, about Subject) (v1alpha1.Request, error) {
	req, err := kube.Get(ctx, c.Live, about.Key, k.NewRequest())
	if err != nil || req == nil || req.GetUID() != about.UID || !req.GetDeletionTimestamp().IsZero() {
		return nil, err
	}
	_, waits := v1alpha1.BeginOf(req)
	if waits || req.GetRequestStatus().Check != nil || v1alpha1.Over(req, c.Clock.Now()) {
		return nil, nil
	}
	return req, nil
}

// questionAbout returns what a check is asked about a request.
func questionAbout(k grant.Kind, req v1alpha1.Request, name string) Question {
	spec := req.GetRequestSpec()
	begin, _ := v1alpha1.BeginOf(req)
	end, _ := v1alpha1.EndOf(req) // one that is invalid is not asked about
	q := Question{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: k.RequestKind, Namespace: req.GetNamespace(), Name: req.GetName(), UID: string(req.GetUID()), Check: name,
		OnBehalfOf: spec.OnBehalfOf, Reason: spec.Reason, Template: spec.TemplateName, TargetPod: req.GetTargetPod(),
		DurationSeconds: int64(end.Sub(begin).Seconds()), From: begin.UTC(), Until: end.UTC(),
	}
	if spec.Requester != nil {
		q.Requester = *spec.Requester
	}
	if req.GetRequestStatus().ApprovedAt != nil {
		for i := range req.GetRequestStatus().Verdicts {
			q.ApprovedBy = append(q.ApprovedBy, req.GetRequestStatus().Verdicts[i].Username)
		}
	}
	return q
}

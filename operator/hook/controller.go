package hook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"

	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// The delays of what fails.
const (
	firstDelay = 250 * time.Millisecond
	lastDelay  = 2 * time.Minute
)

// parentKey names a parent of a controller.
type parentKey struct {
	kind            int // index of definition.parentKinds
	namespace, name string
}

// parents are the parents of one controller, with its queue and its workers.
type parents struct {
	*definition
	engine *engine
	report *report
	queue  workqueue.TypedRateLimitingInterface[parentKey]
	cancel context.CancelFunc
	done   sync.WaitGroup

	parentLeases, childLeases []*lease
	// revisionLease has the ControllerRevisions, if a kind of children rolls.
	revisionLease *lease

	mu      sync.Mutex
	states  map[parentKey]*state
	related map[watchKey]*lease
	// broken says that a watch does not work now.
	broken bool
}

// state is what is remembered of a parent between two calls of its hook.
type state struct {
	uid types.UID
	// asked is the digest of what the hook was last asked about: if it is the same there is
	// nothing to ask. settled is that of what its answer made of it, and status that of the
	// status that was then written.
	asked, settled, status string
	// due is when the hook is to be called although nothing has changed.
	due time.Time
	// woke is when a time that had come last called the hook.
	woke  time.Time
	churn churn
	// answered says that the hook has answered since this process leads, and validUntil how
	// long that holds; zero is for ever.
	answered   bool
	validUntil time.Time
	// marked are children whose label with validUntil alone has changed: that is nothing to
	// ask the hook about.
	marked map[compose.ID]marked
	// writes are those that the cache may not have yet.
	writes map[compose.ID]write
	// stale are versions of the parent before the last writes of it.
	stale map[string]time.Time
	tries map[compose.ID]*apply.Tries
	// applied are the children that are as they should be.
	applied map[compose.ID]applied
	rules   []relatedRule
	// customized is the generation that the rules are for, and until when.
	customized int64
	until      time.Time
}

// wake notes that a time has come that calls the hook.
func (s *state) wake(now time.Time) {
	if !s.due.IsZero() && !now.Before(s.due) {
		s.woke = now
	}
}

// churn counts how often a hook changes the children, or its own status, of a parent that
// is the same. A hook that wants something else at each call would else be called for ever,
// since its own changes call it.
type churn struct {
	parent int64 // its generation
	left   *rate.Limiter
}

const (
	// maxChurn is how many changes a hook can make at once, besides one for each child that
	// rolls: more than any that comes to rest should need. After that it can make one each
	// churnEvery.
	maxChurn   = 100
	churnEvery = 2 * time.Second
	// youngChild is how old a child is if its deletion counts.
	youngChild = 10 * time.Second
)

func (c *churn) add(parent int64, rolling int, now time.Time) {
	if c.left == nil || c.parent != parent {
		*c = churn{parent, rate.NewLimiter(rate.Every(churnEvery), maxChurn+rolling)}
	}
	c.left.AllowN(now, 1)
}

// wait returns how long the hook is left alone, if it has changed too much too often.
func (c *churn) wait(parent int64, now time.Time) time.Duration {
	if c.left == nil || c.parent != parent {
		return 0
	}
	return time.Duration(max(0, 1-c.left.TokensAt(now)) * float64(churnEvery))
}

// write is a write of a child: the cache is behind as long as it has the version before it.
type write struct {
	before string
	at     time.Time
}

// marked are the versions of a child since the one that the hook was asked about.
type marked struct {
	version string
	since   []string
}

type applied struct{ wish, content string }

// behind is how long a write is believed not to have come to the cache.
const behind = 2 * time.Second

func startParents(e *engine, d *definition, report *report) *parents {
	ctx, cancel := context.WithCancel(e.ctx)
	p := &parents{
		definition: d, engine: e, report: report, cancel: cancel,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[parentKey](firstDelay, lastDelay)),
		states: map[parentKey]*state{}, related: map[watchKey]*lease{},
	}
	d.mu.Lock()
	d.changed = p.resyncAll
	d.mu.Unlock()
	p.done.Go(func() { p.run(ctx) })
	return p
}

// stop ends the controller, and returns when nothing of it runs any more.
func (p *parents) stop() {
	p.cancel()
	p.queue.ShutDown()
	p.done.Wait()
	for _, l := range p.leases() {
		l.release()
	}
	for _, l := range p.related {
		l.release()
	}
	p.close()
	forget(p.metricName())
}

// maxLeft is how many parents are told that a finalizer stays.
const maxLeft = 100

// leaves tells the parents that a controller has no more, since it was deleted or is about
// other kinds now, that its finalizer stays: to take it away would skip what the hook
// finalize has to do, such as to delete something outside of the cluster.
func (p *parents) leaves(kept []parentKind) {
	if p == nil || p.finalize == nil {
		return
	}
	left := 0
	for i, l := range p.parentLeases {
		if slices.ContainsFunc(kept, func(k parentKind) bool {
			return k.resource.GroupResource() == p.parentKinds[i].resource.GroupResource()
		}) {
			continue
		}
		for _, parent := range l.list() { // what there was when the watch ended
			if !slices.Contains(parent.GetFinalizers(), p.finalizer()) {
				continue
			}
			if left++; left <= maxLeft {
				p.engine.events.Eventf(parent, p.report.object, corev1.EventTypeWarning, "FinalizerLeft", "Delete",
					"%s %s is gone, and its finalizer %s keeps this object from being deleted. Apply the controller again: as it was, to finalize; without hooks.finalize, to have the finalizer removed",
					p.report.object.GetKind(), p.name, p.finalizer())
			}
		}
	}
	if left > 0 {
		p.engine.log.Warn("a controller is gone, and its finalizer stays", zap.String("controller", p.name), zap.String("finalizer", p.finalizer()), zap.Int("parents", left))
	}
}

func (p *parents) run(ctx context.Context) {
	if err := p.watch(); err != nil {
		p.report.ready(err)
		return
	}
	if !p.awaitSync(ctx) {
		return
	}
	p.report.ready(nil)
	for range p.engine.options.Workers {
		p.done.Go(func() {
			for p.next(ctx) {
			}
		})
	}
}

func (p *parents) watch() error {
	for i := range p.parentKinds {
		kind := &p.parentKinds[i]
		l, err := p.engine.watches.acquire(watchKey{GroupVersionResource: kind.resource}, func(before, after *compose.Object) {
			for _, object := range []*compose.Object{before, after} {
				if object != nil {
					p.queue.Add(parentKey{i, object.GetNamespace(), object.GetName()})
					return
				}
			}
		})
		if err != nil {
			return err
		}
		p.mu.Lock() // for resyncAll, which can come while the others are acquired
		p.parentLeases = append(p.parentLeases, l)
		p.mu.Unlock()
	}
	for _, child := range p.children {
		l, err := p.engine.watches.acquire(watchKey{GroupVersionResource: child.resource}, p.childChanged)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.childLeases = append(p.childLeases, l)
		p.mu.Unlock()
	}
	if !p.rolls() {
		return nil
	}
	l, err := p.engine.watches.acquire(watchKey{GroupVersionResource: revisionResource}, func(before, after *compose.Object) {
		for _, object := range []*compose.Object{before, after} {
			if object == nil {
				continue
			}
			if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
				p.enqueueUID(string(owner.UID))
			}
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revisionLease = l
	return err
}

// leases are all that have to be synced before a hook is called.
func (p *parents) leases() []*lease {
	all := slices.Concat(p.parentLeases, p.childLeases)
	if p.revisionLease != nil {
		all = append(all, p.revisionLease)
	}
	return all
}

// awaitSync waits until all is known that there is, and reports what keeps it.
func (p *parents) awaitSync(ctx context.Context) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		var missing error
		waiting := false
		for _, l := range p.leases() {
			if !l.synced() {
				waiting = true
				missing = errors.Join(missing, l.lastError())
			}
		}
		if !waiting {
			return true
		}
		if missing != nil && time.Since(began) > time.Second {
			p.report.ready(missing)
			tick.Reset(200 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// childChanged enqueues the parents that a child has, has had, or may want.
func (p *parents) childChanged(before, after *compose.Object) {
	for _, child := range []*compose.Object{before, after} {
		if child == nil {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(child); owner != nil {
			p.enqueueUID(string(owner.UID))
		} else if p.composite {
			p.orphanChanged(child)
		}
	}
}

func (p *parents) enqueueUID(uid string) {
	for i, l := range p.parentLeases {
		for _, parent := range l.indexed(byUID, uid) {
			p.queue.Add(parentKey{i, parent.GetNamespace(), parent.GetName()})
		}
	}
}

func (p *parents) orphanChanged(child *compose.Object) {
	if p.generate {
		if uid := child.GetLabels()[compose.LabelControllerUID]; uid != "" {
			p.enqueueUID(uid)
		}
		return
	}
	for _, parent := range p.parentLeases[0].list() {
		if parent.GetNamespace() != "" && parent.GetNamespace() != child.GetNamespace() {
			continue
		}
		if selector, err := compose.Selector(parent, false); err == nil && selector.Matches(labels.Set(child.GetLabels())) {
			p.queue.Add(parentKey{0, parent.GetNamespace(), parent.GetName()})
		}
	}
}

// resyncAll has the hook called for each parent, although nothing of it has changed.
func (p *parents) resyncAll() {
	p.mu.Lock()
	for _, s := range p.states {
		s.asked = ""
	}
	leases := slices.Clone(p.parentLeases)
	p.mu.Unlock()
	for i, l := range leases {
		for _, parent := range l.list() {
			p.queue.Add(parentKey{i, parent.GetNamespace(), parent.GetName()})
		}
	}
}

// syncTimeout is how long the sync of a parent may take besides its hook's own time.
const syncTimeout = 15 * time.Minute

func (p *parents) next(ctx context.Context) bool {
	key, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(key)
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := p.syncSafely(ctx, key)
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return true
	}
	if errors.Is(err, errBehind) {
		return true
	}
	if errors.Is(err, errWaiting) {
		p.queue.AddAfter(key, firstDelay) // a watch has only begun: that is nothing to report
		return true
	}
	p.report.outcome(key, p.parentOf(key), err)
	var later *protocol.RetryAfterError
	switch {
	case err == nil:
		p.queue.Forget(key)
	case errors.As(err, &later):
		p.queue.Forget(key)
		p.queue.AddAfter(key, later.After)
	case errors.Is(err, errLeftAlone):
		p.queue.Forget(key)
		p.queue.AddAfter(key, time.Minute)
	default:
		p.queue.AddRateLimited(key)
	}
	return true
}

// syncSafely keeps a parent whose sync panics from ending the program, and with it the work
// on all others.
func (p *parents) syncSafely(ctx context.Context, key parentKey) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			p.engine.log.Error("the sync of a parent panicked", zap.String("controller", p.name), zap.String("parent", key.namespace+"/"+key.name), zap.Any("panic", panicked), zap.Stack("stack"))
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	return p.syncParent(ctx, key)
}

func (p *parents) parentOf(key parentKey) *compose.Object {
	return p.parentLeases[key.kind].get(key.namespace, key.name)
}

func (p *parents) stateOf(key parentKey, uid types.UID) *state {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.states[key]
	if s == nil || s.uid != uid {
		s = &state{uid: uid, stale: map[string]time.Time{}, writes: map[compose.ID]write{}, tries: map[compose.ID]*apply.Tries{}, applied: map[compose.ID]applied{}, marked: map[compose.ID]marked{}}
		p.states[key] = s
	}
	return s
}

func (p *parents) drop(key parentKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.states, key)
}

// client returns what writes a child.
func (p *parents) client(object *compose.Object) dynamic.ResourceInterface {
	for i, child := range p.children {
		if child.GroupVersionKind == object.GroupVersionKind() {
			c := p.engine.dynamic.Resource(p.children[i].resource)
			if child.Namespaced {
				return c.Namespace(object.GetNamespace())
			}
			return c
		}
	}
	return nil // Prepare and the leases have only these kinds
}

func (p *parents) parentClient(key parentKey) dynamic.ResourceInterface {
	c := p.engine.dynamic.Resource(p.parentKinds[key.kind].resource)
	if key.namespace != "" {
		return c.Namespace(key.namespace)
	}
	return c
}

// digest tells values from others.
func digest(values ...any) string {
	sum := sha256.New()
	encoder := json.NewEncoder(sum)
	for _, value := range values {
		_ = encoder.Encode(value) // maps are sorted; all of it came as JSON
	}
	return hex.EncodeToString(sum.Sum(nil))
}

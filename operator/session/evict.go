package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxEvictions is how many Pods wait for their eviction at a time, and evictWorkers how
	// many are being evicted.
	maxEvictions, evictWorkers = 4096, 8
	// evictTries is how often the eviction of a Pod is tried, which takes 5 minutes:
	// evictPause apart, then twice as much, at most maxEvictPause.
	evictTries    = 8
	evictPause    = 10 * time.Second
	maxEvictPause = time.Minute
	// idleTime is how often a worker without work looks for some.
	idleTime = time.Second
)

// evictions evicts the Pods of recorders that do not do as they should: what such a session
// does is not recorded. Who waits for a disruption budget keeps nobody out: a Pod whose
// eviction was never tried comes first.
type evictions struct {
	*shared
	journal journal

	mu   sync.Mutex
	pods map[string]*eviction // by key
}

type eviction struct {
	Ticket protocol.Ticket `json:"ticket"` // without its terms
	Note   collector.Note  `json:"note"`

	tries int
	due   time.Time
	busy  bool
	// later is what was asked for meanwhile, and comes next.
	later *eviction
}

func newEvictions(s *shared, storage collector.Storage) *evictions {
	return &evictions{shared: s, journal: journal{storage, s.options.key}, pods: map[string]*eviction{}}
}

// add asks for the eviction of a Pod, unless that is under way. After a restart it is asked
// for again.
func (e *evictions) add(ticket *protocol.Ticket, note collector.Note) {
	asked := &eviction{Ticket: *ticket, Note: note}
	asked.Ticket.Terms = protocol.Terms{}
	entered, instead := e.enter(asked)
	if !entered {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	if err := e.journal.write(ctx, asked); err != nil {
		e.log.Error("a restart forgets the eviction of a Pod", fields(ticket, zap.Error(err))...)
	}
	if instead != nil {
		e.forget(ctx, instead)
	}
}

// enter gives an eviction a place, in place of another one if that is not nil. Of too many, the
// one that was tried most makes room: it is in the journal, and asked for again later.
func (e *evictions) enter(asked *eviction) (entered bool, instead *eviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := keyOf(&asked.Ticket)
	if under := e.pods[key]; under != nil {
		return under.followedBy(asked)
	}
	if len(e.pods) >= maxEvictions {
		most := e.mostTriedLocked()
		dropped := asked
		if most != "" {
			dropped = e.pods[most]
			delete(e.pods, most)
		}
		evictionsTotal.WithLabelValues(resultFailed).Inc()
		e.log.Error("a Pod whose session is not recorded is evicted later: too many wait for that", fields(&dropped.Ticket)...)
		if most == "" {
			return true, nil // it goes into the journal
		}
	}
	e.pods[key] = asked
	return true, nil
}

// followedBy keeps what is asked for about a later session until this eviction is done: if the
// container is started anew meanwhile, nothing is left of the session of this one, and all of
// the later one.
func (e *eviction) followedBy(asked *eviction) (entered bool, instead *eviction) {
	last := cmp.Or(e.later, e)
	if asked.Ticket.Expires <= last.Ticket.Expires {
		return false, nil
	}
	instead, e.later = e.later, asked
	return true, instead
}

func (e *evictions) mostTriedLocked() (key string) {
	tries := 0
	for each, asked := range e.pods {
		if asked.tries > tries && !asked.busy {
			key, tries = each, asked.tries
		}
	}
	return key
}

// keyOf tells containers apart: while the eviction for one is refused, it may end, and a
// session of another must still have its Pod evicted.
func keyOf(ticket *protocol.Ticket) string { return ticket.PodUID + "/" + ticket.Container }

// fields are those of a line in the log about a session.
func fields(ticket *protocol.Ticket, more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("session", ticket.ID), zap.String("pod", ticket.Namespace+"/"+ticket.Pod), zap.String("user", ticket.User)}, more...)
}

// run evicts until ctx ends.
func (e *evictions) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { e.adopt(ctx) })
	for range evictWorkers {
		running.Go(func() { e.work(ctx) })
	}
}

// work takes one Pod after another.
func (e *evictions) work(ctx context.Context) {
	for ctx.Err() == nil {
		if next := e.next(); next != nil {
			e.settle(ctx, next, e.evict(ctx, next))
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(idleTime):
		}
	}
}

// next takes the Pod whose turn it is: one that was tried less often comes first. nil is none.
func (e *evictions) next() (next *eviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for _, asked := range e.pods {
		if asked.busy || now.Before(asked.due) {
			continue
		}
		if next == nil || asked.tries < next.tries || asked.tries == next.tries && asked.due.Before(next.due) {
			next = asked
		}
	}
	if next != nil {
		next.busy = true
		next.tries++
	}
	return next
}

// settle forgets a Pod that is done, or has it wait for its next turn.
func (e *evictions) settle(ctx context.Context, asked *eviction, done bool) {
	e.mu.Lock()
	asked.busy = false
	asked.due = e.clock.Now().Add(pauseAfter(asked.tries))
	switch {
	case done && asked.later != nil:
		e.pods[keyOf(&asked.Ticket)] = asked.later
	case done:
		delete(e.pods, keyOf(&asked.Ticket))
	}
	e.mu.Unlock()
	if done {
		e.forget(ctx, asked)
	}
}

// forget takes an eviction out of the journal.
func (e *evictions) forget(ctx context.Context, asked *eviction) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if err := e.journal.remove(ctx, asked); err != nil && ctx.Err() == nil {
		e.log.Error("a Pod that is done with is looked at again", fields(&asked.Ticket, zap.Error(err))...)
	}
}

// pauseAfter returns how long a Pod waits after so many tries.
func pauseAfter(tries int) time.Duration {
	return min(evictPause<<(tries-1), maxEvictPause)
}

// evict tries to evict a Pod. It is done if the Pod is gone, or was tried often enough.
func (e *evictions) evict(ctx context.Context, asked *eviction) (done bool) {
	ticket := &asked.Ticket
	evicted, err := e.try(ctx, asked)
	switch {
	case err == nil && evicted:
		evictionsTotal.WithLabelValues(resultEvicted).Inc()
		e.log.Warn("evicted a Pod, because a session in it is not recorded", fields(ticket, zap.String("note", asked.Note.Kind))...)
		e.say(ctx, ticket, "evicted", "SessionEvicted", "the Pod was evicted, because "+asked.Note.Text)
		return true
	case err == nil:
		return true
	case ctx.Err() != nil:
		return false
	}
	refused := apierrors.IsTooManyRequests(err) // by a PodDisruptionBudget
	if asked.tries == 1 || asked.tries == evictTries {
		e.log.Error("a Pod whose session is not recorded is not evicted", fields(ticket, zap.Bool("again", asked.tries < evictTries), zap.Error(err))...)
		e.say(ctx, ticket, "not-evicted", "SessionNotEvicted", "the Pod should be evicted, because "+asked.Note.Text+"; but: "+err.Error())
	}
	evictionsTotal.WithLabelValues(map[bool]string{true: resultRefused, false: resultFailed}[refused]).Inc()
	return asked.tries >= evictTries
}

// try evicts a Pod, if it is that of the session and what the session ran in still runs.
func (e *evictions) try(ctx context.Context, asked *eviction) (evicted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	ticket := &asked.Ticket
	pod, err := e.core.Pods(ticket.Namespace).Get(ctx, ticket.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the Pod: %w", err)
	}
	if !lives(pod, ticket) {
		e.log.Info("a Pod is not evicted: what the session ran in has ended", fields(ticket)...)
		return false, nil
	}
	uid := pod.UID
	err = e.core.Pods(ticket.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: ticket.Namespace, Name: ticket.Pod},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, GracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or another one
		return false, nil
	}
	return err == nil, err
}

// lives reports whether what a session has left could still run, and nothing ends it yet.
func lives(pod *corev1.Pod, ticket *protocol.Ticket) bool {
	return !cluster.Ends(pod) && runs(pod, ticket, 0)
}

// runs reports whether what a session has left could still run: its Pod is there, and its
// container has not ended, nor was it started anew since. The clock of the node may be ahead by
// as much as skew.
func runs(pod *corev1.Pod, ticket *protocol.Ticket, skew time.Duration) bool {
	if string(pod.UID) != ticket.PodUID || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	since := time.Unix(ticket.Expires, 0).Add(skew - protocol.Life)
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if status.Name == ticket.Container {
			return status.State.Running != nil && !status.State.Running.StartedAt.After(since)
		}
	}
	for _, status := range pod.Status.EphemeralContainerStatuses { // which begin with the session
		if status.Name == ticket.Container {
			return status.State.Running != nil
		}
	}
	return true
}

// say creates an Event on the Pod, once for each kind.
func (e *evictions) say(ctx context.Context, ticket *protocol.Ticket, kind, reason, text string) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if err := e.warnOf(ctx, ticket, kind, reason, text); err != nil && !errors.Is(err, context.Canceled) {
		e.log.Error("there is no Event about an eviction", fields(ticket, zap.Error(err))...)
	}
}

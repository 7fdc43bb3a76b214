package session

import (
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

	"github.com/admitkit/admitkit/extension/session/collector"
	"github.com/admitkit/admitkit/extension/session/protocol"
)

const (
	// maxEvictions is how many Pods wait for their eviction at a time.
	maxEvictions = 256
	// evictTries is how often the eviction of a Pod is tried, evictPause apart.
	evictTries = 30
	evictPause = 10 * time.Second
)

// evictions evicts the Pods of recorders that do not do as they should: what such a session
// does is not recorded.
type evictions struct {
	*shared
	queue chan eviction

	mu   sync.Mutex
	pods map[string]bool // those in the queue or being evicted, by key
}

type eviction struct {
	ticket protocol.Ticket // without its terms
	note   collector.Note
}

func newEvictions(s *shared) *evictions {
	return &evictions{shared: s, queue: make(chan eviction, maxEvictions), pods: map[string]bool{}}
}

// add asks for the eviction of a Pod, unless that is under way.
func (e *evictions) add(ticket *protocol.Ticket, note collector.Note) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pods[keyOf(ticket)] {
		return
	}
	if len(e.pods) >= maxEvictions {
		evictionsTotal.WithLabelValues("failed").Inc()
		e.log.Error("a Pod whose session is not recorded is not evicted: too many wait for that", fields(ticket)...)
		return
	}
	asked := eviction{*ticket, note}
	asked.ticket.Terms = protocol.Terms{}
	e.pods[keyOf(ticket)] = true
	e.queue <- asked // has room for all of pods
}

// keyOf tells containers apart: while the eviction for one is refused, it may end, and a
// session of another must still have its Pod evicted.
func keyOf(ticket *protocol.Ticket) string { return ticket.PodUID + "/" + ticket.Container }

// fields are those of a line in the log about a session.
func fields(ticket *protocol.Ticket, more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("session", ticket.ID), zap.String("pod", ticket.Namespace+"/"+ticket.Pod), zap.String("user", ticket.User)}, more...)
}

// run evicts until ctx ends. A Pod that may not be evicted yet does not hold up others.
func (e *evictions) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case asked := <-e.queue:
			running.Go(func() {
				e.evict(ctx, &asked)
				e.mu.Lock()
				defer e.mu.Unlock()
				delete(e.pods, keyOf(&asked.ticket))
			})
		}
	}
}

// evict tries to evict a Pod until it is gone.
func (e *evictions) evict(ctx context.Context, asked *eviction) {
	ticket := &asked.ticket
	for try := 1; ; try++ {
		evicted, err := e.try(ctx, asked)
		switch {
		case err == nil && evicted:
			evictionsTotal.WithLabelValues("evicted").Inc()
			e.log.Warn("evicted a Pod, because a session in it is not recorded", fields(ticket, zap.String("note", asked.note.Kind))...)
			e.say(ctx, ticket, "evicted", "SessionEvicted", "the Pod was evicted, because "+asked.note.Text)
			return
		case err == nil || ctx.Err() != nil:
			return
		}
		refused := apierrors.IsTooManyRequests(err) // by a PodDisruptionBudget
		if try == 1 || try == evictTries {
			e.log.Error("a Pod whose session is not recorded is not evicted", fields(ticket, zap.Bool("again", try < evictTries), zap.Error(err))...)
			e.say(ctx, ticket, "not-evicted", "SessionNotEvicted", "the Pod should be evicted, because "+asked.note.Text+"; but: "+err.Error())
		}
		evictionsTotal.WithLabelValues(map[bool]string{true: "refused", false: "failed"}[refused]).Inc()
		if try == evictTries {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(evictPause):
		}
	}
}

// try evicts a Pod, if it is that of the session and what the session ran in still runs.
func (e *evictions) try(ctx context.Context, asked *eviction) (evicted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	ticket := &asked.ticket
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
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or another one
		return false, nil
	}
	return err == nil, err
}

// lives reports whether what a session has left could still run: its Pod is there, and its
// container was not started anew since, nor has ended.
func lives(pod *corev1.Pod, ticket *protocol.Ticket) bool {
	if string(pod.UID) != ticket.PodUID || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	since := time.Unix(ticket.Expires, 0).Add(-protocol.Life)
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

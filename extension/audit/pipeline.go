package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// ruleUnrecorded is the rule of an act that was refused because a Closed sink
// could not take its record.
const ruleUnrecorded = "unrecorded"

// keep hands the record to the sinks: first to those that are Closed, all at
// once, and when each has it, or the act is refused, to those that are Open,
// which thus learn how it ended. The acts in one Pod are kept one after the
// other.
func (a *auditor) keep(ctx context.Context, act *act) error {
	unlock, err := a.order.lock(ctx, laneKey(&act.record))
	if err != nil {
		return a.unordered(act, err)
	}
	defer unlock()
	act.record.Time = metav1.NewMicroTime(a.options.Clock.Now())
	record := a.redactor.record(&act.record)
	refusal := a.writeClosed(ctx, record)
	if refusal != nil && record.Decision == v1alpha1.AuditAllowed {
		refused(record, refusal)
		act.record.Decision, act.record.Rule, act.record.Reason = record.Decision, record.Rule, record.Reason
	} else {
		refusal = nil // it is denied anyway
	}
	for _, o := range a.sinks {
		if o.FailurePolicy == Open {
			o.offer(record)
		}
	}
	return refusal
}

// unordered refuses an act that waited too long for the records of those before
// it in the same Pod, or lets it through if no sink minds.
func (a *auditor) unordered(act *act, err error) error {
	act.record.Time = metav1.NewMicroTime(a.options.Clock.Now())
	record := a.redactor.record(&act.record)
	var refusal error
	for _, o := range a.sinks {
		if o.FailurePolicy == Closed && refusal == nil {
			refusal = extension.Denyf("%s is only allowed when it is recorded, and the records before it take too long: %w", describe(record), err)
			refused(record, refusal)
		}
	}
	for _, o := range a.sinks {
		o.offer(record)
	}
	return refusal
}

func refused(record *v1alpha1.AuditRecord, refusal error) {
	record.Decision, record.Rule, record.Reason = v1alpha1.AuditDenied, ruleUnrecorded, refusal.Error()
}

// writeClosed writes to the Closed sinks. If one fails, those that have the
// record get another, which says that the act was refused.
func (a *auditor) writeClosed(ctx context.Context, record *v1alpha1.AuditRecord) error {
	var closed []*outlet
	for _, o := range a.sinks {
		if o.FailurePolicy == Closed {
			closed = append(closed, o)
		}
	}
	failures := make([]error, len(closed))
	var wait sync.WaitGroup
	for i, o := range closed {
		wait.Go(func() { failures[i] = o.write(ctx, record) })
	}
	wait.Wait()
	failure := errors.Join(failures...)
	if failure == nil {
		return nil
	}
	refusal := extension.Denyf("%s is only allowed when it is recorded, and it cannot be: %w", describe(record), failure)
	amendment := record.DeepCopy()
	amendment.ID, amendment.Amends = record.ID+"-refused", record.ID
	refused(amendment, refusal)
	for i, o := range closed {
		if failures[i] == nil {
			if record.Decision == v1alpha1.AuditAllowed {
				o.offer(amendment)
			}
			continue
		}
		refusals.WithLabelValues(o.Sink.Name()).Inc()
		a.log.Error("not recorded, so refused", append(fields(record), zap.String("sink", o.Sink.Name()), zap.NamedError("failure", failures[i]))...)
	}
	return refusal
}

// describe says what an act is, for whom it is refused.
func describe(r *v1alpha1.AuditRecord) string {
	way := string(r.Way)
	if r.Way == v1alpha1.WayPod {
		way = "creation"
	}
	switch {
	case r.Pod != "":
		return fmt.Sprintf("%s of Pod %s/%s", way, r.Namespace, r.Pod)
	case r.Service != "":
		return fmt.Sprintf("%s of Service %s/%s", way, r.Namespace, r.Service)
	case r.Node != "":
		return fmt.Sprintf("%s of node %s", way, r.Node)
	}
	return fmt.Sprintf("%s of a Pod in namespace %s", way, r.Namespace)
}

// laneKey is what records are ordered by: the Pod, or what stands for it.
func laneKey(r *v1alpha1.AuditRecord) string {
	if r.Pod != "" {
		return "pod/" + r.Namespace + "/" + r.Pod
	}
	return r.Service + "/" + r.Namespace + "/" + r.Node
}

// stripes are locks by key, first come first served; different keys may share a
// lock. A lock is a channel because a request that waits for it has a deadline.
type stripes struct {
	seed  maphash.Seed
	locks []chan struct{}
}

func newStripes() stripes {
	s := stripes{seed: maphash.MakeSeed(), locks: make([]chan struct{}, 256)}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

func (s stripes) lock(ctx context.Context, key string) (unlock func(), err error) {
	lock := s.locks[maphash.String(s.seed, key)%uint64(len(s.locks))]
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

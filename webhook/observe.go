package webhook

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/review"
)

// This file answers the webhooks whose mode is not Enforce. Whatever becomes of their
// handlers, the answer is that the request is allowed, and comes soon.

// observedWait is how long an answer waits for the handlers. They have the time of their
// scope, and are counted and logged when they end later. With more than fewObserved
// requests in flight it waits for crowdedWait: connections are for those in force, too.
const (
	observedWait = 500 * time.Millisecond
	crowdedWait  = 20 * time.Millisecond
	fewObserved  = 32
)

// observedUntil returns when a request is answered that began at a time.
func (h *handler) observedUntil(began time.Time) time.Time {
	if h.chain.onStep != nil { // somebody wants to know what they do, and of this request
		return began.Add(h.chain.patience + observedWait)
	}
	if h.inFlight.Load() >= fewObserved {
		return began.Add(crowdedWait)
	}
	return began.Add(observedWait)
}

// observe runs the chain beside, and answers at the deadline at the latest.
func (e *exchange) observe(ctx context.Context, deadline time.Time) {
	var current atomic.Pointer[passage] // of the handler that runs
	e.context.begin(context.WithoutCancel(ctx), e.began.Add(e.chain.patience), func() {
		e.context.expire()
		if p := current.Load(); p != nil {
			_ = p.cut(context.DeadlineExceeded)
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer e.context.stop()
		defer e.end()
		defer e.leave()
		defer e.survive()
		e.passage.observe(&e.context, &current, e.survive)
	}()
	wait := time.NewTimer(time.Until(deadline))
	defer wait.Stop()
	response := &admissionv1.AdmissionResponse{UID: e.received.UID, Allowed: true}
	select {
	case <-done:
		response = &e.passage.response
		e.record(response, http.StatusOK, nil)
	case <-wait.C:
		e.record(nil, http.StatusGatewayTimeout, context.DeadlineExceeded)
	case <-ctx.Done():
		e.record(nil, http.StatusGatewayTimeout, ctx.Err())
	}
	e.logDecision(response)
	e.admitted = true
	e.sent(http.StatusOK, nil, review.WriteResponse(e.w, response))
}

// survive keeps the process running whatever a handler has left behind.
func (e *exchange) survive() {
	if reason := recover(); reason != nil {
		e.log.Error("observing panicked", zap.String("panic", failure.PanicText(reason)), zap.ByteString("stack", debug.Stack()))
	}
}

// observe sends the request through each handler alone: none sees what another one would
// have changed, and one that ends its goroutine hides no other. It adds to the response
// what they would have done.
func (p *passage) observe(ctx context.Context, current *atomic.Pointer[passage], survive func()) {
	defer p.object.release()
	for i, handler := range p.handlers {
		only := *p.chain
		only.mutating, only.handlers, only.meters, only.mark = handler.Mutates, p.handlers[i:i+1], p.meters[i:i+1], ""
		alone := &passage{}
		alone.begin(&only, copyRequest(p.object.request), p.object.request, wire.Text{})
		current.Store(alone)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer survive()
			alone.run(ctx)
		}()
		<-ended
		current.Store(nil)
		p.found(handler, p.meters[i], alone)
	}
}

// found tells what a handler would have done.
func (p *passage) found(handler *host.Handler, meter *meter, alone *passage) {
	if alone.err != nil {
		p.sampled.Warn("an extension that is not in force failed", append(about(p.object.request),
			zap.String("extension", handler.Name), zap.String("mode", string(p.mode)), zap.Error(alone.err))...)
		return
	}
	if p.response.AuditAnnotations == nil {
		p.response.AuditAnnotations = map[string]string{}
	}
	maps.Copy(p.response.AuditAnnotations, alone.response.AuditAnnotations)
	var verb, finding string
	switch {
	case !alone.response.Allowed:
		verb = "deny"
		if alone.response.Result != nil {
			finding = alone.response.Result.Message
		}
		meter.would(wouldDeny, p.object.request.Operation)
	case len(alone.response.Patch) > 0:
		verb, finding = "change", jsonpatch.Fields(alone.response.Patch)
		meter.would(wouldChange, p.object.request.Operation)
	}
	if verb != "" {
		finding = failure.Cut(finding) // the keys of a map may have any length
		p.report(handler, nil, map[string]string{"would-" + verb: finding})
		if p.mode == extension.Warn {
			p.warn(fmt.Sprintf("%s would %s this once it is enforced: %s", handler.Name, verb, finding))
		}
		p.sampled.Info("an extension would "+verb+" an object", append(about(p.object.request),
			zap.String("extension", handler.Name), zap.String("mode", string(p.mode)), zap.String("finding", finding))...)
	}
	if p.mode == extension.Warn { // after the finding, which must find room
		for _, warning := range alone.response.Warnings {
			p.warn(warning)
		}
	}
}

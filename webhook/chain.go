package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// chain is the handlers of one webhook. They run on an object one after the other.
type chain struct {
	mutating bool
	handlers []*host.Handler
	meters   []*meter // of the handlers
	scheme   *runtime.Scheme
	log      *zap.Logger
	tracer   tracer
	onStep   func(Step) // nil for none
	lenient  bool       // whether the object is let through when the webhook fails
	// mode is that of all handlers. Unless it is Enforce, patience is their time, and
	// sampled has what they would do.
	mode     extension.Mode
	patience time.Duration
	sampled  *zap.Logger

	exemptions *Exemptions // nil for none
	mark       string      // the program, as objects say what changed them; empty for not
}

// observes reports whether the handlers deny and change nothing.
func (c *chain) observes() bool { return !c.mode.Enforced() }

// passage is one request on its way through a chain.
//
// A handler that overruns the time of its request is abandoned: the request is
// answered, and the handler has no effect any more. Goroutines cannot be stopped, so
// two of them race for the answer, the one that runs the chain and the one that
// waits for the deadline; the field at decides.
type passage struct {
	*chain
	request  *extension.Request
	object   object
	response admissionv1.AdmissionResponse
	unseen   error // why the request is denied without its objects, nil if it is not
	warned   int   // the number of characters of all warnings in the response
	labels   objectLabels
	// changed are the handlers that changed the object.
	changed []string
	err     error // instead of the response
	// at is the index of the handler that runs, or one of the constants below.
	at atomic.Int64
	// began is when the handler at index at began. The goroutine that changes at may
	// read it.
	began time.Time
}

const (
	between  = -1 // handlers
	finished = -2 // and response or err is the answer
	cutOff   = -3
)

// errEnded is the error of a handler that ended its goroutine (runtime.Goexit).
var errEnded = errors.New("an extension ended its goroutine")

// begin makes the passage of a request. received is what the library itself goes by:
// handlers may change request. checked is one of its objects.
func (p *passage) begin(c *chain, request *extension.Request, received *admissionv1.AdmissionRequest, checked wire.Text) {
	p.chain, p.request, p.err = c, request, errEnded
	p.object = newObject(received, checked, c.scheme, c.mutating)
	if c.mutating || c.onStep != nil { // else nothing reads the JSON after a handler
		p.object.own()
	}
	p.response = admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	p.at.Store(between)
}

// finish reports whether the answer of the chain is the one that counts.
func (p *passage) finish() bool {
	at := p.at.Load()
	for at != cutOff && !p.at.CompareAndSwap(at, finished) {
		at = p.at.Load()
	}
	return at != cutOff
}

// cut abandons the running handler because the context ended with err. It returns
// the error for the answer, or nil if the chain has finished.
func (p *passage) cut(err error) error {
	at := p.at.Load()
	for at != finished && !p.at.CompareAndSwap(at, cutOff) {
		at = p.at.Load()
	}
	switch at {
	case finished:
		return nil
	case between:
		return unfinished(err)
	}
	took := time.Since(p.began)
	p.meters[at].observe(p.object.request.Operation, resultOf(err), took)
	if p.onStep != nil { // without the object, which the handler may still change
		_ = p.tell(&Step{Extension: p.handlers[at].Name, Result: resultOf(err).String(), Err: failure.ForAuthors(unfinished(err)), Took: took})
	}
	return fmt.Errorf("extension %s: %w", p.handlers[at].Name, unfinished(err))
}

// unfinished is the error of a request whose context ended with err.
func unfinished(err error) error { return gaveUp(err, err) }

// gaveUp is the error of a request whose context has ended, and whose handler gave up
// with err.
func gaveUp(ended, err error) error {
	if errors.Is(ended, context.DeadlineExceeded) {
		return failure.New(http.StatusGatewayTimeout, "did not finish in time: %w", err)
	}
	return fmt.Errorf("the client is gone: %w", err)
}

// run runs the handlers, up to the first denial or failure.
func (p *passage) run(ctx context.Context) {
	defer p.object.release()
	if p.onStep != nil {
		ctx = context.WithValue(ctx, host.Admission, &host.Undeclared{})
	}
	if p.unseen != nil {
		p.tellWitnesses(ctx)
		return
	}
	for i := range p.handlers {
		if p.exempt(i) {
			continue
		}
		result, err := p.step(ctx, i)
		if err != nil {
			p.err = fmt.Errorf("extension %s: %w", p.handlers[i].Name, err)
			return
		}
		if result == denied {
			p.response.Allowed = false
			break
		}
		if result == mutated && p.chain.mark != "" {
			p.changed = append(p.changed, p.handlers[i].Name)
		}
	}
	if p.response.Allowed {
		if p.err = p.mark(); p.err != nil {
			return
		}
		if p.response.Patch, p.err = p.object.patch(); p.err != nil {
			return
		}
		if len(p.response.Patch) > 0 {
			p.response.PatchType = new(admissionv1.PatchTypeJSONPatch)
		}
	}
	p.err = nil
}

// step runs one handler, and counts it unless it was cut off.
func (p *passage) step(ctx context.Context, i int) (result, error) {
	handler, request := p.handlers[i], p.object.request
	p.began = time.Now()
	if !p.at.CompareAndSwap(between, int64(i)) {
		return failed, ctx.Err() // nothing reads it any more
	}
	ended := true // unless call returns
	defer func() {
		if ended {
			p.goneAt(i)
		}
	}()
	ctx, span := p.tracer.start(ctx, handler.Name)
	result, err := p.call(ctx, i)
	ended = false
	span.end(result, err)
	took := time.Since(p.began)
	if !p.at.CompareAndSwap(int64(i), between) {
		p.log.Warn("extension ended after it was cut off", append(about(request),
			zap.String("extension", handler.Name), zap.Stringer("result", result), zap.Duration("took", took), zap.Error(err))...)
		return failed, ctx.Err()
	}
	p.meters[i].observe(request.Operation, result, took)
	if p.onStep != nil {
		step := Step{Extension: handler.Name, Result: result.String(), Object: slices.Clone(p.object.document.Raw), Err: failure.ForAuthors(err), Took: took, Undeclared: host.TakeUndeclared(ctx)}
		if result == denied && p.response.Result != nil {
			step.Reason = p.response.Result.Message
		}
		if told := p.tell(&step); told != nil {
			err = told
		}
	}
	return result, err
}

// goneAt counts a handler that ended its goroutine.
func (p *passage) goneAt(i int) {
	if took := time.Since(p.began); p.at.CompareAndSwap(int64(i), between) {
		p.meters[i].observe(p.object.request.Operation, failed, took)
		if p.onStep != nil {
			_ = p.tell(&Step{Extension: p.handlers[i].Name, Result: failed.String(), Err: errEnded, Took: took})
		}
	}
}

// call calls one handler. Nothing that a handler returned is used outside of call,
// because any method of such a value may panic: a panic becomes an error of that
// handler here, and errors become text.
func (p *passage) call(ctx context.Context, i int) (result result, err error) {
	handler := p.handlers[i]
	defer func() {
		if reason := recover(); reason != nil {
			text := failure.PanicText(reason)
			p.log.Error("extension panicked", zap.String("extension", handler.Name), zap.String("uid", string(p.object.request.UID)),
				zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
			if p.onStep != nil { // for an author; others have the stack in the log
				text += failure.PanicPlace()
			}
			result, err = panicked, errors.New("panic: "+text)
		}
	}()
	if ctx.Err() != nil {
		return resultOf(ctx.Err()), unfinished(ctx.Err())
	}
	if p.unseen != nil {
		req := p.requestFor(i)
		handler.Witness.Unseen(ctx, req, unseenReason(p.unseen))
		p.report(handler, host.Warnings(req), host.AuditAnnotations(req))
		return denied, nil
	}
	typed, err := p.object.as(handler)
	if err != nil {
		return p.undecoded(err)
	}
	req := p.requestFor(i)
	if handler.Respond != nil {
		response := handler.Respond(ctx, typed, req)
		result, err = p.responded(handler, &response)
	} else {
		err = handler.Admit(ctx, typed, req)
		p.report(handler, host.Warnings(req), host.AuditAnnotations(req))
		result, err = p.admitted(ctx, handler, err)
	}
	if err == nil && p.onStep != nil {
		if err := p.object.flush(); err != nil { // so that the step shows this handler's part
			return failed, err
		}
	}
	return result, err
}

// undecoded denies an object that does not fit its Go type, so that its author is told the
// field: the API server says of a webhook that fails that it had an internal error. Where
// such an error lets the object through, it still does.
func (p *passage) undecoded(err error) (result, error) {
	field, ok := errors.AsType[*wire.FieldError](err)
	isClients := p.object.request.Operation != admissionv1.Delete && p.object.applied.Len() == 0 // else it is stored, or a handler may have made it
	if !ok || p.lenient || !isClients {
		return failed, err
	}
	p.response.Result = &metav1.Status{Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: failure.Cut(field.Error())}
	return denied, nil
}

// tellWitnesses denies a request whose objects cannot be seen, after all its witnesses
// know of it. That one of them fails lets nobody through.
func (p *passage) tellWitnesses(ctx context.Context) {
	p.response = unseen(p.object.request, p.unseen)
	p.err = nil
	for i, handler := range p.handlers {
		if handler.Witness == nil {
			continue
		}
		if _, err := p.step(ctx, i); err != nil {
			p.log.Error("a witness does not know of a request that was denied unseen",
				append(about(p.object.request), zap.String("extension", handler.Name), zap.Error(err))...)
		}
	}
}

// unseen is the denial of a request whose objects cannot be seen.
func unseen(request *admissionv1.AdmissionRequest, why error) admissionv1.AdmissionResponse {
	return admissionv1.AdmissionResponse{UID: request.UID, Result: &metav1.Status{
		Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge, Message: unseenReason(why),
	}}
}

func unseenReason(why error) string { return "the request is not let through unseen: " + why.Error() }

// admitted returns the result of a Mutator or Validator.
func (p *passage) admitted(ctx context.Context, handler *host.Handler, err error) (result, error) {
	if err != nil {
		if reason, isDenial := host.DenialReason(err); isDenial {
			p.response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: failure.Cut(reasonOf(handler, reason))}
			return denied, nil
		}
		// The handler gave up because its time was over.
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return resultOf(ctx.Err()), gaveUp(ctx.Err(), failure.OfHandler(err))
		}
		return failed, failure.OfHandler(err)
	}
	if !p.mutating {
		return allowed, nil
	}
	changed, err := p.object.note()
	if err != nil {
		return failed, failure.OfHandler(err) // the object's own types may have made it
	}
	return outcome(changed), nil
}

// reasonOf returns the reason of a denial: a blank one would not say whom to ask.
func reasonOf(handler *host.Handler, reason string) string {
	if strings.TrimSpace(reason) == "" {
		return handler.Name + " gives no reason"
	}
	return reason
}

// responded returns the result of an Extension.
func (p *passage) responded(handler *host.Handler, response *admission.Response) (result, error) {
	p.report(handler, response.Warnings, response.AuditAnnotations)
	if !response.Allowed && response.Result != nil {
		if response.Result.Code >= http.StatusInternalServerError {
			return failed, errors.New(failure.Cut(response.Result.Message))
		}
		p.response.Result = response.Result.DeepCopy() // handlers may share one
		if p.response.Result.Code == 0 {
			p.response.Result.Code = http.StatusForbidden
		}
		p.response.Result.Message = reasonOf(handler, p.response.Result.Message)
		return denied, nil
	}
	changed, err := p.object.take(response)
	if err != nil {
		return failed, err
	}
	return outcome(changed), nil
}

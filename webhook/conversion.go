package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/convert"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/limits"
	"github.com/admitkit/admitkit/webhook/internal/review"
)

// MaxConvertedObjects is the most objects in one ConversionReview. API servers ask for the
// objects of a list one by one when they read them from storage, and for those of a whole
// list at most when they encode it.
const MaxConvertedObjects = review.MaxObjects

// ConversionPath returns the path at which to serve the converter of a
// CustomResourceDefinition.
func ConversionPath(crd string) string { return "/convert/" + crd }

// ConversionHandler returns the HTTP handler for the ConversionReviews (v1) of a
// CustomResourceDefinition. Of the options it has no use for Scheme and OnStep.
//
// Like a webhook's, its requests are bounded in size, in number, in memory and in time. A
// review in which an object cannot be converted is answered with a failure that names the
// object: the API server passes the text on.
func ConversionHandler(c *host.Converter, options HandlerOptions) http.Handler {
	options.setDefaults()
	name := strings.TrimPrefix(ConversionPath(c.CRD), "/")
	log := options.Logger.With(zap.String("crd", c.CRD))
	return &conversionHandler{
		converter: c, name: name, maxBodyBytes: options.MaxBodyBytes, maxInFlight: int64(options.MaxInFlight), memory: (*limits.Memory)(options.Memory),
		log: log, sampled: sample(log), meter: newConversionMeter(c, name, options.MaxInFlight), tracer: newTracer(options.TracerProvider),
	}
}

type conversionHandler struct {
	converter    *host.Converter
	name         string
	maxBodyBytes int64
	maxInFlight  int64
	inFlight     atomic.Int64
	memory       *limits.Memory
	log, sampled *zap.Logger
	meter        *conversionMeter
	tracer       tracer
}

// converted is a review and what became of it.
type converted struct {
	*conversionHandler
	w          http.ResponseWriter
	share      limits.Share
	connection *limits.Connection
	span       span
	began      time.Time
	request    *review.Conversion
	// ended counts the two that end last, in either order: the conversion and the answer.
	ended atomic.Int32

	objects [][]byte
	from    []string // their versions
	result  conversionResult
	err     error
}

// ServeHTTP answers a review.
func (h *conversionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, span := h.tracer.receive(r.Context(), r, "conversion "+h.converter.CRD)
	c := &converted{conversionHandler: h, w: w, span: span, began: time.Now(), connection: limits.ConnectionFrom(ctx), result: conversionRefused}
	c.share = limits.Share{Memory: h.memory, Owner: c, Stranger: c.connection.IsStranger()}
	body, err := review.Read(w, r, "a ConversionReview", h.maxBodyBytes, &c.share)
	h.meter.bodySize.Observe(float64(len(body)))
	if err == nil {
		c.request, err = review.ParseConversion(body)
	}
	if err == nil {
		err = c.takePlace()
	}
	if err != nil {
		c.share.Done()
		c.fail(err)
		return
	}
	known := false
	c.connection.Answer()
	defer func() { c.connection.Answered(known) }()
	defer c.end()
	deadline := c.began.Add(timeLeft(r.URL.RawQuery))
	if err := c.share.Admit(ctx, conversionCost(h.converter, body, c.request.Objects), deadline); err != nil {
		c.leave()
		c.end()
		c.fail(err)
		return
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer c.end()
		defer c.leave()
		defer close(done)
		c.run(ctx)
	}()
	select {
	case <-done:
		known = true
		c.answer()
	case <-ctx.Done(): // its goroutine may still write to c, so the answer has a value of its own
		late := &converted{conversionHandler: h, w: w, span: span, began: c.began, request: c.request, result: cutResult(ctx.Err())}
		late.fail(unfinished(ctx.Err()))
	}
}

// CutOff ends the reading of the body; see exchange.
func (c *converted) CutOff() {
	if !c.connection.CloseStranger() {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Unix(1, 0)) // see exchange.CutOff
	}
}

func (c *converted) end() {
	if c.ended.Add(1) == 2 {
		c.share.Done()
	}
}

func (h *conversionHandler) takePlace() error {
	if h.inFlight.Add(1) > h.maxInFlight {
		h.inFlight.Add(-1)
		return failure.New(http.StatusTooManyRequests, "already answering %d conversions; try again in 1 s", h.maxInFlight)
	}
	h.meter.inFlight.Inc()
	return nil
}

func (h *conversionHandler) leave() {
	h.inFlight.Add(-1)
	h.meter.inFlight.Dec()
}

// conversionCost estimates what a review occupies. An object is decoded into the type of
// its version, and becomes one or two others and text; with unknown fields two trees, too.
// Objects are converted one after the other, and leave nothing but text.
func conversionCost(c *host.Converter, body []byte, objects [][]byte) int64 {
	var most int64
	for _, object := range objects {
		var typed int64
		for _, v := range c.Versions {
			typed = max(typed, limits.Weigh(object, v.Type))
		}
		most = max(most, 3*typed+2*limits.Weigh(object, reflect.TypeFor[any]()))
	}
	return limits.PerRequest + 6*int64(len(body)) + most
}

// run converts the objects.
func (c *converted) run(ctx context.Context) {
	at := 0
	defer func() {
		if reason := recover(); reason != nil {
			text := failure.PanicText(reason)
			c.log.Error("converter panicked", zap.String("object", convert.NameIn(c.request.Objects[at])), zap.String("uid", failure.Cut(c.request.UID)),
				zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
			c.result, c.err = conversionPanicked, c.failed(at, errors.New("panic: "+text))
		}
	}()
	c.err = errEnded // unless it returns
	for ; at < len(c.request.Objects); at++ {
		if ctx.Err() != nil {
			c.result, c.err = cutResult(ctx.Err()), unfinished(ctx.Err())
			return
		}
		object, from, err := convert.Object(c.converter, c.request.Objects[at], c.request.Desired)
		if err != nil {
			c.result, c.err = conversionFailed, c.failed(at, err)
			return
		}
		c.objects, c.from = append(c.objects, object), append(c.from, from)
	}
	c.result, c.err = conversionDone, nil
}

// failed says which object could not be converted. The API server takes all of a review or
// nothing, so the first failure ends it.
func (c *converted) failed(at int, err error) error {
	return fmt.Errorf("%s %s: %w", c.converter.CRD, convert.NameIn(c.request.Objects[at]), err)
}

// answer sends the objects, or why there are none.
func (c *converted) answer() {
	if c.result == conversionTimeout || c.result == conversionCanceled {
		c.fail(c.err)
		return
	}
	fields := []zap.Field{
		zap.String("uid", failure.Cut(c.request.UID)), zap.String("to", failure.Cut(c.request.Desired)),
		zap.Int("objects", len(c.request.Objects)), zap.Duration("took", time.Since(c.began)),
	}
	if c.err != nil {
		c.sampled.Error("conversion failed", append(fields, zap.Error(c.err))...)
	} else {
		c.log.Debug("converted", fields...)
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(answerTimeout)) // as for a large patch
	c.sent(http.StatusOK, c.err, review.WriteConversion(c.w, c.request.UID, c.objects, c.err))
}

// fail answers what cannot be answered with a review.
func (c *converted) fail(err error) {
	code := failure.Code(err)
	if code == http.StatusTooManyRequests {
		c.w.Header().Set("Retry-After", "1")
	}
	if code == http.StatusGatewayTimeout {
		c.w.Header().Set("Connection", "close")
	}
	countRefusal(c.name, code, err)
	c.sampled.Warn("conversion not answered", zap.Int("code", code), zap.Error(err), zap.Duration("took", time.Since(c.began)))
	c.sent(code, err, review.WriteFailure(c.w, code, err))
}

// sent counts an answer, whether or not it could be sent.
func (c *converted) sent(code int, err, notSent error) {
	if notSent != nil {
		c.sampled.Warn("answer not sent", zap.Error(notSent))
	}
	to := ""
	if c.request != nil {
		_, to, _ = strings.Cut(c.request.Desired, "/")
	}
	c.meter.observe(c.result, c.from, to, time.Since(c.began))
	if c.span.Span != nil {
		c.span.SetAttributes(attribute.String("conversion.crd", c.converter.CRD), attribute.String("conversion.result", string(c.result)))
		if c.request != nil {
			c.span.SetAttributes(attribute.String("conversion.desired", failure.Cut(c.request.Desired)), attribute.Int("conversion.objects", len(c.request.Objects)))
		}
	}
	c.span.answer(code, errors.Join(err, notSent))
}

// conversionResult is the result of a review, in the metrics.
type conversionResult string

const (
	conversionDone     conversionResult = "converted"
	conversionFailed   conversionResult = "error"
	conversionPanicked conversionResult = "panic"
	conversionTimeout  conversionResult = "timeout"
	conversionCanceled conversionResult = "canceled"
	conversionRefused  conversionResult = "refused"
)

var conversionResults = []conversionResult{conversionDone, conversionFailed, conversionPanicked, conversionTimeout, conversionCanceled, conversionRefused}

func cutResult(err error) conversionResult {
	if errors.Is(err, context.DeadlineExceeded) {
		return conversionTimeout
	}
	return conversionCanceled
}

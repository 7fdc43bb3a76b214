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
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
)

// MaxConvertedObjects is the most objects in one ConversionReview. API servers ask for the
// objects of a list one by one when they read them from storage, and for those of a whole
// list at most when they encode it.
const MaxConvertedObjects = 10_000

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
		converter: c, name: name, maxBodyBytes: options.MaxBodyBytes, maxInFlight: int64(options.MaxInFlight), memory: options.Memory,
		log: log, sampled: sample(log), meter: newConversionMeter(c, name, options.MaxInFlight), tracer: newTracer(options.TracerProvider),
	}
}

type conversionHandler struct {
	converter    *host.Converter
	name         string
	maxBodyBytes int64
	maxInFlight  int64
	inFlight     atomic.Int64
	memory       *Memory
	log, sampled *zap.Logger
	meter        *conversionMeter
	tracer       tracer
}

// conversionRequest is what is read of a ConversionReview. The types of
// apiextensions-apiserver are not used: with them come packages of half a megabyte.
type conversionRequest struct {
	uid     string
	desired string
	// objects are parts of the body, not copies.
	objects [][]byte
}

const conversionVersion = "apiextensions.k8s.io/v1"

// converted is a review and what became of it.
type converted struct {
	*conversionHandler
	w          http.ResponseWriter
	share      share
	connection *connection
	span       span
	began      time.Time
	request    *conversionRequest
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
	c := &converted{conversionHandler: h, w: w, span: span, began: time.Now(), connection: connectionFrom(ctx), result: conversionRefused}
	c.share = share{memory: h.memory, owner: c, stranger: c.connection.isStranger()}
	body, err := readJSON(w, r, "a ConversionReview", h.maxBodyBytes, &c.share)
	h.meter.bodySize.Observe(float64(len(body)))
	if err == nil {
		c.request, err = parseConversion(body)
	}
	if err == nil {
		err = c.takePlace()
	}
	if err != nil {
		c.share.done()
		c.fail(err)
		return
	}
	known := false
	c.connection.answer()
	defer func() { c.connection.answered(known) }()
	defer c.end()
	deadline := c.began.Add(timeLeft(r.URL.RawQuery))
	if err := c.share.admit(ctx, conversionCost(h.converter, body, c.request.objects), deadline); err != nil {
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

// cutOff ends the reading of the body; see exchange.
func (c *converted) cutOff() {
	if !c.connection.closeStranger() {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Unix(1, 0)) // see exchange.cutOff
	}
}

func (c *converted) end() {
	if c.ended.Add(1) == 2 {
		c.share.done()
	}
}

func (h *conversionHandler) takePlace() error {
	if h.inFlight.Add(1) > h.maxInFlight {
		h.inFlight.Add(-1)
		return badRequest(http.StatusTooManyRequests, "already answering %d conversions; try again in 1 s", h.maxInFlight)
	}
	h.meter.inFlight.Inc()
	return nil
}

func (h *conversionHandler) leave() {
	h.inFlight.Add(-1)
	h.meter.inFlight.Dec()
}

// The fields that are read of a ConversionReview.
var conversionFields = newFields("uid", "desiredAPIVersion", "objects")

// parseConversion returns the request in a ConversionReview. Its objects are valid JSON.
func parseConversion(body []byte) (*conversionRequest, error) {
	if !utf8.Valid(body) {
		return nil, badRequest(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	var review metav1.TypeMeta
	var request *conversionRequest
	e := &envelope{Scanner: wire.NewScanner(body), into: &envelopeContent{}}
	err := e.object(reviewFields, func(field string) error {
		switch {
		case field == "kind":
			return readShort(e, &review.Kind)
		case field == "apiVersion":
			return readShort(e, &review.APIVersion)
		case e.Peek() == 'n':
			return e.Skip()
		}
		request = &conversionRequest{}
		return request.read(e)
	})
	if err == nil {
		err = e.End()
	}
	switch {
	case errors.Is(err, errTooManyObjects) || errors.Is(err, errTooLong) || errors.Is(err, wire.ErrTooDeep):
		return nil, badRequest(http.StatusRequestEntityTooLarge, "decoding the ConversionReview: %w", err)
	case err != nil:
		return nil, badRequest(http.StatusBadRequest, "decoding the ConversionReview: %w", err)
	case review.APIVersion != conversionVersion || review.Kind != "ConversionReview":
		return nil, badRequest(http.StatusBadRequest, "got apiVersion %q, kind %q; this webhook speaks %s ConversionReview only: list v1 alone in conversionReviewVersions",
			cut(review.APIVersion), cut(review.Kind), conversionVersion)
	case request == nil || request.uid == "":
		return nil, badRequest(http.StatusBadRequest, "the ConversionReview has no request with a uid")
	}
	return request, nil
}

var errTooManyObjects = fmt.Errorf("it has more than %d objects: read fewer at a time (limit)", MaxConvertedObjects)

func (r *conversionRequest) read(e *envelope) error {
	return e.object(conversionFields, func(field string) error {
		switch field {
		case "uid":
			return readShort(e, &r.uid)
		case "desiredAPIVersion":
			return readShort(e, &r.desired)
		}
		item, err := e.Open(']')
		for ; item && err == nil; item, err = e.More(']') {
			if len(r.objects) == MaxConvertedObjects {
				return errTooManyObjects
			}
			object, err := e.Value()
			if err != nil {
				return err
			}
			r.objects = append(r.objects, object)
		}
		return err
	})
}

// maxShort bounds the strings of a review besides its objects. They are copied before
// anything is known of what the review takes; API servers write less than 400 bytes.
const maxShort = 1 << 10

var errTooLong = fmt.Errorf("the string has more than %d bytes (limit)", maxShort)

// readShort is readString for what is short.
func readShort(e *envelope, into *string) error {
	if e.Peek() != '"' {
		return readString(e, into)
	}
	value, err := e.Quoted()
	if err != nil {
		return err
	}
	if value.Size() > maxShort {
		return errTooLong
	}
	content, err := e.Content(value)
	*into = e.keep(content)
	return err
}

// conversionCost estimates what a review occupies. An object is decoded into the type of
// its version, and becomes one or two others and text; with unknown fields two trees, too.
// Objects are converted one after the other, and leave nothing but text.
func conversionCost(c *host.Converter, body []byte, objects [][]byte) int64 {
	var most int64
	for _, object := range objects {
		var typed int64
		for _, v := range c.Versions {
			typed = max(typed, weigh(object, v.Type))
		}
		most = max(most, 3*typed+2*weigh(object, reflect.TypeFor[any]()))
	}
	return perRequest + 6*int64(len(body)) + most
}

// run converts the objects.
func (c *converted) run(ctx context.Context) {
	at := 0
	defer func() {
		if reason := recover(); reason != nil {
			text := panicText(reason)
			c.log.Error("converter panicked", zap.String("object", nameIn(c.request.objects[at])), zap.String("uid", cut(c.request.uid)),
				zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
			c.result, c.err = conversionPanicked, c.failed(at, errors.New("panic: "+text))
		}
	}()
	c.err = errEnded // unless it returns
	for ; at < len(c.request.objects); at++ {
		if ctx.Err() != nil {
			c.result, c.err = cutResult(ctx.Err()), unfinished(ctx.Err())
			return
		}
		object, from, err := convert(c.converter, c.request.objects[at], c.request.desired)
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
	return fmt.Errorf("%s %s: %w", c.converter.CRD, nameIn(c.request.objects[at]), err)
}

// answer sends the objects, or why there are none.
func (c *converted) answer() {
	if c.result == conversionTimeout || c.result == conversionCanceled {
		c.fail(c.err)
		return
	}
	fields := []zap.Field{
		zap.String("uid", cut(c.request.uid)), zap.String("to", cut(c.request.desired)),
		zap.Int("objects", len(c.request.objects)), zap.Duration("took", time.Since(c.began)),
	}
	if c.err != nil {
		c.sampled.Error("conversion failed", append(fields, zap.Error(c.err))...)
	} else {
		c.log.Debug("converted", fields...)
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(answerTimeout)) // as for a large patch
	c.sent(http.StatusOK, c.err, write(c.w, http.StatusOK, c.appendReview))
}

func (c *converted) appendReview(dst []byte) ([]byte, error) {
	dst = append(dst, `{"kind":"ConversionReview","apiVersion":"`+conversionVersion+`","response":{"uid":`...)
	dst, err := jsontext.AppendQuote(dst, c.request.uid)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"convertedObjects":[`...)
	result := metav1.Status{Status: metav1.StatusSuccess}
	if c.err != nil {
		result = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError, Message: c.err.Error()}
	} else {
		for i, object := range c.objects {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, object...)
		}
	}
	if dst, err = appendJSON(append(dst, `],"result":`...), &result); err != nil {
		return nil, err
	}
	return append(dst, "}}"...), nil
}

// fail answers what cannot be answered with a review.
func (c *converted) fail(err error) {
	code := codeOf(err)
	if code == http.StatusTooManyRequests {
		c.w.Header().Set("Retry-After", "1")
	}
	if code == http.StatusGatewayTimeout {
		c.w.Header().Set("Connection", "close")
	}
	countRefusal(c.name, code, err)
	c.sampled.Warn("conversion not answered", zap.Int("code", code), zap.Error(err), zap.Duration("took", time.Since(c.began)))
	c.sent(code, err, writeFailure(c.w, code, err))
}

// sent counts an answer, whether or not it could be sent.
func (c *converted) sent(code int, err, notSent error) {
	if notSent != nil {
		c.sampled.Warn("answer not sent", zap.Error(notSent))
	}
	to := ""
	if c.request != nil {
		_, to, _ = strings.Cut(c.request.desired, "/")
	}
	c.meter.observe(c.result, c.from, to, time.Since(c.began))
	if c.span.Span != nil {
		c.span.SetAttributes(attribute.String("conversion.crd", c.converter.CRD), attribute.String("conversion.result", string(c.result)))
		if c.request != nil {
			c.span.SetAttributes(attribute.String("conversion.desired", cut(c.request.desired)), attribute.Int("conversion.objects", len(c.request.objects)))
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

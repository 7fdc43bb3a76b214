package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/limits"
	"github.com/admitkit/admitkit/webhook/internal/review"
)

// DefaultMaxBodyBytes is the default limit of a request body. API servers store
// objects of up to 1.5 MiB of protobuf, an AdmissionReview has two of them, and JSON
// is larger.
const DefaultMaxBodyBytes = 8 << 20

// DefaultMaxInFlight is the default limit of concurrent requests. An API server
// handles at most 600 requests at a time by default, of which 200 may be writes
// (kube-apiserver --max-requests-inflight, --max-mutating-requests-inflight).
const DefaultMaxInFlight = 1024

// An answer with a patch larger than what net/http and the kernel buffer anyway must
// be read within answerTimeout.
const (
	unbuffered    = 1 << 10
	answerTimeout = 5 * time.Second
)

// HandlerOptions are the options of [Webhook.Handler].
type HandlerOptions struct {
	// Scheme maps kinds to Go types, for handlers that take a runtime.Object.
	// Default: client-go's scheme, with every built-in kind.
	Scheme *runtime.Scheme
	// MaxBodyBytes is the largest request body that is read; a larger one gets
	// 413. Default: DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// MaxInFlight is the most requests that this webhook answers at a time. Further
	// ones get 429 and Retry-After, and API servers try again within their timeout. A
	// request counts from when its body is complete; one whose extension was cut off
	// counts until the extension ends. Default: DefaultMaxInFlight.
	MaxInFlight int
	// Memory is what the requests of all webhooks that have the same Memory may
	// occupy together: give all of a process the same one. Default: one of the webhook's
	// own, NewMemory(0).
	Memory *Memory
	// Logger gets one line per decision at debug, and failures at error.
	// Default: none.
	Logger *zap.Logger
	// TracerProvider gets a span for each request and each extension. Default:
	// none, which costs nothing.
	TracerProvider trace.TracerProvider
	// Exemptions let requests pass extensions. Default: none.
	Exemptions *Exemptions
	// Mark has each object that an extension changes say so in the annotation [ChangedBy]:
	// as PROGRAM@REVISION. Default: none.
	Mark string
	// Recorder keeps requests with their answers. Those that are refused before they reach a
	// handler are not recorded. Default: none, which costs nothing.
	Recorder Recorder
	// OnStep is called with each handler's part in an admission, in the goroutine of
	// that admission, and of the deadline for a handler that is cut off. Each call costs
	// an encoding of the object. Default: none.
	OnStep func(Step)
}

func (o *HandlerOptions) setDefaults() {
	if o.Scheme == nil {
		o.Scheme = clientgoscheme.Scheme
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.Memory == nil {
		o.Memory = NewMemory(0)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

// Handler returns the HTTP handler of the webhook's Path.
func (w *Webhook) Handler(options HandlerOptions) http.Handler {
	options.setDefaults()
	name := w.label()
	log, tracer := options.Logger.With(zap.String("webhook", w.Name)), newTracer(options.TracerProvider)
	sampled := sample(log)
	handlers, meters := make([]*host.Handler, len(w.Handlers)), make([]*meter, len(w.Handlers))
	named := map[string]int{}
	for i, h := range w.Handlers {
		handlers[i] = host.Open(h)
		named[handlers[i].Name]++
		if n := named[handlers[i].Name]; n > 1 {
			handlers[i].AuditName += "-" + strconv.Itoa(n)
		}
		handlers[i].Kinds = handlers[i].KindsOf(options.Scheme)
		meters[i] = newMeter(name, handlers[i].Name, w.operations(), w.Observes())
	}
	memory := (*limits.Memory)(options.Memory)
	if w.Observes() {
		memory = memory.Beside()
	}
	policy := cmp.Or(w.policy, w.Scope.FailurePolicy)
	return &handler{
		name: name,
		chain: chain{
			mutating: w.Mutating, handlers: handlers, meters: meters, scheme: options.Scheme, log: log, tracer: tracer, onStep: options.OnStep,
			lenient: policy != nil && *policy == admissionregistrationv1.Ignore,
			mode:    w.Mode, patience: cmp.Or(w.patience, defaultTimeout), sampled: sampled, exemptions: options.Exemptions, mark: options.Mark,
		},
		maxBodyBytes: options.MaxBodyBytes, maxInFlight: int64(options.MaxInFlight),
		memory: memory, estimate: limits.NewEstimate(w.Mutates(), handlers, options.Scheme),
		log: log, sampled: sampled, meter: newWebhookMeter(name, options.MaxInFlight), tracer: tracer,
		webhook: w, recorder: options.Recorder,
	}
}

type handler struct {
	name         string
	chain        chain
	maxBodyBytes int64
	maxInFlight  int64
	inFlight     atomic.Int64
	memory       *limits.Memory
	estimate     limits.Estimate
	log          *zap.Logger
	sampled      *zap.Logger // for what clients cause
	meter        *webhookMeter
	tracer       tracer
	webhook      *Webhook
	recorder     Recorder // nil for none
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.serve(w, r, &h.chain) }

// serve answers a request by a chain.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, chain *chain) {
	ctx, span := h.tracer.receive(r.Context(), r, "admission "+h.name)
	e := &exchange{handler: h, chain: chain, w: w, request: unread, span: span, began: time.Now(), connection: limits.ConnectionFrom(ctx)}
	e.share = limits.Share{Memory: h.memory, Owner: e, Stranger: e.connection.IsStranger()}
	body, err := review.Read(w, r, "an AdmissionReview", h.maxBodyBytes, &e.share)
	h.meter.bodySize.Observe(float64(len(body)))
	var beginning *extension.Request
	tooLarge := err
	if err != nil && e.mustBeSeen(err) {
		beginning, err = beginningOf(r.Body, body, tooLarge)
	}
	if err != nil {
		e.share.Done()
		e.fail(err)
		return
	}
	e.connection.Answer()
	defer func() { e.connection.Answered(e.admitted) }()
	// Only now, so that nobody occupies a place by a body that does not come.
	deadline := e.began.Add(timeLeft(r.URL.RawQuery))
	if chain.observes() {
		deadline = h.observedUntil(time.Now())
	}
	if beginning != nil {
		err = e.enterUnseen(ctx, beginning, tooLarge, deadline)
	} else {
		err = e.enter(ctx, body, deadline)
	}
	if err != nil {
		e.share.Done()
		e.fail(err)
		return
	}
	span.describe(e.request)
	defer e.end() // also when a handler ends the goroutine
	if chain.observes() {
		e.observe(ctx, deadline)
		return
	}
	if r.ProtoMajor >= 2 {
		e.decideBeside(ctx, deadline)
	} else {
		e.decide(ctx, deadline)
	}
}

// exchange is a request and its answer.
type exchange struct {
	*handler
	chain      *chain
	w          http.ResponseWriter
	connection *limits.Connection
	share      limits.Share
	request    *admissionv1.AdmissionRequest // unread until it is read
	received   admissionv1.AdmissionRequest  // what request points to then
	passage    passage
	context    requestContext
	span       span
	began      time.Time
	taken      []byte // by the recorder; nil if it did not
	// admitted is true when the answer was a decision.
	admitted bool
	// ended counts the two parts that end last, in either order: the chain and the
	// answer.
	ended atomic.Int32
	// answering is held while the answer for a handler that was cut off goes out.
	answering sync.Mutex
}

// unread stands for a request before it is read.
var unread = &admissionv1.AdmissionRequest{}

// enter reads the review in a body, takes a place and memory for it, and begins its
// passage.
func (e *exchange) enter(ctx context.Context, body []byte, deadline time.Time) error {
	request, object, err := review.Parse(body)
	if err != nil && e.mustBeSeen(err) {
		if beginning, _ := review.ParseBeginning(body); beginning != nil {
			return e.enterUnseen(ctx, beginning, err, deadline)
		}
	}
	if err == nil && request.Name == "" && len(request.OldObject.Raw) > 0 {
		err = nameDeleted(request)
	}
	if err != nil {
		return err
	}
	e.received = request.AdmissionRequest
	e.request = &e.received
	if err := e.takePlace(); err != nil {
		return err
	}
	cost := e.estimate.Quickly(body, e.request)
	if !e.memory.HasPlenty(cost) {
		cost = min(cost, e.estimate.Closely(body, e.request))
	}
	if err := e.share.Admit(ctx, cost, deadline); err != nil {
		e.leave()
		if e.mustBeSeen(err) {
			return e.enterUnseen(ctx, request, err, deadline)
		}
		return err
	}
	if e.recorder != nil {
		e.taken = e.recorder.Take(string(e.request.UID), body)
	}
	e.passage.begin(e.chain, request, e.request, object)
	return nil
}

// nameDeleted gives a request the name of its old object, which an API server leaves out
// when it deletes a collection: a handler that protects an object by its name would let
// `kubectl delete --all` pass.
func nameDeleted(request *extension.Request) error {
	var old metav1.PartialObjectMetadata
	if err := wire.Decode(request.OldObject.Raw, &old); err != nil {
		return failure.New(http.StatusBadRequest, "decoding the metadata of the old object: %w", err)
	}
	request.Name = old.Name
	return nil
}

// mustBeSeen reports whether a handler must know of a request that failed because it
// is too large.
func (e *exchange) mustBeSeen(err error) bool {
	return failure.Code(err) == http.StatusRequestEntityTooLarge && !e.chain.observes() &&
		slices.ContainsFunc(e.chain.handlers, func(h *host.Handler) bool { return h.Witness != nil })
}

// beginningOf returns the request in the beginning of a body that is too large.
func beginningOf(body io.Reader, read []byte, tooLarge error) (*extension.Request, error) {
	beginning, err := limits.ReadBeginning(body, read)
	if err != nil {
		return nil, fmt.Errorf("%w; and reading the rest: %w", tooLarge, err)
	}
	request, err := review.ParseBeginning(beginning)
	if err != nil {
		return nil, fmt.Errorf("%w; %w", tooLarge, err)
	}
	return request, nil
}

// enterUnseen is enter for a request that is denied, because it is too large for its
// objects to be seen.
func (e *exchange) enterUnseen(ctx context.Context, request *extension.Request, tooLarge error, deadline time.Time) error {
	request.Object, request.OldObject = runtime.RawExtension{}, runtime.RawExtension{}
	e.received = request.AdmissionRequest
	e.request = &e.received
	if err := e.takePlace(); err != nil {
		return err
	}
	if err := e.share.Admit(ctx, limits.PerRequest+limits.BeginningBytes, deadline); err != nil {
		e.leave()
		return err
	}
	countRefusal(e.name, failure.Code(tooLarge), tooLarge)
	e.passage.begin(e.chain, request, e.request, wire.Text{})
	e.passage.unseen = tooLarge
	return nil
}

// CutOff ends the reading of the body, because others need the memory: by the end of
// the connection, unless it has completed an admission.
func (e *exchange) CutOff() {
	if !e.connection.CloseStranger() {
		// An error means that the server is not one of net/http; then its own deadline
		// for the body has to do.
		_ = http.NewResponseController(e.w).SetReadDeadline(time.Unix(1, 0))
	}
}

// decide sends the request through the chain and answers it, at its deadline at the
// latest.
func (e *exchange) decide(ctx context.Context, deadline time.Time) {
	e.context.begin(ctx, deadline, e.takeOver)
	defer e.context.stop()
	returned := false
	defer func() { e.finish(returned) }()
	e.run()
	returned = true
}

// finish answers an HTTP/1 request whose chain has ended, unless takeOver does. A chain
// that did not return has ended the goroutine (runtime.Goexit).
func (e *exchange) finish(returned bool) {
	if !e.passage.finish() {
		e.answering.Lock() // until the other answer is out
		defer e.answering.Unlock()
		return
	}
	if returned {
		e.answer()
		return
	}
	e.w.Header().Set("Connection", "close")
	e.failCut(errEnded)
	_ = http.NewResponseController(e.w).Flush() // the client may be gone
}

// run runs the chain. Its place for another request is free only when it ends.
func (e *exchange) run() {
	defer e.end()
	defer e.leave()
	e.passage.run(&e.context)
}

// end gives the memory back when both the chain and the answer have ended.
func (e *exchange) end() {
	if e.ended.Add(1) == 2 {
		e.share.Done()
	}
}

// takeOver answers while the handler of an HTTP/1 request still runs: an answer is
// complete when its announced length was sent, and the connection is closed
// afterwards. So only a handler that overruns costs a goroutine; one for every
// request would cost more than the whole admission of an exec.
func (e *exchange) takeOver() {
	e.context.expire()
	e.answering.Lock()
	defer e.answering.Unlock()
	if err := e.passage.cut(context.DeadlineExceeded); err != nil {
		e.w.Header().Set("Connection", "close")
		e.failCut(err)
		_ = http.NewResponseController(e.w).Flush() // the client may be gone
	}
}

// decideBeside runs the chain in a goroutine of its own, because an HTTP/2 answer, on
// somebody else's server, is complete only when its handler has returned.
func (e *exchange) decideBeside(ctx context.Context, deadline time.Time) {
	e.context.begin(ctx, deadline, e.context.expire)
	defer e.context.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.run()
	}()
	select {
	case <-done:
		e.passage.finish()
		e.answer()
	case <-e.context.Done():
		e.failCut(e.passage.cut(e.context.Err())) // nothing else finishes it
	}
}

// failCut answers a request whose handler was cut off.
func (e *exchange) failCut(err error) {
	if e.passage.unseen == nil {
		e.fail(err)
		return
	}
	// Its witness knows of it too late, or not at all; that lets nobody through.
	e.logFailure(http.StatusGatewayTimeout, err)
	denial := unseen(&e.received, e.passage.unseen)
	e.sent(http.StatusOK, err, review.WriteResponse(e.w, &denial))
}

// answer sends the result of the chain.
func (e *exchange) answer() {
	response, err := &e.passage.response, e.passage.err
	if err != nil {
		e.fail(err)
		return
	}
	e.logDecision(response)
	if len(response.Patch) > 0 {
		e.meter.patched.Observe(float64(len(response.Patch)))
	}
	if len(response.Patch) > unbuffered {
		// Its memory is occupied until the client has read it.
		_ = http.NewResponseController(e.w).SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	e.admitted = true
	e.record(response, http.StatusOK, nil)
	e.sent(http.StatusOK, nil, review.WriteResponse(e.w, response))
}

// fail answers a request that has no decision.
func (e *exchange) fail(err error) {
	code := failure.Code(err)
	if code == http.StatusTooManyRequests && !e.chain.observes() { // else nobody shall wait
		e.w.Header().Set("Retry-After", "1")
	}
	countRefusal(e.name, code, err)
	e.logFailure(code, err)
	e.record(nil, code, err)
	e.sent(code, err, review.WriteFailure(e.w, code, err))
}

// sent counts an answer, whether or not it could be sent.
func (e *exchange) sent(code int, err, notSent error) {
	if notSent != nil {
		e.sampled.Warn("answer not sent", append(about(e.request), zap.Error(notSent))...)
	}
	e.meter.observe(e.request.Operation, code, time.Since(e.began))
	e.span.answer(code, errors.Join(err, notSent))
}

// takePlace takes one of the places for requests.
func (h *handler) takePlace() error {
	if h.inFlight.Add(1) > h.maxInFlight {
		h.inFlight.Add(-1)
		return failure.New(http.StatusTooManyRequests, "already answering %d requests; try again in 1 s", h.maxInFlight)
	}
	h.meter.inFlight.Inc()
	return nil
}

func (h *handler) leave() {
	h.inFlight.Add(-1)
	h.meter.inFlight.Dec()
}

// timeLeft returns how long the handlers may take: the timeout that the API server
// sends, less a margin for the way back. API servers send 30 s at most.
func timeLeft(query string) time.Duration {
	text, simple := strings.CutPrefix(query, "timeout=")
	if !simple || strings.ContainsAny(text, "&%+") {
		values, _ := url.ParseQuery(query) // a malformed query has no timeout
		text = values.Get("timeout")
	}
	timeout, err := time.ParseDuration(text)
	if err != nil || timeout <= 0 {
		timeout = maxTimeout
	}
	timeout = min(timeout, maxTimeout)
	return timeout - min(timeout/10, 500*time.Millisecond)
}

// logFailure logs what went wrong. Nothing is known about a request that could not
// be read.
func (e *exchange) logFailure(code int, err error) {
	fields := []zap.Field{zap.Int("code", code), zap.Error(err), zap.Duration("took", time.Since(e.began))}
	log := e.log
	if code < http.StatusInternalServerError || errors.Is(err, context.Canceled) {
		log = e.sampled
	}
	if e.request.UID == "" {
		log.Warn("bad request", fields...)
		return
	}
	log.Error("admission failed", append(about(e.request), fields...)...)
}

// sample returns a logger for what any client can cause: of equal messages it writes
// the first ten of each second and then every hundredth, so that nobody fills the log.
// The metrics count them all.
func sample(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, 10, 100)
	}))
}

func (e *exchange) logDecision(response *admissionv1.AdmissionResponse) {
	// The fields are collected only if the line is written.
	if entry := e.log.Check(zap.DebugLevel, "admission"); entry != nil {
		entry.Write(append(about(e.request), zap.Bool("allowed", response.Allowed),
			zap.Int("patchBytes", len(response.Patch)), zap.Duration("took", time.Since(e.began)))...)
	}
}

// about returns the log fields that identify a request.
func about(request *admissionv1.AdmissionRequest) []zap.Field {
	return []zap.Field{
		zap.String("uid", string(request.UID)), zap.String("operation", string(request.Operation)),
		zap.String("resource", request.Resource.Resource), zap.String("subresource", request.SubResource),
		zap.String("namespace", request.Namespace), zap.String("name", request.Name), zap.String("user", request.UserInfo.Username),
	}
}

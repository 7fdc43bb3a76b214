package webhook

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// DefaultMaxBodyBytes is the default limit of a request body. An API server
// stores objects of up to 1.5 MiB of protobuf, an AdmissionReview holds two of
// them, and JSON is larger.
const DefaultMaxBodyBytes = 8 << 20

// HandlerOptions are the options of [Webhook.Handler].
type HandlerOptions struct {
	// Scheme maps kinds to Go types, for handlers that take a runtime.Object.
	// Default: client-go's scheme, with every built-in kind.
	Scheme *runtime.Scheme
	// MaxBodyBytes is the largest request body that is read; a larger one gets
	// 413. Default: DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// Logger gets one line per decision at debug, and failures at error.
	// Default: none.
	Logger *zap.Logger
}

// Handler returns the HTTP handler of the webhook's Path.
func (w *Webhook) Handler(options HandlerOptions) http.Handler {
	if options.Scheme == nil {
		options.Scheme = clientgoscheme.Scheme
	}
	if options.MaxBodyBytes == 0 {
		options.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	log := options.Logger.With(zap.String("webhook", w.Name))
	return &handler{
		chain: chain{mutating: w.Mutating, handlers: w.Handlers, scheme: options.Scheme, log: log},
		limit: options.MaxBodyBytes,
		log:   log,
	}
}

type handler struct {
	chain chain
	limit int64
	log   *zap.Logger
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := readReview(w, r, h.limit)
	if err != nil {
		h.fail(w, err)
		return
	}
	ctx, cancel := h.deadline(r)
	defer cancel()
	began := time.Now()
	response, err := h.chain.run(ctx, request)
	if err != nil {
		h.log.Error("admission failed", append(about(request), zap.Error(err), zap.Duration("took", time.Since(began)))...)
		h.fail(w, err)
		return
	}
	// The fields are gathered for those who read them only.
	if entry := h.log.Check(zap.DebugLevel, "admission"); entry != nil {
		entry.Write(append(about(request), zap.Bool("allowed", response.Allowed),
			zap.Int("patchBytes", len(response.Patch)), zap.Duration("took", time.Since(began)))...)
	}
	if err := writeResponse(w, response); err != nil {
		h.log.Error("answer not sent", append(about(request), zap.Error(err))...)
	}
}

// about says in a log which request it is.
func about(request *admissionv1.AdmissionRequest) []zap.Field {
	return []zap.Field{
		zap.String("uid", string(request.UID)), zap.String("operation", string(request.Operation)),
		zap.String("resource", request.Resource.Resource), zap.String("subresource", request.SubResource),
		zap.String("namespace", request.Namespace), zap.String("name", request.Name), zap.String("user", request.UserInfo.Username),
	}
}

// deadline bounds the handlers by the timeout that the API server waits, which
// it sends along, less a margin in which the answer travels.
func (h *handler) deadline(r *http.Request) (context.Context, context.CancelFunc) {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 {
		timeout = maxTimeout
	}
	return context.WithTimeout(r.Context(), timeout-min(timeout/10, 500*time.Millisecond))
}

func (h *handler) fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var bad *requestError
	if errors.As(err, &bad) {
		code = bad.code
		h.log.Warn("bad request", zap.Int("code", code), zap.Error(err))
	}
	if err := writeFailure(w, code, err); err != nil {
		h.log.Error("answer not sent", zap.Error(err))
	}
}

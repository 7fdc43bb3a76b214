package webhook

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/webhook/internal/limits"
)

// The metrics of admission, on controller-runtime's registry. webhook is its kind
// and name: mutate/NAME or validate/NAME. admitkit_admission_... count each handler
// of a chain, admitkit_webhook_... the request as a whole, with its HTTP status. So
// requests that never reach a handler are visible too.
var (
	handlerLabels = []string{"webhook", "extension", "operation", "result"}

	admissionRequests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_admission_requests_total",
		Help: "Admissions by extension. result is allowed, mutated, denied, error, panic, timeout (the deadline passed) or canceled (the client disconnected).",
	}, handlerLabels)
	admissionDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "admitkit_admission_duration_seconds",
		Help:    "Time in an extension, including decoding its object and comparing its changes.",
		Buckets: latencies,
	}, handlerLabels)
	panics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_admission_panics_total",
		Help: "Panics by extension.",
	}, []string{"webhook", "extension"})

	wouldDeny = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_would_deny_total",
		Help: "Requests that an extension in the mode Warn or Observe would deny.",
	}, []string{"webhook", "extension", "operation"})
	wouldChange = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_would_change_total",
		Help: "Objects that an extension in the mode Warn or Observe would change.",
	}, []string{"webhook", "extension", "operation"})

	exemptionUses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_exemption_uses_total",
		Help: "Requests that passed an extension because of an exemption.",
	}, []string{"exemption", "extension"})
	exemptionUntil = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_exemption_until_timestamp_seconds",
		Help: "End of an exemption, in seconds since the epoch.",
	}, []string{"exemption"})

	webhookDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "admitkit_webhook_duration_seconds",
		Help:    "Time from the header of a request to the end of its answer. code is the HTTP status.",
		Buckets: latencies,
	}, []string{"webhook", "operation", "code"})
	inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_webhook_in_flight_requests",
		Help: "Requests being answered, including those whose extension was cut off and is still running.",
	}, []string{"webhook"})
	inFlightLimit = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_webhook_in_flight_requests_limit",
		Help: "Limit of the requests being answered (MaxInFlight). The next one is refused.",
	}, []string{"webhook"})
	bodyBytes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "admitkit_webhook_body_bytes",
		Help:    "Size of request bodies.",
		Buckets: sizes,
	}, []string{"webhook"})
	patchBytes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "admitkit_webhook_patch_bytes",
		Help:    "Size of the patches in answers that have one.",
		Buckets: sizes,
	}, []string{"webhook"})

	refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_webhook_refused_total",
		Help: "Requests beyond a limit. reason is slow (the body did not arrive in time), stalled (others needed its memory), memory (there was none left), in_flight (too many requests), too_large or too_costly (to decode); those two also if a Witness had them denied.",
	}, []string{"webhook", "reason"})
	clientsRefused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_webhook_clients_refused_total",
		Help: "Clients that are not taken for API servers. reason is certificate (handshakes without one that verifies, and requests by a connection whose certificate does not verify any more) or path (requests at one that is not registered, or not any more).",
	}, []string{"reason"})

	latencies = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	sizes     = prometheus.ExponentialBuckets(64, 4, 9) // to 4 MiB
)

func init() {
	metrics.Registry.MustRegister(admissionRequests, admissionDuration, panics, wouldDeny, wouldChange, exemptionUses, exemptionUntil, webhookDuration, inFlight, inFlightLimit, bodyBytes, patchBytes, refused, clientsRefused)
	for _, reason := range []string{refusedCertificate, refusedPath} { // alerts watch the counter from zero on
		clientsRefused.WithLabelValues(reason)
	}
}

// The reasons for which clients are refused.
const (
	refusedCertificate = "certificate"
	refusedPath        = "path"
)

// result is the result of one handler's admission.
type result int

const (
	allowed result = iota
	mutated
	denied
	failed
	panicked
	timedOut
	canceled
	numberOfResults
)

func (r result) String() string {
	return [...]string{"allowed", "mutated", "denied", "error", "panic", "timeout", "canceled"}[r]
}

// outcome returns the result of a handler that allows an object.
func outcome(changed bool) result {
	if changed {
		return mutated
	}
	return allowed
}

// resultOf returns the result of a handler whose context ended with an error.
func resultOf(err error) result {
	if errors.Is(err, context.DeadlineExceeded) {
		return timedOut
	}
	return canceled
}

// refusalReasons are the values of the label reason.
var refusalReasons = []string{"slow", "stalled", "memory", "in_flight", "too_large", "too_costly"}

// countRefusal counts a failure if it is a refusal because of a limit.
func countRefusal(webhook string, code int, err error) {
	reason := ""
	switch {
	case errors.Is(err, limits.ErrStalled):
		reason = "stalled"
	case errors.Is(err, limits.ErrNoMemory):
		reason = "memory"
	case errors.Is(err, limits.ErrTooCostly):
		reason = "too_costly"
	case code == http.StatusTooManyRequests:
		reason = "in_flight"
	case code == http.StatusRequestEntityTooLarge:
		reason = "too_large"
	case code == http.StatusRequestTimeout:
		reason = "slow"
	default:
		return
	}
	refused.WithLabelValues(webhook, reason).Inc()
}

// operations has the values of the label operation. The last one stands for all
// others that clients may send.
var operations = [...]admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect, ""}

func operationIndex(operation admissionv1.Operation) int {
	for i, known := range operations {
		if operation == known {
			return i
		}
	}
	return len(operations) - 1
}

// meter counts the admissions of one handler. It looks up each series only once,
// because the look-up takes longer than the count.
type meter struct {
	webhook, extension string
	series             [len(operations)][numberOfResults]atomic.Pointer[series]
}

type series struct {
	requests prometheus.Counter
	duration prometheus.Observer
}

// operations returns those that the webhook receives: all of them if its rules say so, or
// if it stands for those of other revisions.
func (w *Webhook) operations() []admissionv1.Operation {
	received := map[admissionv1.Operation]bool{}
	for _, rule := range w.Scope.Rules {
		for _, operation := range rule.Operations {
			received[admissionv1.Operation(operation)] = true
		}
	}
	all := operations[:len(operations)-1]
	if len(received) == 0 || received[admissionv1.Operation(admissionregistrationv1.OperationAll)] {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(o admissionv1.Operation) bool { return !received[o] })
}

// newMeter begins the counters of a handler that alerts watch at zero: Prometheus sees no
// increase in a counter whose first value is already 500.
func newMeter(webhook, extension string, operations []admissionv1.Operation, observes bool) *meter {
	for _, operation := range operations {
		if observes {
			wouldDeny.WithLabelValues(webhook, extension, string(operation))
			wouldChange.WithLabelValues(webhook, extension, string(operation))
		}
		for r := range numberOfResults {
			admissionRequests.WithLabelValues(webhook, extension, string(operation), r.String())
		}
	}
	panics.WithLabelValues(webhook, extension)
	return &meter{webhook: webhook, extension: extension}
}

func (m *meter) observe(operation admissionv1.Operation, result result, took time.Duration) {
	i := operationIndex(operation)
	at := &m.series[i][result]
	known := at.Load()
	if known == nil {
		labels := []string{m.webhook, m.extension, string(operations[i]), result.String()}
		known = &series{admissionRequests.WithLabelValues(labels...), admissionDuration.WithLabelValues(labels...)}
		at.Store(known)
	}
	known.requests.Inc()
	known.duration.Observe(took.Seconds())
	if result == panicked {
		panics.WithLabelValues(m.webhook, m.extension).Inc()
	}
}

// would counts what a handler would do that is not enforced.
func (m *meter) would(counter *prometheus.CounterVec, operation admissionv1.Operation) {
	counter.WithLabelValues(m.webhook, m.extension, string(operations[operationIndex(operation)])).Inc()
}

// webhookMeter counts the requests of one webhook.
type webhookMeter struct {
	webhook           string
	inFlight          prometheus.Gauge
	bodySize, patched prometheus.Observer
	succeeded         [len(operations)]atomic.Pointer[prometheus.Observer]
}

func newWebhookMeter(webhook string, maxInFlight int) *webhookMeter {
	inFlightLimit.WithLabelValues(webhook).Set(float64(maxInFlight))
	for _, reason := range refusalReasons {
		refused.WithLabelValues(webhook, reason)
	}
	return &webhookMeter{
		webhook: webhook, inFlight: inFlight.WithLabelValues(webhook),
		bodySize: bodyBytes.WithLabelValues(webhook), patched: patchBytes.WithLabelValues(webhook),
	}
}

func (m *webhookMeter) observe(operation admissionv1.Operation, code int, took time.Duration) {
	i := operationIndex(operation)
	if code != 200 {
		webhookDuration.WithLabelValues(m.webhook, string(operations[i]), strconv.Itoa(code)).Observe(took.Seconds())
		return
	}
	known := m.succeeded[i].Load()
	if known == nil {
		known = new(webhookDuration.WithLabelValues(m.webhook, string(operations[i]), "200"))
		m.succeeded[i].Store(known)
	}
	(*known).Observe(took.Seconds())
}

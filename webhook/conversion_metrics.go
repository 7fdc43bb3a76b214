package webhook

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/host"
)

// The metrics of conversion. admitkit_webhook_refused_total, ..._in_flight_requests, its limit and
// ..._body_bytes have it, too, as the webhook convert/CRD.
var (
	conversionReviews = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_conversion_reviews_total",
		Help: "ConversionReviews by CustomResourceDefinition. result is converted, error, panic, timeout (the deadline passed), canceled (the client disconnected) or refused (not a review, or beyond a limit).",
	}, []string{"crd", "result"})
	conversionDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "admitkit_conversion_duration_seconds",
		Help:    "Time from the header of a ConversionReview to the end of its answer.",
		Buckets: latencies,
	}, []string{"crd"})
	conversionObjects = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_conversion_objects_total",
		Help: "Converted objects by CustomResourceDefinition and versions.",
	}, []string{"crd", "from", "to"})
)

func init() {
	metrics.Registry.MustRegister(conversionReviews, conversionDuration, conversionObjects)
}

// conversionMeter counts the reviews of one CustomResourceDefinition. Its counters are
// there from the beginning, at zero: an alert on an increase misses the first one otherwise.
type conversionMeter struct {
	inFlight prometheus.Gauge
	bodySize prometheus.Observer
	reviews  map[conversionResult]prometheus.Counter
	duration prometheus.Observer
	objects  map[[2]string]prometheus.Counter
}

func newConversionMeter(c *host.Converter, name string, maxInFlight int) *conversionMeter {
	inFlightLimit.WithLabelValues(name).Set(float64(maxInFlight))
	m := &conversionMeter{
		inFlight: inFlight.WithLabelValues(name), bodySize: bodyBytes.WithLabelValues(name), duration: conversionDuration.WithLabelValues(c.CRD),
		reviews: map[conversionResult]prometheus.Counter{}, objects: map[[2]string]prometheus.Counter{},
	}
	for _, result := range conversionResults {
		m.reviews[result] = conversionReviews.WithLabelValues(c.CRD, string(result))
	}
	for _, from := range c.Names() {
		for _, to := range c.Names() {
			if from != to {
				m.objects[[2]string{from, to}] = conversionObjects.WithLabelValues(c.CRD, from, to)
			}
		}
	}
	return m
}

// observe counts a review, and its objects if they were converted.
func (m *conversionMeter) observe(result conversionResult, from []string, to string, took time.Duration) {
	m.reviews[result].Inc()
	m.duration.Observe(took.Seconds())
	if result != conversionDone {
		return
	}
	for _, version := range from {
		if counter := m.objects[[2]string{version, to}]; counter != nil {
			counter.Inc()
		}
	}
}

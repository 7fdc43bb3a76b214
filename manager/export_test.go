package manager

import (
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// GuardMetrics puts what guards the metrics around a handler.
func GuardMetrics(config *rest.Config, next http.Handler, now clock.PassiveClock) (http.Handler, error) {
	guard, err := newMetricsGuard(config, func(error) {})
	if err != nil {
		return nil, err
	}
	guard.clock = now
	return guard.around(next), nil
}

// Lease sets how long a Lease is valid without a renewal.
func (o *WatchingOptions) Lease(lease time.Duration) { o.lease = lease }

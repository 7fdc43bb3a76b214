package manager

import (
	"net/http"

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

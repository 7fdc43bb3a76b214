// Package guardtest asks a guard of metrics, for its tests and those of the manager.
package guardtest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/manager/internal/metricsguard"
)

// Guarded returns a function that gets metrics from an address with a token, and returns the
// status of the answer. The guard asks the API server of the config.
func Guarded(t *testing.T, config *rest.Config, now clock.PassiveClock) func(ctx context.Context, address, token string) int {
	t.Helper()
	guard, err := metricsguard.New(config, func(error) {}, now)
	if err != nil {
		t.Fatal(err)
	}
	guarded := guard.Around(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return func(ctx context.Context, address, token string) int {
		request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
		request.Header.Set("Authorization", "Bearer "+token)
		request.RemoteAddr = address + ":1234"
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, request)
		return answer.Code
	}
}

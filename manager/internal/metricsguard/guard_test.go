package metricsguard_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/manager/internal/metricsguard/guardtest"
)

// apiAnswers are those of an API server.
type apiAnswers func(*http.Request) string

func (a apiAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(a(r)))}, nil
}

// TestMadeUpTokensKeepNobodyFromTheMetrics has an API server that answers when it is told
// to, because a real one is too fast to show who waits.
func TestMadeUpTokensKeepNobodyFromTheMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, most := 0, 0
		var mu sync.Mutex
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			asked += n
			most = max(most, asked)
		}
		release := make(chan struct{})
		api := apiAnswers(func(r *http.Request) string {
			body, _ := io.ReadAll(r.Body)
			switch {
			case strings.Contains(r.URL.Path, "subjectaccessreviews"):
				return `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`
			case strings.Contains(string(body), "good"):
				return `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,"user":{"username":"prometheus"}}}`
			}
			count(1)
			defer count(-1)
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{}}`
		})
		now := clocktesting.NewFakePassiveClock(time.Now())
		get := guardtest.Guarded(t, &rest.Config{Host: "http://api", Transport: api, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, now)
		if code := get(t.Context(), "192.0.2.100", "good"); code != http.StatusOK {
			t.Fatalf("got %d", code)
		}
		var wait sync.WaitGroup
		for i := range 20 {
			wait.Go(func() { get(t.Context(), fmt.Sprint("192.0.2.", i%5), fmt.Sprint("made-up-", i)) })
		}
		synctest.Wait()
		if asked != 4 {
			t.Errorf("the API server is asked %d times at once", asked)
		}
		if code := get(t.Context(), "192.0.2.100", "good"); code != http.StatusOK {
			t.Errorf("who was known got %d while others wait", code)
		}
		now.SetTime(now.Now().Add(2 * time.Minute))
		soon, cancel := context.WithTimeout(t.Context(), 3*time.Second) // those that wait give up after five
		defer cancel()
		if code := get(soon, "192.0.2.100", "good"); code != http.StatusOK {
			t.Errorf("who was known long ago got %d while others wait", code)
		}
		close(release)
		wait.Wait()
		if most > 4 {
			t.Errorf("the API server was asked %d times at once", most)
		}
	})
}

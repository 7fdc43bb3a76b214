package testkit

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// patience covers a machine that compiles and runs other tests meanwhile.
const patience = time.Minute

// Eventually polls until the condition holds, and ends the test if it does not
// within a minute. Use it only where there is no event to wait for.
func Eventually(t testing.TB, what string, holds func(context.Context) bool) {
	t.Helper()
	Within(t, patience, what, holds)
}

// Within is Eventually with a limit.
func Within(t testing.TB, limit time.Duration, what string, holds func(context.Context) bool) {
	t.Helper()
	if !until(t.Context(), limit, holds) {
		t.Fatalf("not within %s: %s", limit, what)
	}
}

// Succeeds polls until check returns nil. Use it in place of Within where an error
// tells why not yet.
func Succeeds(t testing.TB, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	if err := Poll(t.Context(), limit, what, check); err != nil {
		t.Fatal(err)
	}
}

// Poll is Succeeds without a test. Its error holds the last one of check.
func Poll(ctx context.Context, limit time.Duration, what string, check func(context.Context) error) error {
	var last error
	if until(ctx, limit, func(ctx context.Context) bool {
		err := check(ctx)
		if err == nil || last == nil || ctx.Err() == nil { // what is cut off at the end says nothing
			last = err
		}
		return err == nil
	}) {
		return nil
	}
	return fmt.Errorf("not within %s: %s: %w", limit, what, last)
}

func until(ctx context.Context, limit time.Duration, holds func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for began := time.Now(); !holds(ctx); {
		// What is asked is mostly the API server, which has other tests to serve.
		select {
		case <-time.After(min(max(time.Since(began)/10, 5*time.Millisecond), 250*time.Millisecond)):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// IsReady reports whether the program with this health address says so.
func IsReady(ctx context.Context, address string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

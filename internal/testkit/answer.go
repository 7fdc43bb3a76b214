package testkit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// Content types of patches, and of what is created.
const (
	AsJSON    = "application/json"
	AsMerge   = "application/merge-patch+json"
	AsPatch   = "application/json-patch+json"
	AsDetails = "application/strategic-merge-patch+json"
	AsApply   = "application/apply-patch+yaml"
)

// Answer is what an API server says to a request that no client would make.
type Answer struct {
	Code int
	Body string
	// Warning has the warnings, one after the other.
	Warning string
}

func (a Answer) String() string { return fmt.Sprintf("%d %.600s", a.Code, a.Body) }

// Send sends a request as a user, byte by byte as it is written here. Headers are names
// and values by turns.
func Send(t testing.TB, user *controlplane.User, method, path, contentType, body string, headers ...string) Answer {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(user.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(user.Config.Host, "/")+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := httpClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{response.StatusCode, string(text), strings.Join(response.Header.Values("Warning"), "; ")}
}

// Held wants a refusal that says all of the parts; what else there is went through.
func (a Answer) Held(t testing.TB, parts ...string) (through string) {
	t.Helper()
	if a.Code < 300 {
		return a.String()
	}
	if strings.HasPrefix(a.Body, "404 page") {
		t.Fatalf("the attack is wrong: %s", a)
	}
	for _, part := range parts {
		if !strings.Contains(strings.ReplaceAll(a.Body, `\"`, `"`), part) {
			t.Errorf("it is refused, but does not say %q: %s", part, a)
		}
	}
	return ""
}

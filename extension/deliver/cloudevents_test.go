package deliver_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/extension/deliver"
)

func TestAnExtensionAttributeIsPartOfTheEvent(t *testing.T) {
	var body string
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body = string(text)
	}))
	t.Cleanup(endpoint.Close)
	sender := newEvents(deliver.Options{Name: "test", URL: endpoint.URL})
	e := event("1")
	e.Extensions = map[string]string{"cluster": "blue"}
	if err := sender.Send(t.Context(), e); err != nil || !strings.Contains(body, `"cluster":"blue"`) {
		t.Errorf("%v: sent %s", err, body)
	}
	for _, name := range []string{"", "Cluster", "clus-ter", "data", "id", strings.Repeat("x", 21)} {
		e.Extensions = map[string]string{name: "blue"}
		if err := sender.Send(t.Context(), e); err == nil || !strings.Contains(err.Error(), "extension attribute") {
			t.Errorf("%q: got %v, want that this is no name", name, err)
		}
	}
}

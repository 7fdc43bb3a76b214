package protocol

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func clientOf(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	client, err := NewClient(ClientOptions{
		URL: server.URL, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		Token: func(context.Context) (string, error) { return "t", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestACallTakesTenSecondsAtMost(t *testing.T) {
	if c := clientOf(t, func(http.ResponseWriter, *http.Request) {}); c.http.Timeout != 10*time.Second || revokeTimeout != 5*time.Second {
		t.Errorf("a call takes %s, one to revoke %s", c.http.Timeout, revokeTimeout)
	}
}

// One client asks for all runs.
func TestCallsOfSeveralRunsDoNotMix(t *testing.T) {
	client := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		var request IssueRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Run == nil {
			http.Error(w, "no run", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(Issued{Lease: request.Run.Name, Value: request.Name})
	})
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			run, credential := fmt.Sprint("run-", i), fmt.Sprint("credential-", i)
			issued, err := client.Issue(t.Context(), IssueRequest{Run: &Run{Namespace: "a", Name: run}, Name: credential})
			if err != nil || issued.Lease != run || issued.Value != credential {
				t.Errorf("%s got %+v, %v", run, issued, err)
			}
		})
	}
	group.Wait()
}

package protocol_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// calls are what a broker of a test got, and answers with.
type calls struct {
	got    []string
	answer func(w http.ResponseWriter, n int)
}

func (c *calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.got = append(c.got, fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Authorization"), body))
	c.answer(w, len(c.got))
}

// serve returns the options of a client of this broker, whose token is in a file.
func (c *calls) serve(t *testing.T) (options protocol.ClientOptions) {
	t.Helper()
	server := httptest.NewTLSServer(c)
	t.Cleanup(server.Close)
	options.URL, options.CA = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	options.TokenFile = filepath.Join(t.TempDir(), "token")
	return options
}

func answer(status int, body string) func(http.ResponseWriter, int) {
	return func(w http.ResponseWriter, _ int) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestACallShowsTheTokenThatTheFileHasNow(t *testing.T) {
	c := &calls{answer: answer(http.StatusOK, `{"lease": "l", "value": "v"}`)}
	options := c.serve(t)
	client, err := protocol.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Issue(t.Context(), protocol.IssueRequest{Name: "model"}); err == nil || len(c.got) > 0 {
		t.Errorf("without a token it asks: %v, %q", err, c.got)
	}
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(options.TokenFile, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		issued, err := client.Issue(t.Context(), protocol.IssueRequest{Run: &protocol.Run{Namespace: "a", Name: "b"}, Name: "model"})
		if err != nil || issued.Lease != "l" || issued.Value != "v" {
			t.Errorf("%+v, %v", issued, err)
		}
	}
	if want := `POST /v1/issue Bearer two {"run":{"namespace":"a","name":"b"},"name":"model"}`; len(c.got) != 2 || !strings.Contains(c.got[0], "Bearer one") || c.got[1] != want {
		t.Errorf("%q, want %q", c.got, want)
	}
	c.answer = answer(http.StatusForbidden, `{"code": "PolicyMissing", "message": "none applies"}`)
	refused := (*protocol.Error)(nil)
	if _, err := client.Issue(t.Context(), protocol.IssueRequest{Name: "model"}); !errors.As(err, &refused) || refused.Code != protocol.CodePolicyMissing || refused.Status != http.StatusForbidden {
		t.Errorf("got %v", err)
	}
	c.answer = func(w http.ResponseWriter, _ int) {
		w.Header().Set("Location", "https://example.com/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	if _, err := client.Issue(t.Context(), protocol.IssueRequest{Name: "model"}); !errors.As(err, &refused) || refused.Code != protocol.CodeUnavailable {
		t.Errorf("a redirect is followed: %v", err)
	}
}

func TestARevocationIsTriedThreeTimesUnlessTheBrokerRefuses(t *testing.T) {
	for sentence, test := range map[string]struct {
		answer func(http.ResponseWriter, int)
		calls  int
		fails  bool
	}{
		"one that is done":                {answer(http.StatusNoContent, ""), 1, false},
		"one that is refused":             {answer(http.StatusForbidden, `{"code": "Forbidden"}`), 1, true},
		"one of a run that is not there":  {answer(http.StatusNotFound, `{"code": "RunNotFound"}`), 1, true},
		"one that the broker cannot do":   {answer(http.StatusInternalServerError, ""), 3, true},
		"one that comes too often":        {answer(http.StatusTooManyRequests, `{"code": "RateLimited"}`), 3, true},
		"one that succeeds the last time": {func(w http.ResponseWriter, n int) { w.WriteHeader(map[bool]int{true: 204, false: 503}[n == 3]) }, 3, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			c := &calls{answer: test.answer}
			options := c.serve(t)
			options.Token = func(context.Context) (string, error) { return "t", nil }
			client, err := protocol.NewClient(options)
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Revoke(t.Context(), protocol.RevokeRequest{Lease: "l"})
			if (err != nil) != test.fails || len(c.got) != test.calls || !strings.HasPrefix(c.got[0], "POST /v1/revoke ") {
				t.Errorf("%v, after %q", err, c.got)
			}
		})
	}
}

func TestAClientThatCouldNotAskIsNotMade(t *testing.T) {
	token := func(context.Context) (string, error) { return "t", nil }
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, options := range map[string]protocol.ClientOptions{
		"must begin with https://":  {URL: "http://broker", Token: token},
		`URL ""`:                    {Token: token},
		"TokenFile: required":       {URL: "https://broker"},
		"no such file":              {URL: "https://broker", Token: token, CAFile: file + ".none"},
		"ca.crt: no certificate in": {URL: "https://broker", Token: token, CAFile: file},
	} {
		if _, err := protocol.NewClient(options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestOnlyWhatNoTimeMendsIsFatal(t *testing.T) {
	for code, fatal := range map[protocol.Code]bool{
		protocol.CodeRunNotFound: true, protocol.CodeCredentialNotFound: true, protocol.CodePolicyMissing: true, protocol.CodeBadRequest: true, protocol.CodeForbidden: true,
		protocol.CodeRunEnded: true, protocol.CodeAmbiguous: true,
		protocol.CodeUnauthorized: false, protocol.CodeTooManyLeases: false, protocol.CodePoolExhausted: false, protocol.CodeRateLimited: false, protocol.CodeAuditUnavailable: false,
		protocol.CodeProviderFailed: false, protocol.CodeUnavailable: false, "of a later broker": false,
	} {
		if code.Fatal() != fatal {
			t.Errorf("%s: fatal is %t", code, !fatal)
		}
	}
}

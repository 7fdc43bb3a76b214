package webhookpath_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/webhookpath"
)

const (
	mutating   = "/mutate/pods/stamp-v1-pod"
	validating = "/validate/pods/guard-v1-pod"
	conversion = "/convert/alarms.example.com"
)

func TestAPathOpensOnlyAsItWasSigned(t *testing.T) {
	key, other := webhookpath.NewKey(), webhookpath.NewKey()
	for _, plain := range []string{mutating, validating, conversion, "/probe"} {
		for _, period := range []int64{1, 42, 1 << 40} {
			signed := key.Sign(plain, period)
			if got, of, ok := key.Open(signed); !ok || got != plain || of != period {
				t.Errorf("%s opens as %s %d %v", signed, got, of, ok)
			}
			if _, _, ok := other.Open(signed); ok {
				t.Errorf("%s opens by another key", signed)
			}
			if got := webhookpath.Strip(signed); got != plain {
				t.Errorf("%s is %s without its element", signed, got)
			}
		}
	}
	one := strings.TrimSuffix(key.Sign(mutating, 7), mutating)
	for reason, forged := range map[string]string{
		"plain":                      mutating,
		"empty":                      "",
		"of the other configuration": one + validating,
		"of a conversion":            one + conversion,
		"of another period":          strings.Replace(one, "/7-", "/8-", 1) + mutating,
		"of the same number":         strings.Replace(one, "/7-", "/07-", 1) + mutating,
		"of no period":               strings.Replace(one, "/7-", "/-", 1) + mutating,
		"that climbs":                one + "/mutate/../convert/alarms.example.com",
		"with two slashes":           one + "/" + mutating,
		"shorter":                    one[:len(one)-1] + mutating,
		"in capitals":                strings.ToUpper(one) + mutating,
		"of another CRD":             strings.TrimSuffix(key.Sign(conversion, 7), conversion) + "/convert/bells.example.com",
	} {
		if got, _, ok := key.Open(forged); ok {
			t.Errorf("a path %s opens as %s", reason, got)
		}
	}
	// The probe is an entry of the mutating configuration.
	if _, _, ok := key.Open(one + "/probe"); !ok {
		t.Error("the probe has another element than its configuration")
	}
}

func TestAnErrorDoesNotShowThePath(t *testing.T) {
	signed := webhookpath.NewKey().Sign(mutating, 1234)
	text := `failed calling webhook "a.b": Post "https://x.y.svc:443` + signed + `?timeout=10s": EOF`
	got := string(webhookpath.Redact([]byte(text)))
	if len(got) != len(text) || strings.Contains(got, signed[1:20]) || !strings.Contains(got, "/1234-"+strings.Repeat("x", 32)+mutating) {
		t.Errorf("got %s", got)
	}
	if plain := `Post "https://x.y.svc:443/mutate/a/b"`; string(webhookpath.Redact([]byte(plain))) != plain {
		t.Error("a text without a path is changed")
	}
}

func TestTheTransportHidesPaths(t *testing.T) {
	signed := webhookpath.NewKey().Sign(mutating, 7)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, "failed calling webhook: https://x"+signed)
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: webhookpath.Redacting(http.DefaultTransport)}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	for path, hidden := range map[string]bool{"/refused": true, "/api/v1/namespaces/a/events": true, "/api/v1/namespaces/a/pods": false, "/api/v1/namespaces/a/events?watch=1": false} {
		response, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || strings.Contains(string(text), signed) == hidden {
			t.Errorf("%s: %s %v", path, text, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	key := webhookpath.Key(strings.Repeat("k", 32))
	f.Add(key.Sign(mutating, 3))
	f.Add(key.Sign("/probe", 1))
	f.Add("/1-" + strings.Repeat("0", 32) + mutating)
	f.Fuzz(func(t *testing.T, signed string) {
		plain, period, ok := key.Open(signed)
		if ok && key.Sign(plain, period) != signed {
			t.Errorf("%q opens as %q of %d, whose path is %q", signed, plain, period, key.Sign(plain, period))
		}
	})
}

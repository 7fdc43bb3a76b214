package protocol_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
)

func call(t *testing.T, w *protocol.Webhook) (string, error) {
	t.Helper()
	body, err := w.Call(t.Context(), protocol.Request{Key: "a", Body: []byte(`{}`)})
	return string(body), err
}

func TestAKeptResponseIsUsedAgainWhenTheHookSaysThatItIsTheSame(t *testing.T) {
	for _, code := range []int{http.StatusNotModified, http.StatusPreconditionFailed} {
		calls := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls++; r.Header.Get("If-None-Match") == `"1"` {
				w.WriteHeader(code)
				return
			}
			w.Header().Set("ETag", `"1"`)
			_, _ = w.Write([]byte(`{"status":{}}`))
		}))
		w := protocol.NewWebhook(protocol.Endpoint{URL: server.URL, Timeout: time.Minute, Etag: true, EtagTimeout: time.Hour})
		for range 2 {
			if body, err := call(t, w); err != nil || body != `{"status":{}}` {
				t.Errorf("%d: %q, %v", code, body, err)
			}
		}
		if _, err := w.Call(t.Context(), protocol.Request{Key: "b", Body: []byte(`{}`)}); err != nil || calls != 3 {
			t.Errorf("%d calls, %v: another parent's response was used", calls, err)
		}
		without := protocol.NewWebhook(protocol.Endpoint{URL: server.URL, Timeout: time.Minute})
		for range 2 {
			if _, err := call(t, without); err != nil {
				t.Errorf("without etag: %v", err)
			}
		}
		server.Close()
	}
}

func TestAHookThatIsBusySaysWhenToCallAgain(t *testing.T) {
	header := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", header)
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	w := protocol.NewWebhook(protocol.Endpoint{URL: server.URL, Timeout: time.Minute})
	for text, want := range map[string][2]time.Duration{
		"7": {7 * time.Second, 7 * time.Second}, "": {time.Second, time.Second}, "99999999": {time.Hour, time.Hour},
		"0": {100 * time.Millisecond, 100 * time.Millisecond}, "-1": {100 * time.Millisecond, 100 * time.Millisecond},
		time.Now().Add(-time.Minute).UTC().Format(http.TimeFormat): {100 * time.Millisecond, 100 * time.Millisecond},
		time.Now().Add(time.Minute).UTC().Format(http.TimeFormat):  {50 * time.Second, time.Minute},
	} {
		header = text
		_, err := call(t, w)
		var later *protocol.RetryAfterError
		if !errors.As(err, &later) || later.After < want[0] || later.After > want[1] {
			t.Errorf("Retry-After %q: %v", text, err)
		}
	}
}

func TestWhatAHookReturnsIsBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/long":
			_, _ = w.Write([]byte(strings.Repeat(" ", protocol.MaxResponseBytes+1)))
		case "/slow":
			_, _ = io.Copy(io.Discard, r.Body) // only then the server sees the client go
			<-r.Context().Done()
		case "/away":
			http.Redirect(w, r, "/", http.StatusTemporaryRedirect)
		case "/same":
			w.WriteHeader(http.StatusNotModified)
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	defer server.Close()
	for path, want := range map[string]string{"/long": "longer than", "/slow": "deadline exceeded", "/away": "307", "/same": "no earlier response"} {
		limit := time.Minute
		if path == "/slow" {
			limit = 50 * time.Millisecond
		}
		_, err := call(t, protocol.NewWebhook(protocol.Endpoint{URL: server.URL + path, Timeout: limit}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestCredentialsAreThoseOfTheMoment(t *testing.T) {
	var seen []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		if len(r.TLS.PeerCertificates) > 0 {
			who += " with a certificate"
		}
		seen = append(seen, who)
		_, _ = w.Write([]byte(`{}`))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	now := &protocol.Credentials{}
	w := protocol.NewWebhook(protocol.Endpoint{URL: server.URL, Timeout: time.Minute, Credentials: func(context.Context) (*protocol.Credentials, error) { return now, nil }})
	var unknown x509.UnknownAuthorityError
	if _, err := call(t, w); !errors.As(err, &unknown) {
		t.Errorf("without caBundle: %v", err)
	}
	for _, now = range []*protocol.Credentials{
		{CA: ca, Authorization: "Bearer one"},
		{CA: ca, Authorization: "Bearer two", Certificate: &server.TLS.Certificates[0]},
	} {
		if _, err := call(t, w); err != nil {
			t.Error(err)
		}
	}
	if got := fmt.Sprintf("%q", seen); got != `["Bearer one" "Bearer two with a certificate"]` {
		t.Error(got)
	}
	now = &protocol.Credentials{CA: []byte("nothing")}
	if _, err := call(t, w); err == nil || !strings.Contains(err.Error(), "caBundle") {
		t.Errorf("a caBundle without a certificate: %v", err)
	}
}

func TestAWebhookIsURLOrServiceAndPath(t *testing.T) {
	port, path, secure, text := int32(8443), "/sync", "https", func(s string) *string { return &s }
	service := &v1alpha1.ServiceReference{Name: "hooks", Namespace: "system"}
	for name, each := range map[string]struct {
		hook v1alpha1.Webhook
		want string
		err  string
	}{
		"url":                {v1alpha1.Webhook{URL: text("http://a/b")}, "http://a/b", ""},
		"service":            {v1alpha1.Webhook{Service: service, Path: &path}, "http://hooks.system:80/sync", ""},
		"protocol and port":  {v1alpha1.Webhook{Service: &v1alpha1.ServiceReference{Name: "hooks", Namespace: "system", Port: &port, Protocol: &secure}, Path: &path}, "https://hooks.system:8443/sync", ""},
		"url before service": {v1alpha1.Webhook{URL: text("http://a/b"), Service: service, Path: &path}, "http://a/b", ""},
		"nothing":            {v1alpha1.Webhook{}, "", "url, or service and path"},
		"a password":         {v1alpha1.Webhook{URL: text("http://a:b@c/")}, "", "basicAuth"},
		"a file":             {v1alpha1.Webhook{URL: text("file:///etc/passwd")}, "", "http"},
	} {
		endpoint, _, err := protocol.EndpointOf(&each.hook)
		if each.err != "" {
			if err == nil || !strings.Contains(err.Error(), each.err) {
				t.Errorf("%s: %v, want %q", name, err, each.err)
			}
			continue
		}
		if err != nil || endpoint.URL != each.want || endpoint.Timeout != protocol.DefaultTimeout {
			t.Errorf("%s: %+v, %v", name, endpoint, err)
		}
	}
	endpoint, faults, err := protocol.EndpointOf(&v1alpha1.Webhook{URL: text("http://a"), Timeout: &metav1.Duration{Duration: -1}})
	if err != nil || endpoint.Timeout != protocol.DefaultTimeout || len(faults) != 1 {
		t.Errorf("an invalid timeout: %v, %q, %v", endpoint.Timeout, faults, err)
	}
}

func TestResponsesAreReadAsTheirModeSays(t *testing.T) {
	for name, each := range map[string]struct {
		response string
		strict   bool
		want     string
	}{
		"without children":             {`{"status":{}}`, true, ""},
		"null as children":             {`{"children":null}`, true, ""},
		"no children":                  {`{"children":[]}`, true, ""},
		"an unknown field, loose":      {`{"more":1}`, false, ""},
		"an unknown field, strict":     {`{"more":1}`, true, "more"},
		"a duplicate field, strict":    {`{"status":{},"status":{}}`, true, "status"},
		"a field of the child, strict": {`{"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a"},"own":{"field":1}}]}`, true, ""},
		"a child without a kind":       {`{"children":[{"metadata":{"name":"a"}}]}`, false, "kind"},
		"a child without a name":       {`{"children":[{"apiVersion":"v1","kind":"A"}]}`, false, "metadata.name"},
		"a null child":                 {`{"children":[null]}`, false, "null"},
		"endless time":                 {`{"resyncAfterSeconds":1e999}`, false, "resyncAfterSeconds"},
		"a label that is a number":     {`{"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a","labels":{"app":"b","tier":1}}}]}`, false, "metadata.labels: the value of tier must be a string"},
		"an annotation that is a list": {`{"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a","annotations":{"b":["c"]}}}]}`, false, "metadata.annotations: the value of b must be a string"},
		"annotations that are a list":  {`{"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a","annotations":["c"]}}]}`, false, "metadata.annotations is no object"},
		"an annotation that is null":   {`{"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a","annotations":{"b":null}}}]}`, false, ""},
		"no JSON":                      {`<html>`, false, "JSON"},
		"a list":                       {`[]`, false, "JSON object"},
		"too many values":              {`{"status":{"a":[` + strings.Repeat("{},", 500_000) + `{}]}}`, false, "more than 500000 values"},
		"many commas in a text":        {`{"status":{"a":"` + strings.Repeat(",", 600_000) + `"}}`, false, ""},
	} {
		_, err := protocol.ReadSync([]byte(each.response), each.strict)
		if (err == nil) != (each.want == "") || err != nil && !strings.Contains(err.Error(), each.want) {
			t.Errorf("%s: %v, want %q", name, err, each.want)
		}
	}
	answer, err := protocol.ReadSync([]byte(`{"resyncAfterSeconds":12.5,"finalized":true,"children":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a"},"n":9007199254740993}]}`), false)
	if err != nil || answer.ResyncAfter != 12500*time.Millisecond || !answer.Finalized || answer.Children[0].Object["n"] != int64(9007199254740993) {
		t.Errorf("%+v, %v", answer, err)
	}
	for _, seconds := range []string{"0", "-0.5", "-1e300"} {
		answer, err := protocol.ReadSync([]byte(`{"resyncAfterSeconds":`+seconds+`,"finalized":true}`), false)
		if err != nil || answer.ResyncAfter != 0 || !answer.Finalized {
			t.Errorf("resyncAfterSeconds %s: %+v, %v", seconds, answer, err)
		}
	}
	decorated, err := protocol.ReadDecorate([]byte(`{"labels":{"a":"b","c":null},"attachments":[]}`), true)
	if err != nil || len(decorated.Labels) != 2 || decorated.Labels["c"] != nil || *decorated.Labels["a"] != "b" || decorated.Status != nil {
		t.Errorf("%+v, %v", decorated, err)
	}
}

func TestRelatedRulesSayWhatTheyMean(t *testing.T) {
	for response, want := range map[string]string{
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods"}]}`:                                                                     "",
		`{"relatedResources":[{"apiVersion":"v1"}]}`:                                                                                       "resource",
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods","names":["a"],"labelSelector":{}}]}`:                                    "choose one",
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods","namespace":"a","namespaceSelector":{}}]}`:                              "choose one",
		`{"relatedResources":[` + strings.Repeat(`{"apiVersion":"v1","resource":"pods"},`, 64) + `{"apiVersion":"v1","resource":"pods"}]}`: "more than 64",
	} {
		_, err := protocol.ReadCustomize([]byte(response), false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", response, err, want)
		}
	}
}

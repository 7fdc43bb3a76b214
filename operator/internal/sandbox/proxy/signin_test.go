package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

func TestWhatSignsInIsRemoved(t *testing.T) {
	for _, header := range []string{
		"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "Private-Token", "X-Goog-Api-Key", "X-Goog-Iam-Authorization-Token",
		"X-Amz-Security-Token", "X-Amz-Date", "api-key", "Apikey", "Ocp-Apim-Subscription-Key", "X-Vault-Token", "Job-Token", "X-Functions-Key", "X-Ms-Copy-Source",
		"DD-Application-Key", "X-Shopify-Access-Token", "X_Authorization", "X_Api_Key", "Foo_bar", "X-Auth-Key", "X-Session-Id", "Max-Forwards",
		"Fastly-Key", "X-Master-Key", "X-Aio-Key", "X-Sentry-Auth", "X-Auth", "Authentication", "X-Honeycomb-Team", "X-Wsse", "X-Jfrog-Art-Api-Key", "Cf-Access-Jwt-Assertion",
		"Remote-User", "X-Forwarded-User", "Key", "X-Pwd", "X-Pass", "X-Sig", "X-Passphrase", "X-Sessid", "X-SSL-Client-Cert",
	} {
		r := httptest.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		r.Header[header] = []string{"attackers"}
		strip(r, nil, nil)
		if r.Header[header] != nil {
			t.Errorf("the header %s goes on", header)
		}
		r.Header[header] = []string{"attackers"}
		if strip(r, []string{strings.ToLower(header)}, nil); r.Header[header] == nil && header != "Max-Forwards" {
			t.Errorf("the header %s does not go on although the policy lets it", header)
		}
	}
	for _, header := range []string{
		"Accept", "Content-Type", "User-Agent", "Range", "If-None-Match", "Idempotency-Key", "Sec-WebSocket-Key", "Git-Protocol", "Anthropic-Version", "OpenAI-Organization",
		"Mcp-Session-Id", "X-Atlassian-Token", "X-Goog-Upload-Command", "X-Goog-Request-Params", "X-Ms-Version", "X-Ms-Blob-Type", "Author", "Keyword",
		"X-Request-Id", "Traceparent", "Content-Md5", "Origin", "X-GitHub-Api-Version", "Accept-Encoding",
	} {
		r := httptest.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		r.Header.Set(header, "value")
		if strip(r, nil, nil); r.Header.Get(header) == "" {
			t.Errorf("the header %s does not go on", header)
		}
	}
	for query, want := range map[string]string{
		"api_key=x&q=1":                  "q=1",
		"q=1&ApiKey=x":                   "q=1",
		"access_token=x":                 "",
		"%61pi%5Fkey=x&a=b":              "a=b",
		"X-Amz-Signature=x&X-Amz-Date=y": "",
		"sv=1&sig=x":                     "sv=1",
		"PHPSESSID=x&key[0]=y&a[key]=z":  "a[key]=z",
		"api%255Fkey=x&ticket=y&a%2526b": "a%2526b",
		"key=x&keyword=y&monkey=z":       "keyword=y&monkey=z",
		"q=%zz&%zz=1&a;api_key=x":        "q=%zz",
		"q=1;api_key=x&a=b":              "a=b",
		"sentry_key=x&private_key=y":     "",
		"%20key=x&key%00=y&a":            "a",
		"author=x&pageToken=y&page_token=z&continuation-token=t": "author=x&pageToken=y&page_token=z&continuation-token=t",
		"service=git-upload-pack&a=1&a=2":                        "service=git-upload-pack&a=1&a=2",
		"":                                                       "",
		"&&a":                                                    "a",
	} {
		r := &http.Request{Header: http.Header{}, URL: httptest.NewRequest(http.MethodGet, "/", nil).URL}
		r.URL.RawQuery = query
		if strip(r, nil, nil); r.URL.RawQuery != want {
			t.Errorf("%q goes on as %q, want %q", query, r.URL.RawQuery, want)
		}
	}
	for value, goesOn := range map[string]bool{"graphql-transport-ws": true, "token, attackers": false, "openai-insecure-api-key.attackers": false, strings.Repeat("a", 64): false} {
		r := httptest.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		r.Header.Set("Sec-WebSocket-Protocol", value)
		if strip(r, nil, nil); (r.Header.Get("Sec-WebSocket-Protocol") != "") != goesOn {
			t.Errorf("the protocol %s: goes on is %v", value, !goesOn)
		}
		r.Header["Sec-Websocket-Protocol"] = []string{"chat", value} // a server reads both lines as one list
		if strip(r, nil, nil); (r.Header.Get("Sec-WebSocket-Protocol") != "") != goesOn {
			t.Errorf("the protocol %s in a second line: goes on is %v", value, !goesOn)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "https://api.example.com/?api_key=x&token=y", nil)
	if removed := strip(r, nil, []string{"api_key"}); r.URL.RawQuery != "api_key=x" || !slices.Equal(removed, []string{"query token"}) {
		t.Errorf("%q goes on, and %q is removed", r.URL.RawQuery, removed)
	}
}

// A run that signs itself in carries what it has read to whom it likes.
func TestARunDoesNotSignItselfIn(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	seen := make(chan *http.Request, 1)
	o.server.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r })
	ask := func(change func(*http.Request)) *http.Request {
		t.Helper()
		if status, body, err := get(t, o.client(false), o.url("api.example.com")+"?api_key=attackers&q=1", change); err != nil || status != http.StatusOK {
			t.Fatalf("%d %q %v", status, body, err)
		}
		return <-seen
	}
	attack := func(r *http.Request) {
		for _, header := range []string{"X-Api-Key", "Cookie", "Authorization", "X_Authorization"} {
			r.Header[header] = []string{"attackers"}
		}
	}
	r := ask(attack)
	if got := fmt.Sprint(r.Header["X-Api-Key"], r.Header["Cookie"], r.Header["X_authorization"], r.URL.RawQuery, r.Header["Authorization"]); got != "[] [] []q=1[Bearer secret]" {
		t.Errorf("the server sees %s", got)
	}
	o.reports.send(t.Context())
	var removed []string
	o.broker.set(func(a *answers) {
		for _, entry := range a.reports {
			if entry.Removed && entry.Allowed && entry.Host == "api.example.com" {
				removed = append(removed, entry.Reason)
			}
		}
	})
	if slices.Sort(removed); strings.Join(removed, ", ") != "header Authorization, header Cookie, header X-Api-Key, header X_authorization, query apikey" {
		t.Errorf("on record as removed: %q", removed)
	}
	o.broker.set(func(a *answers) {
		a.egress.Credentials = nil
		a.egress.Allow[0].Headers, a.egress.Allow[0].QueryKeys = []string{"x-api-key"}, []string{"api_key"}
	})
	if err := o.policy.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = ask(attack)
	if got := fmt.Sprint(r.Header["X-Api-Key"], r.Header["Cookie"], r.URL.RawQuery, r.Header["Authorization"]); got != "[attackers] []api_key=attackers&q=1[]" {
		t.Errorf("with a policy that lets the key pass, the server sees %s", got)
	}
}

func TestMethodsThatShowTheCredentialAreRefused(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	o.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Header) })
	for _, method := range []string{http.MethodTrace, "TRACK", http.MethodConnect} {
		status, body, err := get(t, o.client(false), o.url("api.example.com"), func(r *http.Request) { r.Method = method })
		if err == nil && (status != http.StatusMethodNotAllowed || strings.Contains(body, "secret")) {
			t.Errorf("%s: %d %q", method, status, body)
		}
	}
	o.onRecord(t, "api.example.com", "the method TRACE")
	o.onRecord(t, "api.example.com", "the method TRACK")
}

func TestOtherProtocolsAreNotUpgradedTo(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	status, _, err := get(t, o.client(false), o.url("api.example.com"), func(r *http.Request) {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "h2c")
	})
	if err != nil || status != http.StatusForbidden {
		t.Errorf("%d %v", status, err)
	}
	o.onRecord(t, "api.example.com", "an upgrade to another protocol")
}

// The broker refuses a report as a whole: no text that a run chooses may make it do so.
func TestAReportIsWhatTheBrokerTakes(t *testing.T) {
	r := newReports(&answers{}, nil)
	for _, text := range []string{"\xff\xff", strings.Repeat("\x01", 500), strings.Repeat("é", 500), "a\x00b", `"\<>&`, strings.Repeat("<", 500)} {
		r.add(text, 443, false, text)
		r.addRemoved(text, 443, text)
	}
	size := 0
	for k, entry := range r.entries {
		encoded, err := json.Marshal(entry)
		if err != nil || len(k.host) > protocol.MaxDetail || len(k.reason) > protocol.MaxDetail || len(encoded) > 2*protocol.MaxDetail+250 {
			t.Errorf("%q takes %d bytes: %v", k.reason, len(encoded), err)
		}
		size = max(size, len(encoded))
	}
	if most := size * protocol.MaxReported; most > protocol.MaxBody {
		t.Errorf("a report can have %d bytes", most)
	}
}

// Plain HTTP has no TLS whose connection would be closed.
func TestPlainHTTPEndsWithThePolicy(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		if r.Header.Get("Upgrade") != "" {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello\n")
			_, _ = io.Copy(conn, rw)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello\n")
		_, _ = io.Copy(io.Discard, rw) // a stream, of which more may come
	}))
	t.Cleanup(plain.Close)
	_, text, err := net.SplitHostPort(plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	before := o.broker.egress
	o.broker.set(func(a *answers) {
		a.egress.Allow = append(slices.Clone(a.egress.Allow), protocol.Name{Host: "api.example.com", Ports: []int32{int32(port)}})
	})
	if err := o.policy.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	open := map[string]*bufio.Reader{}
	for name, upgrade := range map[string]string{"a stream": "", "an upgraded connection": "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
		conn, err := net.Dial("tcp", o.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = fmt.Fprintf(conn, "GET http://api.example.com:%d/ HTTP/1.1\r\nHost: api.example.com\r\n%s\r\n", port, upgrade)
		open[name] = bufio.NewReader(conn)
		for line := ""; !strings.Contains(line, "hello"); {
			if line, err = open[name].ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	o.broker.set(func(a *answers) { a.egress = before })
	began := time.Now()
	for name, reader := range open {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, reader)
		}()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Errorf("%s goes on after its name is withdrawn", name)
		}
	}
	testkit.Figure("proxy.withdrawn_max_s", time.Since(began).Seconds(), "s")
}

package protocol

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
)

// Endpoint is where a webhook is, and how it is called.
type Endpoint struct {
	URL     string
	Timeout time.Duration
	// Etag says that a response is kept for EtagTimeout, to be used again when the hook
	// says that it is the same.
	Etag        bool
	EtagTimeout time.Duration
	// Credentials returns whom to trust and as whom to connect. It is asked at each call,
	// and returns the same pointer while nothing has changed.
	Credentials func(context.Context) (*Credentials, error)
}

// Credentials are whom to trust, and as whom to connect.
type Credentials struct {
	// CA are authorities in PEM. Default: the system's.
	CA []byte
	// Authorization is the header of this name.
	Authorization string
	// Certificate is shown to the server.
	Certificate *tls.Certificate
}

// DefaultTimeout is how long a call may take, unless the webhook says otherwise.
const DefaultTimeout = 10 * time.Second

const (
	defaultEtagTimeout = 20 * time.Minute
	// maxTimeout keeps one webhook from occupying a worker for ever.
	maxTimeout = 10 * time.Minute
	// maxEtags is how many responses a webhook keeps, and maxEtagBytes how much of them.
	maxEtags     = 10_000
	maxEtagBytes = 64 << 20
)

// EndpointOf returns where a webhook is. faults name what of it is ignored, as
// Metacontroller ignores it.
func EndpointOf(w *v1alpha1.Webhook) (endpoint Endpoint, faults []string, err error) {
	endpoint = Endpoint{Timeout: DefaultTimeout, EtagTimeout: defaultEtagTimeout}
	if endpoint.URL, faults, err = address(w); err != nil {
		return endpoint, faults, err
	}
	if u, err := url.Parse(endpoint.URL); err != nil {
		return endpoint, faults, fmt.Errorf("url: %w", err)
	} else if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return endpoint, faults, fmt.Errorf("url: %q must be http://HOST/... or https://HOST/...", endpoint.URL)
	} else if u.User != nil {
		return endpoint, faults, errors.New("url: must not contain a password; use basicAuth")
	}
	if w.Timeout != nil {
		switch d := w.Timeout.Duration; {
		case d <= 0:
			faults = append(faults, "timeout is not positive; it is 10s")
		case d > maxTimeout:
			endpoint.Timeout = maxTimeout
			faults = append(faults, "timeout is above 10m; it is 10m")
		default:
			endpoint.Timeout = d
		}
	}
	if e := w.Etag; e != nil {
		endpoint.Etag = e.Enabled != nil && *e.Enabled
		if e.CacheTimeoutSeconds != nil && *e.CacheTimeoutSeconds > 0 {
			endpoint.EtagTimeout = time.Duration(*e.CacheTimeoutSeconds) * time.Second
		}
	}
	return endpoint, faults, nil
}

func address(w *v1alpha1.Webhook) (address string, faults []string, err error) {
	switch {
	case w.URL != nil && *w.URL != "":
		if w.Service != nil || w.Path != nil {
			faults = append(faults, "service and path have no effect beside url")
		}
		return *w.URL, faults, nil
	case w.Service == nil || w.Path == nil:
		return "", nil, errors.New("a webhook needs url, or service and path")
	}
	protocol, port := "http", int32(80)
	if w.Service.Protocol != nil {
		protocol = *w.Service.Protocol
	}
	if w.Service.Port != nil {
		port = *w.Service.Port
	}
	return fmt.Sprintf("%s://%s.%s:%d/%s", protocol, w.Service.Name, w.Service.Namespace, port, strings.TrimPrefix(*w.Path, "/")), nil, nil
}

// RetryAfterError is a hook's 429: it wants to be called later.
type RetryAfterError struct{ After time.Duration }

func (e *RetryAfterError) Error() string {
	return fmt.Sprintf("the hook returned 429 Too Many Requests: the next call is in %s", e.After)
}

// Webhook is a [Hook] that is a web server. Make one with [NewWebhook].
type Webhook struct {
	endpoint Endpoint

	mu          sync.Mutex
	credentials *Credentials
	client      *http.Client
	etags       map[string]kept
	etagBytes   int
}

type kept struct {
	etag string
	body []byte
	at   time.Time
}

// bytes is how much is kept: a hook can send an ETag that is longer than its response.
func (k kept) bytes() int { return len(k.etag) + len(k.body) }

// NewWebhook returns the hook. Close it to end its connections.
func NewWebhook(endpoint Endpoint) *Webhook {
	return &Webhook{endpoint: endpoint, etags: map[string]kept{}}
}

// Close ends idle connections.
func (w *Webhook) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		w.client.CloseIdleConnections()
	}
}

// Call implements [Hook].
func (w *Webhook) Call(ctx context.Context, request Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, w.endpoint.Timeout)
	defer cancel()
	client, credentials, err := w.connect(ctx)
	if err != nil {
		return nil, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, w.endpoint.URL, bytes.NewReader(request.Body))
	if err != nil {
		return nil, err
	}
	post.Header.Set("Content-Type", "application/json")
	if credentials.Authorization != "" {
		post.Header.Set("Authorization", credentials.Authorization)
	}
	last, has := w.kept(request.Key)
	if has {
		post.Header.Set("If-None-Match", last.etag)
	}
	response, err := client.Do(post)
	if err != nil {
		return nil, fmt.Errorf("calling the hook: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, MaxResponseBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the hook's response: %w", err)
	case len(body) > MaxResponseBytes:
		return nil, errTooLong
	}
	switch response.StatusCode {
	case http.StatusOK:
		w.keep(request.Key, response.Header.Get("ETag"), body)
		return body, nil
	case http.StatusNotModified, http.StatusPreconditionFailed:
		if has {
			return last.body, nil
		}
		return nil, fmt.Errorf("the hook returned %s, and no earlier response is kept: set etag.enabled, or return 200", response.Status)
	case http.StatusTooManyRequests:
		return nil, &RetryAfterError{retryAfter(response.Header.Get("Retry-After"), time.Now())}
	}
	return nil, fmt.Errorf("the hook at %s returned %s, not 200 OK: %.300q", w.endpoint.URL, response.Status, body)
}

// connect returns the client for the credentials of this moment.
func (w *Webhook) connect(ctx context.Context) (*http.Client, *Credentials, error) {
	credentials := &Credentials{}
	if w.endpoint.Credentials != nil {
		var err error
		if credentials, err = w.endpoint.Credentials(ctx); err != nil {
			return nil, nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil && (w.credentials == credentials || w.endpoint.Credentials == nil) {
		return w.client, credentials, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(credentials.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(credentials.CA) {
			return nil, nil, errors.New("caBundle: has no certificate in PEM")
		}
	}
	if credentials.Certificate != nil {
		config.Certificates = []tls.Certificate{*credentials.Certificate}
	}
	if w.client != nil {
		w.client.CloseIdleConnections()
	}
	w.credentials = credentials
	w.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
			DialContext:         (&net.Dialer{Timeout: DefaultTimeout, KeepAlive: 30 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: DefaultTimeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
		// A redirect would take the parent, and the credentials, to where nobody meant
		// them to go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return w.client, credentials, nil
}

func (w *Webhook) kept(key string) (kept, bool) {
	if !w.endpoint.Etag {
		return kept{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.etags[key]
	if ok && time.Since(k.at) > w.endpoint.EtagTimeout {
		w.drop(key)
		return kept{}, false
	}
	return k, ok
}

func (w *Webhook) keep(key, etag string, body []byte) {
	if !w.endpoint.Etag {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(key)
	k := kept{etag, body, time.Now()}
	if etag == "" || k.bytes() > maxEtagBytes {
		return
	}
	w.etags[key] = k
	w.etagBytes += k.bytes()
	// Any is as good as another: its hook is merely asked in full.
	for other := range w.etags {
		if len(w.etags) <= maxEtags && w.etagBytes <= maxEtagBytes {
			return
		}
		if other != key {
			w.drop(other)
		}
	}
}

func (w *Webhook) drop(key string) {
	w.etagBytes -= w.etags[key].bytes()
	delete(w.etags, key)
}

// Bounds of Retry-After.
const (
	defaultRetryAfter = time.Second
	// minRetryAfter keeps a hook that says 0, or whose clock is behind, from being called in a
	// loop without a pause.
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = time.Hour
)

// retryAfter reads the header, which has seconds or a date.
func retryAfter(header string, now time.Time) time.Duration {
	after := defaultRetryAfter
	if seconds, err := strconv.ParseInt(header, 10, 32); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		after = at.Sub(now)
	} else if at, err := time.Parse(time.RFC1123, header); err == nil {
		after = at.Sub(now)
	}
	return min(max(after, minRetryAfter), maxRetryAfter)
}

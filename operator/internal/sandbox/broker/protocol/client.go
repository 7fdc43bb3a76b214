package protocol

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// ClientOptions are the options of NewClient.
type ClientOptions struct {
	// URL is the broker's, https and without a path.
	URL string
	// CAFile has the authorities of the broker's certificate, in PEM.
	CAFile string
	// CA has them instead of CAFile, in PEM.
	CA []byte
	// TokenFile has the caller's token. It is read for every call, because it rotates.
	TokenFile string
	// Token returns it instead of TokenFile, for every call.
	Token func(ctx context.Context) (string, error)
	// Timeout bounds a call. Default: 10 s.
	Timeout time.Duration
}

// Client asks the broker. Make one with [NewClient]. Any number of goroutines can use it.
type Client struct {
	options ClientOptions
	http    *http.Client
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// NewClient returns a client. It checks the options, and connects to nothing.
func NewClient(options ClientOptions) (*Client, error) {
	if !strings.HasPrefix(options.URL, "https://") {
		return nil, fmt.Errorf("broker: URL %q: must begin with https://", options.URL)
	}
	if options.TokenFile == "" && options.Token == nil {
		return nil, errors.New("broker: TokenFile: required; mount a projected ServiceAccount token of audience " + Audience)
	}
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if _, err := options.roots(); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		// Connections last, so that the authorities are read anew for each: the broker may have another one by then.
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			roots, err := options.roots()
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return (&tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}).DialContext(ctx, network, address)
		},
		MaxConnsPerHost: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	// A proxy of the environment would be the caller itself.
	return &Client{options: options, http: &http.Client{
		Transport: transport, Timeout: options.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// roots are the authorities of the broker, as they are now.
func (o *ClientOptions) roots() (*x509.CertPool, error) {
	pem := o.CA
	if pem == nil {
		var err error
		if pem, err = os.ReadFile(o.CAFile); err != nil {
			return nil, fmt.Errorf("broker: CAFile: %w", err)
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("broker: CAFile %s: no certificate in it", o.CAFile)
	}
	return roots, nil
}

// Issue asks for a credential.
func (c *Client) Issue(ctx context.Context, request IssueRequest) (*Issued, error) {
	issued := &Issued{}
	return issued, c.post(ctx, PathIssue, request, issued)
}

// Egress asks what the run may reach.
func (c *Client) Egress(ctx context.Context) (*Egress, error) {
	egress := &Egress{}
	return egress, c.post(ctx, PathEgress, struct{}{}, egress)
}

// Report tells what was refused.
func (c *Client) Report(ctx context.Context, report Report) error {
	return c.post(ctx, PathReport, report, nil)
}

// Attempts to revoke, and the pause after the first that fails. It doubles.
const (
	revokeAttempts = 3
	revokeTimeout  = 5 * time.Second
	revokePause    = 250 * time.Millisecond
)

// Revoke ends leases, and returns those that the broker still has in its queue. It tries
// three times, unless the broker refuses.
func (c *Client) Revoke(ctx context.Context, request RevokeRequest) (queued []string, err error) {
	pause := revokePause
	for attempt := 1; ; attempt++ {
		queued, err = c.revokeOnce(ctx, request)
		refused := (*Error)(nil)
		if err == nil || errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests || attempt == revokeAttempts {
			return queued, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func (c *Client) revokeOnce(ctx context.Context, request RevokeRequest) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	var revoked Revoked
	err := c.post(ctx, PathRevoke, request, &revoked)
	return revoked.Queued, err
}

func (c *Client) post(ctx context.Context, path string, request, answer any) error {
	token, err := c.token(ctx)
	if err != nil {
		return err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.options.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("broker: reading the answer: %w", err)
	}
	switch {
	case resp.StatusCode >= 300:
		return refusalOf(resp, content)
	case answer == nil || resp.StatusCode == http.StatusNoContent:
		return nil
	}
	if err := json.Unmarshal(content, answer); err != nil {
		return errors.New("broker: the answer is not in JSON") // it can have a credential in it
	}
	return nil
}

func (c *Client) token(ctx context.Context) (string, error) {
	if c.options.Token != nil {
		return c.options.Token(ctx)
	}
	token, err := os.ReadFile(c.options.TokenFile)
	if err != nil {
		return "", fmt.Errorf("broker: TokenFile: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// refusalOf makes an Error of an answer, which may be that of something in between.
func refusalOf(resp *http.Response, content []byte) error {
	refusal := &Error{}
	if json.Unmarshal(content, refusal) != nil || refusal.Code == "" {
		refusal.Code, refusal.Message = CodeUnavailable, fmt.Sprintf("the answer is %s, and not the broker's", resp.Status)
	}
	refusal.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		refusal.RetryAfter = time.Duration(min(seconds, 3600)) * time.Second
	}
	return refusal
}

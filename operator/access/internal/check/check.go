// Package check asks the operator's checks about requests: one POST, whose answer is
// read strictly. Whatever is not a clear answer is a [Failure], and no access follows
// from it.
//
// Read the files in this order:
//
//   - check.go: [Client] asks one check.
//   - queue.go: [Queue] asks all of them, apart from the reconcilers, and writes the
//     answers into the status of requests.
package check

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension/remote"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// Limits of what a check sends.
const (
	MaxAnswer  = 64 << 10
	MaxMessage = 1024
)

// Question is what a check is asked about a request.
type Question struct {
	APIVersion string `json:"apiVersion"`
	// Kind, Namespace, Name and UID are the request's.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Check is the name under which the operator configured the check.
	Check string `json:"check"`
	// Requester is who asks, and OnBehalfOf who gets access instead, if anybody.
	Requester  v1alpha1.Requester `json:"requester"`
	OnBehalfOf string             `json:"onBehalfOf,omitempty"`
	Reason     string             `json:"reason,omitempty"`
	Template   string             `json:"template"`
	// DurationSeconds is how long access is to last, from From to Until.
	DurationSeconds int64     `json:"durationSeconds"`
	From            time.Time `json:"from"`
	Until           time.Time `json:"until"`
	// TargetPod is the Pod, where the request names one.
	TargetPod string `json:"targetPod,omitempty"`
	// ApprovedBy are the users who approved the request.
	ApprovedBy []string `json:"approvedBy,omitempty"`
}

// Answer is what a check answers.
type Answer struct {
	Decision v1alpha1.CheckDecision `json:"decision"`
	Message  string                 `json:"message"`
	// MaxDurationSeconds shortens the access.
	MaxDurationSeconds *int64 `json:"maxDurationSeconds"`
}

// Why there is no answer.
const (
	Unready     = "unready"     // the credential or the CA cannot be read
	Unreachable = "unreachable" // no connection, or none that can be trusted
	Timeout     = "timeout"
	Status      = "status"  // another status than 200
	Invalid     = "invalid" // not the answer that was asked for
)

// Failures are all of them.
var Failures = []string{Unready, Unreachable, Timeout, Status, Invalid}

// Failure is why there is no answer. Its text is for people, and holds no secret.
type Failure struct {
	Reason string
	Err    error
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns what failed.
func (f *Failure) Unwrap() error { return f.Err }

func failure(reason, format string, args ...any) *Failure {
	return &Failure{reason, fmt.Errorf(format, args...)}
}

// Endpoint says where a check is asked, and how.
type Endpoint struct {
	URL     string
	Timeout time.Duration
	// CAFile or CABundle have the authorities of its certificate, in PEM. Default:
	// those of the system.
	CAFile   string
	CABundle []byte
	// TokenFile has the bearer token. Default: none.
	TokenFile string
	// CertFile and KeyFile have the client certificate, in PEM. Default: none.
	CertFile, KeyFile string
	// Connections bounds the connections at a time.
	Connections int
}

// Client asks a check.
type Client struct {
	endpoint Endpoint
	remote   *remote.Client
}

// NewClient returns a client.
func NewClient(endpoint Endpoint) *Client {
	return &Client{endpoint, remote.New(remote.Options{
		TokenFile: endpoint.TokenFile, CAFile: endpoint.CAFile, CA: endpoint.CABundle, CertFile: endpoint.CertFile, KeyFile: endpoint.KeyFile,
		Client: http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			MaxConnsPerHost: endpoint.Connections, MaxIdleConnsPerHost: endpoint.Connections,
			IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: MaxAnswer,
		}},
	})}
}

// Ready returns an error if a file cannot be read.
func (c *Client) Ready() error {
	_, err := c.remote.Connect()
	return err
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.remote.Close() }

// Ask returns the answer, or a *Failure.
func (c *Client) Ask(ctx context.Context, q Question) (Answer, error) {
	connection, err := c.remote.Connect()
	if err != nil { // what was read before decides nothing any more
		return Answer{}, &Failure{Unready, err}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return Answer{}, &Failure{Invalid, err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.endpoint.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.URL, bytes.NewReader(body))
	if err != nil {
		return Answer{}, &Failure{Unready, err}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := connection.Do(request)
	if err != nil {
		return Answer{}, c.unreachable(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, MaxAnswer)) // for the connection to be used again
		return Answer{}, failure(Status, "it answered %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxAnswer+1))
	if err == nil { // the server ends its answer when it sees us hang up
		err = ctx.Err()
	}
	switch {
	case err != nil:
		return Answer{}, c.unreachable(err)
	case len(text) > MaxAnswer:
		return Answer{}, failure(Invalid, "its answer has more than %d bytes", MaxAnswer)
	}
	return parse(text)
}

// unreachable says why there was no answer.
func (c *Client) unreachable(err error) *Failure {
	var waited net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &waited) && waited.Timeout() {
		return failure(Timeout, "it has not answered within %s", c.endpoint.Timeout)
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return failure(Unreachable, "its certificate cannot be trusted: %w", certificate.Err)
	}
	if _, ok := errors.AsType[*net.OpError](err); ok { // its text has the address, and a port that changes
		return failure(Unreachable, "it cannot be reached")
	}
	return failure(Unreachable, "it cannot be reached: %w", err)
}

// parse reads an answer strictly: a field that is misspelled, or there twice, could mean
// the opposite.
func parse(text []byte) (Answer, error) {
	var a Answer
	strict, err := kjson.UnmarshalStrict(text, &a)
	if err == nil {
		err = errors.Join(strict...)
	}
	switch {
	case err != nil:
		return Answer{}, failure(Invalid, "its answer is not valid: %s", truncate.Text(err.Error(), 200))
	case a.Decision != v1alpha1.CheckAllow && a.Decision != v1alpha1.CheckDeny:
		return Answer{}, failure(Invalid, "its answer is not valid: decision must be Allow or Deny, not %.40q", a.Decision)
	case a.MaxDurationSeconds != nil && *a.MaxDurationSeconds < 1:
		return Answer{}, failure(Invalid, "its answer is not valid: maxDurationSeconds must be at least 1, not %d", *a.MaxDurationSeconds)
	}
	a.Message = truncate.Text(a.Message, MaxMessage)
	return a, nil
}

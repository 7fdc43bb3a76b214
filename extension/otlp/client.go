package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/admitkit/admitkit/extension/internal/outbox"
	"github.com/admitkit/admitkit/extension/remote"
)

// Client posts requests of one signal to a collector. Make one with [NewClient].
type Client struct {
	endpoint Endpoint
	sender   string
	address  string
	remote   *remote.Client
}

// NewClient returns a Client. Its name is the label of its metrics. [Endpoint.Validate]
// reports invalid options.
func NewClient(name string, signal Signal, endpoint Endpoint) *Client {
	if endpoint.Timeout == 0 {
		endpoint.Timeout = DefaultTimeout
	}
	for _, reason := range outbox.Reasons {
		failures.WithLabelValues(name, string(reason))
	}
	return &Client{endpoint: endpoint, sender: name, address: endpoint.address(signal), remote: remote.New(remote.Options{
		TokenFile: endpoint.TokenFile, CAFile: endpoint.CAFile, CertFile: endpoint.CertFile, KeyFile: endpoint.KeyFile,
		Client: http.Client{Timeout: endpoint.Timeout},
	})}
}

// Open reads the files of the endpoint. They are read again for each request, so that
// credentials may rotate.
func (c *Client) Open() error {
	_, err := c.remote.Connect()
	return err
}

// Close closes the connections.
func (c *Client) Close() { c.remote.Close() }

// Partial is what a collector did not take of a request that it took.
type Partial struct {
	// Rejected is how many records or spans. They must not be sent again.
	Rejected int64
	// Message is the collector's reason, or its warning.
	Message string
}

// Post sends an encoded request, such as an ExportLogsServiceRequest.
func (c *Client) Post(ctx context.Context, request []byte) (Partial, error) {
	partial, err := c.post(ctx, request)
	if err != nil {
		failures.WithLabelValues(c.sender, string(outbox.ReasonOf(err))).Inc()
	}
	return partial, err
}

func (c *Client) post(ctx context.Context, request []byte) (Partial, error) {
	connection, stale := c.remote.Connect()
	if connection == nil {
		return Partial{}, &outbox.Failure{Reason: outbox.Unauthorized, Err: stale}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address, bytes.NewReader(request))
	if err != nil {
		return Partial{}, err
	}
	maps.Copy(req.Header, c.endpoint.Header)
	req.Header.Set("Content-Type", mediaType)
	response, err := connection.Do(req)
	if err != nil {
		err = &outbox.Failure{Reason: outbox.Unreachable, Err: errors.Join(fmt.Errorf("the collector cannot be reached: %w", err), stale)}
		return Partial{}, err
	}
	defer func() { _ = response.Body.Close() }()
	// Of a failure as much as came: the status says what happened, even if the rest broke off.
	answer, broken := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if response.StatusCode/100 == 2 {
		if err := unended(answer, broken); err != nil {
			return Partial{}, err
		}
		if !protobuf(response) {
			return Partial{}, nil
		}
		return partialOf(answer), nil
	}
	return Partial{}, c.failure(response, answer, stale)
}

// unended returns an error unless the answer of a collector that takes a request has ended
// in time, and is no longer than it may be. What it rejects is said there, and one that drips
// would hold up all that follows for the whole timeout, as if it were in order.
func unended(answer []byte, broken error) error {
	switch {
	case broken != nil:
		return &outbox.Failure{Reason: outbox.Unreachable, Err: fmt.Errorf("the collector began to take it, but its answer did not end: %w", broken)}
	case len(answer) > maxAnswer:
		return &outbox.Failure{Reason: outbox.Unexpected, Err: fmt.Errorf("the answer of the collector has more than %d bytes", maxAnswer)}
	}
	return nil
}

const (
	mediaType = "application/x-protobuf"
	// maxAnswer and maxMessage are how much of an answer is read, and said.
	maxAnswer  = 64 << 10
	maxMessage = 300
)

func protobuf(response *http.Response) bool {
	return strings.HasPrefix(response.Header.Get("Content-Type"), mediaType)
}

// failure returns what an answer means. OTLP names the statuses that ask to try again;
// those that can change by a change of credentials or of the collector are tried again,
// too, because a record is worth more than a request.
func (c *Client) failure(response *http.Response, answer []byte, stale error) error {
	f := &outbox.Failure{Reason: outbox.Unexpected}
	text := fmt.Sprintf("the collector answered %.*s", maxMessage, response.Status)
	if said := messageOf(answer, 2); said != "" && protobuf(response) {
		text += ": " + said
	}
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		f.Reason = outbox.Rejected
	case http.StatusUnauthorized, http.StatusForbidden:
		f.Reason = outbox.Unauthorized
		text += "; check the token and the client certificate"
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		f.Reason = outbox.Busy
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		f.After = time.Duration(min(max(0, seconds), 3600)) * time.Second
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		f.Reason = outbox.Redirect
		text += "; redirects are not followed: set the URL to where it leads"
	case http.StatusNotFound:
		text += "; it receives no OTLP over HTTP at " + response.Request.URL.Path
	}
	f.Err = errors.Join(errors.New(text), stale)
	return f
}

// partialOf reads the answer to a request that was taken, Export...ServiceResponse:
// partial_success = 1 {rejected = 1, error_message = 2}. The messages of all signals have
// the same form, and the package of their Go types brings gRPC along.
func partialOf(answer []byte) Partial {
	var p Partial
	each(answer, 1, func(partial []byte, _ uint64) {
		each(partial, 1, func(_ []byte, n uint64) { p.Rejected = max(0, int64(n)) }) //nolint:gosec // an int64 on the wire
		p.Message = messageOf(partial, 2)
	})
	return p
}

// messageOf returns a field of text, shortened.
func messageOf(message []byte, field protowire.Number) string {
	text := ""
	each(message, field, func(value []byte, _ uint64) { text = string(value) })
	return fmt.Sprintf("%.*s", maxMessage, text)
}

// each calls found with a field of a message, as far as the message can be read.
func each(message []byte, field protowire.Number, found func(bytes []byte, number uint64)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return
		}
		if number == field {
			switch kind {
			case protowire.BytesType:
				value, _ := protowire.ConsumeBytes(message)
				found(value, 0)
			case protowire.VarintType:
				value, _ := protowire.ConsumeVarint(message)
				found(nil, value)
			}
		}
		message = message[size:]
	}
}

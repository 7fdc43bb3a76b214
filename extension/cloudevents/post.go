package cloudevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension/internal/outbox"
)

// maxStatus bounds what an error quotes of a status.
const maxStatus = 256

// post sends events as one batch, and counts a failure.
func (s *Sender) post(ctx context.Context, events [][]byte) error {
	err := s.try(ctx, events)
	if err != nil {
		failures.WithLabelValues(s.options.Name, string(outbox.ReasonOf(err))).Inc()
	}
	return err
}

func (s *Sender) try(ctx context.Context, events [][]byte) error {
	body := append([]byte{'['}, bytes.Join(events, []byte{','})...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(append(body, ']')))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, s.options.Header)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	connection, err := s.remote.Connect()
	if connection == nil {
		return fmt.Errorf("the credential for the endpoint: %w", err)
	} else if err != nil {
		s.log.Error("the credential for the endpoint cannot be read; the last one stays in use", zap.Error(err))
	}
	response, err := connection.Do(req)
	if err != nil {
		return fmt.Errorf("the endpoint cannot be reached: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	// All of the body lets the connection be used again.
	size, broken := io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer+1))
	if err := failureOf(response); err != nil {
		return err
	}
	switch { // a success is one that has ended in time
	case broken != nil:
		return fmt.Errorf("the endpoint answered %.*s, but its answer did not end: %w", maxStatus, response.Status, broken)
	case size > maxAnswer:
		return &outbox.Failure{Reason: outbox.Busy, Err: fmt.Errorf("the endpoint answered %.*s with more than %d bytes", maxStatus, response.Status, maxAnswer)}
	}
	return nil
}

// maxAnswer is how much of an answer is read. Nothing in it counts but its end.
const maxAnswer = 64 << 10

// failureOf returns nil for an answer that means the endpoint has the events.
func failureOf(response *http.Response) error {
	code, text := response.StatusCode, fmt.Sprintf("the endpoint answered %.*s", maxStatus, response.Status)
	f := &outbox.Failure{Reason: outbox.Busy}
	switch {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		f.Reason = outbox.Rejected
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		f.Reason = outbox.Unauthorized
		text += ": renew the token or the client certificate, or allow it to send events"
	case code >= 300 && code < 400:
		f.Reason = outbox.Redirect
		text += fmt.Sprintf(", to %s; redirects are not followed: set the URL of the target", target(response))
	default:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		f.After = time.Duration(max(0, seconds)) * time.Second
	}
	f.Err = errors.New(text)
	return f
}

// target names where a redirect leads, without what may be secret: a user, the path and
// the query.
func target(response *http.Response) string {
	const longest = 253 // of a DNS name
	location, err := response.Location()
	if err != nil || location.Host == "" || len(location.Host) > longest {
		return "an address that is not valid"
	}
	return (&url.URL{Scheme: location.Scheme, Host: location.Host}).String()
}

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
)

// maxStatus bounds what an error quotes of a status.
const maxStatus = 256

// Why a request delivered nothing: the values of the label reason.
const (
	reasonUnauthorized = "unauthorized"
	reasonRedirect     = "redirect"
	reasonRejected     = "rejected"
	reasonBusy         = "busy"
	reasonUnreachable  = "unreachable"
)

// rejection means that the endpoint will never take these events: one of them is wrong,
// or they are too much at once.
type rejection struct{ status string }

func (r *rejection) Error() string { return "the endpoint answered " + r.status }

// refusal means that the endpoint takes nothing from us, until somebody changes the
// credential, the URL or the endpoint. The events are not to blame, so they are kept.
type refusal struct{ reason, text string }

func (r *refusal) Error() string { return r.text }

// busy means that the endpoint cannot take events now.
type busy struct {
	status string
	after  time.Duration
}

func (b *busy) Error() string { return "the endpoint answered " + b.status }

// post sends events as one batch, and counts a failure.
func (s *Sender) post(ctx context.Context, events [][]byte) error {
	err := s.try(ctx, events)
	reason := reasonUnreachable
	if refused, ok := errors.AsType[*refusal](err); ok {
		reason = refused.reason
	} else if _, ok := errors.AsType[*rejection](err); ok {
		reason = reasonRejected
	} else if _, ok := errors.AsType[*busy](err); ok {
		reason = reasonBusy
	}
	if err != nil {
		failures.WithLabelValues(s.options.Name, reason).Inc()
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
		return &busy{status: fmt.Sprintf("%.*s with more than %d bytes", maxStatus, response.Status, maxAnswer)}
	}
	return nil
}

// maxAnswer is how much of an answer is read. Nothing in it counts but its end.
const maxAnswer = 64 << 10

// failureOf returns nil for an answer that means the endpoint has the events.
func failureOf(response *http.Response) error {
	status := fmt.Sprintf("%.*s", maxStatus, response.Status)
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return &rejection{status}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return &refusal{reasonUnauthorized, fmt.Sprintf("the endpoint answered %s: renew the token or the client certificate, or allow it to send events", status)}
	case code >= 300 && code < 400:
		return &refusal{reasonRedirect, fmt.Sprintf("the endpoint answered %s, to %s; redirects are not followed: set the URL of the target", status, target(response))}
	default:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &busy{status, time.Duration(max(0, seconds)) * time.Second}
	}
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

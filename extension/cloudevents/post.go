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
)

// rejection is the answer of an endpoint that will never take a batch.
type rejection struct{ status string }

func (r *rejection) Error() string { return "the endpoint answered " + r.status }

// busy is the answer of an endpoint that may take the batch later.
type busy struct {
	status string
	after  time.Duration
}

func (b *busy) Error() string { return "the endpoint answered " + b.status }

// post sends a batch.
func (s *Sender) post(ctx context.Context, events [][]byte) error {
	body := append([]byte{'['}, bytes.Join(events, []byte{','})...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, bytes.NewReader(append(body, ']')))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, s.options.Header)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	response, err := s.options.Client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return &rejection{response.Status}
	default:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &busy{response.Status, time.Duration(max(0, seconds)) * time.Second}
	}
}

// withoutURL removes the URL, which can hold a credential, from an error that a
// user may see.
func withoutURL(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("the endpoint cannot be reached: %w", inner.Err)
	}
	return err
}

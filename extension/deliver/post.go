package deliver

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
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	// maxAnswer is how much of an answer is read, and maxMessage how much of a status and of a
	// server's message is said.
	maxAnswer  = 64 << 10
	maxMessage = 300
)

// post sends an encoded request, and counts a failure.
func (s *Sender) post(ctx context.Context, body []byte) (answer, error) {
	said, err := s.try(ctx, body)
	if err != nil {
		s.encoding.failures.WithLabelValues(s.options.Name, string(reasonOf(err))).Inc()
	}
	return said, err
}

func (s *Sender) try(ctx context.Context, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	maps.Copy(req.Header, s.options.Header)
	req.Header.Set("Content-Type", s.encoding.mediaType)
	connection, stale := s.remote.Connect()
	if connection == nil {
		return answer{}, &failure{reason: unauthorized, err: stale}
	}
	if stale != nil {
		s.log.Error("a credential cannot be read; the last one stays in use", zap.Error(stale))
	}
	response, err := connection.Do(req)
	if err != nil {
		return answer{}, errors.Join(fmt.Errorf("the %s cannot be reached: %w", s.encoding.receiver, err), stale)
	}
	defer func() { _ = response.Body.Close() }()
	// All of the body lets the connection be used again. Of a failure as much as came: the
	// status says what happened, even if the rest broke off.
	text, broken := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	taken := response.StatusCode/100 == 2
	var said answer
	if s.encoding.read != nil && strings.HasPrefix(response.Header.Get("Content-Type"), s.encoding.mediaType) {
		said = s.encoding.read(text, taken)
	}
	if taken {
		return said, s.unended(response, text, broken)
	}
	f := s.failureOf(response, said)
	f.err = errors.Join(f.err, stale)
	return answer{}, f
}

// unended returns an error if a server takes a request, but its answer does not end in time or
// is too long. The answer says what the server rejects. If a slow answer were taken as it is, each
// batch would wait for the whole timeout without a failure.
func (s *Sender) unended(response *http.Response, text []byte, broken error) error {
	begins := fmt.Sprintf("the %s answered %.*s", s.encoding.receiver, maxMessage, response.Status)
	switch {
	case broken != nil:
		return fmt.Errorf("%s, but its answer did not end: %w", begins, broken)
	case len(text) > maxAnswer:
		return &failure{reason: s.encoding.otherwise, err: fmt.Errorf("%s with more than %d bytes", begins, maxAnswer)}
	}
	return nil
}

// failureOf returns what an answer means. A failure that can pass by a change of the
// credentials or of the server is tried again, too, because a record is worth more than a
// request.
func (s *Sender) failureOf(response *http.Response, said answer) *failure {
	f := &failure{reason: s.encoding.otherwise}
	text := fmt.Sprintf("the %s answered %.*s", s.encoding.receiver, maxMessage, response.Status)
	if said.message != "" {
		text += ": " + said.message
	}
	switch code := response.StatusCode; {
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		f.reason = rejected
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		f.reason = unauthorized
		text += "; check the token and the client certificate, and what they may send"
	case code >= 300 && code < 400:
		f.reason = redirect
		text += fmt.Sprintf(", to %s; redirects are not followed: set the URL of the target", target(response))
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		f.reason = busy
	case code == http.StatusNotFound && s.encoding.notFound != "":
		text += s.encoding.notFound + response.Request.URL.Path
	}
	if f.reason == busy {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		f.after = time.Duration(min(max(0, seconds), 3600)) * time.Second
	}
	f.err = errors.New(text)
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

package webhookpath

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// maxText is more than an API server's error has, or a page of Events.
const maxText = 1 << 20

// Redacting hides the paths of webhooks in the errors of an API server, which names the URL
// of a webhook that failed, and in Events, into which its controllers write such errors: so
// no log, event or status that is made of them shows one.
func Redacting(next http.RoundTripper) http.RoundTripper { return redacting{next} }

type redacting struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t redacting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	events := strings.HasSuffix(r.URL.Path, "/events") && !r.URL.Query().Has("watch")
	if err != nil || response.StatusCode < http.StatusBadRequest && !events {
		return response, err
	}
	body := response.Body
	text, err := io.ReadAll(io.LimitReader(body, maxText))
	rest := io.MultiReader(bytes.NewReader(Redact(text)), body)
	if err != nil {
		rest = io.MultiReader(bytes.NewReader(Redact(text)), failing{err})
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{rest, body}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t redacting) WrappedRoundTripper() http.RoundTripper { return t.next }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

package webhook

import (
	"errors"
	"io"
	"net/http"
)

// firstRead is the most memory that is allocated for the announcement of a large
// body. The body itself may take more, up to the limit.
const firstRead = 256 << 10

// unknownLength is the size of the first buffer for a body of unannounced length.
// API servers always announce the length.
const unknownLength = 8 << 10

// readBody reads a request's body of at most limit bytes, into one allocation
// of its length when it is of usual size.
//
// There is deliberately no pool of these buffers. The objects in a handler's
// request (Object.Raw, OldObject.Raw, Options.Raw) are parts of the body, not
// copies, and a handler may keep them for any time: in a goroutine of its own, in
// a cache, or because it overran its time and still runs after the answer was sent.
// So no buffer is used twice.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	// One more byte than announced, so that the read that finds the end needs no
	// larger buffer.
	size := min(r.ContentLength+1, firstRead)
	if r.ContentLength < 0 {
		size = min(unknownLength, limit+1)
	}
	reader := io.Reader(r.Body)
	if r.ContentLength < 0 { // net/http reads no more than what is announced
		reader = http.MaxBytesReader(w, r.Body, limit)
	}
	body := make([]byte, 0, size)
	for {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(2*int64(cap(body)), limit+1))
			copy(grown, body)
			body = grown
		}
		n, err := reader.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge(limit)
		}
		return nil, badRequest(http.StatusBadRequest, "reading the body: %w", err)
	}
}

func tooLarge(limit int64) error {
	return badRequest(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", limit)
}

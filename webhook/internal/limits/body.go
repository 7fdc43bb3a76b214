package limits

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// ReadTimeout is how long the server waits for a request with its body.
const ReadTimeout = 10 * time.Second

// firstRead is the most memory that is allocated for the announcement of a large
// body, and the size of the pieces in which the rest of it is read.
const firstRead = 256 << 10

// unknownLength is the size of the first buffer for a body of unannounced length.
// API servers always announce the length.
const unknownLength = 8 << 10

// ReadBody reads a request's body of at most limit bytes, into one allocation
// of its length when it is of usual size.
//
// There is deliberately no pool of whole bodies. The objects in a handler's
// request (Object.Raw, OldObject.Raw, Options.Raw) are parts of the body, not
// copies, and a handler may keep them for any time: in a goroutine of its own, in
// a cache, or because it overran its time and still runs after the answer was sent.
// So no buffer is used twice.
//
// The share takes what the body occupies while it grows. With an error ReadBody returns
// the beginning, as far as it was read.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, share *Share) ([]byte, error) {
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
	body, end, err := fill(reader, share, make([]byte, 0, share.begin(size)))
	for !end && err == nil && cap(body) < firstRead {
		// Twice as much, but no more than announced, and one byte to find the end with.
		size := min(2*int64(cap(body)), firstRead)
		if announced := r.ContentLength; announced >= int64(cap(body)) {
			size = min(size, announced+1)
		}
		if err = share.grow(size - int64(cap(body))); err == nil {
			body, end, err = fill(reader, share, append(make([]byte, 0, size), body...))
		}
	}
	if !end && err == nil {
		body, err = readLarge(reader, body, share)
	}
	if err == nil {
		return body, nil
	}
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return body, err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return body, tooLarge(limit)
	}
	switch {
	case share.wasCutOff():
		return nil, ErrStalled
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, failure.New(http.StatusRequestTimeout, "the body did not arrive within %s", ReadTimeout)
	}
	return nil, failure.New(http.StatusBadRequest, "reading the body: %w", err)
}

// readLarge reads the rest of a body in pieces, and puts them together when the body is
// complete. Unlike whole bodies, pieces can be used again: bodies that never become
// complete leave no garbage.
func readLarge(reader io.Reader, first []byte, share *Share) ([]byte, error) {
	pieces, length := [][]byte{first}, len(first)
	defer func() { share.giveBack(pieces) }()
	for {
		if err := share.grow(firstRead); err != nil {
			return first, err
		}
		piece, end, err := fill(reader, share, share.piece())
		pieces, length = append(pieces, piece), length+len(piece)
		if err != nil {
			return first, err
		}
		if end {
			body := make([]byte, 0, length)
			for _, piece := range pieces {
				body = append(body, piece...)
			}
			return body, nil
		}
	}
}

// fill reads until the buffer is full or the end is found.
func fill(reader io.Reader, share *Share, buffer []byte) (read []byte, end bool, err error) {
	for len(buffer) < cap(buffer) {
		share.awaited.Store(true)
		n, err := reader.Read(buffer[len(buffer):cap(buffer)])
		share.awaited.Store(false)
		buffer = buffer[:len(buffer)+n]
		if errors.Is(err, io.EOF) {
			return buffer, true, nil
		}
		if err != nil {
			return buffer, false, err
		}
	}
	return buffer, false, nil
}

func tooLarge(limit int64) error {
	return failure.New(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes, see MaxBodyBytes", limit)
}

// BeginningBytes is how much is read of a body that is too large: its objects begin
// behind the user, who may have many groups.
const BeginningBytes = 256 << 10

// ReadBeginning returns at least the beginning of a body that is too large, of which
// some was read. It drops the rest, because clients take the answer only when they have
// sent everything. That takes no memory, and no longer than the deadline for the body.
func ReadBeginning(body io.Reader, read []byte) ([]byte, error) {
	rest, err := io.ReadAll(io.LimitReader(body, int64(max(0, BeginningBytes-len(read)))))
	if err == nil {
		_, err = io.Copy(io.Discard, body)
	}
	return append(read, rest...), err
}

package limits

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

func TestBodyIsReadWhateverLengthIsAnnounced(t *testing.T) {
	for _, size := range []int{0, 1, unknownLength, firstRead - 1, firstRead, firstRead + 1, 3 * firstRead} {
		body := bytes.Repeat([]byte("x"), size)
		for _, announced := range []int64{-1, 0, 1, int64(size), int64(size) + 1, 4 * firstRead} {
			request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
			request.ContentLength = announced
			got, err := ReadBody(httptest.NewRecorder(), request, 4*firstRead, &Share{})
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("of %d bytes, announced as %d, %d were read: %v", size, announced, len(got), err)
			}
		}
	}
}

func TestBodyOfExactlyTheLimitIsRead(t *testing.T) {
	for _, announced := range []int64{-1, 5000} {
		request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 5000)))
		request.ContentLength = announced
		if body, err := ReadBody(httptest.NewRecorder(), request, 5000, &Share{}); err != nil || len(body) != 5000 {
			t.Errorf("announced as %d, %d bytes were read: %v", announced, len(body), err)
		}
	}
}

func TestClaimOfALargeBodyTakesLittleMemory(t *testing.T) {
	const limit = 8 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		request.ContentLength = limit
		if _, err := ReadBody(httptest.NewRecorder(), request, limit, &Share{}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / 100; each > 2*firstRead {
		t.Errorf("a claim takes %d bytes", each)
	}
}

package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// It keeps them itself: a server would have to send 1,000 headers of 64 KiB.
func TestLongETagsAreKeptOnlyAsFarAsThereIsRoom(t *testing.T) {
	w := NewWebhook(Endpoint{Etag: true, EtagTimeout: time.Hour})
	long := strings.Repeat("x", 1<<20)
	for i := range 100 {
		w.keep(fmt.Sprint(i), long, []byte(`{}`))
	}
	kept := 0
	for i := range 100 {
		if _, has := w.kept(fmt.Sprint(i)); has {
			kept++
		}
	}
	if most := maxEtagBytes >> 20; kept == 0 || kept > most {
		t.Errorf("%d of 100 ETags of 1 MiB are kept, and there is room for %d", kept, most)
	}
}

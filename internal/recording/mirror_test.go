package recording_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/admitkit/admitkit/internal/recording"
)

// candidate is what a mirror reaches.
type candidate struct {
	err      error
	code     int
	requests int
	lines    int
}

func (c *candidate) RoundTrip(req *http.Request) (*http.Response, error) {
	c.requests++
	if c.err != nil {
		return nil, c.err
	}
	body, err := io.ReadAll(req.Body)
	c.lines += strings.Count(string(body), "\n")
	return &http.Response{StatusCode: c.code, Status: http.StatusText(c.code), Body: io.NopCloser(strings.NewReader("why"))}, err
}

func TestAMirrorLosesWhatACandidateDoesNotTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		to := &candidate{err: errors.New("connection refused")}
		r := &recorder{Recorder: recording.NewMirror(recording.MirrorOptions{
			Client: &http.Client{Transport: to}, URL: func() string { return "https://candidate/s1gned" + recording.MirrorPath }, Logger: zap.New(core),
		}), logs: logs}
		send := func(admissions, sent, requests int, message string) {
			t.Helper()
			before := countedOf(t, "admitkit_mirrored_total", "kept")
			dropped := countedOf(t, "admitkit_mirrored_total", "dropped")
			to.requests = 0
			for range admissions {
				r.Keep(r.recordedOf(t, 400<<10))
			}
			r.finish(t)
			if kept := countedOf(t, "admitkit_mirrored_total", "kept") - before; kept != sent || countedOf(t, "admitkit_mirrored_total", "dropped")-dropped != admissions-sent || to.requests != requests {
				t.Errorf("%d of %d are sent, in %d requests", kept, admissions, to.requests)
			}
			said := logs.TakeAll()
			if len(said) != min(len(message), 1) || len(said) == 1 && !strings.Contains(said[0].Message, message) {
				t.Errorf("the log is %v", said)
			}
			for _, line := range said {
				if strings.Contains(fmt.Sprint(line.ContextMap()), "s1gned") {
					t.Errorf("the path is told: %v", line.ContextMap())
				}
			}
		}
		send(5, 0, 1, "it does not answer") // the next batches come within the pause
		send(1, 0, 0, "")
		time.Sleep(time.Second)
		to.err, to.code = nil, http.StatusBadRequest
		send(1, 0, 1, "")
		time.Sleep(time.Second)
		to.code, to.lines = http.StatusOK, 0
		send(5, 5, 3, "sent to the candidate again")
		if to.lines != 5 {
			t.Errorf("it has %d admissions", to.lines)
		}
	})
}

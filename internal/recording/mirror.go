package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

var mirrored = registered(prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_mirrored_total",
	Help: "Admissions to be sent to a candidate (--mirror). result is kept or dropped (too many at a time, too large, or the candidate is away).",
}, []string{"result"}))

// MirrorPath is the path at which a candidate gets the admissions of a mirror, one [Entry] in each
// line.
const MirrorPath = "/candidate"

// MirrorOptions are the options of [NewMirror].
type MirrorOptions struct {
	// Client reaches the candidate, and URL returns where that gets admissions now.
	Client *http.Client
	URL    func() string
	// Build says what the process was built from.
	Build  string
	Logger *zap.Logger
}

const (
	// maxBatch is the size of the admissions that are sent together. One may be larger.
	maxBatch = 1 << 20
	// sendTimeout bounds a batch, and with it how long a stop waits for the candidate.
	sendTimeout = 10 * time.Second
	// sendPause is how long nothing is sent to a candidate that failed.
	sendPause = time.Second
)

// NewMirror returns a Recorder that sends admissions to a candidate as they are: their secrets,
// too. Run sends.
func NewMirror(options MirrorOptions) *Recorder {
	return newRecorder(&mirror{MirrorOptions: options}, 1, options.Build, options.Logger, mirrored)
}

// mirror sends admissions to a candidate.
type mirror struct {
	MirrorOptions
	batch   bytes.Buffer
	count   int
	failing bool
	pause   time.Time // until then nothing is sent
}

func (*mirror) line(entry *Entry) ([]byte, error) { return encode(entry) }

func (m *mirror) write(line []byte) {
	m.batch.Write(line)
	if m.count++; m.batch.Len() >= maxBatch {
		m.flush()
	}
}

func (m *mirror) flush() {
	if m.count == 0 {
		return
	}
	result := dropped
	if !m.failing || !time.Now().Before(m.pause) {
		err := m.send()
		if err == nil {
			result = kept
		}
		m.tell(err)
	}
	mirrored.WithLabelValues(result).Add(float64(m.count))
	m.batch.Reset()
	m.count = 0
}

func (m *mirror) close() {
	m.flush()
	m.Client.CloseIdleConnections()
}

func (*mirror) crowded() string {
	return "admissions are not sent to the candidate: it is too slow for all of them; look at admitkit_mirrored_total"
}

// send sends what was collected.
func (m *mirror) send() error {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL(), bytes.NewReader(m.batch.Bytes()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/jsonl")
	response, err := m.Client.Do(request)
	if err != nil {
		if inner, is := errors.AsType[*url.Error](err); is {
			err = inner.Err // without the path, which lets in
		}
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP status %s: %s", response.Status, bytes.TrimSpace(text))
	}
	return err
}

// tell logs when the candidate begins to fail, and when it no longer does.
func (m *mirror) tell(err error) {
	switch {
	case err != nil:
		if !m.failing {
			m.Logger.Warn("admissions are not sent to the candidate: it does not answer", zap.Error(err))
		}
		m.failing, m.pause = true, time.Now().Add(sendPause)
	case m.failing:
		m.failing = false
		m.Logger.Info("admissions are sent to the candidate again")
	}
}

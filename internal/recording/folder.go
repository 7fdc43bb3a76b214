package recording

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

var recordings = registered(prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_recordings_total",
	Help: "Admissions to be recorded (--record). result is kept or dropped (too many at a time, too large, or the disk is full).",
}, []string{"result"}))

// Options are the options of [NewRecorder].
type Options struct {
	// Dir is the folder. It is made if it does not exist.
	Dir string
	// Share is the share of the admissions to record, from 0 to 1.
	Share float64
	// LimitBytes is what the recordings in the folder may occupy on disk.
	LimitBytes int64
	// Build says what the process was built from.
	Build string
	// Logger gets a line when recording begins to fail, and when it no longer does.
	Logger *zap.Logger
}

// NewRecorder returns a Recorder that writes into a folder, without secrets. An error means that
// it cannot. Run writes.
func NewRecorder(options Options) (*Recorder, error) {
	redactor, err := NewRedactor()
	if err != nil {
		return nil, err
	}
	segments, err := newSegments(options.Dir, options.LimitBytes, time.Now())
	if err != nil {
		return nil, err
	}
	to := &folder{redactor: redactor, segments: segments, log: options.Logger.With(zap.String("folder", options.Dir))}
	return newRecorder(to, options.Share, options.Build, options.Logger, recordings), nil
}

// folder keeps admissions on disk.
type folder struct {
	redactor *Redactor
	segments *segments
	log      *zap.Logger
	failing  bool // since something was last written
}

func (f *folder) line(entry *Entry) ([]byte, error) {
	if err := f.redactor.Entry(entry); err != nil {
		return nil, err
	}
	return encode(entry)
}

func (f *folder) write(line []byte) {
	err := f.segments.write(line)
	result := kept
	if err != nil {
		result = dropped
	}
	recordings.WithLabelValues(result).Inc()
	if !errors.Is(err, errTooLarge) {
		f.check(err)
	}
}

func (f *folder) flush() { f.check(f.segments.flush()) }

func (f *folder) close() { f.check(f.segments.close()) }

func (*folder) crowded() string {
	return "admissions are not recorded: too many wait for the disk: set a smaller --record-share, or look at admitkit_recordings_total"
}

// check logs when the disk begins to fail, and when it no longer does. After a failure the next
// admission begins another segment.
func (f *folder) check(err error) {
	switch {
	case err != nil:
		f.segments.abandon()
		if !f.failing {
			f.log.Error("admissions are not recorded: the disk fails: make room, or set a smaller --record-limit", zap.Error(err))
		}
		f.failing = true
	case f.failing && f.segments.file != nil:
		f.failing = false
		f.log.Info("admissions are recorded again")
	}
}

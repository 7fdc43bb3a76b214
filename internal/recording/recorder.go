package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/webhook"
)

var recordings = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_recordings_total",
	Help: "Admissions to be recorded (--record). result is kept or dropped (too many at a time, too large, or the disk is full).",
}, []string{"result"})

func init() {
	metrics.Registry.MustRegister(recordings)
	for _, result := range []string{kept, dropped} {
		recordings.WithLabelValues(result)
	}
}

const (
	kept    = "kept"
	dropped = "dropped"
)

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

// The bounds of what waits for the disk.
const (
	maxWaiting      = 1024
	maxWaitingBytes = 8 << 20
	// maxBody is the largest request that is recorded. While its secrets are taken out, it
	// occupies many times as much.
	maxBody = 1 << 20
)

// Recorder writes the admissions of a process into a folder. No admission waits for it: those
// that it cannot write in time are dropped and counted.
type Recorder struct {
	options  Options
	redactor *Redactor
	segments *segments
	queue    chan *webhook.Recorded
	seed     maphash.Seed
	waiting  atomic.Int64 // bytes of bodies and patches
	crowded  atomic.Bool  // since something last fit
	failing  bool         // since something was last written
	unread   bool         // since an admission could last be redacted
}

var _ webhook.Recorder = (*Recorder)(nil)

// NewRecorder returns a Recorder. An error means that it cannot write into the folder. Run writes.
func NewRecorder(options Options) (*Recorder, error) {
	redactor, err := NewRedactor()
	if err != nil {
		return nil, err
	}
	segments, err := newSegments(options.Dir, options.LimitBytes, time.Now())
	if err != nil {
		return nil, err
	}
	return &Recorder{
		options: options, redactor: redactor, segments: segments,
		queue: make(chan *webhook.Recorded, maxWaiting), seed: maphash.MakeSeed(),
	}, nil
}

// Take implements webhook.Recorder.
func (r *Recorder) Take(uid string, body []byte) []byte {
	if float64(maphash.String(r.seed, uid)) > r.options.Share*math.MaxUint64 {
		return nil
	}
	if len(body) > maxBody {
		recordings.WithLabelValues(dropped).Inc()
		return nil
	}
	if size := int64(len(body)); r.waiting.Add(size) > maxWaitingBytes {
		r.waiting.Add(-size)
		r.drop()
		return nil
	}
	return bytes.Clone(body)
}

// sizeOf returns what an admission occupies while it waits.
func sizeOf(recorded *webhook.Recorded) int64 {
	size := int64(len(recorded.Body))
	if recorded.Response != nil {
		size += int64(len(recorded.Response.Patch))
	}
	return size
}

// Keep implements webhook.Recorder.
func (r *Recorder) Keep(recorded *webhook.Recorded) {
	if size := sizeOf(recorded); r.waiting.Add(size-int64(len(recorded.Body))) <= maxWaitingBytes {
		select {
		case r.queue <- recorded:
			if r.crowded.CompareAndSwap(true, false) {
				r.options.Logger.Info("admissions are recorded again")
			}
			return
		default:
		}
	}
	r.waiting.Add(-sizeOf(recorded))
	r.drop()
}

// drop counts an admission that there is no room for.
func (r *Recorder) drop() {
	recordings.WithLabelValues(dropped).Inc()
	if r.crowded.CompareAndSwap(false, true) {
		r.options.Logger.Warn("admissions are not recorded: too many wait for the disk: set a smaller --record-share, or look at admitkit_recordings_total")
	}
}

// Run writes until the context ends, and then what still waits.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case recorded := <-r.queue:
			r.keep(recorded)
		case <-ctx.Done():
			r.finish()
			return
		}
		if len(r.queue) == 0 {
			r.check(r.segments.flush())
		}
	}
}

// finish writes what waits, and ends the segment.
func (r *Recorder) finish() {
	for {
		select {
		case recorded := <-r.queue:
			r.keep(recorded)
		default:
			r.check(r.segments.close())
			return
		}
	}
}

// keep writes an admission, and counts it.
func (r *Recorder) keep(recorded *webhook.Recorded) {
	defer r.waiting.Add(-sizeOf(recorded))
	line, err := r.line(recorded)
	if err != nil {
		recordings.WithLabelValues(dropped).Inc()
		if !r.unread {
			r.options.Logger.Warn("an admission is not recorded: its secrets cannot be taken out", zap.String("webhook", recorded.Webhook.Name), zap.Error(err))
		}
		r.unread = true
		return
	}
	r.unread = false
	err = r.segments.write(line)
	result := kept
	if err != nil {
		result = dropped
	}
	recordings.WithLabelValues(result).Inc()
	if !errors.Is(err, errTooLarge) {
		r.check(err)
	}
}

// line returns the line of an admission, without secrets. A panic in it is an error, since serving
// must go on.
func (r *Recorder) line(recorded *webhook.Recorded) (line []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("redacting it panicked: %v", reason)
		}
	}()
	entry, err := newEntry(recorded, r.options.Build)
	if err == nil && len(entry.Answer.Object) > 2*maxBody {
		err = errTooLarge
	}
	if err != nil {
		return nil, err
	}
	if err := r.redactor.Entry(entry); err != nil {
		return nil, err
	}
	line, err = encode(entry)
	return append(line, '\n'), err
}

// check logs when the disk begins to fail, and when it no longer does. After a failure the next
// admission begins another segment.
func (r *Recorder) check(err error) {
	switch {
	case err != nil:
		r.segments.abandon()
		if !r.failing {
			r.options.Logger.Error("admissions are not recorded: the disk fails: make room, or set a smaller --record-limit", zap.String("folder", r.options.Dir), zap.Error(err))
		}
		r.failing = true
	case r.failing && r.segments.file != nil:
		r.failing = false
		r.options.Logger.Info("admissions are recorded again", zap.String("folder", r.options.Dir))
	}
}

package recording

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/webhook"
)

const (
	kept    = "kept"
	dropped = "dropped"
)

// registered registers a counter of admissions by result.
func registered(counter *prometheus.CounterVec) *prometheus.CounterVec {
	metrics.Registry.MustRegister(counter)
	for _, result := range []string{kept, dropped} {
		counter.WithLabelValues(result)
	}
	return counter
}

// The bounds of what waits.
const (
	maxWaiting      = 1024
	maxWaitingBytes = 8 << 20
	// maxBody is the largest request that is kept. While its secrets are taken out, it
	// occupies many times as much.
	maxBody = 1 << 20
)

// Recorder hands the admissions of a process to a folder ([NewRecorder]) or to another build
// ([NewMirror]). No admission waits for it: those that it cannot hand over in time are dropped and
// counted.
type Recorder struct {
	to      sink
	share   float64
	build   string
	logger  *zap.Logger
	counter *prometheus.CounterVec
	queue   chan *webhook.Recorded
	seed    maphash.Seed
	waiting atomic.Int64 // bytes of bodies and patches
	crowded atomic.Bool  // since something last fit
	unread  bool         // since an admission could last be encoded
}

// sink is where admissions go. Its methods are called by one goroutine. It counts.
type sink interface {
	// line returns an entry, which it may change, as it is kept.
	line(*Entry) ([]byte, error)
	// write keeps a line, at once or when flush is called.
	write(line []byte)
	// flush is called when nothing waits, and close at the end.
	flush()
	close()
	// crowded is what to do if too many wait.
	crowded() string
}

var _ webhook.Recorder = (*Recorder)(nil)

func newRecorder(to sink, share float64, build string, logger *zap.Logger, counter *prometheus.CounterVec) *Recorder {
	return &Recorder{to: to, share: share, build: build, logger: logger, counter: counter, queue: make(chan *webhook.Recorded, maxWaiting), seed: maphash.MakeSeed()}
}

// Take implements webhook.Recorder.
func (r *Recorder) Take(uid string, body []byte) []byte {
	if float64(maphash.String(r.seed, uid)) > r.share*math.MaxUint64 {
		return nil
	}
	if len(body) > maxBody {
		r.counter.WithLabelValues(dropped).Inc()
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
				r.logger.Info("admissions are kept again")
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
	r.counter.WithLabelValues(dropped).Inc()
	if r.crowded.CompareAndSwap(false, true) {
		r.logger.Warn(r.to.crowded())
	}
}

// Run keeps until the context ends, and then what still waits.
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
			r.to.flush()
		}
	}
}

// finish keeps what waits.
func (r *Recorder) finish() {
	for {
		select {
		case recorded := <-r.queue:
			r.keep(recorded)
		default:
			r.to.close()
			return
		}
	}
}

// keep hands an admission over.
func (r *Recorder) keep(recorded *webhook.Recorded) {
	defer r.waiting.Add(-sizeOf(recorded))
	line, err := r.line(recorded)
	if err != nil {
		r.counter.WithLabelValues(dropped).Inc()
		if !r.unread {
			r.logger.Warn("an admission is not kept: its entry cannot be made", zap.String("webhook", recorded.Webhook.Name), zap.Error(err))
		}
		r.unread = true
		return
	}
	r.unread = false
	r.to.write(line)
}

// line returns the line of an admission. A panic in it is an error, since serving must go on.
func (r *Recorder) line(recorded *webhook.Recorded) (line []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("encoding it panicked: %v", reason)
		}
	}()
	entry, err := newEntry(recorded, r.build)
	if err == nil && len(entry.Answer.Object) > 2*maxBody {
		err = errTooLarge
	}
	if err != nil {
		return nil, err
	}
	line, err = r.to.line(entry)
	return append(line, '\n'), err
}

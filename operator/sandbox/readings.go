package sandbox

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// readings says when logs were read: each every ten seconds at most, and once more at its end.
type readings struct {
	mu   sync.Mutex
	last map[types.NamespacedName]reading
}

// reading is when a log was read, successfully or not, whether that had ended, and the time of the last line that counts.
type reading struct {
	at    time.Time
	ended bool
	until time.Time
}

// wait says how long to wait until a log is read again, and else notes that it is read now. One that has ended is read at
// once, the first time.
func (r *readings) wait(key types.NamespacedName, now time.Time, ended bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, before := r.last[key]
	if before && last.ended == ended && now.Before(last.at.Add(outputPeriod)) {
		return last.at.Add(outputPeriod).Sub(now)
	}
	if r.last == nil {
		r.last = map[types.NamespacedName]reading{}
	}
	r.last[key] = reading{now, ended, last.until}
	return 0
}

func (r *readings) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
}

// until is the time of the last line that was seen.
func (r *readings) until(key types.NamespacedName) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[key].until
}

func (r *readings) seen(key types.NamespacedName, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.last[key]
	last.until = until
	r.last[key] = last
}

// again has a log read at once.
func (r *readings) again(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.last[key]
	last.at = time.Time{}
	r.last[key] = last
}

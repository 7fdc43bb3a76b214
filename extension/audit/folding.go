package audit

import (
	"slices"
	"sync"
	"time"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// Limits of what a folded AuditEvent lists; the rest is only counted.
const (
	foldActs  = 100
	foldBytes = 64 << 10
)

// floods count the records of each user in each Pod in each minute. The counts
// are in memory: after a restart there may be a second fold of one flood.
type floods struct {
	after  int
	mu     *sync.Mutex
	minute map[floodKey]*flood
	swept  *time.Time
}

type floodKey struct {
	user, lane string
	minute     int64
}

// flood is what a user does in a Pod in a minute.
type flood struct {
	mu sync.Mutex
	// count is how many have an AuditEvent of their own.
	count int
	// name is that of the AuditEvent which the others are folded into.
	name   string
	status v1alpha1.AuditEventStatus
	bytes  int
}

func newFloods(after int) floods {
	return floods{after: after, mu: &sync.Mutex{}, minute: map[floodKey]*flood{}, swept: &time.Time{}}
}

// of returns the flood that a record belongs to, and forgets those of minutes
// that are over.
func (f floods) of(r *v1alpha1.AuditRecord) *flood {
	f.mu.Lock()
	defer f.mu.Unlock()
	minute := r.Time.Truncate(time.Minute)
	if minute.After(*f.swept) {
		*f.swept = minute
		for key := range f.minute {
			// A record may wait in a queue for a while.
			if key.minute < minute.Add(-5*time.Minute).Unix() {
				delete(f.minute, key)
			}
		}
	}
	key := floodKey{user: r.User.Username, lane: laneKey(r), minute: minute.Unix()}
	if f.minute[key] == nil {
		f.minute[key] = &flood{}
	}
	return f.minute[key]
}

func (f *flood) over(after int) bool { return after >= 0 && f.count >= after }

// with returns the status with one more record.
func (f *flood) with(r *v1alpha1.AuditRecord) v1alpha1.AuditEventStatus {
	next := *f.status.DeepCopy()
	next.Count++
	if next.FirstTime == nil {
		next.FirstTime = r.Time.DeepCopy()
	}
	next.LastTime = r.Time.DeepCopy()
	for i := range next.Acts {
		a := &next.Acts[i]
		if a.Way == r.Way && a.Decision == r.Decision && a.Container == r.Container && slices.Equal(a.Command, r.Command) {
			a.Count++
			return next
		}
	}
	size := 0
	for _, argument := range r.Command {
		size += len(argument)
	}
	if len(next.Acts) == foldActs || f.bytes+size > foldBytes {
		next.Unlisted++
		return next
	}
	f.bytes += size
	next.Acts = append(next.Acts, v1alpha1.AuditFold{Way: r.Way, Decision: r.Decision, Container: r.Container, Command: r.Command, Count: 1})
	return next
}

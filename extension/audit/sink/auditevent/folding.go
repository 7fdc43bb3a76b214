package auditevent

import (
	"slices"
	"sync"
	"time"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit/internal/act"
)

// Limits of the list in a folded AuditEvent; the rest is only counted.
const (
	foldActs  = 100
	foldBytes = 64 << 10
)

// floods count the records of each user in each Pod in each minute. They are in
// memory: after a restart, a flood can have a second AuditEvent.
type floods struct {
	mu     sync.Mutex
	minute map[floodKey]*flood
	swept  time.Time
}

type floodKey struct {
	user, lane string
	minute     int64
}

// flood is what one user does in one Pod in one minute.
type flood struct {
	mu sync.Mutex
	// count is the number of records that have an AuditEvent of their own.
	count int
	// name is the name of the AuditEvent into which the others are folded.
	name   string
	status v1alpha1.AuditEventStatus
	bytes  int
}

func newFloods() *floods { return &floods{minute: map[floodKey]*flood{}} }

// of returns the flood that a record belongs to, and forgets the floods of
// minutes that are over.
func (f *floods) of(r *v1alpha1.AuditRecord) *flood {
	f.mu.Lock()
	defer f.mu.Unlock()
	minute := r.Time.Truncate(time.Minute)
	if minute.After(f.swept) {
		f.swept = minute
		for key := range f.minute {
			// A record may wait in a queue for a while.
			if key.minute < minute.Add(-5*time.Minute).Unix() {
				delete(f.minute, key)
			}
		}
	}
	key := floodKey{user: r.User.Username, lane: act.Lane(r), minute: minute.Unix()}
	if f.minute[key] == nil {
		f.minute[key] = &flood{}
	}
	return f.minute[key]
}

// exceeds reports whether further records are folded.
func (f *flood) exceeds(limit int) bool { return limit >= 0 && f.count >= limit }

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

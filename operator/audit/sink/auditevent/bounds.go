package auditevent

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// unit is what one AuditEvent may have of etcd. A longer record counts as several:
// somebody who may exec chooses how long it is.
const unit = 2 << 10

// pageUnits is what a folded AuditEvent with a full list counts as.
const pageUnits = 8

// bounds count what each user causes, and say which records are folded, and where.
// They are in memory: each replica counts for itself, and from nothing after a restart.
type bounds struct {
	options *Options

	mu      sync.Mutex
	day     time.Time
	users   map[string]int // units of this day
	all     int            // units of this day
	minutes map[period]int // units of a minute
	floods  map[period]*flood
	swept   time.Time
}

// period is a user's minute in a namespace, or, beyond the bound of a day, the user's
// hour. The deletion of AuditEvents has an hour of its own.
type period struct {
	user, namespace string
	cleanup         bool
	end             int64
}

func newBounds(options *Options) *bounds {
	return &bounds{options: options, users: map[string]int{}, minutes: map[period]int{}, floods: map[period]*flood{}}
}

// place returns nil for a record that gets an AuditEvent of its own, which it counts,
// and else the flood that it is a part of.
func (b *bounds) place(r *v1alpha1.AuditRecord) *flood {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(r.Time.Time)
	user, units := r.User.Username, unitsOf(r)
	if r.Way == v1alpha1.WayDecision {
		user = "decisions about " + user // so that acts do not fold them
	}
	minute := period{user: user, namespace: r.Namespace, end: r.Time.Truncate(time.Minute).Add(time.Minute).Unix()}
	hour := period{user: user, cleanup: r.Way == v1alpha1.WayCleanup, end: r.Time.Truncate(time.Hour).Add(time.Hour).Unix()}
	switch {
	case hour.cleanup:
		return b.flood(hour)
	case b.options.FoldAfter < 0:
		return nil
	case !b.within(user, units):
		return b.flood(hour)
	case b.minutes[minute]+units > b.options.FoldAfter:
		return b.flood(minute)
	}
	b.minutes[minute] += units
	b.count(user, units)
	return nil
}

// page reports whether a flood may have one more AuditEvent, and counts it.
func (b *bounds) page(user string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.within(user, pageUnits) {
		return false
	}
	b.count(user, pageUnits)
	return true
}

func (b *bounds) within(user string, units int) bool {
	return b.users[user]+units <= b.options.FoldUserAfter && b.all+units <= b.options.FoldAllAfter
}

func (b *bounds) count(user string, units int) {
	b.users[user] += units
	b.all += units
}

func (b *bounds) flood(of period) *flood {
	if b.floods[of] == nil {
		b.floods[of] = &flood{namespace: of.namespace}
	}
	return b.floods[of]
}

// sweep forgets what is over.
func (b *bounds) sweep(now time.Time) {
	if day := now.Truncate(24 * time.Hour); day.After(b.day) {
		b.day, b.all = day, 0
		clear(b.users)
	}
	minute := now.Truncate(time.Minute)
	if !minute.After(b.swept) {
		return
	}
	b.swept = minute
	over := minute.Add(-5 * time.Minute).Unix() // a record may wait in a queue for a while
	for of := range b.minutes {
		if of.end < over {
			delete(b.minutes, of)
		}
	}
	for of := range b.floods {
		if of.end < over {
			delete(b.floods, of)
		}
	}
}

func unitsOf(r *v1alpha1.AuditRecord) int {
	text, _ := json.Marshal(r) // no record is without a form in JSON
	return 1 + len(text)/unit
}

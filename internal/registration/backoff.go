package registration

import (
	"sync"
	"time"
)

// The pause after a repair, until the same thing is repaired again: the first one, and
// the longest. It doubles each time, and after a quiet time it begins anew. Each thing of
// each object has its own, so that a platform that adds terms to selectors for ever does
// not delay the repair of a removed rule.
const (
	firstPause = time.Second
	// MaxPause is the longest time for which somebody who changes a webhook
	// configuration, or a conversion, again and again has his way.
	MaxPause = time.Minute
	quiet    = 2 * MaxPause
)

// repairBackoff puts off the repair of what somebody changes again and again.
type repairBackoff struct {
	mu      sync.Mutex
	repairs map[repairKey]repair
}

// repairKey is what is changed: an object, and the kind of repair.
type repairKey struct{ object, kind string }

// repair is the last repair of it, of so many without a quiet time in between.
type repair struct {
	at    time.Time
	pause time.Duration
	times int
	// wanted identifies what was written. When that changes, it is written at once:
	// otherwise a dispute would hold up the rotation of certificates.
	wanted string
}

// beginning guards the first use of a registration's backoff, which is no part of a copy
// that only verifies.
var beginning sync.Mutex

func (r *Registration) repairs() *repairBackoff {
	beginning.Lock()
	defer beginning.Unlock()
	if r.backoff == nil {
		r.backoff = &repairBackoff{}
	}
	return r.backoff
}

// wait returns how long to put off a repair, 0 for not at all, and how often it was made.
func (p *repairBackoff) wait(of repairKey, wanted string, now time.Time) (left time.Duration, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, fought := p.repairs[of]
	if !fought || last.wanted != wanted {
		return 0, 0
	}
	return max(0, last.at.Add(last.pause).Sub(now)), last.times
}

// repaired notes a repair, which is one of all that was wrong with the object.
func (p *repairBackoff) repaired(object string, kinds []string, wanted string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.repairs == nil {
		p.repairs = map[repairKey]repair{}
	}
	for _, kind := range kinds {
		of, next := repairKey{object, kind}, repair{at: now, pause: firstPause, times: 1, wanted: wanted}
		last, fought := p.repairs[of]
		switch {
		case fought && last.at.Equal(now): // the same thing of two entries
			continue
		case fought && last.wanted == wanted && now.Sub(last.at) < quiet:
			next.pause, next.times = min(2*last.pause, MaxPause), last.times+1
		}
		p.repairs[of] = next
	}
}

package registration

import (
	"fmt"
	"sync"
	"time"
)

// RepairsTold says what was repaired, once in a while for each cause.
type RepairsTold struct {
	mu   sync.Mutex
	told map[repaired]told
}

// repaired is an object, and what was wrong with it.
type repaired struct{ object, kind string }

// told is when it was last said, and how often it was repaired since.
type told struct {
	at    time.Time
	since int
}

// tellEvery is the time between two Events, and two log lines, of the same cause.
const tellEvery = time.Minute

// Tell returns how often the cause was repaired, this time included, since that was last
// said; 0 if it is too early to say it again.
func (r *RepairsTold) Tell(repair Repair, now time.Time) (times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = map[repaired]told{}
	}
	of := repaired{repair.Object, repair.Kind}
	last, before := r.told[of]
	if before && now.Sub(last.at) < tellEvery {
		last.since++
		r.told[of] = last
		return 0
	}
	r.told[of] = told{at: now}
	return last.since + 1
}

// RepairText is the message of an Event.
func RepairText(repair Repair, times int) string {
	text := fmt.Sprintf("%s written: %s was not as it should be", repair.Object, repair.Kind)
	if repair.Kind == "missing" {
		text = repair.Object + " written: it was missing"
	}
	if repair.Detail != "" {
		text += ": " + repair.Detail
	}
	if times > 1 {
		text += fmt.Sprintf(" (%d times since the last Event: somebody changes it again and again, and repairs are put off by up to %s)", times, MaxPause)
	}
	return text
}

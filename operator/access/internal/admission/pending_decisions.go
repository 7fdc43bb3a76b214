package admission

import (
	"maps"
	"sync"
	"time"
)

// pendingDecisions bound what somebody can store by racing. A decision is refused if the cache has one
// of the same person, but the cache learns of it only once it is stored: until then one of these
// stands for it, in this process. So each server lets one through.
type pendingDecisions struct {
	mu    sync.Mutex
	until map[pendingDecision]time.Time
}

// pendingDecision is a request, by its UID, and the person who decides about it.
type pendingDecision struct{ request, person string }

// claimFor is longer than a watch is behind, and short for who has to try again because
// their decision was admitted and not stored.
const pendingFor = 5 * time.Second

// take reports whether there is none, and notes it.
func (c *pendingDecisions) take(of pendingDecision, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.until, func(_ pendingDecision, until time.Time) bool { return !now.Before(until) })
	if _, held := c.until[of]; held {
		return false
	}
	if c.until == nil {
		c.until = map[pendingDecision]time.Time{}
	}
	c.until[of] = now.Add(pendingFor)
	return true
}

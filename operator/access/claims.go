package access

import (
	"maps"
	"sync"
	"time"
)

// claims bound what somebody can store by racing. A decision is refused if the cache has one
// of the same person, but the cache learns of it only once it is stored: until then a claim
// stands for it, in this process. So each server lets one through.
type claims struct {
	mu    sync.Mutex
	until map[claim]time.Time
}

// claim is a request, by its UID, and the person who decides about it.
type claim struct{ request, person string }

// claimFor is longer than a watch is behind, and short for who has to try again because
// their decision was admitted and not stored.
const claimFor = 5 * time.Second

// take reports whether nobody holds the claim, and takes it.
func (c *claims) take(of claim, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.until, func(_ claim, until time.Time) bool { return !now.Before(until) })
	if _, held := c.until[of]; held {
		return false
	}
	if c.until == nil {
		c.until = map[claim]time.Time{}
	}
	c.until[of] = now.Add(claimFor)
	return true
}

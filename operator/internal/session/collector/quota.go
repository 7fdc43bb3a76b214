package collector

import (
	"fmt"
	"sync"
	"time"
)

// quota bounds what is recorded in a day, of one user and of all: it is stored for as long as
// recordings are kept.
type quota struct {
	ofUser, ofAll int64
	now           func() time.Time

	mu    sync.Mutex
	since time.Time // when the day began
	users map[string]int64
	all   int64
}

// bytesOfSession is about what is stored of a connection beside its frames.
const bytesOfSession = 4 << 10

// add counts bytes, and says whether that was too much.
func (q *quota) add(user string, bytes int) (over string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := q.now(); q.users == nil || now.Sub(q.since) >= 24*time.Hour {
		q.since, q.users, q.all = now, map[string]int64{}, 0
	}
	q.users[user] += int64(bytes)
	q.all += int64(bytes)
	switch {
	case q.users[user] > q.ofUser:
		return fmt.Sprintf("more than %d bytes of %s were recorded within a day", q.ofUser, user)
	case q.all > q.ofAll:
		return fmt.Sprintf("more than %d bytes were recorded within a day", q.ofAll)
	}
	return ""
}

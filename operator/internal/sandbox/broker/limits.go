package broker

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// What a run may ask.
const (
	issuesPerSecond, issueBurst = 5, 10
	othersPerSecond, otherBurst = 20, 40
	// limitedRuns bounds the runs that are remembered. One that is forgotten begins anew.
	limitedRuns = 4096
)

// limits are the rate limits of runs.
type limits struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	runs  *lru.Cache
}

type limiters struct{ issues, others *rate.Limiter }

func newLimits(clock clock.PassiveClock) *limits {
	return &limits{clock: clock, runs: lru.New(limitedRuns)}
}

// wait returns how long a run has to wait before it may ask: 0 for not at all.
func (l *limits) wait(run types.UID, issue bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.runs.Get(run)
	if !ok {
		found = &limiters{issues: rate.NewLimiter(issuesPerSecond, issueBurst), others: rate.NewLimiter(othersPerSecond, otherBurst)}
		l.runs.Add(run, found)
	}
	limiter := found.(*limiters).others
	if issue {
		limiter = found.(*limiters).issues
	}
	now := l.clock.Now()
	reservation := limiter.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

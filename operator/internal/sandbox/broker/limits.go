package broker

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	shared "github.com/admitkit/admitkit/operator/internal/sources"
)

// What a run may ask.
const (
	issuesPerSecond, issueBurst = 5, 10
	othersPerSecond, otherBurst = 20, 40
)

// limits are the rate limits of runs.
type limits struct {
	clock          clock.PassiveClock
	issues, others *shared.Rates[types.UID]
}

func newLimits(clock clock.PassiveClock) *limits {
	return &limits{clock, shared.NewRates[types.UID](issuesPerSecond, issueBurst), shared.NewRates[types.UID](othersPerSecond, otherBurst)}
}

// wait returns how long a run has to wait before it may ask: 0 for not at all.
func (l *limits) wait(run types.UID, issue bool) time.Duration {
	rates := l.others
	if issue {
		rates = l.issues
	}
	now := l.clock.Now()
	reservation := rates.Of(run).ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

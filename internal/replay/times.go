package replay

import (
	"math"
	"time"
)

// times counts durations in buckets, each a fiftieth longer than the one before: their percentiles
// are exact to two percent, however many there are.
type times struct {
	buckets [1500]int
	count   int
}

var growth = math.Log(1.02)

func (t *times) add(d time.Duration) {
	micros := max(float64(d.Nanoseconds())/1000, 1)
	t.buckets[min(int(math.Log(micros)/growth), len(t.buckets)-1)]++
	t.count++
}

// percentile returns the duration below which the share p lies.
func (t *times) percentile(p float64) time.Duration {
	left := int(math.Ceil(float64(t.count) * p))
	for i, n := range t.buckets {
		if left -= n; left <= 0 {
			return time.Duration(math.Exp(float64(i+1)*growth) * 1000).Round(time.Microsecond)
		}
	}
	return 0
}

// Times are percentiles.
type Times struct {
	P50 time.Duration `json:"p50"`
	P90 time.Duration `json:"p90"`
	P99 time.Duration `json:"p99"`
}

func (t *times) percentiles() Times {
	return Times{t.percentile(.5), t.percentile(.9), t.percentile(.99)}
}

package sources

import (
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// limited bounds the keys that are remembered. One that is forgotten begins anew.
const limited = 4096

// Rates are rate limiters, one for each key. Make them with [NewRates].
type Rates[K comparable] struct {
	perSecond, burst int

	mu       sync.Mutex
	limiters *lru.Cache
}

// NewRates returns limiters that let through so much a second, and burst at once.
func NewRates[K comparable](perSecond, burst int) *Rates[K] {
	return &Rates[K]{perSecond: perSecond, burst: burst, limiters: lru.New(limited)}
}

// Of returns the limiter of a key.
func (r *Rates[K]) Of(key K) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.limiters.Get(key); ok {
		return found.(*rate.Limiter)
	}
	made := rate.NewLimiter(rate.Limit(r.perSecond), r.burst)
	r.limiters.Add(key, made)
	return made
}

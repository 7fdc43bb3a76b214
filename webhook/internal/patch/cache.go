package patch

import (
	"maps"
	"sync"
	"sync/atomic"
)

// cache keeps what was worked out about Go types. Types refer to each other, and
// some to themselves. So build gets unfinished values of types that are still being
// built, and nothing is published before all of them are finished.
type cache[K comparable, V any] struct {
	finished atomic.Pointer[map[K]*V]
	building sync.Mutex
}

// get returns the value of a key, which build fills in the first time. build also
// gets a function that returns the values of other keys.
func (c *cache[K, V]) get(key K, build func(key K, of func(K) *V, v *V)) *V {
	if finished := c.finished.Load(); finished != nil {
		if v := (*finished)[key]; v != nil {
			return v
		}
	}
	c.building.Lock()
	defer c.building.Unlock()
	all := map[K]*V{}
	if finished := c.finished.Load(); finished != nil {
		maps.Copy(all, *finished)
	}
	var of func(K) *V
	of = func(key K) *V {
		if v := all[key]; v != nil {
			return v
		}
		v := new(V)
		all[key] = v
		build(key, of, v)
		return v
	}
	v := of(key)
	c.finished.Store(&all)
	return v
}

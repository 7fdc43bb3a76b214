package binding

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectations tell what this process did from what others do, and slow repairs down.
type expectations struct {
	mu sync.Mutex
	of map[types.NamespacedName]*expectation
}

type expectation struct {
	making    bool
	uid       types.UID // that was made
	gone      types.UID // that was removed
	times     int       // how often it was made
	notBefore time.Time // when it may be made again
}

const (
	// firstRepair and slowestRepair are how long a repair waits: somebody who removes a
	// binding again and again must not keep the manager from ending others.
	firstRepair   = 10 * time.Millisecond
	slowestRepair = 10 * time.Second
)

func newExpectations() *expectations {
	return &expectations{of: map[types.NamespacedName]*expectation{}}
}

func (o *expectations) with(key types.NamespacedName, change func(*expectation)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.of[key]
	if w == nil {
		w = &expectation{}
		o.of[key] = w
	}
	change(w)
}

// make runs a function that makes a binding and returns its UID.
func (o *expectations) make(key types.NamespacedName, now time.Time, create func() (types.UID, error)) error {
	o.with(key, func(w *expectation) { w.making = true })
	uid, err := create()
	o.with(key, func(w *expectation) {
		w.making = false
		if err == nil {
			w.uid = uid
			w.notBefore = now.Add(min(firstRepair<<min(w.times, 20), slowestRepair))
			w.times++
		}
	})
	return err
}

// made reports whether it was this process that made the binding.
func (o *expectations) made(key types.NamespacedName, uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.of[key]
	return w != nil && (w.making || w.uid == uid)
}

// removing remembers that this process removes a binding.
func (o *expectations) removing(key types.NamespacedName, uid types.UID) {
	o.with(key, func(w *expectation) { w.gone = uid })
}

// removed reports whether it was this process that removed the binding.
func (o *expectations) removed(key types.NamespacedName, uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.of[key]
	return w != nil && w.gone == uid
}

// notBefore returns when a binding may be made again.
func (o *expectations) notBefore(key types.NamespacedName) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.of[key]; w != nil {
		return w.notBefore
	}
	return time.Time{}
}

// forget drops what is known of an object that is gone.
func (o *expectations) forget(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.of, key)
}

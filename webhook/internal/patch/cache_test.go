package patch

import (
	"sync"
	"testing"
)

func TestWhatIsCachedIsFinishedForEveryoneWhoSeesIt(t *testing.T) {
	type ring struct{ next *ring }
	var c cache[int, ring]
	build := func(key int, of func(int) *ring, r *ring) { r.next = of((key + 1) % 5) }
	var all sync.WaitGroup
	for key := range 50 {
		all.Go(func() {
			r := c.get(key%5, build)
			at := r
			for range 5 {
				at = at.next
			}
			if at != r {
				t.Errorf("key %d: the ring does not close", key%5)
			}
		})
	}
	all.Wait()
}

package limits

import (
	"context"
	"errors"
	"math/rand"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// newShare returns a request that has begun to read its body, and notes when it is cut
// off.
func newShare(m *Memory, stranger bool, bytes int64) *cuttable {
	c := &cuttable{}
	c.Share = Share{Memory: m, Owner: c, Stranger: stranger}
	c.begin(bytes)
	return c
}

type cuttable struct {
	Share
	cut bool
}

func (c *cuttable) CutOff() { c.cut = true }

func codeIs(err error, code int) bool { return err != nil && failure.Code(err) == code }

// empty reports what is still occupied of a memory in which nothing runs.
func empty(t *testing.T, m *Memory) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isReading != 0 || m.isWaiting != 0 || m.isRunning != m.garbage || m.bodies.length+m.strangers.length+m.small.length+m.big.length != 0 {
		t.Errorf("nothing runs, and the memory is %+v", m)
	}
}

func TestTheBodyThatHasNotGrownForLongestMakesRoom(t *testing.T) {
	m := NewMemory(4 << 20) // 1 MiB for bodies that arrive
	first, second, steady := newShare(m, false, 1), newShare(m, false, 1), newShare(m, false, 1)
	if err := first.grow(10); err != nil { // so the second one is the oldest
		t.Fatal(err)
	}
	for grown := int64(0); grown < m.reading-PerRequest-20_000; grown += 10_000 {
		if err := steady.grow(10_000); err != nil {
			if first.cut && second.cut && codeIs(err, http.StatusTooManyRequests) {
				t.Fatalf("cut off after %d bytes: %v", grown, err)
			}
			break
		}
		if first.cut && !second.cut {
			t.Fatal("the body that grew last was cut off first")
		}
	}
	if !first.cut || !second.cut || steady.cut {
		t.Errorf("of the bodies that stalled %v and %v were cut off, of the one that grew %v", first.cut, second.cut, steady.cut)
	}
	if err := first.grow(1); !errors.Is(err, ErrStalled) {
		t.Errorf("a body that was cut off grows: %v", err)
	}
	for _, c := range []*cuttable{first, second, steady} {
		c.Done()
	}
	empty(t, m)
}

func TestBodiesOfStrangersMakeRoomFirst(t *testing.T) {
	m := NewMemory(4 << 20)
	oldest, stranger := newShare(m, false, 1), newShare(m, true, 1)
	for range 100 {
		newShare(m, false, 1)
		if oldest.cut && !stranger.cut {
			t.Fatal("a connection that has completed an admission made room while a stranger stalls")
		}
	}
	if !oldest.cut || !stranger.cut {
		t.Error("there were never too many")
	}
}

func TestABodyThatWaitsForTheServerOutlastsThoseThatWaitForTheirClients(t *testing.T) {
	m := NewMemory(4 << 20)
	busy, idle := newShare(m, true, 1), newShare(m, true, 1)
	idle.awaited.Store(true)
	for range 100 {
		if newShare(m, true, 1).awaited.Store(true); busy.cut {
			break
		}
	}
	if busy.cut || !idle.cut {
		t.Errorf("cut off: the one that waits for the server %v, the one that waits for its client %v", busy.cut, idle.cut)
	}
}

func TestBeginningsAloneNeverFillTheMemory(t *testing.T) {
	m := NewMemory(64 << 20)
	for i := range 130 {
		if c := newShare(m, true, firstRead); c.cut {
			t.Fatalf("the %dth was cut off", i)
		}
	}
	if m.strangers.length != 130 || m.isReading > m.reading {
		t.Errorf("%d bodies occupy %d of %d bytes", m.strangers.length, m.isReading, m.reading)
	}
}

func TestABodyLargerThanItsPartOfTheMemoryIsTooLarge(t *testing.T) {
	c := newShare(NewMemory(4<<20), false, 1)
	if err := c.grow(1 << 20); !codeIs(err, http.StatusRequestEntityTooLarge) {
		t.Error(err)
	}
}

// admitted calls admit, and returns where its result comes.
func admitted(ctx context.Context, c *cuttable, cost int64, patience time.Duration) <-chan error {
	result := make(chan error, 1)
	go func() { result <- c.Admit(ctx, cost, time.Now().Add(patience)) }()
	return result
}

// settle returns when so many requests wait.
func settle(t *testing.T, m *Memory, small, big int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		m.mu.Lock()
		settled := m.small.length == small && m.big.length == big
		m.mu.Unlock()
		if settled {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d small and %d large requests wait, want %d and %d", m.small.length, m.big.length, small, big)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRequestsWaitInOrderAndLargeOnesDoNotDelaySmallOnes(t *testing.T) {
	m := NewMemory(64 << 20) // 32 MiB to run in, of which large ones may have 24
	var large []*cuttable
	for range 2 {
		c := newShare(m, false, 1)
		if err := c.Admit(t.Context(), 12<<20, time.Now()); err != nil {
			t.Fatal(err)
		}
		large = append(large, c)
	}
	large = append(large, newShare(m, false, 1))
	third := admitted(t.Context(), large[2], 12<<20, time.Minute)
	settle(t, m, 0, 1)
	var beside []*cuttable
	for range 8 { // these fill the rest
		c := newShare(m, false, 1)
		if err := c.Admit(t.Context(), 1<<20, time.Now()); err != nil {
			t.Fatalf("a small request had no room beside large ones: %v", err)
		}
		beside = append(beside, c)
	}
	small := newShare(m, false, 1)
	granted := admitted(t.Context(), small, 1<<20, time.Minute)
	settle(t, m, 1, 1)
	large[0].Done()
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	settle(t, m, 0, 1) // an eighth of the memory is for small ones only
	for _, c := range append(beside, small, large[1]) {
		c.Done()
	}
	if err := <-third; err != nil {
		t.Error(err)
	}
	large[2].Done()
	empty(t, m)
}

func TestARequestThatFindsNoMemoryByItsDeadlineIsAskedToComeBack(t *testing.T) {
	m := NewMemory(64 << 20)
	running := newShare(m, false, 1)
	if err := running.Admit(t.Context(), 24<<20, time.Now()); err != nil {
		t.Fatal(err)
	}
	late := newShare(m, false, 1)
	if err := late.Admit(t.Context(), 24<<20, time.Now().Add(10*time.Millisecond)); !codeIs(err, http.StatusTooManyRequests) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	left := newShare(m, false, 1)
	if err := left.Admit(gone, 24<<20, time.Now().Add(time.Minute)); !codeIs(err, http.StatusTooManyRequests) {
		t.Error(err)
	}
	for _, c := range []*cuttable{running, late, left} {
		c.Done()
	}
	empty(t, m)
}

func TestNoMoreBodiesWaitThanTheirPartOfTheMemoryHolds(t *testing.T) {
	m := NewMemory(64 << 20) // 8 MiB of bodies of large requests
	running := newShare(m, false, 1)
	if err := running.Admit(t.Context(), 24<<20, time.Now()); err != nil {
		t.Fatal(err)
	}
	grow := func() *cuttable {
		c := newShare(m, false, 1)
		if err := c.grow(5 << 20); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := admitted(ctx, grow(), 20<<20, time.Minute)
	settle(t, m, 0, 1)
	if err := grow().Admit(ctx, 20<<20, time.Now().Add(time.Minute)); !codeIs(err, http.StatusTooManyRequests) {
		t.Error(err)
	}
	cancel()
	if err := <-first; !codeIs(err, http.StatusTooManyRequests) {
		t.Error(err)
	}
}

func TestARequestLargerThanItsPartOfTheMemoryIsTooLarge(t *testing.T) {
	m := NewMemory(64 << 20)
	c := newShare(m, false, 1)
	if err := c.Admit(t.Context(), 25<<20, time.Now()); !codeIs(err, http.StatusRequestEntityTooLarge) {
		t.Error(err)
	}
	empty(t, m)
}

func TestMemoryIsNeverExceededAndAllOfItComesBack(t *testing.T) {
	m := NewMemory(16 << 20)
	var all sync.WaitGroup
	var most [3]int64
	for worker := range 16 {
		random := rand.New(rand.NewSource(int64(worker)))
		all.Go(func() {
			for range 300 {
				c := newShare(m, random.Intn(2) == 0, random.Int63n(100<<10))
				var err error
				for range random.Intn(4) {
					err = errors.Join(err, c.grow(random.Int63n(200<<10)))
				}
				if err == nil {
					err = c.Admit(t.Context(), random.Int63n(6<<20), time.Now().Add(time.Duration(random.Intn(3))*time.Millisecond))
				}
				if code := http.StatusTooManyRequests; err != nil && !codeIs(err, code) {
					if _, several := err.(interface{ Unwrap() []error }); !several {
						t.Errorf("got %v", err)
					}
				}
				m.mu.Lock()
				most = [3]int64{max(most[0], m.isReading), max(most[1], m.isWaiting), max(most[2], m.isRunning)}
				m.mu.Unlock()
				c.Done()
			}
		})
	}
	all.Wait()
	empty(t, m)
	if limits := [3]int64{m.reading, m.waiting, m.running}; slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool { return most[i] > limits[i] }) {
		t.Errorf("as much as %v was occupied, of %v", most, limits)
	}
}

func TestGarbageOfALargeRequestCountsUntilItIsCollected(t *testing.T) {
	m := NewMemory(64 << 20)
	large := func() *cuttable {
		c := newShare(m, false, 1)
		if err := c.Admit(t.Context(), m.largeRunning, time.Now().Add(10*time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	large().Done()
	if m.garbage != m.largeRunning || m.fits(m.large+1) {
		t.Fatalf("another one runs beside garbage of %d bytes", m.garbage)
	}
	large().Done() // it waits for the collection, which it has caused
}

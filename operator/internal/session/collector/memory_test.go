package collector

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func TestWhoTypesDoesNotWaitForThoseWhoPrint(t *testing.T) {
	m := newMemory(100 << 10)
	waits := make(chan int, 10)
	share := func() *share { return m.share(func(by int) { waits <- by }) }
	prints, waiting, types := share(), share(), share()
	held, err := prints.take(t.Context(), 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() {
		_, err := waiting.take(t.Context(), 64<<10)
		taken <- err
	}()
	if by := <-waits; by != 1 {
		t.Errorf("a session waits, and the change is %d", by)
	}
	for range 4 { // its own memory
		if _, err := types.take(t.Context(), 2<<10); err != nil {
			t.Fatal(err)
		}
	}
	prints.give(held)
	if err, by := <-taken, <-waits; err != nil || by != -1 {
		t.Errorf("with memory, the change is %d: %v", by, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := types.take(ctx, 64<<10); err == nil {
		t.Error("there is more memory than there may be")
	}
	for _, each := range []interface{ close() }{prints, waiting, types} {
		each.close()
	}
	if _, err := waiting.take(t.Context(), 64<<10); err == nil {
		t.Error("a session that has ended takes memory")
	}
	if !m.all.TryAcquire(100 << 10) {
		t.Error("memory is lost")
	}
}

// held is a storage that stores nothing until it may.
type held struct {
	Folder
	may chan struct{}
}

func (h held) Part(ctx context.Context, id string, number int) (Part, error) {
	part, err := h.Folder.Part(ctx, id, number)
	return heldPart{part, h}, err
}

type heldPart struct {
	Part
	of held
}

func (p heldPart) Append(ctx context.Context, frames []byte) error {
	<-p.of.may
	return p.Part.Append(ctx, frames)
}

// waitingSessions is an observer.
type waitingSessions struct {
	nobody
	atomic.Int64
}

func (w *waitingSessions) Waiting(change int) { w.Add(int64(change)) }

func TestWhatWaitsForASlowStorageIsBounded(t *testing.T) {
	const sessions, each = 8, 1 << 20
	storage, watched := held{Folder(t.TempDir()), make(chan struct{})}, &waitingSessions{}
	c := New(Options{Storage: storage, MaxWaiting: 512 << 10, Observer: watched})
	var written atomic.Int64
	var running sync.WaitGroup
	for range sessions {
		ticket := ticketOf()
		if _, err := redeem(storage, &Redeemed{Ticket: *ticket, Secret: "secret", At: time.Now()}, key); err != nil {
			t.Fatal(err)
		}
		to, err := resume(storage, ticket.ID, key)
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		session := &live{collector: c, ticket: ticket, key: key, conn: here}
		running.Go(func() {
			defer to.close()
			if err := c.receive(session, bufio.NewReaderSize(here, readBuffer), to); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			for from := bufio.NewReader(there); ; { // the acknowledgements
				if f, err := protocol.Read(from); err != nil || f.Seq > each/protocol.MaxData+1 {
					return
				}
			}
		})
		running.Go(func() {
			frames := []protocol.Frame{{Type: protocol.Begin, Data: jsonOf(t, protocol.Head{Command: []string{"sh"}})}}
			for range each / protocol.MaxData {
				frames = append(frames, protocol.Frame{Type: protocol.Output, Data: make([]byte, protocol.MaxData)})
			}
			frames = append(frames, protocol.Frame{Type: protocol.Exit, Data: jsonOf(t, protocol.End{})})
			for i := range frames {
				frames[i].Seq = uint64(i + 1)
				n, _ := there.Write(frames[i].Append(nil))
				written.Add(int64(n))
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); watched.Load() < sessions && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	most := c.options.MaxWaiting + sessions*(ownMemory+readBuffer)
	if got := written.Load(); watched.Load() != sessions || got > most {
		t.Errorf("%d sessions wait, with %d bytes of %d", watched.Load(), got, most)
	}
	close(storage.may)
	running.Wait()
	if left := watched.Load(); left != 0 || written.Load() < sessions*each {
		t.Errorf("%d sessions wait, %d bytes were written", left, written.Load())
	}
}

func TestOnePodAndOneUserDoNotTakeAllSessions(t *testing.T) {
	_, address := serve(t, Options{MaxSessions: 5, MaxPodSessions: 2, MaxUserSessions: 3})
	of := func(pod, user string) *protocol.Ticket {
		return ticketOf(func(t *protocol.Ticket) { t.PodUID, t.User = pod, user })
	}
	first := of("a", "alice")
	for _, each := range []struct {
		ticket *protocol.Ticket
		code   int
		why    string
	}{
		{first, 101, ""},
		{of("a", "bob"), 101, ""},
		{of("a", "carol"), http.StatusTooManyRequests, "this collector has 2 sessions in Pod team/web, which is as many as it takes from one Pod"},
		{of("b", "alice"), 101, ""},
		{of("b", "alice"), 101, ""},
		{of("c", "alice"), http.StatusTooManyRequests, "this collector has 3 sessions of alice, which is as many as it takes of one user"},
		{of("c", "bob"), 101, ""},
		{of("d", "dave"), http.StatusServiceUnavailable, "this collector has 5 sessions, which is as many as it takes"},
		{first, 101, ""}, // it comes back
	} {
		if p := connect(t, address, each.ticket, 'a'); p.code != each.code || !strings.Contains(p.text, each.why) {
			t.Errorf("%s in %s: %d %s", each.ticket.User, each.ticket.PodUID, p.code, p.text)
		}
	}
}

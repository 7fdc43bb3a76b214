package collector

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Else one user could use up the day of all.
func TestWhatIsNotStoredDoesNotCount(t *testing.T) {
	collector, address := serve(t, Options{MaxUserDayBytes: 1 << 20, MaxDayBytes: 1 << 20})
	p := connect(t, address, ticketOf(), 'a')
	p.begins(t)
	again := protocol.Frame{Type: protocol.Output, Seq: 2, Data: []byte(strings.Repeat("x", 10_000))}
	for range 300 {
		if _, err := p.Write((&protocol.Frame{Type: protocol.Alive, Data: make([]byte, 8)}).Append(again.Append(nil))); err != nil {
			t.Fatal(err)
		}
	}
	end := protocol.Frame{Type: protocol.Exit, Seq: 3, Data: jsonOf(t, protocol.End{})}
	if _, err := p.Write(end.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for f := p.read(t); f.Type != protocol.Ack || f.Seq < 3; f = p.read(t) {
		if f.Type == protocol.Stop {
			t.Fatalf("it is told to end: %s", f.Data)
		}
	}
	if over := collector.quota.add("alice", 0); over != "" || collector.quota.all > 20_000 {
		t.Errorf("%d bytes count: %s", collector.quota.all, over)
	}
}

func TestFramesWithoutDataTakeRoom(t *testing.T) {
	_, address := serve(t, Options{MaxUserDayBytes: 10_000})
	p := connect(t, address, ticketOf(), 'a')
	p.begins(t)
	go func() {
		for seq := range uint64(1000) {
			f := protocol.Frame{Type: protocol.Output, Seq: seq + 2}
			if _, err := p.Write(f.Append(nil)); err != nil {
				return // it was ended
			}
		}
	}()
	p.isEnded(t, "more than 10000 bytes of alice were recorded within a day")
}

func TestWhatIsRecordedOfOneUserAndOfAllInADayIsBounded(t *testing.T) {
	var clock atomic.Int64
	start := time.Now()
	_, address := serve(t, Options{
		MaxUserDayBytes: 30_000, MaxDayBytes: 60_000, Now: func() time.Time { return start.Add(time.Duration(clock.Load())) },
	})
	of := func(user string) *protocol.Ticket {
		return ticketOf(func(ticket *protocol.Ticket) {
			ticket.User, ticket.Expires = user, start.Add(48*time.Hour).Unix()
		})
	}
	prints := func(user string, frames uint64) *peer {
		t.Helper()
		p := connect(t, address, of(user), 'a')
		p.begins(t)
		for seq := range frames {
			f := protocol.Frame{Type: protocol.Output, Seq: seq + 2, Data: []byte(strings.Repeat("x", 18_000))}
			if _, err := p.Write(f.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	refused := func(user, why string) {
		t.Helper()
		if p := connect(t, address, of(user), 'a'); p.code != http.StatusForbidden || !strings.Contains(p.text, why) {
			t.Errorf("a session of %s gets %d, %s", user, p.code, p.text)
		}
	}
	prints("alice", 2).isEnded(t, "more than 30000 bytes of alice were recorded within a day")
	refused("alice", "more than 30000 bytes of alice")
	prints("bob", 1).isEnded(t, "more than 60000 bytes were recorded within a day")
	refused("carol", "more than 60000 bytes were recorded")
	clock.Store(int64(24 * time.Hour))
	p := prints("alice", 1)
	for f := p.read(t); f.Type != protocol.Ack || f.Seq < 2; f = p.read(t) {
		if f.Type == protocol.Stop {
			t.Errorf("the next day: %s", f.Data)
		}
	}
}

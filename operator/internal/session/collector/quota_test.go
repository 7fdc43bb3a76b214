package collector

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func TestWhatIsRecordedOfOneUserAndOfAllInADayIsBounded(t *testing.T) {
	var clock atomic.Int64
	start := time.Now()
	_, address := serve(t, Options{
		MaxUserDayBytes: 1000, MaxDayBytes: 2500, Now: func() time.Time { return start.Add(time.Duration(clock.Load())) },
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
			f := protocol.Frame{Type: protocol.Output, Seq: seq + 2, Data: []byte(strings.Repeat("x", 900))}
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
	prints("alice", 2).isEnded(t, "more than 1000 bytes of alice were recorded within a day")
	refused("alice", "more than 1000 bytes of alice")
	prints("bob", 1).isEnded(t, "more than 2500 bytes were recorded within a day")
	refused("carol", "more than 2500 bytes were recorded")
	clock.Store(int64(24 * time.Hour))
	p := prints("alice", 1)
	for f := p.read(t); f.Type != protocol.Ack || f.Seq < 2; f = p.read(t) {
		if f.Type == protocol.Stop {
			t.Errorf("the next day: %s", f.Data)
		}
	}
}

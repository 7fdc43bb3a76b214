package collector

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// peer is a recorder as far as a collector sees it.
type peer struct {
	net.Conn
	from *bufio.Reader
	code int
	next uint64 // the number of the frame that the collector wants
	text string // of a refusal
}

// serve serves a collector. Each token is that of the Pod of that UID.
func serve(t *testing.T, options Options) (*Collector, string) {
	t.Helper()
	options.Key = func() (protocol.Key, error) { return key, nil }
	options.Identify = func(_ context.Context, token string) (string, error) { return token, nil }
	if options.Storage == nil {
		options.Storage = Folder(t.TempDir())
	}
	options.Settle = cmp.Or(options.Settle, 1) // at once
	c := New(options)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return c, server.Listener.Addr().String()
}

func ticketOf(change ...func(*protocol.Ticket)) *protocol.Ticket {
	ticket := &protocol.Ticket{
		ID: protocol.NewID(), Namespace: "team", Pod: "web", PodUID: "uid", Container: "main", User: "alice",
		Command: protocol.Sum([]string{"sh"}), Expires: time.Now().Add(protocol.Life).Unix(), Terms: protocol.Terms{Collectors: []string{"x"}, Wait: 1},
	}
	for _, each := range change {
		each(ticket)
	}
	return ticket
}

// connect connects with a ticket. Each secret is another recorder.
func connect(t *testing.T, address string, ticket *protocol.Ticket, secret byte) *peer {
	t.Helper()
	text, err := key.Sign(ticket)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\nAuthorization: Bearer %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		protocol.Path, protocol.Upgrade, ticket.PodUID, protocol.HeaderTicket, text, protocol.HeaderSecret, bytes.Repeat([]byte{secret}, 32))
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{Conn: conn, from: bufio.NewReader(conn)}
	answer, err := http.ReadResponse(p.from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if p.code = answer.StatusCode; p.code != http.StatusSwitchingProtocols {
		reason, _ := io.ReadAll(answer.Body)
		p.text = strings.TrimSpace(string(reason))
		return p
	}
	if p.next, err = strconv.ParseUint(answer.Header.Get(protocol.HeaderNext), 10, 64); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) read(t *testing.T) protocol.Frame {
	t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(time.Minute)) // it is open, or the read fails
	f, err := protocol.Read(p.from)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A manager that changes its mind while a recorder connects is heard last.
func TestAnEndThatIsSetWhileARecorderConnectsCounts(t *testing.T) {
	ticket := ticketOf()
	set := make(chan error, 1)
	var c *Collector
	c, address := serve(t, Options{Limits: func(*protocol.Ticket) (Limits, error) {
		began := make(chan struct{})
		go func() {
			close(began)
			set <- c.Limit(ticket.ID, Limits{End: time.Now().Add(time.Hour), Reason: "later"})
		}()
		<-began
		time.Sleep(50 * time.Millisecond) // longer than it would take
		return Limits{}, nil
	}})
	p := connect(t, address, ticket, 'a')
	for _, reason := range []string{"", "later"} {
		var limits protocol.Limits
		if f := p.read(t); f.Type != protocol.Until || json.Unmarshal(f.Data, &limits) != nil || limits.Reason != reason {
			t.Fatalf("%s instead of the end %q", f.Data, reason)
		}
	}
	if err := <-set; err != nil {
		t.Error(err)
	}
}

// noted is what a collector has noted.
type noted chan Note

func (n noted) is(t *testing.T, kind string) {
	t.Helper()
	select {
	case note := <-n:
		if note.Kind != kind {
			t.Errorf("noted is %+v", note)
		}
	case <-time.After(time.Minute):
		t.Fatalf("it is not noted that the session is %s", kind)
	}
}

// isStopped reads up to the frame that ends the session.
func (p *peer) isStopped(t *testing.T, reason string) {
	t.Helper()
	for {
		switch f := p.read(t); f.Type {
		case protocol.Until:
		case protocol.Stop:
			if string(f.Data) != reason {
				t.Errorf("the user hears %q", f.Data)
			}
			return
		default:
			t.Fatalf("the recorder gets %+v", f)
		}
	}
}

// isEnded is isStopped after frames of every other kind.
func (p *peer) isEnded(t *testing.T, reason string) {
	t.Helper()
	for f := p.read(t); ; f = p.read(t) {
		if f.Type == protocol.Stop {
			if string(f.Data) != reason {
				t.Errorf("the user hears %q", f.Data)
			}
			return
		}
	}
}

func TestASessionThatGoesOnAfterAnEndByHandIsNoted(t *testing.T) {
	notes := make(noted, 100)
	options := Options{Storage: Folder(t.TempDir()), Noted: func(_ *protocol.Ticket, note Note) { notes <- note }}
	c, address := serve(t, options)
	other, otherAddress := serve(t, options)
	c.overdue, other.overdue = 100*time.Millisecond, 100*time.Millisecond
	ticket := ticketOf()
	p := connect(t, address, ticket, 'a')
	if err := c.End(ticket.ID, "it was ended by bob"); err != nil {
		t.Fatal(err)
	}
	p.isStopped(t, "it was ended by bob")
	notes.is(t, Overdue)
	// Neither another limit nor another collector makes it go on.
	if err := c.Limit(ticket.ID, Limits{End: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{address, otherAddress} {
		_ = p.Close()
		p = connect(t, at, ticket, 'a')
		p.isStopped(t, "it was ended by bob")
		notes.is(t, Overdue)
	}
	if err := other.RequestEnd(t.Context(), ticket.ID, "it was ended twice"); err != nil {
		t.Error(err)
	}
	notes.is(t, Overdue) // which is in the folder then, that goes with the test
}

func TestASessionThatGoesOnAfterItsAccessWasRevokedIsNoted(t *testing.T) {
	notes := make(noted, 100)
	revoked := make(chan struct{})
	c, address := serve(t, Options{
		Noted: func(_ *protocol.Ticket, note Note) { notes <- note },
		Limits: func(*protocol.Ticket) (Limits, error) {
			select {
			case <-revoked:
				return Limits{End: time.Unix(1, 0), Reason: "access was revoked"}, nil
			default:
				return Limits{End: time.Now().Add(time.Hour)}, nil
			}
		},
	})
	c.overdue = 100 * time.Millisecond
	ticket := ticketOf()
	p := connect(t, address, ticket, 'a')
	close(revoked)
	if err := c.Refresh(ticket.ID); err != nil {
		t.Fatal(err)
	}
	p.isStopped(t, "access was revoked")
	notes.is(t, Overdue)
}

// Whoever controls the recorder may have it connect anew again and again.
func TestASessionThatGoesOnAfterItsEndIsNotedHoweverOftenItConnects(t *testing.T) {
	notes := make(noted, 100)
	c, address := serve(t, Options{
		Storage: Folder(t.TempDir()), Noted: func(_ *protocol.Ticket, note Note) { notes <- note },
		Limits: func(*protocol.Ticket) (Limits, error) { return Limits{End: time.Unix(1, 0), Reason: "over"}, nil },
	})
	c.overdue = 500 * time.Millisecond
	ticket := ticketOf()
	for n := 0; n < 20 && len(notes) == 0; n++ {
		p := connect(t, address, ticket, 'a')
		p.isStopped(t, "over")
		time.Sleep(c.overdue / 4) // it goes on for less than would be noted
		_ = p.Close()
	}
	notes.is(t, Overdue)
}

// Who ends a session may do that while its recorder is away, for as long as that waits for a collector.
func TestASessionThatIsEndedWhileItsRecorderIsAwayEndsWhenThatComesBack(t *testing.T) {
	folder := Folder(t.TempDir())
	_, address := serve(t, Options{Storage: folder})
	ticket := ticketOf()
	_ = connect(t, address, ticket, 'a').Close()
	if err := New(Options{Storage: folder}).RequestEnd(t.Context(), ticket.ID, "enough"); err != nil { // another replica
		t.Fatal(err)
	}
	if err := folder.Remove(t.Context(), nameOf(endsFolder, ticket.ID)); err != nil { // a minute later
		t.Fatal(err)
	}
	connect(t, address, ticket, 'a').isStopped(t, "enough")
}

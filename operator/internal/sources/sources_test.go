package sources

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// pipe is a connection from an address.
type pipe struct {
	net.Conn
	from   string
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(p.from)) }
func (p *pipe) Close() error         { p.closed = true; return nil }

// dialled is a listener to which these connect.
type dialled []*pipe

func (d *dialled) Accept() (net.Conn, error) {
	if len(*d) == 0 {
		return nil, io.EOF
	}
	next := (*d)[0]
	*d = (*d)[1:]
	return next, nil
}
func (*dialled) Close() error   { return nil }
func (*dialled) Addr() net.Addr { return nil }

// accepts has addresses connect, and returns who is let through.
func accepts(s *Sources, from ...string) (through []*Conn, refused int) {
	var all dialled
	for _, address := range from {
		all = append(all, &pipe{from: address})
	}
	l := s.Listener(&all, func(netip.Addr) { refused++ })
	for {
		conn, err := l.Accept()
		if err != nil {
			return through, refused
		}
		through = append(through, conn.(*Conn))
	}
}

func times(n int, from string) (all []string) {
	for range n {
		all = append(all, from)
	}
	return all
}

const alice, bob, carol = "192.0.2.1:1000", "192.0.2.2:1000", "[::ffff:192.0.2.3]:1000"

func TestAnAddressHasItsConnectionsAndNoMore(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0))
	s := New(clock, Limits{Each: 3, PerSecond: 4})
	mine, refused := accepts(s, times(5, alice)...)
	if len(mine) != 3 || refused != 2 {
		t.Fatalf("%d are let through, %d are not", len(mine), refused)
	}
	if through, _ := accepts(s, bob, "[::ffff:192.0.2.1]:7"); len(through) != 1 || through[0].source != Of(bob) {
		t.Errorf("of another address and of the same one in another form %d are let through", len(through))
	}
	_ = mine[0].Close()
	_ = mine[0].Close() // which frees one place
	mine[1].Known()
	if through, _ := accepts(s, times(3, alice)...); len(through) != 2 {
		t.Errorf("in 2 free places are %d", len(through))
	}
	if got := s.open[Of(alice)]; len(got) != 3 || s.total != 4 {
		t.Errorf("%d of all %d are the address's", len(got), s.total)
	}
}

func TestWhoConnectsTooOftenIsRefused(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0))
	s := New(clock, Limits{Each: 100, PerSecond: 2})
	if through, _ := accepts(s, times(10, alice)...); len(through) != 4 {
		t.Errorf("%d at once", len(through))
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if through, _ := accepts(s, times(10, alice)...); len(through) != 2 {
		t.Errorf("%d a second later", len(through))
	}
}

func TestTheAddressWithTheMostMakesRoom(t *testing.T) {
	s := New(clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0)), Limits{Each: 10, PerSecond: 100, Total: 6})
	first, _ := accepts(s, times(4, alice)...)
	second, _ := accepts(s, bob, bob)
	if through, refused := accepts(s, carol); len(through) != 1 || refused != 1 {
		t.Fatalf("%d are let through, %d are not", len(through), refused)
	}
	if !first[3].Conn.(*pipe).closed || first[0].Conn.(*pipe).closed || second[1].Conn.(*pipe).closed {
		t.Error("another one than the newest of the address with the most is closed")
	}
	if through, _ := accepts(s, carol, bob, alice); len(through) != 1 || s.total != 6 || len(s.open[Of(alice)]) != 2 {
		t.Errorf("among addresses with the same number %d are let through, and %d are open", len(through), s.total)
	}
	_ = first[3].Close() // which has been closed
	if s.total != 6 {
		t.Errorf("%d are open", s.total)
	}
}

func TestAConnectionSendsWhatItMay(t *testing.T) {
	s := New(clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0)), Limits{Each: 1, PerSecond: 1, Bytes: 10})
	conn := s.count(&sending{pipe{from: alice}})
	read := func(most int64) int {
		n, _ := io.Copy(io.Discard, io.LimitReader(conn, most))
		return int(n)
	}
	if n := read(100); n != 10 {
		t.Errorf("%d bytes", n)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, ErrTooMuch) {
		t.Errorf("then: %v", err)
	}
	if conn.Allow(5); read(100) != 5 {
		t.Error("it is allowed 5 more, and sends another number")
	}
	if conn.Known(); read(100) != 100 {
		t.Error("it is known, and may not send what it wants")
	}
}

// sending sends for ever.
type sending struct{ pipe }

func (*sending) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("x"), len(p))), nil }

//go:build linux

package main

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxWaiting is how many bytes wait for a collector's acknowledgement. With more, the
	// terminal waits.
	maxWaiting = 1 << 20
	// batch is how many bytes are sent at a time, at most.
	batch = 256 << 10
	// pause is between two batches that are small: a terminal that prints line by line costs
	// a fraction of what it would otherwise, and nobody waits for it.
	pause = 5 * time.Millisecond
	// heartbeat is how often a collector hears of the recorder.
	heartbeat = 2 * time.Second
	// early is how much sooner one may be: a tick that comes a moment before it is due would
	// otherwise leave it to the next one.
	early = heartbeat / 4
	// silence is how long a collector may say nothing while it owes an acknowledgement.
	silence = 10 * time.Second
	// dialTime is how long it may take to connect.
	dialTime = 5 * time.Second
	// retryTime is between two attempts at all collectors.
	retryTime = 200 * time.Millisecond
)

// sender sends frames to a collector, each until it is acknowledged.
type sender struct {
	text   string // the ticket
	secret string
	terms  *protocol.Terms
	began  time.Time
	say    func(line string)
	stop   func(reason string)
	limit  func(protocol.Limits)
	// active is when the user did something for the last time, in nanoseconds since began.
	active atomic.Int64

	mu      sync.Mutex
	changed *sync.Cond
	waiting []frame // which are not acknowledged
	bytes   int     // of waiting
	sent    int     // how many of waiting were sent on this connection
	seq     uint64  // of the last frame
	// away is since when nothing is stored: there is no connection, or the collector stores
	// nothing of what it was sent on it. Zero otherwise.
	away time.Time
	// lost counts the bytes that are not recorded since lostFrom.
	unrecorded bool
	lost       int64
	lostFrom   time.Duration
	closed     bool   // nothing can be sent any more
	started    bool   // start has returned
	answer     string // of the last collector that was busy
}

type frame struct {
	seq uint64
	raw []byte
}

func newSender(text string, terms *protocol.Terms) *sender {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	s := &sender{text: text, secret: hex.EncodeToString(secret[:]), terms: terms, began: time.Now(), away: time.Now()}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// start connects for the first time, and stays connected from then on. The error is that
// the session must not begin.
func (s *sender) start() error {
	first := make(chan error, 1)
	go s.connect(first)
	select {
	case err := <-first:
		return err
	case <-time.After(s.wait()):
	}
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	select {
	case err := <-first:
		return err
	default:
		return s.giveUp()
	}
}

// outcome is called when a collector has answered for the first time, or refuses.
func (s *sender) outcome(first chan<- error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.started:
		s.started = true
		first <- err
	case err != nil:
		go s.stop(err.Error())
	}
}

func (s *sender) wait() time.Duration { return time.Duration(s.terms.Wait) * time.Second }

// giveUp says what happens when no collector was reached for too long.
func (s *sender) giveUp() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terms.Closed {
		s.closed = true
		s.changed.Broadcast()
		return fmt.Errorf("%s for %s, and sessions that are not recorded are not allowed here%s", protocol.ReasonNoCollector, s.wait(), s.answer)
	}
	if !s.unrecorded {
		s.unrecorded, s.lost, s.lostFrom = true, 0, time.Since(s.began)
	}
	s.changed.Broadcast()
	return nil
}

// send hands over a frame. It waits while too much is on its way or, by policy, while there
// is no collector. ok is false if the session has to end.
func (s *sender) send(what protocol.Type, data []byte) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && !s.unrecorded && (s.bytes >= maxWaiting || s.terms.Closed && !s.away.IsZero()) {
		s.changed.Wait()
	}
	switch {
	case s.closed:
		return false
	case s.unrecorded:
		s.lost += int64(len(data))
		return true
	}
	s.append(what, data)
	s.changed.Broadcast()
	return true
}

func (s *sender) append(what protocol.Type, data []byte) {
	s.seq++
	f := protocol.Frame{Type: what, Seq: s.seq, At: time.Since(s.began), Data: data}
	raw := f.Append(make([]byte, 0, f.Size()))
	s.waiting, s.bytes = append(s.waiting, frame{s.seq, raw}), s.bytes+len(raw)
}

// sendJSON is send for a value.
func (s *sender) sendJSON(what protocol.Type, value any) {
	if data, err := json.Marshal(value); err == nil { // always, of values of ours
		s.send(what, data)
	}
}

// finish waits until everything is acknowledged.
func (s *sender) finish() {
	timer := time.AfterFunc(max(s.wait(), time.Second), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && !s.unrecorded && len(s.waiting) > 0 {
		s.changed.Wait()
	}
	s.closed = true
	s.changed.Broadcast()
}

// refusal is the error of a collector that does not want the session.
type refusal string

func (r refusal) Error() string { return string(r) }

// busy is the answer of a collector that may take the session later.
type busy string

func (b busy) Error() string { return string(b) }

// connect is connected to one collector after the other. first gets the outcome of the
// first attempt that a collector answered.
func (s *sender) connect(first chan<- error) {
	for {
		for _, address := range s.terms.Collectors {
			conn, from, next, err := s.dial(address)
			if refused, is := errors.AsType[refusal](err); is {
				s.outcome(first, fmt.Errorf("the collector of sessions refuses this one: %s", string(refused)))
				return
			}
			if err != nil {
				s.heard(err)
				continue
			}
			s.arrived(next)
			s.outcome(first, nil)
			s.talk(conn, from)
			if s.left() {
				return
			}
		}
		s.mu.Lock()
		closed, away := s.closed, time.Since(s.away)
		s.mu.Unlock()
		if closed {
			return
		}
		if away >= s.wait() {
			if err := s.giveUp(); err != nil {
				s.stop(err.Error())
				return
			}
		}
		time.Sleep(retryTime)
	}
}

// heard keeps the answer of a collector, for whoever asks why the session ends.
func (s *sender) heard(err error) {
	if answer, is := errors.AsType[busy](err); is {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answer = ": a collector says " + string(answer)
	}
}

// dial connects to a collector. next is the number of the frame that it wants.
func (s *sender) dial(address string) (conn net.Conn, from *bufio.Reader, next uint64, err error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: s.terms.ServerName, RootCAs: x509.NewCertPool()}
	for _, der := range s.terms.CA {
		if ca, err := x509.ParseCertificate(der); err == nil {
			config.RootCAs.AddCert(ca)
		}
	}
	tokenFile := s.terms.TokenFile
	if tokenFile == "" {
		tokenFile = protocol.TokenFile
	}
	token, err := os.ReadFile(tokenFile) //nolint:gosec // the ticket has its name
	if err != nil {
		return nil, nil, 0, err
	}
	conn, err = tls.DialWithDialer(&net.Dialer{Timeout: dialTime}, "tcp", address, config)
	if err != nil {
		return nil, nil, 0, err
	}
	from = bufio.NewReader(conn)
	next, err = s.upgrade(conn, from, address, strings.TrimSpace(string(token)))
	if err != nil {
		return nil, nil, 0, errors.Join(err, conn.Close())
	}
	return conn, from, next, nil
}

// upgrade asks for the protocol. net/http would double the program's size.
func (s *sender) upgrade(conn net.Conn, from *bufio.Reader, address, token string) (next uint64, err error) {
	if strings.ContainsAny(token, "\r\n") {
		return 0, errors.New("the token has more than one line")
	}
	_ = conn.SetDeadline(time.Now().Add(dialTime)) // it is open
	request := "POST " + protocol.Path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: Upgrade\r\nUpgrade: " + protocol.Upgrade +
		"\r\nContent-Length: 0\r\nAuthorization: Bearer " + token +
		"\r\n" + protocol.HeaderTicket + ": " + s.text + "\r\n" + protocol.HeaderSecret + ": " + s.secret + "\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return 0, err
	}
	answer := textproto.NewReader(from)
	line, err := answer.ReadLine()
	if err != nil {
		return 0, err
	}
	header, err := answer.ReadMIMEHeader()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	if code == "101" {
		_ = conn.SetDeadline(time.Time{})
		return strconv.ParseUint(header.Get(protocol.HeaderNext), 10, 64)
	}
	text, _ := io.ReadAll(io.LimitReader(from, min(contentLength(header), 1<<10)))
	if strings.HasPrefix(code, "4") && code != "429" {
		return 0, refusal(clean(string(text)))
	}
	return 0, busy(clean(line + ": " + string(text)))
}

func contentLength(header textproto.MIMEHeader) int64 {
	length, _ := strconv.ParseInt(header.Get("Content-Length"), 10, 64) // else 0
	return max(length, 0)
}

// arrived is called with each connection. What the collector has is done with; the rest is
// sent anew.
func (s *sender) arrived(next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.answer = 0, ""
	s.acknowledge(next - 1)
	if len(s.waiting) == 0 {
		s.away = time.Time{}
	}
	if s.unrecorded {
		s.unrecorded = false
		s.away = time.Now() // what waits from now on has its own time to be stored
		s.append(protocol.Gap, fmt.Appendf(nil, "%d bytes in %s, because no collector was reached", s.lost, (time.Since(s.began)-s.lostFrom).Round(time.Millisecond)))
	}
	s.changed.Broadcast()
}

// left is called after each connection. It reports whether there will not be another one.
func (s *sender) left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away.IsZero() {
		s.away = time.Now()
	}
	s.changed.Broadcast()
	return s.closed
}

// acknowledge forgets what is stored.
func (s *sender) acknowledge(seq uint64) {
	n := 0
	for n < len(s.waiting) && s.waiting[n].seq <= seq {
		s.bytes -= len(s.waiting[n].raw)
		s.waiting[n].raw = nil
		n++
	}
	s.waiting, s.sent = s.waiting[n:], max(s.sent-n, 0)
	if n > 0 {
		s.away = time.Time{}
	}
}

// talk sends and listens until the connection breaks.
func (s *sender) talk(conn net.Conn, from *bufio.Reader) {
	broken := make(chan struct{})
	go func() {
		s.listen(conn, from)
		s.mu.Lock()
		close(broken)
		s.changed.Broadcast()
		s.mu.Unlock()
	}()
	ticker := time.NewTicker(heartbeat)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ticker.C:
				s.changed.Broadcast()
			case <-broken:
				return
			}
		}
	}()
	last := time.Now()
	for buffer := make([]byte, 0, batch); ; {
		var beat bool
		buffer, beat = s.gather(buffer[:0], broken, last.Add(heartbeat))
		if len(buffer) == 0 {
			break
		}
		if beat {
			last = time.Now()
		}
		_ = conn.SetWriteDeadline(time.Now().Add(silence)) // it is open, or the write fails
		if _, err := conn.Write(buffer); err != nil {
			break
		}
		if len(buffer) < batch/2 {
			time.Sleep(pause)
		}
	}
	_ = conn.Close() // which ends listen
	ticker.Stop()
	<-done
}

// gather returns what is to be sent next, and nothing when the connection is broken or not
// needed any more. From the time beat on, that begins with a heartbeat.
func (s *sender) gather(into []byte, broken <-chan struct{}, beat time.Time) (batched []byte, beats bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		select {
		case <-broken:
			return nil, false
		default:
		}
		if beats = !s.closed && !time.Now().Before(beat.Add(-early)); beats {
			alive := protocol.Frame{Type: protocol.Alive, At: time.Since(s.began), Data: protocol.Activity(time.Duration(s.active.Load()))}
			into = alive.Append(into)
		}
		for s.sent < len(s.waiting) && (len(into) == 0 || len(into)+len(s.waiting[s.sent].raw) <= batch) {
			into = append(into, s.waiting[s.sent].raw...)
			s.sent++
		}
		switch {
		case len(into) > 0:
			return into, beats
		case s.closed:
			return nil, false
		}
		s.changed.Wait()
	}
}

// listen takes what the collector says.
func (s *sender) listen(conn net.Conn, from *bufio.Reader) {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(silence)) // it is open, or the read fails
		f, err := protocol.Read(from)
		if err != nil {
			return
		}
		switch f.Type {
		case protocol.Ack:
			s.mu.Lock()
			s.acknowledge(f.Seq)
			s.changed.Broadcast()
			s.mu.Unlock()
		case protocol.Say:
			go s.say(clean(string(f.Data))) // nobody may read it
		case protocol.Stop:
			s.stop(clean(string(f.Data)))
		case protocol.Until:
			var limits protocol.Limits
			if json.Unmarshal(f.Data, &limits) == nil { // always, of a collector of ours
				limits.Reason = clean(limits.Reason)
				s.limit(limits)
			}
		}
	}
}

// touch says that the user has done something.
func (s *sender) touch() { s.active.Store(int64(time.Since(s.began))) }

// idle returns for how long the user has done nothing.
func (s *sender) idle() time.Duration { return time.Since(s.began) - time.Duration(s.active.Load()) }

// clean makes a text one line without control characters.
func clean(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}

// Package collector receives what recorders see, and keeps it. A [Collector] is the
// handler of an HTTPS server. It keeps each session in a [Folder] of its own, from where
// [Folder.Verify] and [Folder.Cast] read it.
package collector

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

const (
	// DefaultSilence is how long a recorder may say nothing.
	DefaultSilence = 10 * time.Second
	// DefaultMaxSessions is how many sessions one collector takes at a time.
	DefaultMaxSessions = 1000
	// batch is how many bytes of frames are written at a time, at most.
	batch = 256 << 10
)

// Options of a [Collector].
type Options struct {
	// Key verifies tickets and seals recordings.
	Key protocol.Key
	// Identify returns the UID of the Pod whose token it is, or an error that wraps
	// ErrToken if the token is not valid. Any other error is a failure; the recorder tries
	// again.
	Identify func(ctx context.Context, token string) (podUID string, err error)
	// Folder keeps the recordings.
	Folder Folder
	// Silence is how long a recorder may say nothing. Default: DefaultSilence.
	Silence time.Duration
	// MaxSessions is how many sessions there may be at a time. Default: DefaultMaxSessions.
	MaxSessions int
	// Now tells the time. Default: time.Now.
	Now func() time.Time
	// Ended is called after a session has ended and its recording is sealed. Default:
	// nothing.
	Ended func(*protocol.Ticket, Seal)
}

// ErrToken is wrapped by the error of a token that is not valid.
var ErrToken = errors.New("the token is not valid")

// Collector is the handler of the port to which recorders connect.
type Collector struct {
	options Options

	mu   sync.Mutex
	live map[string]*live
}

// live is a session with a connection.
type live struct {
	ticket *protocol.Ticket
	conn   net.Conn
	write  sync.Mutex
}

var _ http.Handler = (*Collector)(nil)

// New returns a Collector.
func New(options Options) *Collector {
	if options.Silence == 0 {
		options.Silence = DefaultSilence
	}
	if options.MaxSessions == 0 {
		options.MaxSessions = DefaultMaxSessions
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Ended == nil {
		options.Ended = func(*protocol.Ticket, Seal) {}
	}
	return &Collector{options: options, live: map[string]*live{}}
}

// refusal is an error with its status.
type refusal struct {
	status int
	reason string
}

func (r *refusal) Error() string { return r.reason }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// ServeHTTP takes the connection of a recorder.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recording, ticket, err := c.begin(r)
	if err != nil {
		status := http.StatusServiceUnavailable
		if refused, ok := errors.AsType[*refusal](err); ok {
			status = refused.status
		}
		http.Error(w, err.Error(), status)
		return
	}
	defer recording.close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusHTTPVersionNotSupported)
		return
	}
	defer func() { _ = conn.Close() }()
	head := fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
		protocol.Upgrade, protocol.HeaderNext, recording.next)
	if _, err := conn.Write([]byte(head)); err != nil {
		return
	}
	session := &live{ticket: ticket, conn: conn}
	if !c.enter(session) {
		return
	}
	defer c.leave(session)
	from := bufio.NewReaderSize(buffered.Reader, batch)
	_ = c.receive(session, from, recording) // else the recorder comes back
}

// begin checks who asks, redeems the ticket, and opens the recording.
func (c *Collector) begin(r *http.Request) (*recording, *protocol.Ticket, error) {
	if r.Method != http.MethodPost || r.URL.Path != protocol.Path || r.Header.Get("Upgrade") != protocol.Upgrade {
		return nil, nil, refuse(http.StatusNotFound, "not the protocol %s", protocol.Upgrade)
	}
	ticket, err := c.options.Key.VerifyExpired(r.Header.Get(protocol.HeaderTicket))
	if err != nil {
		return nil, nil, refuse(http.StatusForbidden, "%v", err)
	}
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !isBearer {
		return nil, nil, refuse(http.StatusUnauthorized, "there is no token")
	}
	switch uid, err := c.options.Identify(r.Context(), token); {
	case errors.Is(err, ErrToken):
		return nil, nil, refuse(http.StatusUnauthorized, "%v", err)
	case err != nil:
		return nil, nil, fmt.Errorf("verifying the token: %w", err)
	case uid != ticket.PodUID:
		return nil, nil, refuse(http.StatusForbidden, "the ticket is for another Pod")
	}
	secret := r.Header.Get(protocol.HeaderSecret)
	if len(secret) < 32 || len(secret) > 128 {
		return nil, nil, refuse(http.StatusBadRequest, "%s must have 32 to 128 bytes", protocol.HeaderSecret)
	}
	sum := sha256.Sum256([]byte(secret))
	if err := c.options.Folder.redeem(ticket, hex.EncodeToString(sum[:]), c.options.Now()); err != nil {
		return nil, nil, err
	}
	recording, err := c.options.Folder.resume(ticket.ID, c.options.Key)
	return recording, ticket, err
}

// enter makes the session known. An older connection of it ends.
func (c *Collector) enter(session *live) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.live[session.ticket.ID]
	if old == nil && len(c.live) >= c.options.MaxSessions {
		return false
	}
	if old != nil {
		_ = old.conn.Close()
	}
	c.live[session.ticket.ID] = session
	return true
}

func (c *Collector) leave(session *live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[session.ticket.ID] == session {
		delete(c.live, session.ticket.ID)
	}
}

// receive stores what the recorder sends, and acknowledges it once it is on the disk. As
// long as the disk is slow it reads nothing, and the terminal waits.
func (c *Collector) receive(session *live, from *bufio.Reader, to *recording) error {
	for !to.ended() {
		if err := session.conn.SetReadDeadline(time.Now().Add(c.options.Silence)); err != nil {
			return err
		}
		f, err := protocol.Read(from)
		if err == nil {
			err = to.add(&f)
		}
		if err != nil {
			return err
		}
		if from.Buffered() > 0 && to.pending() < batch && !to.ended() {
			continue
		}
		if err := to.flush(); err != nil {
			return err
		}
		if to.ended() {
			seal, err := to.seal(c.options.Now())
			if err != nil {
				return err
			}
			c.options.Ended(session.ticket, seal)
		}
		if err := session.send(&protocol.Frame{Type: protocol.Ack, Seq: to.next - 1}); err != nil {
			return err
		}
	}
	return nil
}

func (l *live) send(f *protocol.Frame) error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(DefaultSilence)); err != nil {
		return err
	}
	_, err := l.conn.Write(f.Append(nil))
	return err
}

// ErrNotLive is the error about a session that has no connection to this collector.
var ErrNotLive = errors.New("the session is not connected here")

// Say shows a line to the user of a session.
func (c *Collector) Say(id, line string) error { return c.tell(id, protocol.Say, line) }

// End ends a session. The user is told the reason.
func (c *Collector) End(id, reason string) error { return c.tell(id, protocol.Stop, reason) }

func (c *Collector) tell(id string, what protocol.Type, text string) error {
	c.mu.Lock()
	session := c.live[id]
	c.mu.Unlock()
	if session == nil {
		return fmt.Errorf("%s: %w", id, ErrNotLive)
	}
	return session.send(&protocol.Frame{Type: what, Data: []byte(text[:min(len(text), 4<<10)])})
}

// Live returns the tickets of the sessions that are connected, by their ID.
func (c *Collector) Live() map[string]*protocol.Ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	tickets := make(map[string]*protocol.Ticket, len(c.live))
	for id, session := range c.live {
		tickets[id] = session.ticket
	}
	return tickets
}

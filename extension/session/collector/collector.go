// Package collector receives what recorders see, and keeps it. A [Collector] is the
// handler of an HTTPS server. It keeps each session in a [Storage], from where [Verify] and
// [Cast] read it.
package collector

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

const (
	// DefaultSilence is how long a recorder may say nothing.
	DefaultSilence = 10 * time.Second
	// DefaultStall is after how long it is noted that a recorder says nothing.
	DefaultStall = 5 * time.Second
	// DefaultMaxBytes is how many bytes a recording may have: one that has more fills the storage of all others.
	DefaultMaxBytes = 1 << 30
	// DefaultMaxSessions is how many sessions one collector takes at a time.
	DefaultMaxSessions = 1000
	// batch is how many bytes of frames are written at a time, at most.
	batch = 256 << 10
)

// Options of a [Collector].
type Options struct {
	// Key returns the key that verifies tickets and seals recordings. It may rotate.
	Key func() (protocol.Key, error)
	// Identify returns the UID of the Pod whose token it is, or an error that wraps
	// ErrToken if the token is not valid. Any other error is a failure; the recorder tries
	// again.
	Identify func(ctx context.Context, token string) (podUID string, err error)
	// Storage keeps the recordings, such as a [Folder].
	Storage Storage
	// Limits returns when a session ends, each time its recorder connects, and when
	// [Collector.Refresh] asks. With an error the recorder tries again. Default: what the
	// ticket says, [LimitsOf].
	Limits func(*protocol.Ticket) (Limits, error)
	// Redact takes secrets out of the command, and of what was printed or typed, before it is
	// stored. A secret that arrives in two pieces, as one that is typed, is not found.
	// Default: nothing is taken out.
	Redact Redactor
	// Silence is how long a recorder may say nothing until it is disconnected, and Stall
	// until that is noted. A recorder says something every 2 s. Defaults: DefaultSilence,
	// DefaultStall.
	Silence, Stall time.Duration
	// Retention is how long recordings are kept after their last change. [Collector.Run]
	// deletes them. Default: for ever.
	Retention time.Duration
	// MaxSessions is how many sessions there may be at a time. Default: DefaultMaxSessions.
	MaxSessions int
	// MaxBytes is how many bytes a session may print, and have typed, until it is ended.
	// Default: DefaultMaxBytes.
	MaxBytes int64
	// Now tells the time. Default: time.Now.
	Now func() time.Time
	// Noted is called with what the collector notices about a session. The manager may evict
	// its Pod then. Default: nothing.
	Noted func(*protocol.Ticket, Note)
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

var _ http.Handler = (*Collector)(nil)

// New returns a Collector.
func New(options Options) *Collector {
	if options.Silence == 0 {
		options.Silence = DefaultSilence
	}
	if options.Stall == 0 {
		options.Stall = DefaultStall
	}
	if options.Limits == nil {
		options.Limits = func(ticket *protocol.Ticket) (Limits, error) { return LimitsOf(ticket), nil }
	}
	if options.Noted == nil {
		options.Noted = func(*protocol.Ticket, Note) {}
	}
	if options.MaxBytes == 0 {
		options.MaxBytes = DefaultMaxBytes
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
	recording, session, err := c.begin(r)
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
	session.conn = conn
	if !c.welcome(session, recording.next) {
		return
	}
	defer session.release()
	// A recorder sends some frames at a time, and rarely large ones.
	if err := c.receive(session, bufio.NewReaderSize(buffered.Reader, readBuffer), recording); err != nil {
		c.lose(session, recording.number) // or the recorder comes back
	}
	c.leave(session)
}

// welcome answers the recorder. Nobody writes to the connection before the answer, and who
// has the answer is known here. A [Collector.Limit] that comes meanwhile counts after the
// limits that are read here.
func (c *Collector) welcome(session *live, next uint64) bool {
	session.limiting.Lock()
	defer session.limiting.Unlock()
	session.write.Lock()
	entered := c.enter(session)
	var limits Limits
	err := errFull
	if entered {
		limits, err = c.options.Limits(session.ticket)
	}
	head := fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
		protocol.Upgrade, protocol.HeaderNext, next)
	if err != nil {
		head = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	}
	_, failed := session.conn.Write([]byte(head))
	session.write.Unlock()
	if err != nil || failed != nil {
		c.leave(session)
		return false
	}
	session.limitLocked(limits)
	return true
}

var errFull = errors.New("this collector has as many sessions as it takes")

// readBuffer is how many bytes of memory each connection has.
const readBuffer = 8 << 10

// begin checks who asks, redeems the ticket, and opens the recording.
func (c *Collector) begin(r *http.Request) (*recording, *live, error) {
	if r.Method != http.MethodPost || r.URL.Path != protocol.Path || r.Header.Get("Upgrade") != protocol.Upgrade {
		return nil, nil, refuse(http.StatusNotFound, "not the protocol %s", protocol.Upgrade)
	}
	key, err := c.options.Key()
	if err != nil {
		return nil, nil, err
	}
	ticket, err := key.VerifyExpired(r.Header.Get(protocol.HeaderTicket))
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
	if c.full(ticket.ID) { // before anything is read or written
		return nil, nil, refuse(http.StatusServiceUnavailable, "this collector has %d sessions", c.options.MaxSessions)
	}
	sum := sha256.Sum256([]byte(secret))
	redeemed, err := redeem(c.options.Storage, ticket, hex.EncodeToString(sum[:]), c.options.Now())
	if err != nil {
		return nil, nil, err
	}
	recording, err := resume(c.options.Storage, ticket.ID, key)
	return recording, &live{collector: c, ticket: ticket, key: key, began: redeemed.At}, err
}

// full reports whether there is no room for a session that is not known.
func (c *Collector) full(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isFull(id)
}

// isFull is full for who holds mu.
func (c *Collector) isFull(id string) bool {
	return c.live[id] == nil && len(c.live) >= c.options.MaxSessions
}

// enter makes the session known. An older connection of it ends.
func (c *Collector) enter(session *live) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isFull(session.ticket.ID) {
		return false
	}
	if old := c.live[session.ticket.ID]; old != nil {
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

// ErrNotLive is the error about a session that has no connection to this collector.
var ErrNotLive = errors.New("the session is not connected here")

// Say shows a line to the user of a session.
func (c *Collector) Say(id, line string) error { return c.tell(id, protocol.Say, line) }

// End ends a session. The user is told the reason.
func (c *Collector) End(id, reason string) error { return c.tell(id, protocol.Stop, reason) }

func (c *Collector) tell(id string, what protocol.Type, text string) error {
	session, err := c.session(id)
	if err != nil {
		return err
	}
	return session.send(&protocol.Frame{Type: what, Data: []byte(limited(text))})
}

// Limit changes when a session ends.
func (c *Collector) Limit(id string, to Limits) error {
	session, err := c.session(id)
	if err == nil {
		session.limiting.Lock()
		defer session.limiting.Unlock()
		session.limitLocked(to)
	}
	return err
}

// Refresh asks anew when a session ends: see [Options].Limits.
func (c *Collector) Refresh(id string) error {
	session, err := c.session(id)
	if err != nil {
		return err
	}
	return c.refresh(session)
}

func (c *Collector) refresh(session *live) error {
	session.limiting.Lock() // the last answer counts
	defer session.limiting.Unlock()
	limits, err := c.options.Limits(session.ticket)
	if err == nil && (session.limits == nil || limits != *session.limits) {
		session.limitLocked(limits)
	}
	return err
}

func (c *Collector) session(id string) (*live, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if session := c.live[id]; session != nil {
		return session, nil
	}
	return nil, fmt.Errorf("%s: %w", id, ErrNotLive)
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

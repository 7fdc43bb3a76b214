// Package collector receives what recorders see, and keeps it. A [Collector] is the
// handler of an HTTPS server. It keeps each session in a [Storage], from where [Verify] and
// [Cast] read it.
package collector

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// DefaultSilence is how long a recorder may say nothing.
	DefaultSilence = 10 * time.Second
	// DefaultStall is after how long it is noted that a recorder says nothing.
	DefaultStall = 5 * time.Second
	// DefaultMaxBytes is how many bytes a recording may have: one that has more fills the storage of all others.
	DefaultMaxBytes = 1 << 30
	// DefaultMaxUserDayBytes is how many bytes are recorded of one user within a day.
	DefaultMaxUserDayBytes = 8 << 30
	// DefaultMaxDayBytes is how many are recorded of all.
	DefaultMaxDayBytes = 64 << 30
	// DefaultMaxSessions is how many sessions one collector takes at a time.
	DefaultMaxSessions = 1000
	// DefaultMaxPodSessions is how many of these may be in one Pod.
	DefaultMaxPodSessions = 100
	// DefaultMaxUserSessions is how many of these may be of one user.
	DefaultMaxUserSessions = 200
	// DefaultMaxWaiting is how many bytes wait for the storage at a time.
	DefaultMaxWaiting = 16 << 20
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
	// NamespaceUID returns the UID of the namespace of a session that begins, "" if it is not
	// known. It becomes part of the recording: a namespace may be deleted, and made again by
	// somebody else. Default: it is not known.
	NamespaceUID func(ctx context.Context, namespace string) string
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
	// Runs reports whether the container of a public ticket runs. Default: it does.
	Runs func(context.Context, *protocol.Ticket) (bool, error)
	// Settle is how long after a ticket was redeemed its recorder may still present it. No
	// recording is sealed before. Default: as long as the ticket's recorder waits, and 7 s.
	Settle time.Duration
	// Silence is how long a recorder may say nothing until it is disconnected, and Stall
	// until that is noted. A recorder says something every 2 s. Defaults: DefaultSilence,
	// DefaultStall.
	Silence, Stall time.Duration
	// Retention is how long recordings are kept after their last change. [Collector.Run]
	// deletes them. Default: for ever.
	Retention time.Duration
	// MaxSessions is how many sessions there may be at a time, of which MaxPodSessions may be
	// in one Pod, and MaxUserSessions of one user. A recorder that is refused tries again, also
	// with other collectors. Defaults: DefaultMaxSessions, DefaultMaxPodSessions,
	// DefaultMaxUserSessions.
	MaxSessions, MaxPodSessions, MaxUserSessions int
	// MaxWaiting is how many bytes of all sessions may wait for the storage. With more,
	// sessions wait. Each has 8 KiB of its own besides. Default: DefaultMaxWaiting.
	MaxWaiting int64
	// MaxBytes is how many bytes a session may print, and have typed, until it is ended.
	// Default: DefaultMaxBytes.
	MaxBytes int64
	// MaxUserDayBytes is how many bytes may be recorded of one user within a day, and MaxDayBytes of all.
	// With more, sessions are ended, and no others begin here. Defaults: DefaultMaxUserDayBytes,
	// DefaultMaxDayBytes.
	MaxUserDayBytes, MaxDayBytes int64
	// Now tells the time. Default: time.Now.
	Now func() time.Time
	// Over returns why the recorder of a session that has left cannot come back, such as that its
	// Pod was deleted, or "" if it can. The recording is sealed then, with what has arrived and
	// exit code 137. Default: each can come back, and no such recording is sealed.
	Over func(context.Context, *protocol.Ticket) (reason string, err error)
	// Noted is called with what the collector notices about a session. The manager may evict
	// its Pod then. Default: nothing.
	Noted func(*protocol.Ticket, Note)
	// Ended is called after a session has ended and its recording is sealed. Default:
	// nothing.
	Ended func(*protocol.Ticket, Seal)
	// Observer hears what the collector does, for metrics. Default: nobody.
	Observer Observer
}

// Observer hears what a collector does. Its methods are called by many goroutines, and return
// at once.
type Observer interface {
	// Waiting is called with 1 when a session begins to wait for the storage, and with -1 when
	// it does not wait any more.
	Waiting(change int)
	// Stored is called with the time that the storage took to begin, extend or seal a
	// recording, or until it failed.
	Stored(took time.Duration, err error)
	// Lost is called with how many bytes of a session are not recorded, once its recorder
	// says so.
	Lost(bytes int64)
}

// nobody is an [Observer].
type nobody struct{}

func (nobody) Waiting(int)                 {}
func (nobody) Stored(time.Duration, error) {}
func (nobody) Lost(int64)                  {}

// ErrToken is wrapped by the error of a token that is not valid.
var ErrToken = errors.New("the token is not valid")

// Collector is the handler of the port to which recorders connect.
type Collector struct {
	options Options
	memory  *memory
	quota   *quota
	overdue time.Duration // overdueTime, but in tests

	mu   sync.Mutex
	live map[string]*live
	left map[string]int // sessions whose recorders may come back, and how often they left
	// ending are the sessions that have ended, and whose recordings are to be sealed.
	ending map[string]bool
	// ends has since when sessions should have ended that have not.
	ends map[string]time.Time
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
	if options.NamespaceUID == nil {
		options.NamespaceUID = func(context.Context, string) string { return "" }
	}
	if options.Limits == nil {
		options.Limits = func(ticket *protocol.Ticket) (Limits, error) { return LimitsOf(ticket), nil }
	}
	if options.Over == nil {
		options.Over = func(context.Context, *protocol.Ticket) (string, error) { return "", nil }
	}
	if options.Runs == nil {
		options.Runs = func(context.Context, *protocol.Ticket) (bool, error) { return true, nil }
	}
	if options.Noted == nil {
		options.Noted = func(*protocol.Ticket, Note) {}
	}
	if options.MaxBytes == 0 {
		options.MaxBytes = DefaultMaxBytes
	}
	options.MaxSessions = cmp.Or(options.MaxSessions, DefaultMaxSessions)
	options.MaxPodSessions = cmp.Or(options.MaxPodSessions, DefaultMaxPodSessions)
	options.MaxUserSessions = cmp.Or(options.MaxUserSessions, DefaultMaxUserSessions)
	options.MaxWaiting = max(cmp.Or(options.MaxWaiting, DefaultMaxWaiting), 2*protocol.MaxData) // at least a frame
	if options.Observer == nil {
		options.Observer = nobody{}
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Ended == nil {
		options.Ended = func(*protocol.Ticket, Seal) {}
	}
	recorded := &quota{
		ofUser: cmp.Or(options.MaxUserDayBytes, DefaultMaxUserDayBytes), ofAll: cmp.Or(options.MaxDayBytes, DefaultMaxDayBytes), now: options.Now,
	}
	return &Collector{options: options, memory: newMemory(options.MaxWaiting), quota: recorded, overdue: overdueTime, live: map[string]*live{}, left: map[string]int{}, ending: map[string]bool{}, ends: map[string]time.Time{}}
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

func statusOf(err error) int {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.status
	}
	return http.StatusServiceUnavailable
}

// ServeHTTP takes the connection of a recorder.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recording, session, err := c.begin(r, c.options.Now())
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
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
	switch welcomed, err := c.welcome(session, recording.next); {
	case err != nil: // the recorder tries again, or its session does not begin
		return
	case !welcomed:
		c.lose(session, recording)
		return
	}
	defer session.release()
	if recording.ended() { // and could not be sealed then
		err = c.store(session, recording)
	} else { // a recorder sends some frames at a time, and rarely large ones
		err = c.receive(session, bufio.NewReaderSize(buffered.Reader, readBuffer), recording)
	}
	if err != nil || !recording.sealed {
		c.lose(session, recording) // or the recorder comes back
	} else {
		c.forgetEnd(session)
	}
	c.leave(session)
}

// welcome answers the recorder. Nobody writes to the connection before the answer, and who
// has the answer is known here. A [Collector.Limit] that comes meanwhile counts after the
// limits that are read here.
func (c *Collector) welcome(session *live, next uint64) (welcomed bool, refused error) {
	session.limiting.Lock()
	defer session.limiting.Unlock()
	session.write.Lock()
	err := c.enter(session)
	var limits Limits
	if err == nil {
		limits, err = c.options.Limits(session.ticket)
	}
	head := fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
		protocol.Upgrade, protocol.HeaderNext, next)
	if err != nil {
		status := statusOf(err)
		head = fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), len(err.Error()), err)
	}
	_, failed := session.conn.Write([]byte(head))
	session.write.Unlock()
	if err != nil || failed != nil {
		c.leave(session)
		return false, err
	}
	session.limitLocked(limits)
	if session.stopped != "" {
		_ = session.stopLocked(session.stopped) // or the connection is broken
	}
	return true, nil
}

// readBuffer is how many bytes of memory each connection has.
const readBuffer = 8 << 10

// begin checks who asks, redeems the ticket, and opens the recording.
func (c *Collector) begin(r *http.Request, arrived time.Time) (*recording, *live, error) {
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
	if err := c.room(ticket); err != nil { // before anything is read or written
		return nil, nil, err
	}
	if over := c.quota.add(ticket.User, bytesOfSession); over != "" { // for good: nobody gets past the recording by printing much
		return nil, nil, refuse(http.StatusForbidden, "%s by this collector", over)
	}
	if err := c.runs(r.Context(), ticket); err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256([]byte(secret))
	by := Redeemed{Ticket: *ticket, Secret: hex.EncodeToString(sum[:]), At: arrived.UTC()}
	if c.options.Now().Unix() < ticket.Expires { // else it was redeemed before, or is not
		by.NamespaceUID = c.options.NamespaceUID(r.Context(), ticket.Namespace)
	}
	return c.claim(&by, key)
}

// runs refuses a ticket that others know before its container runs.
func (c *Collector) runs(ctx context.Context, ticket *protocol.Ticket) error {
	if !ticket.Terms.Public {
		return nil
	}
	runs, err := c.options.Runs(ctx, ticket)
	if err == nil && !runs {
		err = refuse(http.StatusServiceUnavailable, "container %s does not run yet", ticket.Container)
	}
	return err
}

// claim redeems a ticket for who has the secret, and opens the recording.
func (c *Collector) claim(by *Redeemed, key protocol.Key) (opened *recording, session *live, err error) {
	ticket := &by.Ticket
	var redeemed *Redeemed
	var stopped string
	var refused *refusal // which is no failure of the storage
	err = c.measured(func() error {
		var err error
		if redeemed, err = redeem(c.options.Storage, by, key); err == nil {
			stopped, err = readStop(c.options.Storage, ticket.ID)
		}
		if err == nil {
			opened, err = resume(c.options.Storage, ticket.ID, key)
		}
		if errors.As(err, &refused) {
			return nil
		}
		return err
	})
	switch {
	case errors.Is(err, errRedeemed):
		return nil, nil, c.contest(by, redeemed, key)
	case err != nil:
		return nil, nil, err
	case refused != nil:
		if redeemed != nil && refused.reason == reasonContested && !c.isEnding(ticket.ID) { // perhaps before it was opened
			c.search(&disconnect{ticket: ticket, key: key, ended: true, due: c.settled(redeemed)})
		}
		return nil, nil, refused
	}
	opened.settled = c.settled(redeemed)
	return opened, &live{collector: c, ticket: ticket, key: key, began: redeemed.At, stopped: stopped}, nil
}

// room returns an error if there is no room for a session that is not connected here.
func (c *Collector) room(ticket *protocol.Ticket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roomLocked(ticket)
}

func (c *Collector) roomLocked(ticket *protocol.Ticket) error {
	if c.live[ticket.ID] != nil {
		return nil
	}
	inPod, ofUser := 0, 0
	for _, session := range c.live {
		if session.ticket.PodUID == ticket.PodUID {
			inPod++
		}
		if session.ticket.User == ticket.User {
			ofUser++
		}
	}
	o := &c.options
	switch {
	case len(c.live) >= o.MaxSessions:
		return refuse(http.StatusServiceUnavailable, "this collector has %d sessions, which is as many as it takes", len(c.live))
	case inPod >= o.MaxPodSessions:
		return refuse(http.StatusTooManyRequests, "this collector has %d sessions in Pod %s/%s, which is as many as it takes from one Pod", inPod, ticket.Namespace, ticket.Pod)
	case ofUser >= o.MaxUserSessions:
		return refuse(http.StatusTooManyRequests, "this collector has %d sessions of %s, which is as many as it takes of one user", ofUser, ticket.User)
	}
	return nil
}

// enter makes the session known. An older connection of it ends.
func (c *Collector) enter(session *live) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.roomLocked(session.ticket); err != nil {
		return err
	}
	if old := c.live[session.ticket.ID]; old != nil {
		_ = old.conn.Close()
	}
	c.live[session.ticket.ID] = session
	return nil
}

func (c *Collector) leave(session *live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[session.ticket.ID] == session {
		delete(c.live, session.ticket.ID)
	}
}

func (c *Collector) forgetEnd(session *live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ends, session.ticket.ID)
}

// ErrNotLive is the error about a session that has no connection to this collector.
var ErrNotLive = errors.New("the session is not connected here")

// Say shows a line to the user of a session.
func (c *Collector) Say(id, line string) error {
	session, err := c.session(id)
	if err != nil {
		return err
	}
	return session.send(&protocol.Frame{Type: protocol.Say, Data: []byte(limited(line))})
}

// End ends a session. The user is told the reason. A recorder that comes back is told again,
// by other collectors, too, and it is noted if the session goes on.
func (c *Collector) End(id, reason string) error {
	session, err := c.session(id)
	if err != nil {
		return err
	}
	reason = reasonOf(reason)
	ctx, cancel := stored()
	defer cancel()
	kept := c.keep(ctx, nameOf(id, stopFile), reason)
	return errors.Join(session.stop(reason), kept)
}

// reasonOf is what the user of a session hears that was ended by hand.
func reasonOf(reason string) string { return cmp.Or(limited(reason), "it was ended") }

// keep writes a file, unless it is there.
func (c *Collector) keep(ctx context.Context, name, text string) error {
	err := c.options.Storage.Create(ctx, name, []byte(text))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
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

package collector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// contest is a storage with two collectors, the time of which a test sets.
type contest struct {
	t       *testing.T
	folder  Folder
	clock   atomic.Int64 // nanoseconds since now
	here    *Collector
	address [2]string // of here, and of another one
	notes   noted
	ended   chan Seal
}

func newContest(t *testing.T, change ...func(*Options)) *contest {
	t.Helper()
	k := &contest{t: t, folder: Folder(t.TempDir()), notes: make(noted, 100), ended: make(chan Seal, 9)}
	start := time.Now()
	options := Options{
		Storage: k.folder, Settle: time.Hour, Stall: time.Minute, Now: func() time.Time { return start.Add(time.Duration(k.clock.Load())) },
		Noted: func(_ *protocol.Ticket, n Note) { k.notes <- n },
		Ended: func(_ *protocol.Ticket, s Seal) { k.ended <- s },
	}
	for _, each := range change {
		each(&options)
	}
	k.here, k.address[0] = serve(t, options)
	other, address := serve(t, options)
	k.address[1] = address
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, each := range []*Collector{k.here, other} {
		running.Go(func() { each.Run(ctx, func(err error) { t.Error(err) }) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return k
}

func (k *contest) pass(d time.Duration) { k.clock.Add(int64(d)) }

// begins sends what a recording begins with.
func (p *peer) begins(t *testing.T) {
	t.Helper()
	head := protocol.Frame{Type: protocol.Begin, Seq: 1, Data: jsonOf(t, protocol.Head{Time: now, Command: []string{"sh"}})}
	if _, err := p.Write(head.Append(nil)); err != nil {
		t.Fatal(err)
	}
}

// ends sends the end of a recording, and waits until it is stored.
func (p *peer) ends(t *testing.T) {
	t.Helper()
	if _, err := p.Write((&protocol.Frame{Type: protocol.Exit, Seq: 2, Data: jsonOf(t, protocol.End{Code: 3})}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	for f := p.read(t); f.Type != protocol.Ack || f.Seq != 2; f = p.read(t) {
	}
	_, _ = io.Copy(io.Discard, p) // until the collector is done with it
}

// seals seals the recording of a session that has ended, as a collector does when it is due.
func (k *contest) seals(ticket *protocol.Ticket) error {
	k.t.Helper()
	_, err := k.here.conclude(k.t.Context(), ticket, key, true)
	return err
}

// isInvalid fails the test unless the recording is sealed and contested.
func (k *contest) isInvalid(ticket *protocol.Ticket) {
	k.t.Helper()
	if seal := k.sealed(); !seal.Contested() {
		k.t.Errorf("the seal is %+v", seal)
	}
	if _, err := Verify(k.t.Context(), k.folder, ticket.ID, key); !errors.Is(err, ErrContested) {
		k.t.Errorf("the recording: %v", err)
	}
}

// sealed waits for a seal.
func (k *contest) sealed() (seal Seal) {
	k.t.Helper()
	select {
	case seal = <-k.ended:
	case <-time.After(time.Minute):
		k.t.Fatal("nothing is sealed")
	}
	return seal
}

// refused connects as another recorder, which is refused.
func (k *contest) refused(at int, ticket *protocol.Ticket, secret byte, status int, says string) {
	k.t.Helper()
	if p := connect(k.t, k.address[at], ticket, secret); p.code != status || !strings.Contains(p.text, says) {
		k.t.Errorf("%c gets %d, %s", secret, p.code, p.text)
	}
}

func closed(ticket *protocol.Ticket) { ticket.Terms.Closed = true }

func TestATicketThatTwoPresent(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *contest, *protocol.Ticket){
		"forges nothing that is valid for a thief who comes first and is done": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			thief := connect(t, k.address[0], ticket, 't')
			thief.begins(t)
			thief.ends(t)
			k.refused(1, ticket, 'r', http.StatusConflict, "cannot determine")
			k.notes.is(t, Contested)
			if err := k.seals(ticket); !errors.Is(err, errUnsettled) {
				t.Errorf("it is sealed at once: %v", err)
			}
			k.pass(time.Hour)
			if err := k.seals(ticket); err != nil {
				t.Error(err)
			}
			k.isInvalid(ticket)
		},
		"ends the session of the recorder": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			recorder := connect(t, k.address[0], ticket, 'r')
			recorder.begins(t)
			k.refused(0, ticket, 't', http.StatusConflict, "cannot determine")
			k.notes.is(t, Contested)
			recorder.isEnded(t, reasonContested)
			recorder.ends(t)
			k.refused(0, ticket, 'r', http.StatusConflict, "cannot determine")
			k.pass(time.Hour)
			if err := k.seals(ticket); err != nil {
				t.Error(err)
			}
			k.isInvalid(ticket)
		},
		"ends the session at another collector": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			recorder := connect(t, k.address[0], ticket, 'r')
			recorder.begins(t)
			k.refused(1, ticket, 't', http.StatusConflict, "cannot determine")
			recorder.isEnded(t, reasonContested)
		},
		"seals what nobody has opened": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			// Between the two steps of a claim another one comes, at another collector.
			by := &Redeemed{Ticket: *ticket, Secret: hex.EncodeToString(sumOf('r')), At: k.here.options.Now()}
			if _, err := redeem(k.folder, by, key); err != nil {
				t.Fatal(err)
			}
			k.refused(1, ticket, 't', http.StatusConflict, "cannot determine")
			k.refused(0, ticket, 'r', http.StatusConflict, "cannot determine")
			if says := k.here.heartbeat(); !slices.Contains(says.Ending, ticket.ID) {
				t.Errorf("it says %+v", says)
			}
			k.pass(time.Hour)
			if err := k.seals(ticket); err != nil {
				t.Error(err)
			}
			k.isInvalid(ticket)
		},
		"is on record once, however often it is presented": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			connect(t, k.address[0], ticket, 'r')
			for _, thief := range []byte("stuv") {
				k.refused(int(thief)%2, ticket, thief, http.StatusConflict, "cannot determine")
			}
			k.notes.is(t, Contested)
			if len(k.notes) > 0 {
				t.Errorf("noted is also %+v", <-k.notes)
			}
		},
		"is not contested once its recorder would have given up": func(t *testing.T, k *contest, ticket *protocol.Ticket) {
			recorder := connect(t, k.address[0], ticket, 'r')
			recorder.begins(t)
			k.pass(time.Hour)
			k.refused(1, ticket, 't', http.StatusConflict, "the ticket was redeemed at")
			k.notes.is(t, Replayed)
			recorder.ends(t)
			if seal := k.sealed(); seal.Contested() || seal.End.Code != 3 {
				t.Errorf("the seal is %+v", seal)
			}
			if _, err := Verify(t.Context(), k.folder, ticket.ID, key); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newContest(t), ticketOf(closed))
		})
	}
}

// sumOf returns the sum of the secret of a peer.
func sumOf(secret byte) []byte {
	sum := sha256.Sum256(bytes.Repeat([]byte{secret}, 32))
	return sum[:]
}

// Where sessions begin without a collector, too, a recorder may come at any time.
func TestAnOpenTicketIsContestedAtAnyTime(t *testing.T) {
	t.Parallel()
	k := newContest(t)
	ticket := ticketOf()
	thief := connect(t, k.address[0], ticket, 't')
	thief.begins(t)
	k.pass(2 * time.Hour)
	thief.ends(t)
	if seal := k.sealed(); seal.Contested() {
		t.Errorf("the seal is %+v", seal)
	}
	k.refused(1, ticket, 'r', http.StatusConflict, "cannot determine")
	if _, err := Verify(t.Context(), k.folder, ticket.ID, key); !errors.Is(err, ErrContested) {
		t.Errorf("the recording: %v", err)
	}
}

func TestAThiefWhoDoesNotEndIsCutOff(t *testing.T) {
	t.Parallel()
	k := newContest(t, func(o *Options) { o.Stall = 100 * time.Millisecond })
	k.here.overdue = 10 * time.Millisecond
	ticket := ticketOf(closed)
	thief := connect(t, k.address[0], ticket, 't')
	thief.begins(t)
	k.refused(0, ticket, 'r', http.StatusConflict, "cannot determine")
	k.pass(time.Hour)
	if _, err := io.Copy(io.Discard, thief); err != nil {
		t.Error(err)
	}
	if seal := k.sealed(); !seal.Contested() || seal.End.Code != 137 || seal.End.Reason != reasonContested {
		t.Errorf("the seal is %+v", seal)
	}
}

// Of a contest that is not on record nobody would hear.
func TestAContestThatCannotBeStoredIsTriedAgain(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	k := newContest(t, func(o *Options) { o.Storage = noteFails{o.Storage.(Folder), &full} })
	ticket := ticketOf(closed)
	connect(t, k.address[0], ticket, 't')
	full.Store(true)
	k.refused(0, ticket, 'r', http.StatusServiceUnavailable, "the disk is full")
	full.Store(false)
	k.refused(0, ticket, 'r', http.StatusConflict, "cannot determine")
}

// noteFails is a storage that takes no notes while it is full.
type noteFails struct {
	Folder
	full *atomic.Bool
}

func (s noteFails) Create(ctx context.Context, name string, content []byte) error {
	if strings.Contains(name, "/"+notePrefix) && s.full.Load() {
		return errors.New("the disk is full")
	}
	return s.Folder.Create(ctx, name, content)
}

func TestAShortSessionIsSealedOnceItsTicketIsSettled(t *testing.T) {
	t.Parallel()
	t.Run("by its collector", func(t *testing.T) {
		t.Parallel()
		ended := make(chan Seal, 1)
		c, address := serve(t, Options{Storage: Folder(t.TempDir()), Settle: time.Second, Ended: func(_ *protocol.Ticket, s Seal) { ended <- s }})
		began := time.Now()
		p := connect(t, address, ticketOf(closed), 'r')
		p.begins(t)
		p.ends(t)
		if seal := <-ended; seal.At.Sub(began) < time.Second || seal.End.Code != 3 {
			t.Errorf("the seal is %+v", seal)
		}
		testkit.Eventually(t, "it is forgotten", func(context.Context) bool {
			says := c.heartbeat()
			return len(says.sessions())+len(says.Ending) == 0
		})
	})
	t.Run("by another one if that is gone", func(t *testing.T) {
		t.Parallel()
		k := newContest(t)
		ticket := ticketOf(closed)
		p := connect(t, k.address[1], ticket, 'r')
		p.begins(t)
		p.ends(t)
		said(t, k.folder, "killed.json", 30*time.Minute, heartbeat{Left: []string{ticket.ID}, Ending: []string{ticket.ID}})
		for _, want := range []int{0, 1} {
			if err := k.here.noteLost(t.Context()); err != nil || len(k.ended) != want {
				t.Errorf("%d are sealed: %v", len(k.ended), err)
			}
			k.pass(time.Hour)
			_ = os.Chtimes(k.folder.path(heartbeatFolder, "killed.json"), now, now) // it is there the first time
		}
		if _, err := Verify(t.Context(), k.folder, ticket.ID, key); err != nil {
			t.Error(err)
		}
	})
}

// Everybody who reads Pods reads the ticket of an ephemeral container, before that runs.
func TestAPublicTicketIsRedeemedOnceItsContainerRuns(t *testing.T) {
	t.Parallel()
	var runs atomic.Bool
	k := newContest(t, func(o *Options) {
		o.Runs = func(context.Context, *protocol.Ticket) (bool, error) { return runs.Load(), nil }
	})
	ticket := ticketOf(closed, func(ticket *protocol.Ticket) { ticket.Terms.Public = true })
	k.refused(0, ticket, 't', http.StatusServiceUnavailable, "does not run yet")
	runs.Store(true)
	if p := connect(t, k.address[0], ticket, 'r'); p.code != http.StatusSwitchingProtocols {
		t.Errorf("then it is refused, too: %d %s", p.code, p.text)
	}
}

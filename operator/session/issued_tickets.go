package session

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxGiven is how many tickets are watched at a time.
	maxGiven = 4096
	// redeemTime is longer than to redeem a ticket may take that a collector has seen in time.
	redeemTime = 15 * time.Second
	// givenTime is between two looks, and askTries how often the storage is asked.
	issuedTime = time.Second
	askTries   = 5
)

// issuedTickets are the tickets that the guard has let through. Each should be redeemed while it is
// valid. Who can replace the recorder in a Pod can run a command without it; this finds that
// out. A nil one watches nothing.
type issuedTickets struct {
	*shared
	storage collector.Storage

	mu      sync.Mutex
	waiting []issuedTicket // in the order of due
}

type issuedTicket struct {
	ticket protocol.Ticket // without its terms
	due    time.Time
	tries  int
}

func newIssuedTickets(s *shared, storage collector.Storage) *issuedTickets {
	return &issuedTickets{shared: s, storage: storage}
}

// add watches a ticket.
func (g *issuedTickets) add(ticket *protocol.Ticket) {
	if g == nil {
		return
	}
	watched := issuedTicket{ticket: *ticket, due: time.Unix(ticket.Expires, 0).Add(redeemTime)}
	watched.ticket.Terms = protocol.Terms{}
	if !g.push(watched) {
		unredeemedTotal.WithLabelValues(resultUnchecked).Inc()
		g.log.Warn("too many tickets are given to find out whether each is redeemed", zap.String("session", ticket.ID))
	}
}

func (g *issuedTickets) push(watched issuedTicket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) >= maxGiven {
		return false
	}
	g.waiting = append(g.waiting, watched)
	return true
}

// due takes the next ticket that must be redeemed by now.
func (g *issuedTickets) due() (watched issuedTicket, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || g.clock.Now().Before(g.waiting[0].due) {
		return watched, false
	}
	watched = g.waiting[0]
	g.waiting = g.waiting[1:]
	return watched, true
}

// run asks the storage until ctx ends.
func (g *issuedTickets) run(ctx context.Context) {
	ticker := time.NewTicker(issuedTime)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for watched, ok := g.due(); ok && ctx.Err() == nil; watched, ok = g.due() {
			g.ask(ctx, watched)
		}
	}
}

// ask finds out whether a ticket was redeemed.
func (g *issuedTickets) ask(ctx context.Context, watched issuedTicket) {
	within, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	ticket := &watched.ticket
	_, err := collector.ReadRedeemed(within, g.storage, ticket.ID)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, fs.ErrNotExist):
		g.neverBegan(ctx, ticket)
	default:
		watched.tries++
		watched.due = g.clock.Now().Add(redeemTime)
		if watched.tries >= askTries || !g.push(watched) {
			unredeemedTotal.WithLabelValues(resultUnchecked).Inc()
			g.log.Error("cannot find out whether a session began", zap.String("session", ticket.ID), zap.Error(err))
		}
	}
}

// neverBegan says that nobody came with a ticket.
func (g *issuedTickets) neverBegan(ctx context.Context, ticket *protocol.Ticket) {
	unredeemedTotal.WithLabelValues(resultNeverBegan).Inc()
	g.log.Warn("a session was allowed, and its recorder never came", zap.String("session", ticket.ID),
		zap.String("pod", ticket.Namespace+"/"+ticket.Pod), zap.String("container", ticket.Container), zap.String("user", ticket.User))
	within, cancel := context.WithTimeout(ctx, 2*readTime)
	defer cancel()
	if err := errors.Join(g.reportNeverBegan(within, ticket), g.warnOf(within, ticket, "never-began", "SessionUnrecorded", neverBegan)); err != nil {
		g.log.Error("it is not on record that a session never began", zap.String("session", ticket.ID), zap.Error(err))
	}
}

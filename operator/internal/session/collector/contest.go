package collector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Every process of a container can read the command line of a recorder that has just started, and the
// token of the Pod, and so redeem the ticket before the recorder does. Nothing that the recorder knows
// can be kept from such a process, so a collector cannot tell the two apart. But both come, unless
// the recorder is kept from coming. So no recording is sealed before its recorder would have come, and
// a recording whose ticket two have presented is not valid.

// settleTime is how long after its recorder has given up the claim of a ticket may arrive and be
// decided.
const settleTime = 7 * time.Second

// reasonContested is what both hear who have presented a ticket.
const reasonContested = "another process of the Pod has presented the ticket of this session, too: admitkit cannot determine which of the two is the recorder, so it records neither"

var (
	// errRedeemed is the error about a ticket that another recorder has.
	errRedeemed = errors.New("the ticket was redeemed")
	// errUnsettled is the error about a recording that cannot be sealed yet.
	errUnsettled = errors.New("its ticket may still be contested")
)

// settled returns from when on no recorder presents a ticket that was redeemed. Where sessions
// begin without a collector, too, one may come later.
func (c *Collector) settled(redeemed *Redeemed) time.Time {
	after := c.options.Settle
	if after == 0 {
		after = time.Duration(redeemed.Ticket.Terms.Wait)*time.Second + settleTime
	}
	return redeemed.At.Add(after)
}

// contest ends the session of a ticket that two have presented, unless the second one comes too late
// to be a recorder. It returns what that one hears.
func (c *Collector) contest(by, redeemed *Redeemed, key protocol.Key) error {
	ticket := &by.Ticket
	if ticket.Terms.Closed && !by.At.Before(c.settled(redeemed)) {
		c.note(ticket, key, Replayed, "its ticket was presented again, too late for a recorder")
		return refuse(http.StatusConflict, "the ticket was redeemed at %s", redeemed.At.Format(time.RFC3339))
	}
	ctx, cancel := stored()
	defer cancel()
	contested, err := c.contested(ctx, ticket.ID)
	if err == nil && !contested {
		err = c.keepNote(ticket, key, Contested, "two have presented its ticket: it had been redeemed at "+redeemed.At.Format(time.RFC3339))
	}
	if err == nil {
		err = c.RequestEnd(ctx, ticket.ID, reasonContested)
	}
	if err != nil { // it tries again
		return fmt.Errorf("two have presented the ticket: %w", err)
	}
	return refuse(http.StatusConflict, "%s", reasonContested)
}

// seal ends a recording once its ticket is settled. The error is errUnsettled before.
func (c *Collector) seal(ticket *protocol.Ticket, r *recording) error {
	if c.options.Now().Before(r.settled) {
		return errUnsettled
	}
	return c.measured(func() error {
		seal, err := r.seal(c.options.Now())
		if err == nil && seal != nil {
			c.options.Ended(ticket, *seal)
		}
		return err
	})
}

// over says why the recorder of a session cannot come back, "" if it can.
func (c *Collector) over(ctx context.Context, ticket *protocol.Ticket) (reason string, err error) {
	contested, err := c.contested(ctx, ticket.ID)
	switch {
	case err != nil:
		return "", err
	case contested:
		return reasonContested, nil
	}
	return c.options.Over(ctx, ticket)
}

// contested reports whether two have presented the ticket of a session.
func (c *Collector) contested(ctx context.Context, id string) (bool, error) {
	entries, err := c.options.Storage.List(ctx, id)
	return slices.ContainsFunc(entries, func(e Entry) bool { return isNote(&e, Contested) }), err
}

package collector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// endsFolder has the sessions that another collector should end.
	endsFolder = "ends"
	endsTime   = time.Second
	// endsLife is how long such a request counts.
	endsLife  = time.Minute
	pruneTime = time.Hour
	// minRetention is longer than the life of a ticket, which could be redeemed again.
	minRetention = 2 * protocol.Life
)

// RequestEnd ends a session that is connected to any collector of this storage. Those that
// [Collector.Run] do it within seconds.
func (c *Collector) RequestEnd(ctx context.Context, id, reason string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := c.End(id, reason); !errors.Is(err, ErrNotLive) {
		return err
	}
	// Its recorder may be away for longer than such a request counts.
	if err := c.keep(ctx, nameOf(id, stopFile), reasonOf(reason)); err != nil {
		return err
	}
	return c.keep(ctx, nameOf(endsFolder, id), reason)
}

// Run ends the sessions that other collectors ask for, and deletes recordings after their
// retention, until ctx ends. report is called with errors.
func (c *Collector) Run(ctx context.Context, report func(error)) {
	ends, prune := time.NewTicker(endsTime), time.NewTimer(0)
	defer ends.Stop()
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ends.C:
			if err := c.endRequested(ctx); err != nil {
				report(fmt.Errorf("ending sessions: %w", err))
			}
		case <-prune.C:
			prune.Reset(pruneTime)
			if _, err := c.Prune(ctx); err != nil {
				report(fmt.Errorf("deleting recordings: %w", err))
			}
		}
	}
}

// endRequested ends the sessions that are connected here and should end.
func (c *Collector) endRequested(ctx context.Context) error {
	entries, err := c.options.Storage.List(ctx, endsFolder)
	var all []error
	for _, entry := range entries {
		name := nameOf(endsFolder, entry.Name)
		if _, err := c.session(entry.Name); err != nil {
			if c.options.Now().Sub(entry.Modified) > endsLife {
				all = append(all, c.options.Storage.Remove(ctx, name))
			}
			continue
		}
		reason, err := readFile(ctx, c.options.Storage, name)
		if err == nil {
			err = c.End(entry.Name, string(reason))
		}
		all = append(all, err, c.options.Storage.Remove(ctx, name))
	}
	return errors.Join(append(all, err)...)
}

// Prune deletes the recordings that have not changed during the retention, with all that is
// kept about them. It returns their IDs.
func (c *Collector) Prune(ctx context.Context) (deleted []string, err error) {
	if c.options.Retention <= 0 {
		return nil, nil
	}
	before := c.options.Now().Add(-max(c.options.Retention, minRetention))
	ids, err := c.options.Storage.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	var all []error
	for _, id := range ids {
		if _, err := c.session(id); err == nil {
			continue // a session may be quiet for longer
		}
		done, err := prune(ctx, c.options.Storage, id, before)
		if done {
			deleted = append(deleted, id)
		}
		all = append(all, err)
	}
	return deleted, errors.Join(all...)
}

// prune deletes a recording, unless some of it is newer. That the ticket was redeemed is
// forgotten last.
func prune(ctx context.Context, in Storage, id string, before time.Time) (done bool, err error) {
	entries, err := in.List(ctx, id)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	for _, entry := range entries {
		if entry.Modified.After(before) {
			return false, nil
		}
	}
	for _, entry := range entries {
		if entry.Name == sessionFile {
			continue
		}
		if err := in.Remove(ctx, nameOf(id, entry.Name)); err != nil {
			return false, err
		}
	}
	err = in.Remove(ctx, nameOf(id, sessionFile))
	return err == nil, err
}

// lastPart returns the number of the last part of a session.
func lastPart(ctx context.Context, in Storage, id string) (number int, sealed bool, err error) {
	entries, err := in.List(ctx, id)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name, partSuffix) {
			_, _ = fmt.Sscanf(entry.Name, "%06d", &number) // else it is no part
		}
		sealed = sealed || entry.Name == sealFile
	}
	return number, sealed, err
}

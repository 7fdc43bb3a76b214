package sessionsapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxKnown is how many sessions are in memory, about 1 KiB each. The others are found by
	// their ID alone.
	maxKnown = 50_000
	// freshTime is how old a list may be.
	freshTime = time.Second
	// lostTime is how often a session without an end is looked at that has not changed for long.
	lostTime = time.Minute
	// readers is how many sessions are read at a time.
	readers = 8
	// refreshTime is how long a list waits for the storage.
	refreshTime = 15 * time.Second
)

// entry is a session in the storage.
type entry struct {
	ticket protocol.Ticket
	// namespaceUID is that of the namespace when the session began, "" if it was not known.
	namespaceUID string
	began        time.Time
	summary      collector.Summary
	checked      time.Time
}

func (e *entry) id() string { return e.ticket.ID }

// index knows the sessions of a storage. What has ended does not change any more and is read
// once.
type index struct {
	storage collector.Storage
	key     func() (protocol.Key, error)
	now     func() time.Time

	// refreshing has one value while nobody refreshes.
	refreshing chan struct{}

	mu      sync.Mutex
	entries map[string]*entry
	alive   map[string]time.Time
	ending  map[string]bool
	// unread says what is not in entries, and why.
	unread        string
	fresh, looked time.Time
}

func newIndex(storage collector.Storage, key func() (protocol.Key, error), now func() time.Time) *index {
	i := &index{storage: storage, key: key, now: now, refreshing: make(chan struct{}, 1), entries: map[string]*entry{}}
	i.refreshing <- struct{}{}
	return i
}

// of returns the sessions of a namespace, or of all if that is "", the newest first, and what
// is not among them.
func (i *index) of(ctx context.Context, namespace string) (found []*entry, unread string, err error) {
	if err := i.refresh(ctx); err != nil {
		return nil, "", err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.entries {
		if namespace == "" || e.ticket.Namespace == namespace {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, newestFirst)
	return found, i.unread, nil
}

func newestFirst(a, b *entry) int {
	if order := b.began.Compare(a.began); order != 0 {
		return order
	}
	return strings.Compare(a.id(), b.id())
}

// get returns a session, as it is now. The error is fs.ErrNotExist if there is none.
func (i *index) get(ctx context.Context, id string) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	i.mu.Lock()
	known := i.entries[id]
	i.mu.Unlock()
	if known != nil && known.summary.Seal != nil {
		return known, nil // or it was deleted: whoever reads it finds nothing
	}
	if err := i.look(ctx); err != nil {
		return nil, err
	}
	return i.read(ctx, id, known)
}

// state returns what is known about whether a session goes on.
func (i *index) state(e *entry) (state State, active time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	active, connected := i.alive[e.id()]
	switch {
	case e.summary.Seal != nil:
		return Ended, time.Time{}
	case i.ending[e.id()]:
		return Ending, time.Time{}
	case connected, i.now().Sub(e.began) < collector.HeartbeatLife, i.now().Sub(e.summary.Modified) < collector.HeartbeatLife:
		return Live, active
	}
	return Lost, time.Time{}
}

// look reads which sessions are connected, unless that was just done.
func (i *index) look(ctx context.Context) error {
	i.mu.Lock()
	looked := i.now().Sub(i.looked) < freshTime
	i.mu.Unlock()
	if looked {
		return nil
	}
	alive, ending, err := collector.Heartbeats(ctx, i.storage, i.now())
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.alive, i.ending, i.looked = alive, ending, i.now()
	return nil
}

// read reads a session from the storage.
func (i *index) read(ctx context.Context, id string, known *entry) (*entry, error) {
	e := &entry{checked: i.now()}
	if known != nil {
		e.ticket, e.began, e.namespaceUID = known.ticket, known.began, known.namespaceUID
	} else {
		redeemed, err := collector.ReadRedeemed(ctx, i.storage, id)
		if err != nil {
			return nil, err
		}
		if redeemed.Ticket.ID != id || redeemed.Ticket.Namespace == "" {
			return nil, fmt.Errorf("session %s: %w: it is that of another session, or of none", id, collector.ErrChanged)
		}
		e.ticket, e.began, e.namespaceUID = redeemed.Ticket, redeemed.At, redeemed.NamespaceUID
		e.ticket.Terms = protocol.Terms{} // it is most of the ticket
	}
	key, err := i.key()
	if err != nil {
		return nil, err
	}
	summary, err := collector.Summarize(ctx, i.storage, id, key)
	if err != nil {
		return nil, err
	}
	e.summary = *summary
	return e, nil
}

// refresh reads what is new.
func (i *index) refresh(ctx context.Context) error {
	select {
	case <-i.refreshing:
		defer func() { i.refreshing <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	i.mu.Lock()
	fresh := i.now().Sub(i.fresh) < freshTime
	i.mu.Unlock()
	if fresh {
		return nil
	}
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	ids, err := i.storage.Sessions(ctx)
	if err != nil {
		return err
	}
	if err := i.look(ctx); err != nil {
		return err
	}
	due, unread := i.due(ids)
	failed := i.readAll(ctx, due)
	if asked.Err() != nil {
		return asked.Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fresh = i.now()
	if i.unread = unread; failed != "" {
		i.unread = failed
	}
	return nil
}

// due forgets the sessions that are not there any more, and returns those to read.
func (i *index) due(ids []string) (due []string, unread string) {
	there := make(map[string]bool, len(ids))
	for _, id := range ids {
		there[id] = true
	}
	now := i.now()
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.entries, func(id string, _ *entry) bool { return !there[id] })
	room := maxKnown - len(i.entries)
	for _, id := range ids {
		known := i.entries[id]
		switch {
		case known == nil && room <= 0:
			unread = fmt.Sprintf("there are %d sessions, and a list has %d of them at most: get the others by their ID", len(ids), maxKnown)
		case known == nil:
			room--
			due = append(due, id)
		case known.summary.Seal != nil:
		case now.Sub(known.summary.Modified) < lostTime || now.Sub(known.checked) >= lostTime || !i.alive[id].IsZero():
			due = append(due, id)
		}
	}
	return due, unread
}

// readAll reads sessions into the index, and says which it could not.
func (i *index) readAll(ctx context.Context, ids []string) (failed string) {
	var group errgroup.Group
	group.SetLimit(readers)
	var mu sync.Mutex
	var count int
	var last error
	for _, id := range ids {
		group.Go(func() error {
			i.mu.Lock()
			known := i.entries[id]
			i.mu.Unlock()
			err := ctx.Err()
			var e *entry
			if err == nil {
				e, err = i.read(ctx, id, known)
			}
			switch {
			case err == nil:
				i.mu.Lock()
				i.entries[id] = e
				i.mu.Unlock()
			case !errors.Is(err, fs.ErrNotExist): // it has just begun, or was deleted
				mu.Lock()
				count, last = count+1, err
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // errors are counted
	if count > 0 {
		return fmt.Sprintf("%d sessions could not be read and are missing, or older than they should be; ask again: %v", count, last)
	}
	return ""
}

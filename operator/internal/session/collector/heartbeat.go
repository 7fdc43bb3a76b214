package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// aliveFolder has which sessions are connected, a file for each collector.
	heartbeatFolder = "alive"
	// heartbeatTime is how often a collector says it.
	heartbeatTime = 5 * time.Second
	// HeartbeatLife is how long that counts.
	HeartbeatLife = 20 * time.Second
	// maxHeartbeats is how many such files are read.
	maxHeartbeats = 100
	// returnTime is how long a recorder has to find another collector, once its own has ended
	// and there is another one. It tries five times a second.
	returnTime = 30 * time.Second
)

// heartbeat is what a collector says about its sessions.
type heartbeat struct {
	At time.Time `json:"at"`
	// Active is when the user of each did something for the last time.
	Active map[string]time.Time `json:"active"`
	// Left are the sessions whose recorders have left without an end, and may come back.
	Left []string `json:"left,omitempty"`
	// Ending are those of Left that have ended, and whose recordings are to be sealed.
	Ending []string `json:"ending,omitempty"`
}

// sessions returns the IDs of all.
func (a *heartbeat) sessions() []string {
	return slices.Concat(slices.Collect(maps.Keys(a.Active)), a.Left)
}

// Announce says in the storage which sessions are connected here, every few seconds until
// ctx ends. It looks for those of collectors that have ended, too: a recorder that has gone
// with its collector is noted. report is called with errors.
func (c *Collector) Announce(ctx context.Context, report func(error)) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.searchLost(ctx, report) })
	collector, last, tick := protocol.NewID(), "", time.NewTicker(heartbeatTime)
	defer tick.Stop()
	says := heartbeat{}
	for n := 0; ; n++ {
		said := says
		says = c.heartbeat()
		next, err := c.announce(ctx, fmt.Sprintf("%s-%d.json", collector, n), last, &says)
		if last = next; err != nil && ctx.Err() == nil {
			report(fmt.Errorf("saying which sessions are connected: %w", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.leaveBehind(fmt.Sprintf("%s-end.json", collector), last, &said, &says)
			return
		}
	}
}

// leaveBehind says which sessions this collector had, which none has any more: another one
// looks for them. Connections may have ended already because the collector ends.
func (c *Collector) leaveBehind(next, last string, said ...*heartbeat) {
	ctx, cancel := stored()
	defer cancel()
	end := heartbeat{Active: map[string]time.Time{}}
	now := c.heartbeat()
	for _, each := range append(said, &now) {
		for _, id := range each.sessions() {
			end.Active[id] = time.Time{}
		}
	}
	_, _ = c.announce(ctx, next, last, &end) // or the last file is out of date soon
}

// announce makes the next file, and removes the last one.
func (c *Collector) announce(ctx context.Context, next, last string, says *heartbeat) (made string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if len(says.Active)+len(says.Left) > 0 {
		text, _ := json.Marshal(says) // it always marshals
		if err := c.options.Storage.Create(ctx, nameOf(heartbeatFolder, next), text); err != nil {
			return last, err
		}
		made = next
	}
	if last != "" {
		err = c.options.Storage.Remove(ctx, nameOf(heartbeatFolder, last))
	}
	return made, err
}

// heartbeat returns when the user of each session did something for the last time, and which
// sessions may come back.
func (c *Collector) heartbeat() heartbeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	says := heartbeat{At: c.options.Now().UTC(), Active: make(map[string]time.Time, len(c.live)), Left: slices.Collect(maps.Keys(c.left)), Ending: slices.Collect(maps.Keys(c.ending))}
	for id, session := range c.live {
		session.mu.Lock()
		says.Active[id] = session.active.UTC().Truncate(time.Second)
		session.mu.Unlock()
	}
	return says
}

// searchLost looks for the sessions of collectors that have ended, until ctx ends. The first
// look is some time after the beginning: recorders find this collector, too.
func (c *Collector) searchLost(ctx context.Context, report func(error)) {
	tick := time.NewTicker(returnTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := c.noteLost(ctx); err != nil && ctx.Err() == nil {
			report(fmt.Errorf("looking for the sessions of collectors that have ended: %w", err))
		}
	}
}

// noteLost notes the sessions of collectors that have ended which no collector has, and
// removes what those have said.
func (c *Collector) noteLost(ctx context.Context) error {
	files, err := readHeartbeats(ctx, c.options.Storage)
	if err != nil {
		return err
	}
	known, now := map[string]bool{}, c.options.Now()
	counts := func(says *heartbeatFile) bool {
		return now.Sub(says.At) <= HeartbeatLife || now.Sub(says.modified) < returnTime
	}
	for _, says := range append(files, heartbeatFile{heartbeat: c.heartbeat()}) {
		if !counts(&says) {
			continue
		}
		for _, id := range says.sessions() {
			known[id] = true
		}
	}
	var all []error
	for _, says := range files {
		if counts(&says) {
			continue
		}
		var failed error
		keep := false // until the next look
		for _, id := range says.sessions() {
			if known[id] || failed != nil {
				continue
			}
			known[id] = true
			switch err := c.lost(ctx, id); {
			case errors.Is(err, ErrChanged): // which it stays
				all = append(all, err)
			case errors.Is(err, errUnsettled):
				keep = true
			default:
				failed = err
			}
		}
		if failed == nil && !keep {
			failed = c.options.Storage.Remove(ctx, nameOf(heartbeatFolder, says.name))
		}
		all = append(all, failed, says.broken)
	}
	return errors.Join(all...)
}

// lost seals the recording of a recorder that cannot come back, or notes that it is gone, unless its
// session has ended or that is noted. What
// the storage says is signed: else whoever can write there could have any Pod evicted.
func (c *Collector) lost(ctx context.Context, id string) error {
	if checkID(id) != nil { // no collector has written it
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	entries, err := c.options.Storage.List(ctx, id)
	if err != nil {
		return err
	}
	var noted, stored time.Time
	for _, entry := range entries {
		switch {
		case entry.Name == sealFile:
			return nil
		case strings.HasPrefix(entry.Name, notePrefix+Gone+"-"):
			noted = entry.Modified
		case strings.HasSuffix(entry.Name, partSuffix) && entry.Modified.After(stored):
			stored = entry.Modified
		}
	}
	redeemed, err := ReadRedeemed(ctx, c.options.Storage, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	key, err := c.options.Key()
	if err != nil {
		return err
	}
	if redeemed.Ticket.ID != id || !redeemed.isSigned(key) {
		return nil
	}
	if over, err := c.conclude(ctx, &redeemed.Ticket, key, true); over || err != nil {
		return err
	}
	if !noted.After(stored) {
		c.note(&redeemed.Ticket, key, Gone, "the recorder has not come back since its collector ended")
	}
	return nil
}

// Heartbeats returns the sessions that are connected to any collector that [Collector.Announce]s
// them in this storage, with the time at which their users did something last; the zero time
// is not yet. Beside them are those that have ended, and whose recordings are to be sealed. It is
// seconds old.
func Heartbeats(ctx context.Context, from Storage, now time.Time) (active map[string]time.Time, ending map[string]bool, err error) {
	files, err := readHeartbeats(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	active, ending = map[string]time.Time{}, map[string]bool{}
	for _, says := range files {
		if now.Sub(says.At) > HeartbeatLife {
			continue
		}
		for id, at := range says.Active {
			if at.After(active[id]) || active[id].IsZero() {
				active[id] = at
			}
		}
		for _, id := range says.Ending {
			ending[id] = true
		}
	}
	return active, ending, nil
}

// heartbeatFile is a file of heartbeatFolder.
type heartbeatFile struct {
	heartbeat

	name     string
	modified time.Time
	broken   error // if it says nothing
}

// readHeartbeats returns what all collectors have said last.
func readHeartbeats(ctx context.Context, from Storage) ([]heartbeatFile, error) {
	entries, err := from.List(ctx, heartbeatFolder)
	if err != nil {
		return nil, err
	}
	var files []heartbeatFile
	for n, entry := range entries {
		if n == maxHeartbeats {
			return nil, fmt.Errorf("%s has more than %d files: remove the old ones", heartbeatFolder, maxHeartbeats)
		}
		if !strings.HasSuffix(entry.Name, ".json") {
			continue
		}
		content, err := readFile(ctx, from, nameOf(heartbeatFolder, entry.Name))
		if errors.Is(err, fs.ErrNotExist) { // there is a newer one
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(heartbeatFolder, entry.Name), err)
		}
		says := heartbeatFile{name: entry.Name, modified: entry.Modified}
		if err := json.Unmarshal(content, &says.heartbeat); err != nil {
			says.heartbeat, says.broken = heartbeat{}, fmt.Errorf("%s: %w", nameOf(heartbeatFolder, entry.Name), err)
		}
		files = append(files, says)
	}
	return files, nil
}

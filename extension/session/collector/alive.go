package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

const (
	// aliveFolder has which sessions are connected, a file for each collector.
	aliveFolder = "alive"
	// aliveTime is how often a collector says it.
	aliveTime = 5 * time.Second
	// AliveLife is how long that counts.
	AliveLife = 20 * time.Second
	// maxAlive is how many such files are read.
	maxAlive = 100
)

// alive is what a collector says about its sessions.
type alive struct {
	At time.Time `json:"at"`
	// Active is when the user of each did something for the last time.
	Active map[string]time.Time `json:"active"`
}

// Announce says in the storage which sessions are connected here, every few seconds until
// ctx ends. report is called with errors.
func (c *Collector) Announce(ctx context.Context, report func(error)) {
	collector, last, tick := protocol.NewID(), "", time.NewTicker(aliveTime)
	defer tick.Stop()
	for n := 0; ; n++ {
		next, err := c.announce(ctx, fmt.Sprintf("%s-%d.json", collector, n), last)
		if err == nil && n%12 == 0 {
			err = c.forgetDead(ctx)
		}
		if last = next; err != nil && ctx.Err() == nil {
			report(fmt.Errorf("saying which sessions are connected: %w", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if last != "" {
				ctx, cancel := stored()
				defer cancel()
				_ = c.options.Storage.Remove(ctx, nameOf(aliveFolder, last)) // or it is out of date soon
			}
			return
		}
	}
}

// announce makes the next file, and removes the last one.
func (c *Collector) announce(ctx context.Context, next, last string) (made string, err error) {
	says := alive{At: c.options.Now().UTC(), Active: c.active()}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if len(says.Active) > 0 {
		text, _ := json.Marshal(says) // it always marshals
		if err := c.options.Storage.Create(ctx, nameOf(aliveFolder, next), text); err != nil {
			return last, err
		}
		made = next
	}
	if last != "" {
		err = c.options.Storage.Remove(ctx, nameOf(aliveFolder, last))
	}
	return made, err
}

// active returns when the user of each session did something for the last time.
func (c *Collector) active() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	times := make(map[string]time.Time, len(c.live))
	for id, session := range c.live {
		session.mu.Lock()
		times[id] = session.active.UTC().Truncate(time.Second)
		session.mu.Unlock()
	}
	return times
}

// forgetDead removes the files of collectors that were killed.
func (c *Collector) forgetDead(ctx context.Context) error {
	entries, err := c.options.Storage.List(ctx, aliveFolder)
	all := []error{err}
	for _, entry := range entries {
		if c.options.Now().Sub(entry.Modified) > 10*AliveLife {
			all = append(all, c.options.Storage.Remove(ctx, nameOf(aliveFolder, entry.Name)))
		}
	}
	return errors.Join(all...)
}

// Alive returns the sessions that are connected to any collector that [Collector.Announce]s
// them in this storage, with the time at which their users did something last; the zero time
// is not yet. It is seconds old.
func Alive(ctx context.Context, from Storage, now time.Time) (map[string]time.Time, error) {
	entries, err := from.List(ctx, aliveFolder)
	if err != nil {
		return nil, err
	}
	active := map[string]time.Time{}
	for n, entry := range entries {
		if n == maxAlive {
			return nil, fmt.Errorf("%s has more than %d files: remove the old ones", aliveFolder, maxAlive)
		}
		if !strings.HasSuffix(entry.Name, ".json") {
			continue
		}
		content, err := readFile(ctx, from, nameOf(aliveFolder, entry.Name))
		if errors.Is(err, fs.ErrNotExist) { // there is a newer one
			continue
		}
		var says alive
		if err == nil {
			err = json.Unmarshal(content, &says)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(aliveFolder, entry.Name), err)
		}
		if now.Sub(says.At) > AliveLife {
			continue
		}
		for id, at := range says.Active {
			if at.After(active[id]) || active[id].IsZero() {
				active[id] = at
			}
		}
	}
	return active, nil
}

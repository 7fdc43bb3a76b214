package session

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// journalFolder has the evictions that are under way, a file for each.
	journalFolder = "evictions"
	// maxJournal is the most bytes of such a file, and maxAdopted how many are read at a time:
	// they leave room for those that are asked for now.
	maxJournal, maxAdopted = 64 << 10, maxEvictions / 2
	// adoptPause is how often evictions are adopted that are older than adoptAge: whose
	// replica has ended, or had too many.
	adoptPause = time.Minute
	adoptAge   = 7 * time.Minute
)

// journal keeps the evictions that are under way in the storage of recordings, so that a
// restart does not lose them. They are signed: else whoever can write the storage could have
// any Pod evicted.
type journal struct {
	storage collector.Storage
	key     func() (protocol.Key, error)
}

// journalled is the content of a file.
type journalled struct {
	Eviction json.RawMessage `json:"eviction"`
	MAC      string          `json:"mac"`
}

func journalName(id string) string { return journalFolder + "/" + id + ".json" }

func journalMAC(key, eviction []byte) string {
	hash := hmac.New(sha256.New, key)
	_, _ = hash.Write([]byte("admitkit.dev/session eviction 1\n"))
	_, _ = hash.Write(eviction) // never fails
	return hex.EncodeToString(hash.Sum(nil))
}

func (j *journal) write(ctx context.Context, asked *eviction) error {
	key, err := j.key()
	if err != nil {
		return err
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(journalled{text, journalMAC(key.Current, text)}); err != nil {
		return err
	}
	if err = j.storage.Create(ctx, journalName(asked.Ticket.ID), text); errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (j *journal) remove(ctx context.Context, asked *eviction) error {
	return j.storage.Remove(ctx, journalName(asked.Ticket.ID))
}

// read returns an eviction that was written with the key.
func (j *journal) read(ctx context.Context, id string) (*eviction, error) {
	file, err := j.storage.Open(ctx, journalName(id))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxJournal))
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	key, err := j.key()
	if err != nil {
		return nil, err
	}
	var found journalled
	asked := &eviction{}
	if json.Unmarshal(text, &found) != nil || json.Unmarshal(found.Eviction, asked) != nil || asked.Ticket.ID != id {
		return nil, errJournal
	}
	if !key.Signed(func(key []byte) bool { return hmac.Equal([]byte(found.MAC), []byte(journalMAC(key, found.Eviction))) }) {
		return nil, errJournal
	}
	return asked, nil
}

// errJournal is the error about a file that this installation has not written.
var errJournal = errors.New("it is not of this installation")

// adopt takes the evictions over that a replica has left behind: at the start all, since it
// may be this one, and then those that are old.
func (e *evictions) adopt(ctx context.Context) {
	for age := time.Duration(0); ; age = adoptAge {
		if err := e.adoptOlder(ctx, age); err != nil && ctx.Err() == nil {
			e.log.Error("evictions that another replica has left behind are not under way", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(adoptPause):
		}
	}
}

func (e *evictions) adoptOlder(ctx context.Context, than time.Duration) error {
	within, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	entries, err := e.journal.storage.List(within, journalFolder)
	all := []error{err}
	for _, entry := range entries {
		id, isOne := strings.CutSuffix(entry.Name, ".json")
		if !isOne || !protocol.ValidID(id) || e.clock.Now().Sub(entry.Modified) < than {
			continue
		}
		if e.count() >= maxAdopted {
			break
		}
		within, cancel := context.WithTimeout(ctx, readTime)
		asked, err := e.journal.read(within, id)
		cancel()
		switch {
		case err == nil:
			e.enter(asked)
		case !errors.Is(err, fs.ErrNotExist):
			all = append(all, fmt.Errorf("%s: %w", journalName(id), err))
		}
	}
	return errors.Join(all...)
}

// count returns how many Pods wait for their eviction.
func (e *evictions) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pods)
}

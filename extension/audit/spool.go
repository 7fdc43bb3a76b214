package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/afero"
)

// spool is a bounded queue on disk, a file for each event. It survives crashes:
// a file has its name only once it is whole and on disk.
type spool struct {
	fs   afero.Fs
	dir  string
	most int
	busy chan struct{}

	mu     sync.Mutex
	opened bool
	// names are the files in order: a number, and the ID of the record.
	names []string
	next  uint64
	wake  chan struct{}
}

func newSpool(fs afero.Fs, dir string, most int) *spool {
	return &spool{fs: fs, dir: dir, most: most, busy: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

const (
	spoolSuffix  = ".json"
	spoolPartial = ".partial"
)

// open finds what is left from the last run, once.
func (s *spool) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened {
		return nil
	}
	if err := s.fs.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	entries, err := afero.ReadDir(s.fs, s.dir)
	if err != nil {
		return err
	}
	s.names = nil
	for _, entry := range entries {
		name := entry.Name()
		number, err := strconv.ParseUint(strings.SplitN(name, "-", 2)[0], 16, 64)
		switch {
		case strings.HasSuffix(name, spoolPartial):
			if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil {
				return err
			}
		case strings.HasSuffix(name, spoolSuffix) && err == nil:
			s.names = append(s.names, name)
			s.next = max(s.next, number+1)
		}
	}
	slices.Sort(s.names)
	s.opened = true
	s.signal()
	return nil
}

// push puts an event into the queue. One that is in it already is not put twice.
func (s *spool) push(ctx context.Context, id string, event []byte) error {
	return withDisk(ctx, s.busy, func() error {
		if err := s.open(); err != nil {
			return fmt.Errorf("the queue on disk: %w", err)
		}
		s.mu.Lock()
		length, number := len(s.names), s.next
		present := slices.ContainsFunc(s.names[max(0, length-1000):], func(name string) bool {
			return strings.HasSuffix(name, "-"+id+spoolSuffix)
		})
		s.next++
		s.mu.Unlock()
		if present {
			return nil
		}
		if length >= s.most {
			return fmt.Errorf("the queue is full: %d records wait for the endpoint", length)
		}
		name := fmt.Sprintf("%016x-%s%s", number, id, spoolSuffix)
		if err := s.write(name, event); err != nil {
			return fmt.Errorf("the queue on disk: %w", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names = append(s.names, name)
		s.signal()
		return nil
	})
}

func (s *spool) write(name string, event []byte) error {
	path := filepath.Join(s.dir, name)
	partial := path + spoolPartial
	file, err := s.fs.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(event)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = s.fs.Rename(partial, path)
	}
	if err == nil {
		err = s.syncDir()
	}
	if err != nil {
		_ = s.fs.Remove(partial)
	}
	return err
}

// syncDir makes a new name durable: see fsync(2).
func (s *spool) syncDir() error {
	dir, err := s.fs.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// ready has a value when there may be something in the queue.
func (s *spool) ready() <-chan struct{} { return s.wake }

func (s *spool) signal() {
	if len(s.names) == 0 {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *spool) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

// first reads the first events of the queue, and leaves them in it.
func (s *spool) first(most int) (names []string, events [][]byte, err error) {
	s.mu.Lock()
	names = slices.Clone(s.names[:min(most, len(s.names))])
	s.signal()
	s.mu.Unlock()
	for _, name := range names {
		event, err := afero.ReadFile(s.fs, filepath.Join(s.dir, name))
		if err != nil {
			return nil, nil, err
		}
		events = append(events, event)
	}
	return names, events, nil
}

// remove removes events that were delivered.
func (s *spool) remove(names []string) error {
	for _, name := range names {
		if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = slices.DeleteFunc(s.names, func(name string) bool { return slices.Contains(names, name) })
	return nil
}

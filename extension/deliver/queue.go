package deliver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/afero"
	"golang.org/x/sync/semaphore"
)

// queue is a bounded queue on disk, with a file for each item. It survives
// crashes: a file gets its name only when it is complete and on disk.
type queue struct {
	fs   afero.Fs
	dir  string
	most int
	// disk is held by the goroutine that writes, for as long as the disk takes.
	disk *semaphore.Weighted

	mu     sync.Mutex
	opened bool
	// names are the names of the files, in order.
	names []string
	next  uint64
	// wake receives a value when the queue may have items.
	wake chan struct{}
}

// newQueue returns a queue of at most so many items in a folder.
func newQueue(fs afero.Fs, dir string, most int) *queue {
	return &queue{fs: fs, dir: dir, most: most, disk: semaphore.NewWeighted(1), wake: make(chan struct{}, 1)}
}

const (
	itemSuffix    = ".json"
	partialSuffix = ".partial"
)

// open finds the items that the last run left, once.
func (q *queue) open() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.opened {
		return nil
	}
	if err := q.fs.MkdirAll(q.dir, 0o700); err != nil {
		return err
	}
	entries, err := afero.ReadDir(q.fs, q.dir)
	if err != nil {
		return err
	}
	q.names = nil
	for _, entry := range entries {
		name := entry.Name()
		number, err := strconv.ParseUint(strings.SplitN(name, "-", 2)[0], 16, 64)
		switch {
		case strings.HasSuffix(name, partialSuffix):
			if err := q.fs.Remove(filepath.Join(q.dir, name)); err != nil {
				return err
			}
		case strings.HasSuffix(name, itemSuffix) && err == nil:
			q.names = append(q.names, name)
			q.next = max(q.next, number+1)
		}
	}
	slices.Sort(q.names)
	q.opened = true
	q.signal()
	return nil
}

// push adds an item unless the queue has its ID already. While the disk hangs, push
// returns when ctx ends.
func (q *queue) push(ctx context.Context, id string, item []byte) error {
	if err := q.disk.Acquire(ctx, 1); err != nil {
		return err
	}
	pushed := make(chan error, 1)
	go func() {
		defer q.disk.Release(1)
		pushed <- q.add(url.PathEscape(id)+itemSuffix, item)
	}()
	select {
	case err := <-pushed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add writes an item to a file: a number, and the name made from its ID.
func (q *queue) add(id string, item []byte) error {
	if err := q.open(); err != nil {
		return fmt.Errorf("the queue on disk: %w", err)
	}
	q.mu.Lock()
	length, number := len(q.names), q.next
	// A repeated item is among the youngest.
	present := slices.ContainsFunc(q.names[max(0, length-1000):], func(name string) bool {
		_, of, _ := strings.Cut(name, "-")
		return of == id
	})
	q.next++
	q.mu.Unlock()
	if present {
		return nil
	}
	if length >= q.most {
		return fmt.Errorf("the queue is full: %d events wait for the endpoint", length)
	}
	name := fmt.Sprintf("%016x-%s", number, id)
	if err := q.write(name, item); err != nil {
		return fmt.Errorf("the queue on disk: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.names = append(q.names, name)
	q.signal()
	return nil
}

func (q *queue) write(name string, item []byte) error {
	path := filepath.Join(q.dir, name)
	partial := path + partialSuffix
	file, err := q.fs.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(item)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = q.fs.Rename(partial, path)
	}
	if err == nil {
		err = q.syncDir()
	}
	if err != nil {
		_ = q.fs.Remove(partial)
	}
	return err
}

// syncDir makes a new name durable: see fsync(2).
func (q *queue) syncDir() error {
	dir, err := q.fs.Open(q.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (q *queue) signal() {
	if len(q.names) == 0 {
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// len returns how many items wait.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.names)
}

// first reads the first items, and leaves them in the queue: at most so many, and, beyond
// the first of them, so many bytes.
func (q *queue) first(most, size int) (names []string, items [][]byte, err error) {
	q.mu.Lock()
	names = slices.Clone(q.names[:min(most, len(q.names))])
	q.signal()
	q.mu.Unlock()
	for i, name := range names {
		item, err := afero.ReadFile(q.fs, filepath.Join(q.dir, name))
		if err != nil {
			return nil, nil, err
		}
		if size -= len(item); size < 0 && i > 0 {
			return names[:i], items, nil
		}
		items = append(items, item)
	}
	return names, items, nil
}

// remove removes items that were delivered.
func (q *queue) remove(names []string) error {
	for _, name := range names {
		if err := q.fs.Remove(filepath.Join(q.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.names = slices.DeleteFunc(q.names, func(name string) bool { return slices.Contains(names, name) })
	return nil
}

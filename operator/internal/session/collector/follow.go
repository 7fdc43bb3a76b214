package collector

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Follow hands over each frame of a recording, in order, and those that are stored
// meanwhile, until the one that ends the session. wait is called each time there is no more
// for now; its error ends Follow.
func Follow(ctx context.Context, from Storage, id string, each func(*protocol.Frame) error, wait func(context.Context) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	f := &follower{storage: from, id: id, chain: newChain(id), each: each}
	for {
		if err := f.more(ctx); err != nil || f.end != nil {
			return err
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// FollowCast is [Follow] in the form of [Cast]. What there is has been written whenever wait
// is called.
func FollowCast(ctx context.Context, from Storage, id string, to io.Writer, wait func(context.Context) error) error {
	w := &cast{to: bufio.NewWriter(to)}
	err := Follow(ctx, from, id, w.frame, func(ctx context.Context) error {
		if err := w.to.Flush(); err != nil {
			return err
		}
		return wait(ctx)
	})
	if err != nil {
		return err
	}
	return w.to.Flush()
}

// follower reads parts that still grow.
type follower struct {
	storage Storage
	id      string
	chain
	each func(*protocol.Frame) error

	// part is the one that is read, up to offset. Those before it are read whole: a new part
	// begins after what the one before it had.
	part   string
	offset int64
}

// more reads what has been stored since.
func (f *follower) more(ctx context.Context) error {
	entries, err := f.storage.List(ctx, f.id)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if f.end != nil {
			return nil
		}
		if !strings.HasSuffix(entry.Name, partSuffix) || entry.Name < f.part || entry.Name == f.part && entry.Size <= f.offset {
			continue
		}
		if entry.Name != f.part {
			f.part, f.offset = entry.Name, 0
		}
		if entry.Size == 0 {
			continue
		}
		if err := f.read(ctx); err != nil {
			return fmt.Errorf("%s: %w", nameOf(f.id, entry.Name), err)
		}
	}
	return nil
}

// read reads the part on, up to its last whole frame.
func (f *follower) read(ctx context.Context) error {
	file, err := f.storage.Open(ctx, nameOf(f.id, f.part))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if seeker, ok := file.(io.Seeker); ok {
		_, err = seeker.Seek(f.offset, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, file, f.offset)
	}
	if err != nil {
		return err
	}
	size, err := readFrames(file, &f.chain, func(frame *protocol.Frame) error {
		if err := f.each(frame); err != nil || f.end == nil {
			return err
		}
		return errEnd
	})
	f.offset += size
	if errors.Is(err, errEnd) {
		return nil
	}
	return err
}

// errEnd says that the frame that ends the session was read: nothing follows that is followed.
var errEnd = errors.New("the session has ended")

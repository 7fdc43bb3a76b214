package collector

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// The errors of [Verify].
var (
	ErrNotSealed = errors.New("the recording is not sealed: the session has not ended, or ended seconds ago, or its recorder was lost")
	ErrChanged   = errors.New("the recording was changed after it was made")
	ErrContested = errors.New("the recording is as it was made, but two presented the ticket of the session, and one of them was not its recorder")
)

// ReadRedeemed returns who runs or ran a session.
func ReadRedeemed(ctx context.Context, from Storage, id string) (*Redeemed, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	content, err := readFile(ctx, from, nameOf(id, sessionFile))
	if err != nil {
		return nil, err
	}
	redeemed := &Redeemed{}
	return redeemed, json.Unmarshal(content, redeemed)
}

// checkID keeps paths out of names.
func checkID(id string) error {
	if !protocol.ValidID(id) {
		return fmt.Errorf("%.40q is no ID of a session", id)
	}
	return nil
}

// Verify returns the seal of a recording that is as it was made, and of whose ticket nobody
// else had the use. The error wraps ErrNotSealed, ErrChanged or ErrContested. A recording that was removed as a whole is found only by
// those who know of it: compare the AuditEvents.
func Verify(ctx context.Context, from Storage, id string, key protocol.Key) (*Seal, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	content, err := readFile(ctx, from, nameOf(id, sealFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotSealed)
	}
	if err != nil {
		return nil, err
	}
	if err := verifyRedeemed(ctx, from, id, key); err != nil {
		return nil, err
	}
	seal := &Seal{}
	if err := json.Unmarshal(content, seal); err != nil {
		return nil, fmt.Errorf("%s: %w: its seal is no JSON: %w", id, ErrChanged, err)
	}
	if seal.ID != id || !key.Signed(func(key []byte) bool { return seal.mac(key) == seal.MAC }) {
		return nil, fmt.Errorf("%s: %w: its seal is by no key that this installation has, neither by that in use nor by the previous one", id, ErrChanged)
	}
	c := newChain(id)
	if _, _, err := read(ctx, from, id, &c, func(*protocol.Frame) error { return nil }); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", id, ErrChanged, err)
	}
	if c.next-1 != seal.Frames || hex.EncodeToString(c.sum[:]) != seal.SHA256 {
		return nil, fmt.Errorf("%s: %w: it has %d frames with the sum %x, and had %d with the sum %s", id, ErrChanged, c.next-1, c.sum, seal.Frames, seal.SHA256)
	}
	notes, err := readNotes(ctx, from, id, key) // some are younger than the seal
	switch {
	case err != nil:
		return nil, err
	case seal.Contested(), areContested(notes):
		return nil, fmt.Errorf("%s: %w", id, ErrContested)
	}
	return seal, nil
}

// verifyRedeemed returns an error unless who ran a session, and where, is as it was written.
func verifyRedeemed(ctx context.Context, from Storage, id string, key protocol.Key) error {
	redeemed, err := ReadRedeemed(ctx, from, id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: %s is gone", id, ErrChanged, sessionFile)
	case err != nil:
		return fmt.Errorf("%s: %w", id, err)
	case redeemed.Ticket.ID != id || !redeemed.isSigned(key):
		return fmt.Errorf("%s: %w: %s, which says whose session it was, is by no key that this installation has", id, ErrChanged, sessionFile)
	}
	return nil
}

// isSigned reports whether a collector with the key wrote it.
func (r *Redeemed) isSigned(key protocol.Key) bool {
	return key.Signed(func(key []byte) bool { return r.mac(key) == r.MAC })
}

// Contested reports whether two had presented the ticket of the session by then.
func (s *Seal) Contested() bool { return areContested(s.Notes) }

func areContested(notes []Note) bool {
	return slices.ContainsFunc(notes, func(n Note) bool { return n.Kind == Contested })
}

// Frames hands over each frame of a recording, in order.
func Frames(ctx context.Context, from Storage, id string, each func(*protocol.Frame) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	c := newChain(id)
	_, _, err := read(ctx, from, id, &c, each)
	return err
}

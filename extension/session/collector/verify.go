package collector

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

// The errors of [Folder.Verify].
var (
	ErrNotSealed = errors.New("the recording is not sealed: the session has not ended, or its recorder was lost")
	ErrChanged   = errors.New("the recording was changed after it was made")
)

// Redeemed returns who runs or ran a session.
func (f Folder) Redeemed(id string) (*Redeemed, error) {
	if !protocol.ValidID(id) {
		return nil, fmt.Errorf("%.40q is no ID of a session", id)
	}
	content, err := os.ReadFile(f.path(id, sessionFile))
	if err != nil {
		return nil, err
	}
	redeemed := &Redeemed{}
	return redeemed, json.Unmarshal(content, redeemed)
}

// Verify returns the seal of a recording that is as it was made. The error wraps
// ErrNotSealed or ErrChanged. A recording that was removed as a whole is found only by
// those who know of it: compare the AuditEvents.
func (f Folder) Verify(id string, key protocol.Key) (*Seal, error) {
	if !protocol.ValidID(id) {
		return nil, fmt.Errorf("%.40q is no ID of a session", id)
	}
	content, err := os.ReadFile(f.path(id, sealFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotSealed)
	}
	if err != nil {
		return nil, err
	}
	seal := &Seal{}
	if err := json.Unmarshal(content, seal); err != nil {
		return nil, fmt.Errorf("%s: %w: its seal is no JSON: %w", id, ErrChanged, err)
	}
	sealed := slices.ContainsFunc([][]byte{key.Current, key.Previous}, func(key []byte) bool {
		return len(key) >= protocol.MinKey && seal.mac(key) == seal.MAC
	})
	if !sealed || seal.ID != id {
		return nil, fmt.Errorf("%s: %w: the seal is not of this installation", id, ErrChanged)
	}
	c := newChain(id)
	if _, err := f.read(id, &c, func(*protocol.Frame) error { return nil }); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", id, ErrChanged, err)
	}
	if c.next-1 != seal.Frames || hex.EncodeToString(c.sum[:]) != seal.SHA256 {
		return nil, fmt.Errorf("%s: %w: it has %d frames with the sum %x, and had %d with the sum %s", id, ErrChanged, c.next-1, c.sum, seal.Frames, seal.SHA256)
	}
	return seal, nil
}

// Frames hands over each frame of a recording, in order.
func (f Folder) Frames(id string, each func(*protocol.Frame) error) error {
	if !protocol.ValidID(id) {
		return fmt.Errorf("%.40q is no ID of a session", id)
	}
	c := newChain(id)
	_, err := f.read(id, &c, each)
	return err
}

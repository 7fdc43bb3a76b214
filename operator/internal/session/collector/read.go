package collector

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Summary is what the storage has about a session besides its frames. It is not verified:
// see [Verify].
type Summary struct {
	// Seal is nil as long as the session has not ended, or if its recorder was lost.
	Seal *Seal
	// Notes are those of the seal, or those that were made so far.
	Notes []Note
	// Stored are the bytes of its parts, and Modified is when some of it changed last.
	Stored   int64
	Modified time.Time
}

// maxSummary is how many bytes of the reason of an end a Summary has: many are kept at a time.
const maxSummary = 1 << 10

// Summarize returns what the storage has about a session. Notes of a session without a seal
// count only if they were made with the key.
func Summarize(ctx context.Context, from Storage, id string, key protocol.Key) (*Summary, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	entries, err := from.List(ctx, id)
	if err != nil {
		return nil, err
	}
	s, noted, sealed := &Summary{}, false, false
	for _, entry := range entries {
		if s.Modified.Before(entry.Modified) {
			s.Modified = entry.Modified
		}
		if strings.HasSuffix(entry.Name, partSuffix) {
			s.Stored += entry.Size
		}
		noted, sealed = noted || strings.HasPrefix(entry.Name, notePrefix), sealed || entry.Name == sealFile
	}
	switch {
	case sealed:
		if s.Seal, err = readSeal(ctx, from, id); err == nil {
			s.Seal.End.Reason = strings.ToValidUTF8(s.Seal.End.Reason[:min(len(s.Seal.End.Reason), maxSummary)], "")
			s.Notes = s.Seal.Notes
		}
	case noted:
		s.Notes, err = readNotes(ctx, from, id, key)
	}
	return s, err
}

// readSeal returns the seal of a session as it is.
func readSeal(ctx context.Context, from Storage, id string) (*Seal, error) {
	content, err := readFile(ctx, from, nameOf(id, sealFile))
	if err != nil {
		return nil, err
	}
	seal := &Seal{}
	if err := json.Unmarshal(content, seal); err != nil {
		return nil, fmt.Errorf("%s: %w", nameOf(id, sealFile), err)
	}
	return seal, nil
}

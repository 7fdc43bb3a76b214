package collector

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// checkpoint is the state of a recording at the end of a piece. By it a collector goes on without
// reading all pieces. Who reads the recording makes the sum anew.
type checkpoint struct {
	ID    string        `json:"id"`
	Next  uint64        `json:"next"`
	Bytes int64         `json:"bytes"`
	Sum   string        `json:"sum"`
	Last  time.Duration `json:"last"`
	End   *protocol.End `json:"end,omitempty"`
	MAC   string        `json:"mac,omitempty"`
}

func (c *chain) checkpoint(id string) checkpoint {
	return checkpoint{ID: id, Next: c.next, Bytes: c.bytes, Sum: hex.EncodeToString(c.sum[:]), Last: c.last, End: c.end}
}

func (m checkpoint) mac(key []byte) string {
	m.MAC = ""
	return macOf(key, "admitkit.dev/session mark 1\n", m)
}

// readCheckpoint sets the chain to that of the last piece.
func (r *recording) readCheckpoint(ctx context.Context) error {
	entries, err := r.storage.List(ctx, r.id)
	if err != nil {
		return err
	}
	last := ""
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name, partSuffix) && entry.Size > 0 {
			last = entry.Name
		}
	}
	if last == "" {
		return nil
	}
	file, err := r.storage.Open(ctx, nameOf(r.id, last))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	var found checkpoint
	for from := bufio.NewReader(file); ; {
		frame, err := protocol.Read(from)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && frame.Type == protocol.Mark {
			err = json.Unmarshal(frame.Data, &found)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(r.id, last), err)
		}
	}
	sum, err := hex.DecodeString(found.Sum)
	if err != nil || len(sum) != len(r.sum) || found.ID != r.id || !r.key.Signed(func(key []byte) bool { return found.mac(key) == found.MAC }) {
		return fmt.Errorf("%s: %w: the mark is not of this installation", nameOf(r.id, last), ErrChanged)
	}
	r.chain = chain{next: found.Next, bytes: found.Bytes, last: found.Last, end: found.End}
	copy(r.sum[:], sum)
	return nil
}

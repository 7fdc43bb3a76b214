package collector

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// The kinds of a [Note].
const (
	// Silent is a recorder that is connected and says nothing: it was stopped or starved, or
	// the network is down.
	Silent = "silent"
	// Gone is a recorder that left without an end, and did not come back: it was killed, or
	// its Pod was, or the network is down.
	Gone = "gone"
	// Overdue is a session that goes on although it had to end.
	Overdue = "overdue"
	// Contested is a ticket that two present who have the token of the Pod: one of them is the
	// recorder, and nobody can tell which. Both sessions end, and the recording is not valid.
	Contested = "contested"
	// Replayed is a ticket that somebody presents when no recorder does any more. They are
	// refused, and the session goes on.
	Replayed = "replayed"
	// Left is a session that has ended, and of whose processes some go on: they have become
	// another user's, or kept out of the recorder's sight.
	Left = "left"
)

// Note is what a collector noticed about a session. It is part of the recording.
type Note struct {
	Kind string    `json:"kind"`
	At   time.Time `json:"at"`
	// Text says it in words.
	Text string `json:"text"`
	// MAC is that of the session's ID and the other fields by the key of tickets.
	MAC string `json:"mac,omitempty"`
}

const (
	notePrefix = "note-"
	// maxNotes is how many notes of a session there are at most, and maxKind those of one kind:
	// whoever causes many of one does not keep others out.
	maxNotes = 6 * maxKind
	maxKind  = 25
)

func (n Note) mac(key []byte, id string) string {
	n.MAC = ""
	return macOf(key, "admitkit.dev/session note 1\n"+id+"\n", n)
}

// isNote reports whether a file is a note of a kind.
func isNote(entry *Entry, kind string) bool {
	return strings.HasPrefix(entry.Name, notePrefix+kind+"-")
}

// note makes a note of a session, and tells the manager.
func (c *Collector) note(ticket *protocol.Ticket, key protocol.Key, kind, format string, args ...any) {
	_ = c.keepNote(ticket, key, kind, fmt.Sprintf(format, args...)) // the manager hears of it in any case
}

// keepNote is note. The error is that the note is not stored.
func (c *Collector) keepNote(ticket *protocol.Ticket, key protocol.Key, kind, text string) error {
	n := Note{Kind: kind, At: c.options.Now().UTC(), Text: text}
	n.MAC = n.mac(key.Current, ticket.ID)
	ctx, cancel := stored()
	defer cancel()
	entries, err := c.options.Storage.List(ctx, ticket.ID)
	count := 0
	for _, entry := range entries {
		if isNote(&entry, kind) {
			count++
		}
	}
	if err == nil && count < maxKind {
		name := nameOf(ticket.ID, fmt.Sprintf("%s%s-%d.json", notePrefix, kind, n.At.UnixNano()))
		err = createJSON(c.options.Storage, name, n)
	}
	c.options.Noted(ticket, n)
	return err
}

// readNotes returns the notes of a session that were made with the key.
func readNotes(ctx context.Context, from Storage, id string, key protocol.Key) ([]Note, error) {
	entries, err := from.List(ctx, id)
	if err != nil {
		return nil, err
	}
	var notes []Note
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name, notePrefix) || len(notes) == maxNotes {
			continue
		}
		content, err := readFile(ctx, from, nameOf(id, entry.Name))
		if err != nil {
			return nil, err
		}
		var n Note
		if json.Unmarshal(content, &n) == nil && key.Signed(func(key []byte) bool { return n.mac(key, id) == n.MAC }) {
			notes = append(notes, n)
		}
	}
	return notes, nil
}

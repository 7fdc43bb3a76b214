package collector

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// begun has a session begin, and returns its ID.
func begun(t *testing.T, folder Folder, by protocol.Key) string {
	t.Helper()
	ticket := ticketOf()
	if _, err := redeem(folder, &Redeemed{Ticket: *ticket, Secret: "x", At: time.Now()}, by); err != nil {
		t.Fatal(err)
	}
	part, err := folder.Part(t.Context(), ticket.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := part.Close(); err != nil {
		t.Fatal(err)
	}
	return ticket.ID
}

// said has a collector say something some time ago.
func said(t *testing.T, folder Folder, name string, ago time.Duration, says heartbeat) {
	t.Helper()
	at := time.Now().Add(-ago)
	says.At = at
	if err := folder.Create(t.Context(), nameOf(heartbeatFolder, name), jsonOf(t, says)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(folder.path(heartbeatFolder, name), at, at); err != nil {
		t.Fatal(err)
	}
}

func TestASessionThatIsLostWithItsCollectorIsNoted(t *testing.T) {
	folder := Folder(t.TempDir())
	notes := map[string][]string{}
	c := New(Options{Storage: folder, Key: func() (protocol.Key, error) { return key, nil }, Noted: func(ticket *protocol.Ticket, note Note) {
		notes[ticket.ID] = append(notes[ticket.ID], note.Kind)
	}})
	lost, leaving, away, watched, mine := begun(t, folder, key), begun(t, folder, key), begun(t, folder, key), begun(t, folder, key), begun(t, folder, key)
	forged := begun(t, folder, protocol.Key{Current: []byte(strings.Repeat("f", protocol.MinKey))})
	_, ended := recordIn(t, folder)
	active := func(ids ...string) map[string]time.Time {
		all := map[string]time.Time{}
		for _, id := range ids {
			all[id] = time.Now()
		}
		return all
	}
	c.live[mine] = &live{}
	said(t, folder, "killed.json", time.Hour, heartbeat{Active: active(lost, away, watched, mine, ended, forged, protocol.NewID(), "../x"), Left: []string{leaving}})
	said(t, folder, "other.json", 0, heartbeat{Active: active(away), Left: []string{watched}})
	said(t, folder, "just-now.json", HeartbeatLife+time.Second, heartbeat{Active: active(begun(t, folder, key))})
	for range 2 {
		if err := c.noteLost(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(notes) != 2 || len(notes[lost]) != 1 || len(notes[leaving]) != 1 || notes[lost][0] != Gone {
		t.Errorf("noted are %v of %s and %s", notes, lost, leaving)
	}
	entries, err := folder.List(t.Context(), heartbeatFolder)
	if err != nil || len(entries) != 2 {
		t.Errorf("there are %v, %v", entries, err)
	}
	// The recorder came back and was lost again, or it did not.
	said(t, folder, "again.json", time.Hour, heartbeat{Active: active(lost, leaving)})
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(folder.path(lost, "000001.part"), later, later); err != nil {
		t.Fatal(err)
	}
	if err := c.noteLost(t.Context()); err != nil || len(notes[lost]) != 2 || len(notes[leaving]) != 1 {
		t.Errorf("then noted are %v, %v", notes, err)
	}
}

func TestACollectorThatEndsSaysWhichSessionsItHad(t *testing.T) {
	folder := Folder(t.TempDir())
	c := New(Options{Storage: folder, Stall: time.Hour})
	connected, left := protocol.NewID(), protocol.NewID()
	c.live[connected], c.left[left] = &live{}, 1
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Announce(ctx, func(err error) { t.Error(err) })
	files, err := readHeartbeats(t.Context(), folder)
	if err != nil || len(files) != 1 || len(files[0].Active) != 2 || !files[0].At.IsZero() {
		t.Errorf("it leaves %+v, %v", files, err)
	}
	if found, _, err := Heartbeats(t.Context(), folder, time.Now()); err != nil || len(found) != 0 {
		t.Errorf("%v are connected, %v", found, err)
	}
	// One that says nothing that can be read does not keep others from being found.
	if err := folder.Create(t.Context(), nameOf(heartbeatFolder, "broken.json"), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Heartbeats(t.Context(), folder, time.Now()); err != nil {
		t.Error(err)
	}
	if err := os.Chtimes(folder.path(heartbeatFolder, "broken.json"), now, now); err != nil {
		t.Fatal(err)
	}
	if err := c.noteLost(t.Context()); err == nil || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("the broken one: %v", err)
	}
	if err := c.noteLost(t.Context()); err != nil {
		t.Errorf("it is still there: %v", err)
	}
}

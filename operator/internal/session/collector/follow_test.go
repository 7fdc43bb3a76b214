package collector

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func TestARecordingIsFollowedHoweverItGrows(t *testing.T) {
	folder, id := record(t)
	var want bytes.Buffer
	if err := folder.Cast(id, &want); err != nil {
		t.Fatal(err)
	}
	entries, err := folder.List(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	type piece struct {
		part string
		text []byte
	}
	for _, size := range []int{1, 7, 1 << 20} {
		grows := protocol.NewID()
		if err := os.Mkdir(folder.path(grows, ""), 0o700); err != nil {
			t.Fatal(err)
		}
		var pieces []piece
		for _, entry := range entries {
			if !strings.HasSuffix(entry.Name, partSuffix) {
				continue
			}
			text, err := os.ReadFile(folder.path(id, entry.Name))
			if err != nil {
				t.Fatal(err)
			}
			for len(text) > 0 {
				n := min(size, len(text))
				pieces, text = append(pieces, piece{entry.Name, text[:n]}), text[n:]
			}
		}
		var got bytes.Buffer
		over := errors.New("there is no more")
		err := FollowCast(t.Context(), folder, grows, &got, func(context.Context) error {
			if len(pieces) == 0 {
				return over
			}
			file, err := os.OpenFile(folder.path(grows, pieces[0].part), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = file.Write(pieces[0].text)
			pieces = pieces[1:]
			return errors.Join(err, file.Close())
		})
		if err != nil || got.String() != want.String() {
			t.Errorf("in pieces of %d: %v\n%s\nwant\n%s", size, err, &got, &want)
		}
	}
}

func TestCollectorsSayWhichSessionsAreConnected(t *testing.T) {
	folder, clock := Folder(t.TempDir()), now
	c := New(Options{Storage: folder, Now: func() time.Time { return clock }})
	id := protocol.NewID()
	alive := func(what string, want bool) {
		t.Helper()
		if found, _, err := Heartbeats(t.Context(), folder, clock); err != nil || len(found) != map[bool]int{true: 1}[want] {
			t.Errorf("%s: %v, %v", what, found, err)
		}
	}
	alive("nobody has said anything", false)
	announce := func(next, last string) (string, error) {
		says := c.heartbeat()
		return c.announce(t.Context(), next, last, &says)
	}
	last, err := announce("a-1.json", "")
	if err != nil || last != "" {
		t.Errorf("of no session it writes %q, %v", last, err)
	}
	c.live[id] = &live{active: clock}
	if last, err = announce("a-2.json", last); err != nil {
		t.Fatal(err)
	}
	alive("it is connected", true)
	if last, err = announce("a-3.json", last); err != nil {
		t.Fatal(err)
	}
	if entries, err := folder.List(t.Context(), heartbeatFolder); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
	clock = clock.Add(HeartbeatLife + time.Second)
	alive("its collector was killed", false)
	delete(c.live, id)
	if last, err = announce("a-4.json", last); err != nil || last != "" {
		t.Errorf("%q, %v", last, err)
	}
	alive("it has ended", false)
	if ids, err := folder.Sessions(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("there are sessions %v, %v", ids, err)
	}
}

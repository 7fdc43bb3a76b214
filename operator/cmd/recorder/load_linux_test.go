package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// A collector that is killed has acknowledged what it has stored, and nothing else. Another
// one, of the same folder, takes its sessions.
func TestNoFrameIsLostOrDoubleWhenACollectorIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	sessions := testkit.Long(100, 8)
	first := p.newCollectorProcess(sessions)
	// Each pause is a process: of a hundred sessions they must not be more than two processors start.
	command := sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep %g; done", testkit.Long(50, 100), testkit.Long(0.2, 0.01)))
	var all sync.WaitGroup
	var mu sync.Mutex
	lost, moved := 0, 0
	for range sessions {
		all.Go(func() {
			ticket := p.ticket(command, func(t *protocol.Ticket) {
				t.Terms.Collectors, t.Terms.Wait = append([]string{first.address}, t.Terms.Collectors...), 60
			})
			got := launch(t, "", p.wrap(ticket, command), true).wait()
			seal, err := p.folder.Verify(ticket.ID, p.key)
			r := p.recording(ticket.ID)
			parts, _ := filepath.Glob(filepath.Join(string(p.folder), ticket.ID, "*.part")) // the pattern is valid
			mu.Lock()
			defer mu.Unlock()
			if len(parts) > 1 {
				moved++
			}
			if err != nil || got.code != 0 || string(r.output) != string(got.stdout) || len(r.gaps) > 0 {
				t.Errorf("%d, %+v, %v: %d bytes recorded, %d seen, gaps %v: %.200q", got.code, seal, err, len(r.output), len(got.stdout), r.gaps, got.stdout)
			}
			lost += misplaced(r.numbers)
		})
	}
	waitFor(t, func() bool { // most are at work
		parts, err := filepath.Glob(filepath.Join(string(p.folder), "*", "*.part"))
		return err != nil || len(parts) >= sessions*9/10
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	testkit.Figure("session.lost_frames", float64(lost), "frames")
	testkit.Figure("session.moved", float64(moved), "sessions")
	if lost > 0 {
		t.Errorf("%d frames are lost or double", lost)
	}
	if moved == 0 {
		t.Error("no session has moved to the other collector")
	}
}

// misplaced counts the frames that do not have the number that they should have.
func misplaced(numbers []uint64) (n int) {
	for i, number := range numbers {
		if number != uint64(i+1) {
			n++
		}
	}
	return n
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestWhatLiveSessionsCost(t *testing.T) {
	p := newPlace(t)
	sessions := testkit.Long(500, 20)
	of := p.newCollectorProcess(sessions + 1)
	command := sh("echo ready; read x")
	weigh := func() int64 { return testkit.Memory(t, of.Process.Pid, "VmRSS") }
	begin := func(n int) (all []*client) {
		for range n {
			ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Collectors = []string{of.address} })
			all = append(all, launch(t, "", p.wrap(ticket, command), true))
			if at := len(all) - 1; at >= 8 { // a few at a time begin
				all[at-8].expect("ready")
			}
		}
		for _, c := range all[max(len(all)-8, 0):] {
			c.expect("ready")
		}
		return all
	}
	clients := begin(1)
	before := weigh()
	clients = append(clients, begin(sessions)...)
	used := float64(weigh()-before) / (1 << 20)
	recorders := make([]float64, len(clients))
	for i, c := range clients {
		recorders[i] = float64(testkit.Memory(t, c.cmd.Process.Pid, "VmRSS")) / (1 << 20)
	}
	slices.Sort(recorders)
	testkit.Figure(fmt.Sprintf("session.live%d_mb", sessions), used, "MiB")
	testkit.Figure("session.live_recorder_rss_mb", recorders[len(recorders)/2], "MiB")
	// The short form runs with the race detector, which weighs more.
	if each, most := used/float64(sessions), testkit.Long(0.25, 4.0); each > most {
		t.Errorf("a session takes %.2f MiB of the collector", each)
	}
	if last := recorders[len(recorders)-1]; last > 32 {
		t.Errorf("a recorder of a quiet session has %.1f MiB", last)
	}
	// A few at a time end: each looks through all processes of this machine, not of a container.
	for some := range slices.Chunk(clients, 8) {
		for _, c := range some {
			c.send("\n")
		}
		for _, c := range some {
			c.wait()
		}
	}
}

func TestWhatAMinuteOfTypingTakes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("stty -icanon; echo ready; exec cat >/dev/null")
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true)
	c.expect("ready")
	keys := 300 // a minute of a fast typist
	for i := range keys {
		key := string(rune('a' + i%26))
		c.send(key)
		c.expect(key)
	}
	c.send("\x03")
	c.wait()
	total := int64(0)
	err := filepath.WalkDir(filepath.Join(string(p.folder), ticket.ID), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".part") {
			return err
		}
		info, err := os.Stat(name)
		total += info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Figure("session.typing_bytes_min", float64(total), "bytes")
	if total > int64(keys)*64 {
		t.Errorf("%d keys take %d bytes", keys, total)
	}
}

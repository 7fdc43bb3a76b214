package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/admitkit/admitkit/extension/session/collector"
	"github.com/admitkit/admitkit/extension/session/protocol"
)

// A collector that is killed has acknowledged what it has stored, and nothing else. Another
// one, of the same folder, takes its sessions.
func TestNoFrameIsLostOrDoubleWhenACollectorIsKilled(t *testing.T) {
	p := newPlace(t)
	second := newPlace(t, func(o *collector.Options) { o.Storage = p.folder })
	relay := newRelay(t, p.server.Listener.Addr().String())
	sessions := 100
	if testing.Short() {
		sessions = 8
	}
	command := sh("i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.01; done")
	var all sync.WaitGroup
	var mu sync.Mutex
	wrong, moved := 0, 0
	for range sessions {
		all.Go(func() {
			ticket := p.ticket(command, func(t *protocol.Ticket) {
				t.Terms.Collectors = []string{relay.Addr().String(), second.server.Listener.Addr().String()}
				t.Terms.CA, t.Terms.Wait = append(t.Terms.CA, second.server.Certificate().Raw), 60
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
			if err != nil || got.code != 0 || string(r.output) != string(got.stdout) || len(r.gaps) > 0 || len(r.numbers) != int(seal.Frames) {
				wrong++
				t.Errorf("%d, %+v, %v: %d bytes recorded, %d seen", got.code, seal, err, len(r.output), len(got.stdout))
			}
		})
	}
	waitFor(t, func() bool { return len(p.Live()) > sessions/2 })
	relay.cut(true) // in the middle of whatever it does
	all.Wait()
	fmt.Printf("FIGURE session.killed_collector_wrong=%d sessions\n", wrong)
	if moved == 0 {
		t.Error("no session has moved to the other collector")
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestWhatLiveSessionsCostACollector(t *testing.T) {
	p := newPlace(t, func(o *collector.Options) {
		o.MaxPodSessions, o.MaxUserSessions = collector.DefaultMaxSessions, collector.DefaultMaxSessions
	})
	sessions, most := 500, 0.25
	if testing.Short() {
		sessions, most = 20, 1 // the tests before have left something
	}
	heap := func() float64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapInuse+stats.StackInuse) / (1 << 20)
	}
	before := heap()
	command := sh("echo ready; read x")
	clients := make([]*client, sessions)
	for i := range clients {
		clients[i] = launch(t, "", p.wrap(p.ticket(command), command), false)
	}
	for _, c := range clients {
		c.expect("ready")
	}
	used := heap() - before // the clients' of this test included
	fmt.Printf("FIGURE session.live%d_mb=%.1f MiB\n", sessions, used)
	if each := used / float64(sessions); each > most {
		t.Errorf("a session takes %.2f MiB", each)
	}
	for _, c := range clients {
		c.send("\n")
	}
	for _, c := range clients {
		c.wait()
	}
}

func TestWhatAMinuteOfTypingTakes(t *testing.T) {
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
	fmt.Printf("FIGURE session.typing_bytes_min=%d bytes\n", total)
	if total > int64(keys)*64 {
		t.Errorf("%d keys take %d bytes", keys, total)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// stubborn ignores what it can, and leaves a process in a session of its own.
var stubborn = sh("trap '' TERM HUP INT; setsid sleep 1000 & echo ready; while :; do sleep 1; done")

// ending is what ends a session, and why.
type ending struct {
	reason string
	// idle is of the ticket, in seconds.
	idle int64
	// begins returns what a collector says at the beginning.
	begins func() collector.Limits
	// now makes it end, at the moment that is returned.
	now func(id string, c *client) (time.Time, error)
}

// ends are the ways in which a session ends early. Its limits are in a map, in place of the
// grants of a cluster.
type ends struct {
	*place
	other *collector.Collector // of another replica
	mu    sync.Mutex
	of    map[string]collector.Limits
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	e := &ends{of: map[string]collector.Limits{}}
	many := func(o *collector.Options) { o.MaxPodSessions, o.MaxUserSessions = 1000, 1000 }
	e.place = newPlace(t, many, func(o *collector.Options) {
		o.Limits = func(ticket *protocol.Ticket) (collector.Limits, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			limits := e.of[ticket.ID]
			limits.Idle = collector.LimitsOf(ticket).Idle
			return limits, nil
		}
	})
	e.other = newPlace(t, func(o *collector.Options) { o.Storage = e.folder }).Collector
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx, func(err error) { t.Error(err) }) }()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

func (e *ends) set(id string, limits collector.Limits) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of[id] = limits
}

func (e *ends) ways() map[string]ending {
	const gone, ended = "access is over", "it was ended by root"
	late := testkit.Long(6*time.Second, 12*time.Second) // beside others a session begins so late
	return map[string]ending{
		"grant": {reason: gone, begins: func() collector.Limits {
			return collector.Limits{End: time.Now().Add(late), Reason: gone}
		}},
		"revoke": {reason: gone, now: func(id string, _ *client) (time.Time, error) {
			e.set(id, collector.Limits{End: time.Unix(1, 0), Reason: gone})
			return time.Now(), e.Refresh(id)
		}},
		"end": {reason: ended, now: func(id string, _ *client) (time.Time, error) {
			return time.Now(), e.RequestEnd(context.Background(), id, ended)
		}},
		"end_elsewhere": {reason: ended, now: func(id string, _ *client) (time.Time, error) {
			return time.Now(), e.other.RequestEnd(context.Background(), id, ended)
		}},
		"idle": {reason: fmt.Sprintf("nothing was typed or sent for %s", late), idle: int64(late / time.Second), now: func(_ string, c *client) (time.Time, error) {
			due := time.Now().Add(late)
			c.send("x\n")
			return due, nil
		}},
	}
}

// run returns how late a session ends.
func (e *ends) run(t *testing.T, how ending, terminal bool, mark string) time.Duration {
	ticket := e.ticket(stubborn, func(t *protocol.Ticket) { t.Terms.Idle = how.idle })
	var due time.Time
	if how.begins != nil {
		limits := how.begins()
		due = limits.End
		e.set(ticket.ID, limits)
	}
	c := launch(t, "", e.wrap(ticket, stubborn), terminal, mark)
	if how.now != nil {
		c.expect("ready")
		var err error
		if due, err = how.now(ticket.ID, c); err != nil {
			t.Error(err)
		}
	}
	got := c.wait()
	late := time.Since(due)
	if got.code != 128+9 || !strings.Contains(string(got.stdout)+string(got.stderr), "the session was ended: "+how.reason) {
		t.Errorf("%d, %q, %q", got.code, got.stdout, got.stderr)
	}
	if seal, err := e.folder.Verify(ticket.ID, e.key); err != nil || seal.End.Reason != how.reason || seal.End.Left > 0 {
		t.Errorf("%+v, %v", seal, err)
	}
	return late
}

func TestSessionsEndOnTimeAndLeaveNothing(t *testing.T) {
	t.Parallel()
	e := newEnds(t)
	sessions, atATime, most := testkit.Long(200, 4), testkit.Long(20, 4), testkit.Long(2*time.Second, patience) // beside other tests
	mark := newMark(t)
	var mu sync.Mutex
	var every []time.Duration
	t.Run("by each way", func(t *testing.T) {
		for name, how := range e.ways() {
			t.Run(name, func(t *testing.T) {
				if testing.Short() { // else it is measured
					t.Parallel()
				}
				var all sync.WaitGroup
				var late []time.Duration
				places := make(chan struct{}, atATime)
				for i := range sessions {
					places <- struct{}{}
					all.Go(func() {
						defer func() { <-places }()
						took := e.run(t, how, i%2 == 0, mark)
						mu.Lock()
						defer mu.Unlock()
						late, every = append(late, took), append(every, took)
					})
				}
				all.Wait()
				p99 := testkit.Percentile(late, 0.99)
				testkit.Figure("session.end_p99_s."+name, p99.Seconds(), "s")
				limit := most
				if name == "end_elsewhere" {
					limit += time.Second // its collector looks once a second
				}
				if first := slices.Min(late); first < 0 || p99 > limit {
					t.Errorf("sessions end %s to %s late", first, p99)
				}
			})
		}
	})
	left := len(marked(t, mark))
	testkit.Figure("session.end_p99_s", testkit.Percentile(every, 0.99).Seconds(), "s")
	testkit.Figure("session.left_after_end", float64(left), "processes")
	if left > 0 {
		t.Errorf("%d processes are left", left)
	}
}

func TestTheUserIsWarnedBeforeTheEndWhichMayMove(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ticket := p.ticket(stubborn)
	c := launch(t, "", p.wrap(ticket, stubborn), true)
	c.expect("ready")
	limit := func(left time.Duration) {
		t.Helper()
		if err := p.Limit(ticket.ID, collector.Limits{End: time.Now().Add(left), Reason: "the grant\nends"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		left time.Duration
		want string
	}{
		{5 * time.Minute, "[admitkit] This session ends in 5 minutes: the grant ends.\r\n"},
		{time.Minute, "[admitkit] This session ends in 1 minute: the grant ends.\r\n"},
	} {
		// The recorder hears of it in time, or the end moves further away.
		for ahead := 200 * time.Millisecond; ; ahead *= 2 {
			limit(step.left + ahead)
			if c.prints(step.want, 2*ahead) {
				break
			}
		}
	}
	limit(time.Hour)
	limit(0)
	c.expect("the session was ended: the grant ends")
	if got := c.wait(); got.code != 128+9 || strings.Count(string(got.stdout), "This session ends") != 2 {
		t.Errorf("%d, %q", got.code, got.stdout)
	}
	// The collector hears of it a moment later than its client.
	waitFor(t, func() bool { return errors.Is(p.Limit(ticket.ID, collector.Limits{}), collector.ErrNotLive) })
}

func TestASessionEndsWhenItsUserDoesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ready; (while :; do echo noise; sleep 0.1; done) & while read x; do echo got $x; done")
	const idle = 12 * time.Second // on a busy machine a key comes late
	ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Idle = int64(idle / time.Second) })
	c := launch(t, "", p.wrap(ticket, command), true)
	c.expect("ready")
	for i := range 3 { // longer than it may be idle
		time.Sleep(idle * 2 / 5)
		c.send(fmt.Sprintf("%d\n", i))
		c.expect(fmt.Sprintf("got %d", i))
	}
	if got := c.wait(); got.code != 128+9 || !strings.Contains(string(got.stdout), "nothing was typed or sent for 12s") {
		t.Errorf("%d, %q", got.code, got.stdout)
	}
	if seal, err := p.folder.Verify(ticket.ID, p.key); err != nil || seal.Length < 2*idle {
		t.Errorf("%+v, %v", seal, err)
	}
}

// An end is the recorder's, so that a session ends without a collector, too.
func TestASessionEndsOnTimeWhileNoCollectorIsReached(t *testing.T) {
	t.Parallel()
	for _, begins := range []bool{false, true} {
		t.Run(fmt.Sprintf("begins with one %t", begins), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			relay := newRelay(t, p.server.Listener.Addr().String())
			relay.cut(!begins)
			const most = 12 * time.Second // on a busy machine it begins late
			began := time.Now()
			ticket := p.ticket(stubborn, func(t *protocol.Ticket) {
				t.Terms.Collectors, t.Terms.Closed, t.Terms.Wait, t.Terms.Max = []string{relay.Addr().String()}, false, 1, int64(most/time.Second)
			})
			c := launch(t, "", p.wrap(ticket, stubborn), true)
			c.expect("ready")
			relay.cut(true)
			got := c.wait()
			if took := time.Since(began); got.code != 128+9 || took < most || took > patience || !strings.Contains(string(got.stdout), protocol.ReasonMax) {
				t.Errorf("after %s: %d, %q", took, got.code, got.stdout)
			}
		})
	}
}

// A command that has become another user's cannot be killed. It loses its terminal or its
// pipes, the session ends nevertheless, and what is left is on record. The recorder runs as
// nobody here, and the command is a shell of root, as of sudo -s.
func TestASessionEndsWhoseCommandIsAnotherUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to install a program that becomes root's")
	}
	path, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip(err)
	}
	setpriv, err := os.ReadFile(path)
	sudo := filepath.Join(publicDir(t), "sudo")
	if err := errors.Join(err, os.WriteFile(sudo, setpriv, 0o755), os.Chmod(sudo, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	// It hears of its terminal, and goes on.
	script := "trap '' HUP TERM INT PIPE; echo ready as $UID; while :; do read -t 1 x; echo more; done 2>/dev/null"
	for name, command := range map[string][]string{
		"the command":            {sudo, "--reuid=0", "bash", "-c", script},
		"started by the command": {"sh", "-c", sudo + ` --reuid=0 bash -c "$0"; echo over`, script},
	} {
		for _, terminal := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, terminal %t", name, terminal), func(t *testing.T) {
				t.Parallel()
				p := newPlace(t)
				p.expose()
				mark := newMark(t)
				ticket := p.ticket(command)
				c := launchAs(t, &syscall.Credential{Uid: 65534, Gid: 65534}, "/", p.wrap(ticket, command), terminal, mark)
				c.expect("ready as 0")
				if err := p.End(ticket.ID, "access is over"); err != nil {
					t.Fatal(err)
				}
				got := c.wait()
				if got.code != 128+9 || !strings.Contains(string(got.stdout)+string(got.stderr), "the session was ended: access is over") {
					t.Errorf("%d, %q, %q", got.code, got.stdout, got.stderr)
				}
				seal, err := p.folder.Verify(ticket.ID, p.key)
				if err != nil || seal.End.Reason != "access is over" || seal.End.Left != 1 {
					t.Errorf("%+v, %v", seal, err)
				}
			})
		}
	}
}

// Two ticks without a heartbeat are most of the time after which a recorder is silent.
func TestAHeartbeatIsSentWithTheTickBeforeItIsDue(t *testing.T) {
	t.Parallel()
	s := newSender("", &protocol.Terms{})
	sent := make(chan bool, 1)
	go func() {
		_, beats := s.gather(nil, nil, time.Now().Add(early/2))
		sent <- beats
	}()
	select {
	case beats := <-sent:
		if !beats {
			t.Error("something else is sent")
		}
	case <-time.After(patience):
		t.Error("it waits for the next tick")
	}
}

// Whoever has the recorder's UID may set its limits. Without a file to open it finds no
// processes, and must not say that there are none.
func TestWhatTheRecorderCannotFindIsOnRecordAsLeft(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip(err)
	}
	var noted chan collector.Note
	p := newPlace(t, func(o *collector.Options) { noted, o.Stall = notes(o), patience })
	mark := newMark(t)
	command := sh("trap '' HUP; setsid sleep 1000 >/dev/null 2>&1 & prlimit --pid $PPID --nofile=0:0 && echo over")
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true, mark)
	if got := c.wait(); got.code != 0 || !strings.Contains(string(got.stdout), "over") {
		t.Errorf("%d, %q", got.code, got.stdout)
	}
	expectNote(t, noted, collector.Left, patience)
	seal, err := p.folder.Verify(ticket.ID, p.key)
	if err != nil || seal.End.Left != 1 || len(seal.Notes) != 1 || len(marked(t, mark)) != 1 {
		t.Errorf("%+v, %v, %d are left", seal, err, len(marked(t, mark)))
	}
}

// publicDir returns a folder that every user can read.
func publicDir(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/var/tmp", "recorder-") // which is not mounted nosuid, as /tmp may be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// notes collects what a collector notices.
func notes(o *collector.Options) chan collector.Note {
	all := make(chan collector.Note, 10)
	o.Stall, o.Noted = 3*time.Second, func(_ *protocol.Ticket, n collector.Note) { all <- n }
	return all
}

func expectNote(t *testing.T, from chan collector.Note, kind string, within time.Duration) {
	t.Helper()
	select {
	case n := <-from:
		if n.Kind != kind {
			t.Errorf("noted %+v instead of %s", n, kind)
		}
	case <-time.After(within):
		t.Errorf("nothing was noted within %s", within)
	}
}

func TestARecorderThatStopsIsOnRecordWithinSeconds(t *testing.T) {
	t.Parallel()
	var noted chan collector.Note
	var end atomic.Pointer[collector.Limits] // also if it connects again
	end.Store(&collector.Limits{})
	p := newPlace(t, func(o *collector.Options) {
		noted, o.Silence = notes(o), patience // it stays connected until it is overdue
		o.Limits = func(*protocol.Ticket) (collector.Limits, error) { return *end.Load(), nil }
	})
	ticket := p.ticket(stubborn)
	c := launch(t, "", p.wrap(ticket, stubborn), true)
	c.expect("ready")
	c.stop()
	end.Store(&collector.Limits{End: time.Now().Add(time.Second), Reason: "access is over"})
	if err := p.Limit(ticket.ID, *end.Load()); err != nil {
		t.Fatal(err)
	}
	// It had to end after 1 s, and cannot.
	kinds := map[string]bool{}
	for range 2 {
		select {
		case n := <-noted:
			kinds[n.Kind] = true
		case <-time.After(patience):
			t.Fatal("nothing was noted")
		}
	}
	if !kinds[collector.Silent] || !kinds[collector.Overdue] {
		t.Errorf("noted %v", kinds)
	}
	c.resume()
	if got := c.wait(); got.code != 128+9 {
		t.Errorf("%d, %q", got.code, got.stdout)
	}
	seal, err := p.folder.Verify(ticket.ID, p.key)
	if err != nil || len(seal.Notes) != 2 {
		t.Errorf("%+v, %v", seal, err)
	}
}

func TestARecorderThatIsKilledIsOnRecordWithinSeconds(t *testing.T) {
	t.Parallel()
	var noted chan collector.Note
	p := newPlace(t, func(o *collector.Options) { noted = notes(o) })
	c := launch(t, "", p.wrap(p.ticket(stubborn), stubborn), true, newMark(t)) // what it leaves ends with the test
	c.expect("ready")
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.wait()
	expectNote(t, noted, collector.Gone, patience)
	fine := sh("exit 0") // of which nothing is noted
	launch(t, "", p.wrap(p.ticket(fine), fine), true).wait()
	if len(noted) > 0 {
		t.Errorf("noted %+v", <-noted)
	}
}

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func TestAForgedExpiredOrUsedTicketIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ran")
	used := p.ticket(command)
	if got := launch(t, "", p.wrap(used, command), false).wait(); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	forged := p.wrap(p.ticket(command), command)
	at := len(forged[1]) - 10
	forged[1] = forged[1][:at] + strings.Map(func(r rune) rune {
		if r == 'A' {
			return 'B'
		}
		return 'A'
	}, forged[1][at:at+1]) + forged[1][at+1:]
	other := p.wrap(p.ticket(sh("echo another")), command)
	for what, test := range map[string]struct {
		argv []string
		why  string
	}{
		"forged":             {forged, "not signed with the key"},
		"expired":            {p.wrap(p.ticket(command, func(t *protocol.Ticket) { t.Expires = time.Now().Unix() - 1 }), command), "has expired"},
		"used":               {p.wrap(used, command), "session has ended"},
		"of another Pod":     {p.wrap(p.ticket(command, func(t *protocol.Ticket) { t.PodUID = "another" }), command), "another Pod"},
		"of another command": {other, "another command"},
		"missing":            {append([]string{p.path}, command...), "started by the webhook"},
		"no ticket":          {[]string{p.path, "--ticket=x", "--", "sh"}, "malformed"},
	} {
		got := launch(t, "", test.argv, false).wait()
		if got.code != exitRefused || len(got.stdout) > 0 || !strings.Contains(string(got.stderr), test.why) {
			if what != "used" || !strings.Contains(string(got.stderr), "was redeemed") {
				t.Errorf("%s: %d, %q, %q", what, got.code, got.stdout, got.stderr)
			}
		}
	}
	if err := os.WriteFile(p.token, []byte("of another audience"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := launch(t, "", p.wrap(p.ticket(command), command), false).wait(); got.code != exitRefused || !strings.Contains(string(got.stderr), collector.ErrToken.Error()) {
		t.Errorf("a token that is not valid: %+v", got)
	}
}

// A ticket is redeemed once, however many recorders come at the same moment. A second claim ends
// the session of the first, which may not have begun to run by then.
func TestOfManyRecordersWithOneTicketOneRunsAtMost(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ran")
	argv := p.wrap(p.ticket(command), command)
	var mu sync.Mutex
	var all sync.WaitGroup
	ran := 0
	for range 8 {
		all.Go(func() {
			got := launch(t, "", argv, false).wait()
			mu.Lock()
			defer mu.Unlock()
			if string(got.stdout) == "ran\n" {
				ran++
			} else if got.code != exitRefused {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	if ran > 1 {
		t.Errorf("%d of them ran", ran)
	}
}

// relay is a network that can be cut, swallow what is sent, or be slow.
type relay struct {
	net.Listener
	to        string
	mu        sync.Mutex
	conns     []net.Conn
	down      bool
	perSecond int           // bytes of each direction of a connection; 0 for any number
	thawed    chan struct{} // is closed while bytes pass
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: listener, to: to, thawed: make(chan struct{})}
	close(r.thawed)
	t.Cleanup(func() { _ = listener.Close(); r.cut(true); r.freeze(false) })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go r.join(from)
		}
	}()
	return r
}

func (r *relay) join(from net.Conn) {
	to, err := net.Dial("tcp", r.to)
	r.mu.Lock()
	if err != nil || r.down {
		r.mu.Unlock()
		_ = from.Close()
		return
	}
	r.conns = append(r.conns, from, to)
	r.mu.Unlock()
	go r.carry(to, from)
	r.carry(from, to)
}

func (r *relay) carry(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	for buffer := make([]byte, 4<<10); ; {
		n, err := from.Read(buffer)
		r.mu.Lock()
		thawed, perSecond := r.thawed, r.perSecond
		r.mu.Unlock()
		<-thawed
		if perSecond > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(perSecond))
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// throttle lets so many bytes pass in a second.
func (r *relay) throttle(perSecond int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.perSecond = perSecond
}

// freeze lets no byte pass, and closes nothing, as a network that loses packets does.
func (r *relay) freeze(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.thawed:
		if on {
			r.thawed = make(chan struct{})
		}
	default:
		if !on {
			close(r.thawed)
		}
	}
}

// cut cuts every connection, and with down those that would come.
func (r *relay) cut(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for _, each := range r.conns {
		_ = each.Close()
	}
	r.conns = nil
}

func TestNoFrameIsLostOrDoubleWhenConnectionsBreak(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	second := newPlace(t, func(o *collector.Options) { o.Storage = p.folder })
	relays := []*relay{newRelay(t, p.server.Listener.Addr().String()), newRelay(t, second.server.Listener.Addr().String())}
	sessions, cuts := 20, 10
	if testing.Short() {
		sessions, cuts = 4, 4
	}
	command := sh("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done")
	done := make(chan struct{})
	var all sync.WaitGroup
	lost := 0
	var mu sync.Mutex
	for range sessions {
		all.Go(func() {
			ticket := p.ticket(command, func(t *protocol.Ticket) {
				t.Terms.Collectors = []string{relays[0].Addr().String(), relays[1].Addr().String()}
				t.Terms.CA = append(t.Terms.CA, second.server.Certificate().Raw)
			})
			got := launch(t, "", p.wrap(ticket, command), true).wait()
			seal, err := p.folder.Verify(ticket.ID, p.key)
			r := p.recording(ticket.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || got.code != 0 || string(r.output) != string(got.stdout) || len(r.gaps) > 0 {
				t.Errorf("%d, %+v, %v, %v; %d bytes recorded, %d seen", got.code, seal, err, r.gaps, len(r.output), len(got.stdout))
			}
			lost += misplaced(r.numbers)
		})
	}
	go func() { all.Wait(); close(done) }()
	for range cuts {
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond): // a connection lasts so long
		}
		for _, each := range relays {
			each.cut(false)
		}
	}
	<-done
	fmt.Printf("FIGURE session.cut_lost_frames=%d frames\n", lost)
	if lost > 0 {
		t.Errorf("%d frames are lost or double", lost)
	}
}

func TestWithoutACollectorThePolicyDecides(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	relay := newRelay(t, p.server.Listener.Addr().String())
	command := sh("echo ready; read x; echo $x; read y; echo $y")
	terms := func(closed bool) func(*protocol.Ticket) {
		return func(t *protocol.Ticket) {
			t.Terms.Collectors, t.Terms.Closed, t.Terms.Wait = []string{relay.Addr().String()}, closed, 3
		}
	}
	t.Run("Closed does not begin", func(t *testing.T) {
		relay.cut(true)
		got := launch(t, "", p.wrap(p.ticket(command, terms(true)), command), true).wait()
		if got.code != exitRefused || !strings.Contains(string(got.stdout), "no collector of sessions was reached for 3s") {
			t.Errorf("%d, %q", got.code, got.stdout)
		}
	})
	t.Run("Closed pauses, and ends", func(t *testing.T) {
		relay.cut(false)
		ticket := p.ticket(command, terms(true))
		c := launch(t, "", p.wrap(ticket, command), true)
		c.expect("ready")
		relay.cut(true)
		c.send("unseen\n")
		got := c.wait()
		if got.code != 128+9 || !strings.Contains(string(got.stdout), "not recorded are not allowed here") {
			t.Errorf("%d, %q", got.code, got.stdout)
		}
		if _, err := p.folder.Verify(ticket.ID, p.key); !errors.Is(err, collector.ErrNotSealed) {
			t.Errorf("the recording of a session that was lost: %v", err)
		}
	})
	t.Run("Open goes on, and has a gap", func(t *testing.T) {
		relay.cut(true)
		ticket := p.ticket(command, terms(false))
		c := launch(t, "", p.wrap(ticket, command), true)
		c.expect("ready")
		c.send("unseen\n")
		c.expect("unseen\r\nunseen\r\n")
		relay.cut(false)
		waitFor(t, func() bool { return len(p.recording(ticket.ID).gaps) > 0 }) // not before the recorder knows, too
		c.send("seen\n")
		got := c.wait()
		r := p.recording(ticket.ID)
		if got.code != 0 || len(r.gaps) != 1 || string(r.output) != "seen\r\nseen\r\n" {
			t.Errorf("%d, %q; the recording has %q, %q", got.code, got.stdout, r.gaps, r.output)
		}
	})
}

// A network that refuses is noticed at once, one that swallows what is sent after the
// recorder's silence.
func TestWhileTheNetworkIsCutThePolicyDecides(t *testing.T) {
	t.Parallel()
	const long = 60 // seconds
	cut, lines := testkit.Long(30*time.Second, 4*time.Second), testkit.Long(450, 80)
	command := sh(fmt.Sprintf("echo ready; i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 0.1; done", lines))
	for _, test := range []struct {
		swallows, closed bool
		wait             int
		ends, misses     bool
	}{
		{false, true, long, false, false},
		{false, false, long, false, false},
		{false, true, 2, true, false},
		{false, false, 2, false, true},
		{true, true, long, false, false},
		{true, false, long, false, false},
		{true, true, 2, true, false},
		{true, false, 2, false, true},
	} {
		t.Run(fmt.Sprintf("swallows %t, closed %t, waits %d s", test.swallows, test.closed, test.wait), func(t *testing.T) {
			t.Parallel()
			if test.swallows && test.wait < long && testing.Short() {
				t.Skip("takes 30 s")
			}
			p := newPlace(t)
			network := newRelay(t, p.server.Listener.Addr().String())
			ticket := p.ticket(command, func(t *protocol.Ticket) {
				t.Terms.Collectors, t.Terms.Closed, t.Terms.Wait = []string{network.Addr().String()}, test.closed, test.wait
			})
			c := launch(t, "", p.wrap(ticket, command), true)
			c.expect("line 5")
			if test.swallows {
				network.freeze(true)
			} else {
				network.cut(true)
			}
			over := time.AfterFunc(cut, func() { network.freeze(false); network.cut(false) })
			defer over.Stop()
			began := time.Now()
			got := c.wait()
			if test.ends {
				if took := time.Since(began); got.code != 128+9 || !strings.Contains(string(got.stdout), "not recorded are not allowed here") || took > patience {
					t.Errorf("after %s: %d, %q", took, got.code, got.stdout)
				}
				return
			}
			p.explained(t, p.folder, ticket, got, !test.misses)
		})
	}
}

func TestACollectorEndsASession(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("trap '' TERM HUP INT; setsid sleep 1000 & echo ready; while :; do sleep 1; done")
	mark := newMark(t)
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true, mark)
	c.expect("ready")
	if err := p.Say(ticket.ID, "5 minutes\x1b[2J are left"); err != nil {
		t.Fatal(err)
	}
	c.expect("[admitkit] 5 minutes [2J are left\r\n")
	if err := p.End(ticket.ID, "access is over"); err != nil {
		t.Fatal(err)
	}
	got := c.wait()
	if got.code != 128+9 || !strings.Contains(string(got.stdout), "the session was ended: access is over") {
		t.Errorf("%d, %q", got.code, got.stdout)
	}
	if left := marked(t, mark); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
	seal, err := p.folder.Verify(ticket.ID, p.key)
	if err != nil || seal.End.Reason != "access is over" || seal.End.Killed < 1 {
		t.Errorf("%+v, %v", seal, err)
	}
	// The collector hears of it a moment later than its client.
	waitFor(t, func() bool { return errors.Is(p.End(ticket.ID, "again"), collector.ErrNotLive) })
}

func TestWhatIsTypedIsRecordedIfTheTermsSaySoButPasswords(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ready; read name; stty -echo; printf 'Password: '; read x; stty echo; echo; echo done")
	for _, input := range []bool{false, true} {
		ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Input = input })
		c := launch(t, "", p.wrap(ticket, command), true)
		typed("ready", "alice\n", "Password: ", "secret\n", "done", "")(c)
		c.wait()
		want := ""
		if input {
			want = "alice\n"
		}
		if got := string(p.recording(ticket.ID).input); got != want {
			t.Errorf("input %t: recorded %q", input, got)
		}
	}
}

// The user who is recorded may have the recorder's UID.
func TestTheRecorderGuardsItself(t *testing.T) {
	p := newPlace(t)
	command := sh("echo ready; sleep 1000")
	mark := newMark(t)
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true, mark)
	c.expect("ready")
	pid := c.cmd.Process.Pid
	outer, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // who has CAP_SYS_ADMIN can open it
		if err := os.Chmod(outer, 0o666); err != nil {
			t.Fatal(err)
		}
		intruder := exec.Command("sh", "-c", "echo x >"+outer)
		intruder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if text, err := intruder.CombinedOutput(); err == nil || !strings.Contains(string(text), "busy") {
			t.Errorf("somebody opens the outer terminal: %v, %q", err, text)
		}
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the memory of the recorder is not root's: %v, %v", info, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := c.wait(); got.code != 128+9 {
		t.Errorf("%+v", got)
	}
	waitFor(t, func() bool { return len(marked(t, mark)) == 0 })
	if _, err := p.folder.Verify(ticket.ID, p.key); !errors.Is(err, collector.ErrNotSealed) {
		t.Errorf("the recording: %v", err)
	}
}

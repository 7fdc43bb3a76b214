package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// asThief has the variable by which this program steals the tickets for the collector at an address,
// which it has with the file of the token.
const asThief = "ADMITKIT_TEST_THIEF"

// steal watches /proc for recorders that start, and redeems the ticket on the command line of each.
func steal(told string) {
	address, token, _ := strings.Cut(told, " ")
	content, err := os.ReadFile(token)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	for seen := map[string]bool{}; ; {
		for _, pid := range namesIn("/proc") {
			line, err := os.ReadFile("/proc/" + pid + "/cmdline")
			if err != nil || !bytes.Contains(line, []byte("--ticket=")) {
				continue
			}
			arguments := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
			text, command, ok := protocol.Split(append([]string{protocol.Program}, arguments[1:]...))
			ticket, err := protocol.Parse(text)
			if !ok || err != nil || ticket.Terms.Collectors[0] != address || seen[ticket.ID] {
				continue
			}
			seen[ticket.ID] = true
			_ = forge(address, strings.TrimSpace(string(content)), text, command) // or the recorder was faster
		}
	}
}

// forge sends a recording of the thief's own.
func forge(address, token, ticket string, command []string) error {
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	from := bufio.NewReader(conn)
	thief := &sender{text: ticket, secret: strings.Repeat("e", 40)}
	if _, err := thief.upgrade(conn, from, address, token); err != nil {
		return err
	}
	head, _ := json.Marshal(protocol.Head{Time: time.Now().UTC(), Command: command})
	end, _ := json.Marshal(protocol.End{})
	var all []byte
	for seq, f := range []protocol.Frame{{Type: protocol.Begin, Data: head}, {Type: protocol.Output, Data: []byte("forged")}, {Type: protocol.Exit, Data: end}} {
		f.Seq = uint64(seq + 1)
		all = f.Append(all)
	}
	if _, err := conn.Write(all); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, from)
	return nil
}

// The container runtime shows the command line of a recorder that starts to every process of its
// container, which has the token of the Pod, too.
func TestAThiefOfTicketsForgesNoRecordingThatIsValid(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	type theft struct {
		*place
		name string
		saw  map[string]outcome // by ID
	}
	var thefts []theft
	for name, uid := range map[string]uint32{"of the recorder's UID": nobody.Uid, "of another UID": nobody.Uid - 1} {
		p := newPlace(t, func(o *collector.Options) { o.Settle = 0 }) // as it is served
		p.expose()
		stop := p.thief(uid)
		saw := map[string]outcome{}
		for range testkit.Long(100, 4) {
			command := sh("echo genuine")
			ticket := p.ticket(command)
			saw[ticket.ID] = launchAs(t, nobody, "/", p.wrap(ticket, command), true).wait()
		}
		stop()
		thefts = append(thefts, theft{p, name, saw})
	}
	sessions, contested, forged := 0, 0, 0
	for _, p := range thefts {
		for id, got := range p.saw {
			sessions++
			var err error
			testkit.Within(t, patience, "the recording is sealed", func(context.Context) bool {
				_, err = p.folder.Verify(id, p.key)
				return !errors.Is(err, collector.ErrNotSealed)
			})
			output := string(p.recording(id).output)
			switch {
			case err == nil && (output != string(got.stdout) || got.code != 0):
				forged++
				t.Errorf("a thief %s: %q is valid, and the user saw %d, %q", p.name, output, got.code, got.stdout)
			case errors.Is(err, collector.ErrContested):
				contested++
			case err != nil:
				t.Errorf("a thief %s: %v", p.name, err)
			}
		}
	}
	testkit.Figure("ticket.sessions", float64(sessions), "sessions")
	testkit.Figure("ticket.contested", float64(contested), "sessions")
	testkit.Figure("ticket.forged_valid", float64(forged), "recordings")
	if contested == 0 && !testing.Short() {
		t.Error("no thief has had a ticket, which shows nothing")
	}
}

// thief starts one, which ends when it is stopped.
func (p *place) thief(uid uint32) (stop func()) {
	p.t.Helper()
	program := filepath.Join(publicDir(p.t), "thief")
	content, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, writeProgram(program, content)); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Env = []string{asThief + "=" + net.JoinHostPort("127.0.0.1", strconv.Itoa(p.server.Listener.Addr().(*net.TCPAddr).Port)) + " " + p.token}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	p.t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		stop()
		p.t.Fatalf("the thief says %q, %v", line, err)
	}
	return stop
}

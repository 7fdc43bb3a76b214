package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// sample is a session, which is run without a recorder and with one.
type sample struct {
	terminal bool
	command  []string
	// play is what the client does.
	play func(c *client)
	// leaves says that the command leaves processes behind, which only the recorder ends.
	leaves bool
	// gone says that the client goes away before the end.
	gone bool
	// endless says that how much is read of what the command prints depends on timing.
	endless bool
	// after is where the comparison of what is printed begins: what an editor paints before
	// depends on timing.
	after string
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func samples(short bool) map[string]sample {
	big := 100
	if short {
		big = 4
	}
	all := map[string]sample{
		"it exits with a code":            {command: sh("exit 42")},
		"it is killed":                    {command: sh("kill -KILL $$")},
		"it is killed on a terminal":      {terminal: true, command: sh("kill -TERM $$")},
		"it crashes":                      {command: sh("kill -SEGV $$")},
		"it prints to both":               {command: sh("echo out; echo err >&2; exit 3")},
		"arguments, environment, folder":  {command: []string{"sh", "-c", `env | sort | grep -v ADMITKIT; echo "$0" "$@" $#`, "zero", "b c", "", "--", "-x", "*"}},
		"limits and signals":              {command: sh("ulimit -a; umask; grep -E 'Sig(Blk|Ign)|NoNewPrivs|CapEff' /proc/self/status; ls /proc/self/fd")},
		"limits and signals, on terminal": {terminal: true, command: sh("ulimit -a; umask; grep -E 'Sig(Blk|Ign)|NoNewPrivs' /proc/self/status; ls /proc/self/fd; stty -a")},
		"a script from standard input": {command: []string{"sh"}, play: func(c *client) {
			c.send("echo one; exit 5\n")
		}},
		"binary data in and out": {command: []string{"cat"}, play: func(c *client) {
			c.send(testkit.Noise(5 << 20))
			c.closeInput()
		}},
		"the end of the input is not the end": {command: sh("cat | wc -c; sleep 0.1; echo later"), play: func(c *client) {
			c.send("12345")
			c.closeInput()
		}},
		"the input stays open":              {command: sh("head -c 3"), play: func(c *client) { c.send("abcdef") }},
		"it closes its output":              {command: sh("exec >&-; cat; exit 6"), play: func(c *client) { c.expectEnd(); c.closeInput() }},
		"nobody reads what it prints":       {command: sh("yes; exit 7"), play: func(c *client) { c.expect("y\ny\n"); _ = c.stdoutR.Close() }, endless: true},
		"a signal from outside":             {command: sh("trap 'echo got; exit 8' TERM; echo ready; while :; do sleep 0.02; done"), play: func(c *client) { c.expect("ready"); _ = c.cmd.Process.Signal(syscall.SIGTERM) }},
		"files come (kubectl cp)":           {command: []string{"tar", "xmf", "-"}, play: func(c *client) { c.send(archiveOf(3, 100<<10)); c.closeInput() }},
		"files go (kubectl cp)":             {command: sh("mkdir d; head -c 300000 /dev/zero >d/zeros; echo x >d/é; tar --mtime=@0 --owner=0 --group=0 --sort=name -cf - d")},
		"it leaves processes":               {command: sh("sleep 1000 >/dev/null 2>&1 </dev/null & setsid sleep 1000 >/dev/null 2>&1 </dev/null & exit 4"), leaves: true},
		"it leaves processes on a terminal": {terminal: true, command: sh("trap '' HUP; sleep 1000 >/dev/null 2>&1 </dev/null & setsid sleep 1000 >/dev/null 2>&1 </dev/null & exit 4"), leaves: true},
		"it is on a terminal":               {terminal: true, command: sh("test -t 0 && test -t 1 && test -t 2 && echo yes >/dev/tty; stty size; ps -o pid= -o tpgid= -p $$ | awk '{print $1==$2}'")},
		"the window changes": {terminal: true, command: sh("trap 'stty size; exit 9' WINCH; echo ready; while :; do sleep 0.02; done"), play: func(c *client) {
			c.expect("ready")
			c.resize(50, 132)
			c.expect("50 132")
		}},
		"Ctrl-C":                   {terminal: true, command: sh("trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.02; done"), play: typed("ready", "\x03")},
		"Ctrl-C without a handler": {terminal: true, command: sh("echo ready; exec sleep 1000"), play: typed("ready", "\x03")},
		"Ctrl-\\":                  {terminal: true, command: sh("ulimit -c 0; echo ready; exec sleep 1000"), play: typed("ready", "\x1c")},
		"Ctrl-D":                   {terminal: true, command: sh("echo ready; exec cat"), play: typed("ready", "hello\n", "hello\r\nhello\r\n", "\x04")},
		"Ctrl-S and Ctrl-Q": {terminal: true, command: sh("echo ready; read x; echo $x"), play: func(c *client) {
			c.expect("ready")
			c.send("\x13one\n\x11")
			c.expect("one\r\none")
		}},
		"Ctrl-Z and job control": {terminal: true, command: []string{"bash", "--norc", "--noediting", "-i"}, play: func(c *client) {
			c.expect("> ")
			c.send("cat\n")
			c.expect("cat\r\n")
			c.send("first\n")
			c.expect("first\r\nfirst\r\n")
			c.send("\x1a")
			c.expect("Stopped")
			c.expect("> ")
			c.send("fg\n")
			c.expect("cat\r\n")
			c.send("hello\n")
			c.expect("hello\r\nhello\r\n")
			c.send("\x04")
			c.expect("> ")
			c.send("exit 11\n")
		}},
		"a line editor": {terminal: true, command: []string{"bash", "--norc", "-i"}, play: func(c *client) {
			c.expect("> ")
			c.send("echo aé\x7fb\n")
			c.expect("ab\r\n")
			c.expect("> ")
			c.send("exit\n")
		}},
		"a character in two writes": {terminal: true, command: sh(`printf '\303'; sleep 0.1; printf '\251\342'; sleep 0.1; printf '\202\254\n'`)},
		"bytes that are no text":    {terminal: true, command: sh("stty -opost; head -c 200000 /bin/sh")},
		"a password":                {terminal: true, command: sh("stty -echo; printf 'Password: '; read x; stty echo; echo; echo ${#x}"), play: typed("Password: ", "secret\n", "6")},
		"much output":               {terminal: true, command: sh(fmt.Sprintf("head -c %d000000 /dev/zero | tr '\\0' x | fold -w 99", big))},
		"a pager": {terminal: true, command: sh("seq 1000 | less"), play: func(c *client) {
			c.expect("23")
			c.send(" ")
			c.expect("46")
			c.send("G")
			c.expect("1000")
			c.send("q")
		}},
		"an editor on the whole screen": {terminal: true, after: "--saved--", command: sh("vim -u NONE -N -n f; echo --saved--; cat f"), play: func(c *client) {
			c.expect("~")
			c.send("ihello é\x1b:wq\r")
		}},
		"its terminal goes away": {terminal: true, command: sh("trap 'echo hup >hup; exit 1' HUP; echo ready; while :; do sleep 0.02; done"), play: func(c *client) { c.expect("ready"); c.hangUp() }, gone: true},
	}
	return all
}

// typed returns a play of texts that are awaited and texts that are typed.
func typed(steps ...string) func(c *client) {
	return func(c *client) {
		for i, step := range steps {
			if i%2 == 0 {
				c.expect(step)
			} else {
				c.send(step)
			}
		}
	}
}

func TestASessionBehavesAsWithoutTheRecorder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var wrong, left atomic.Int64
	all := samples(testing.Short())
	t.Run("together", func(t *testing.T) {
		for name, sample := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() {
					if t.Failed() {
						wrong.Add(1)
					}
				})
				left.Add(int64(compare(t, p, sample)))
			})
		}
	})
	fmt.Printf("FIGURE session.cases=%d cases\nFIGURE session.wrong=%d cases\nFIGURE session.left_processes=%d processes\n", len(all), wrong.Load(), left.Load())
}

// compare returns how many processes the recorder has left.
func compare(t *testing.T, p *place, s sample) (left int) {
	folder := filepath.Join(t.TempDir(), "f")
	do := func(argv []string, mark string) outcome {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		c := launch(t, folder, argv, s.terminal, mark, "LESSHISTFILE=-")
		if s.play != nil {
			s.play(c)
		}
		return c.wait()
	}
	mark := "ADMITKIT_MARK=" + protocol.NewID()
	plain := do(s.command, mark)
	for _, pid := range marked(t, mark) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		if !s.leaves {
			t.Errorf("process %d is left without the recorder", pid)
		}
	}
	mark = "ADMITKIT_MARK=" + protocol.NewID()
	ticket := p.ticket(s.command)
	recorded := do(p.wrap(ticket, s.command), mark)
	left = len(marked(t, mark))
	if left > 0 {
		t.Errorf("%d processes are left", left)
	}
	if plain.code != recorded.code {
		t.Errorf("the exit code is %d, and %d without the recorder", recorded.code, plain.code)
	}
	if s.endless {
		plain.stdout, recorded.stdout = nil, nil
	}
	if got, want := tail(recorded.stdout, s.after), tail(plain.stdout, s.after); !bytes.Equal(got, want) {
		t.Errorf("printed %s, and without the recorder %s", brief(got), brief(want))
	}
	if !bytes.Equal(plain.stderr, recorded.stderr) {
		t.Errorf("stderr is %s, and without the recorder %s", brief(recorded.stderr), brief(plain.stderr))
	}
	p.check(t, ticket, s, recorded)
	return left
}

// check compares a recording with what the client saw.
func (p *place) check(t *testing.T, ticket *protocol.Ticket, s sample, seen outcome) {
	seal, err := p.folder.Verify(ticket.ID, p.key)
	if err != nil {
		t.Fatal(err)
	}
	r := p.recording(ticket.ID)
	if seal.End.Code != seen.code || r.end != seal.End {
		t.Errorf("the recording ends with %+v, its seal with %+v, the command with %d", r.end, seal.End, seen.code)
	}
	if s.terminal {
		if !bytes.HasPrefix(r.output, seen.stdout) || len(r.output) > len(seen.stdout) && !s.gone {
			t.Errorf("the recording has %s, the client saw %s", brief(r.output), brief(seen.stdout))
		}
		return
	}
	for name, content := range map[string][]byte{"stdout": seen.stdout, "stderr": seen.stderr} {
		sum := r.streams[name]
		if s.endless && name == "stdout" {
			continue
		}
		if sum.Bytes != int64(len(content)) || sum.SHA256 != hexSum(content) {
			t.Errorf("%s: the recording has %+v, the client saw %s", name, sum, brief(content))
		}
	}
	if _, ok := r.streams["stdin"]; !ok {
		t.Error("the recording has no sum of the input")
	}
}

func TestEveryExitCodeArrives(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	step := 1
	if testing.Short() {
		step = 51
	}
	for code := 0; code <= 255; code += step {
		command := sh(fmt.Sprintf("exit %d", code))
		if got := launch(t, "", p.wrap(p.ticket(command), command), false).wait(); got.code != code {
			t.Errorf("%d arrives as %d: %s", code, got.code, got.stderr)
		}
	}
}

func TestACommandThatIsNotThereSaysSo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for code, command := range map[int][]string{127: {"no-such-command"}, 126: {"/etc/passwd"}} {
		ticket := p.ticket(command)
		got := launch(t, "", p.wrap(ticket, command), false).wait()
		if got.code != code || !strings.Contains(string(got.stderr), command[0]) {
			t.Errorf("%q: %d, %q", command, got.code, got.stderr)
		}
		if seal, err := p.folder.Verify(ticket.ID, p.key); err != nil || seal.End.Code != code {
			t.Errorf("%q: %+v, %v", command, seal, err)
		}
	}
}

func tail(text []byte, after string) []byte {
	if after != "" {
		_, text, _ = bytes.Cut(text, []byte(after))
	}
	return text
}

func brief(text []byte) string {
	if len(text) <= 2000 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%d bytes, SHA-256 %s, %q...", len(text), hexSum(text), text[:100])
}

func TestTheRecorderIsSmall(t *testing.T) {
	path, err := recorder()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	size := float64(info.Size()) / (1 << 20)
	fmt.Printf("FIGURE session.recorder_binary_mb=%.2f MiB\n", size)
	if size > 8 {
		t.Errorf("it has %.2f MiB", size)
	}
	folder := t.TempDir()
	if c := launch(t, "", []string{path, "install", folder}, false).wait(); c.code != 0 {
		t.Fatalf("%+v", c)
	}
	installed, err := os.Stat(filepath.Join(folder, "recorder"))
	if err != nil || installed.Mode().Perm() != 0o111 || installed.Size() != info.Size() {
		t.Errorf("installed: %v, %v", installed, err)
	}
	if c := launch(t, "", []string{filepath.Join(folder, "recorder"), "version"}, false).wait(); c.code != 0 {
		t.Errorf("what is installed does not run: %+v", c)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/hinshun/vt10x"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// screen returns what a terminal shows: each cell with its colours, and the cursor.
func screen(of vt10x.Terminal) string {
	var text strings.Builder
	cols, rows := of.Size()
	for y := range rows {
		for x := range cols {
			cell := of.Cell(x, y)
			fmt.Fprintf(&text, "%c/%d/%d/%d ", max(cell.Char, ' '), cell.FG, cell.BG, cell.Mode)
		}
	}
	cursor := of.Cursor()
	fmt.Fprintf(&text, "%dx%d at %d,%d", cols, rows, cursor.X, cursor.Y)
	return text.String()
}

// replay shows the exported recording to a terminal.
func replay(t *testing.T, cast []byte) vt10x.Terminal {
	t.Helper()
	lines := bytes.Split(bytes.TrimSpace(cast), []byte("\n"))
	var head struct{ Term struct{ Cols, Rows int } }
	if err := json.Unmarshal(lines[0], &head); err != nil {
		t.Fatal(err)
	}
	terminal := vt10x.New(vt10x.WithSize(head.Term.Cols, head.Term.Rows))
	for _, line := range lines[1:] {
		var event [3]any
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch data := event[2].(string); event[1] {
		case "o":
			if _, err := terminal.Write([]byte(data)); err != nil {
				t.Fatal(err)
			}
		case "r":
			var cols, rows int
			if _, err := fmt.Sscanf(data, "%dx%d", &cols, &rows); err != nil {
				t.Fatal(err)
			}
			terminal.Resize(cols, rows)
		}
	}
	return terminal
}

// A key that is typed after the window has changed finds the new size, as on a terminal, and
// the recording has them in that order. While the recorder is stopped, both wait for it.
func TestAKeyFindsTheSizeThatTheWindowHadBefore(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ready; while read x; do stty size; done")
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true)
	c.expect("ready\r\n")
	want := "ready\r\n"
	for rows := range uint16(20) {
		c.stop()
		c.resize(30+rows, 50)
		c.send("\n")
		c.resume()
		line := fmt.Sprintf("\r\n%d 50\r\n", 30+rows)
		c.expect(line)
		want += fmt.Sprintf("[%dx50]", 30+rows) + line
	}
	c.send("\x04")
	c.wait()
	got := ""
	err := p.folder.Frames(ticket.ID, func(f *protocol.Frame) error {
		switch f.Type {
		case protocol.Output:
			got += string(f.Data)
		case protocol.Resize:
			var size protocol.Size
			err := json.Unmarshal(f.Data, &size)
			got += fmt.Sprintf("[%dx%d]", size.Rows, size.Cols)
			return err
		}
		return nil
	})
	if err != nil || got != want {
		t.Errorf("the recording has, %v,\n%q\nand not\n%q", err, got, want)
	}
}

func TestARecordingReplaysToTheSameScreen(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for name, test := range map[string]struct {
		program string
		command []string
		play    func(c *client)
		shows   string
	}{
		"colours, moves and characters of many bytes": {"sh", sh(`printf '\033[2J\033[5;10H\033[1;31mred\033[0m caf\303\251 \344\270\226'; printf '\033[10;1H\033[7mlast\033[0m\033[3A'; echo done`), func(c *client) { c.expect("done") }, "last"},
		"another size": {"sh", sh(`echo ready; read x; printf '\033[2J\033[20;1H'; seq 30 | tr '\n' ' '; stty size`), func(c *client) { c.expect("ready"); c.resize(40, 50); c.send("\n"); c.expect("40 50") }, "40 50"},
		"vim": {"vim", []string{"vim", "-u", "NONE", "-N", "-n"}, func(c *client) {
			c.expect("VIM")
			c.send("ihello\rworld\x1b:1\r")
			c.expect("world")
			c.send("yyp:q!\r")
		}, "world"},
		"less, searching": {"less", sh("seq 500 | LESS= less -X"), func(c *client) {
			c.expect("23")
			c.send("G")
			c.expect("500")
			c.send("?300\r")
			c.expect("300")
			c.send("q")
		}, "300"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(test.program); err != nil {
				t.Skip(err)
			}
			ticket := p.ticket(test.command)
			c := launch(t, "", p.wrap(ticket, test.command), true)
			test.play(c)
			got := c.wait()
			var cast bytes.Buffer
			if err := p.folder.Cast(ticket.ID, &cast); err != nil {
				t.Fatal(err)
			}
			replayed := replay(t, cast.Bytes())
			cols, rows := replayed.Size()
			seen := vt10x.New(vt10x.WithSize(80, 24))
			before, after, resized := bytes.Cut(got.stdout, []byte("ready\r\n"))
			if resized {
				_, _ = seen.Write(append(before, "ready\r\n"...)) // never fails
				seen.Resize(cols, rows)
				before = after
			}
			_, _ = seen.Write(before) // never fails
			if screen(seen) != screen(replayed) {
				t.Errorf("the user saw\n%s\nand the recording shows\n%s", seen, replayed)
			}
			if !strings.Contains(replayed.String(), test.shows) {
				t.Errorf("the screen does not show %q:\n%s", test.shows, replayed)
			}
		})
	}
}

package collector

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

var (
	key = protocol.Key{Current: bytes.Repeat([]byte("k"), 32)}
	now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func jsonOf(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// record makes a recording in two parts, which have a frame in common, and seals it.
func record(t *testing.T) (folder Folder, id string) {
	t.Helper()
	return recordIn(t, Folder(t.TempDir()))
}

func recordIn(t *testing.T, folder Folder) (_ Folder, id string) {
	t.Helper()
	id = protocol.NewID()
	frames := []protocol.Frame{
		{Type: protocol.Begin, Data: jsonOf(t, protocol.Head{Time: now, Command: []string{"sh", "-i"}, Terminal: true, Size: protocol.Size{Cols: 100, Rows: 30}, Term: "xterm"})},
		{Type: protocol.Output, At: time.Second, Data: []byte("caf\xc3")},
		{Type: protocol.Resize, At: 1500 * time.Millisecond, Data: jsonOf(t, protocol.Size{Cols: 80, Rows: 24})},
		{Type: protocol.Output, At: 2 * time.Second, Data: []byte("\xa9 \xff\xe2\x82")},
		{Type: protocol.Exit, At: 3 * time.Second, Data: jsonOf(t, protocol.End{Code: 3})},
	}
	for i := range frames {
		frames[i].Seq = uint64(i + 1)
	}
	if err := os.Mkdir(folder.path(id, ""), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := redeem(folder, &Redeemed{Ticket: protocol.Ticket{ID: id, User: "alice", Namespace: "apps", Expires: now.Add(time.Minute).Unix()}, At: now}, key); err != nil {
		t.Fatal(err)
	}
	first, err := resume(folder, id, key)
	if err != nil {
		t.Fatal(err)
	}
	second, err := resume(folder, id, key) // before anything has arrived
	if err != nil {
		t.Fatal(err)
	}
	for i := range frames[:3] {
		if err := errors.Join(first.add(&frames[i]), first.flush()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range frames {
		if err := errors.Join(second.add(&frames[i]), second.flush()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := second.seal(now); err != nil {
		t.Fatal(err)
	}
	first.close()
	second.close()
	return folder, id
}

func TestARecordingIsWholeUntilSomebodyChangesIt(t *testing.T) {
	folder, id := record(t)
	seal, err := folder.Verify(id, key)
	if err != nil || seal.Frames != 5 || seal.End.Code != 3 || seal.Length != 3*time.Second {
		t.Fatalf("%+v, %v", seal, err)
	}
	edit := func(name string, change func([]byte) []byte) func(*testing.T, Folder, string) {
		return func(t *testing.T, folder Folder, id string) {
			content, err := os.ReadFile(folder.path(id, name))
			if err == nil {
				err = os.WriteFile(folder.path(id, name), change(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(*testing.T, Folder, string) {
		return func(t *testing.T, folder Folder, id string) {
			for _, name := range names {
				if err := os.Remove(folder.path(id, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for what, test := range map[string]struct {
		change func(*testing.T, Folder, string)
		want   error
	}{
		"a part is gone":               {remove("000002.part"), ErrChanged},
		"whose it was is gone":         {remove(sessionFile), ErrChanged},
		"it is somebody else's":        {edit(sessionFile, func(text []byte) []byte { return bytes.Replace(text, []byte("alice"), []byte("bob"), 1) }), ErrChanged},
		"it was somewhere else":        {edit(sessionFile, func(text []byte) []byte { return bytes.Replace(text, []byte("apps"), []byte("shop"), 1) }), ErrChanged},
		"all parts are gone":           {remove("000001.part", "000002.part"), ErrChanged},
		"the end is cut off":           {edit("000002.part", func(c []byte) []byte { return c[:len(c)-10] }), ErrChanged},
		"a byte is another":            {edit("000001.part", func(c []byte) []byte { return bytes.Replace(c, []byte("caf"), []byte("bar"), 1) }), ErrChanged},
		"a time is another":            {edit("000002.part", func(c []byte) []byte { c[len(c)-30]++; return c }), ErrChanged},
		"something is appended":        {edit("000002.part", func(c []byte) []byte { return append(c, c[len(c)-25:]...) }), ErrChanged},
		"the seal is gone":             {remove(sealFile), ErrNotSealed},
		"the seal has another code":    {edit(sealFile, func(c []byte) []byte { return bytes.Replace(c, []byte(`"code":3`), []byte(`"code":0`), 1) }), ErrChanged},
		"the seal is that of a forger": {edit(sealFile, func([]byte) []byte { return []byte("{}") }), ErrChanged},
	} {
		t.Run(what, func(t *testing.T) {
			folder, id := record(t)
			test.change(t, folder, id)
			if seal, err := folder.Verify(id, key); !errors.Is(err, test.want) {
				t.Errorf("%+v, %v", seal, err)
			}
		})
	}
	if _, err := folder.Verify("../"+id, key); err == nil {
		t.Error("a path is an ID")
	}
}

func TestATornFrameIsSentAgain(t *testing.T) {
	folder, id := Folder(t.TempDir()), protocol.NewID()
	frames := []protocol.Frame{{Type: protocol.Output, Seq: 1, Data: []byte("one")}, {Type: protocol.Output, Seq: 2, Data: []byte("two")}}
	if err := os.Mkdir(folder.path(id, ""), 0o700); err != nil {
		t.Fatal(err)
	}
	wire := frames[1].Append(frames[0].Append(nil))
	if err := os.WriteFile(folder.path(id, "000001.part"), wire[:len(wire)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := resume(folder, id, key)
	if err != nil || r.next != 2 || filepath.Base(r.part.(folderPart).Name()) != "000002.part" {
		t.Fatalf("%+v, %v", r, err)
	}
	defer r.close()
	if err := errors.Join(r.add(&frames[0]), r.add(&frames[1]), r.flush()); err != nil {
		t.Fatal(err)
	}
	if err := r.add(&protocol.Frame{Type: protocol.Output, Seq: 4}); !errors.Is(err, protocol.ErrFrame) {
		t.Errorf("a frame is left out: %v", err)
	}
	var text strings.Builder
	if err := folder.Frames(id, func(f *protocol.Frame) error { text.Write(f.Data); return nil }); err != nil || text.String() != "onetwo" {
		t.Errorf("%q, %v", text.String(), err)
	}
}

// The format is that of https://docs.asciinema.org/manual/asciicast/v3/.
func TestARecordingIsExportedAsAsciicast(t *testing.T) {
	folder, id := record(t)
	var text strings.Builder
	if err := folder.Cast(id, &text); err != nil {
		t.Fatal(err)
	}
	want := `{"version":3,"term":{"cols":100,"rows":30,"type":"xterm"},"timestamp":1767323045,"command":"sh -i"}
[1.000000,"o","caf"]
[0.500000,"r","80x24"]
[0.500000,"o","é �"]
[0.000000,"o","�"]
[1.000000,"x","3"]
`
	if text.String() != want {
		t.Errorf("got %s", text.String())
	}
}

func TestOfALargeRecordingTheRestIsRefused(t *testing.T) {
	c := New(Options{Storage: Folder(t.TempDir()), MaxBytes: 10})
	here, there := net.Pipe()
	defer func() { _ = errors.Join(here.Close(), there.Close()) }()
	session := &live{collector: c, ticket: &protocol.Ticket{}, conn: here}
	defer session.release()
	to := &recording{}
	more := &protocol.Frame{Type: protocol.Output, Seq: 2}
	if to.bytes = 10; c.check(session, to, more) != nil {
		t.Error("10 bytes are too many")
	}
	told := make(chan protocol.Frame, 1)
	go func() {
		f, _ := protocol.Read(bufio.NewReader(there))
		told <- f
	}()
	to.bytes = 11
	for range 2 { // it is told once
		if err := c.check(session, to, more); err != nil {
			t.Errorf("what is on its way is refused: %v", err)
		}
	}
	if f := <-told; f.Type != protocol.Stop || string(f.Data) != "its recording is too large" {
		t.Errorf("the recorder is told %+v", f)
	}
	to.bytes = 12 + spareBytes
	if err := c.check(session, to, more); !errors.Is(err, protocol.ErrFrame) {
		t.Errorf("a recorder that does not listen: %v", err)
	}
	if err := c.check(session, to, &protocol.Frame{Type: protocol.Exit, Seq: 3, Data: []byte("{}")}); err != nil {
		t.Errorf("the end: %v", err)
	}
	long, err := json.Marshal(protocol.End{Reason: strings.Repeat("<", maxReason+1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.check(session, to, &protocol.Frame{Type: protocol.Exit, Seq: 3, Data: long}); !errors.Is(err, protocol.ErrFrame) {
		t.Errorf("an end with a reason that is too long: %v", err)
	}
}

// What a recording has is what its recorder sends, and whoever has its place can send anything.
func TestFramesThatCouldNotBeReadAreRefused(t *testing.T) {
	long := []string{"sh", "-c", strings.Repeat("x", protocol.MaxCommand)}
	head := func(command ...string) []byte { return jsonOf(t, protocol.Head{Command: command}) }
	for name, test := range map[string]struct {
		command []string
		frame   protocol.Frame
		refused bool
	}{
		"the command":                    {[]string{"sh"}, protocol.Frame{Type: protocol.Begin, Data: head("sh")}, false},
		"a command that was cut":         {long, protocol.Frame{Type: protocol.Begin, Data: head("sh", "-c", "...")}, false},
		"another that says it was cut":   {[]string{"sh"}, protocol.Frame{Type: protocol.Begin, Data: head("rm", "...")}, true},
		"another beginning of one":       {long, protocol.Frame{Type: protocol.Begin, Data: head("rm", "-c", "...")}, true},
		"a size that is none":            {nil, protocol.Frame{Type: protocol.Resize, Data: []byte("80x24")}, true},
		"a sum with a line of its own":   {nil, protocol.Frame{Type: protocol.Stream, Data: []byte("{}\n[1, \"o\", \"forged\"]")}, true},
		"a file that is none":            {nil, protocol.Frame{Type: protocol.File, Data: []byte("x")}, true},
		"an end with an impossible code": {nil, protocol.Frame{Type: protocol.Exit, Data: []byte(`{"code":-5}`)}, true},
		"an end with less than nothing":  {nil, protocol.Frame{Type: protocol.Exit, Data: []byte(`{"left":-1}`)}, true},
	} {
		ticket := &protocol.Ticket{Command: protocol.Sum(test.command), Shown: protocol.SumShown(test.command)}
		err := checkContent(ticket, &test.frame)
		if test.frame.Type == protocol.Exit {
			err = checkEnd(test.frame.Data)
		}
		if errors.Is(err, protocol.ErrFrame) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package protocol_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

var (
	key = protocol.Key{Current: bytes.Repeat([]byte("k"), 32)}
	now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func ticket(command ...string) *protocol.Ticket {
	return &protocol.Ticket{
		ID: protocol.NewID(), Namespace: "team", Pod: "web", PodUID: "uid", Container: "main", User: "alice",
		Command: protocol.Sum(command), Expires: now.Add(protocol.Life).Unix(),
		Terms: protocol.Terms{Collectors: []string{"collector:8444"}, CA: [][]byte{{1, 2}}, Wait: 5},
	}
}

func sign(t testing.TB, key protocol.Key, of *protocol.Ticket) string {
	t.Helper()
	text, err := key.Sign(of)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestATicketIsValidUntilItExpires(t *testing.T) {
	want := ticket("ls")
	text := sign(t, key, want)
	for at, expected := range map[time.Duration]error{0: nil, protocol.Life - time.Second: nil, protocol.Life: protocol.ErrExpired, time.Hour: protocol.ErrExpired} {
		got, err := key.Verify(text, now.Add(at))
		if !errors.Is(err, expected) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("after %s: %+v, %v", at, got, err)
		}
	}
	if got, err := key.VerifyExpired(text); err != nil || got.ID != want.ID {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestATicketCannotBeForged(t *testing.T) {
	text := sign(t, key, ticket("ls"))
	claims, sum, _ := strings.Cut(text, ".")
	raw, err := base64.RawURLEncoding.DecodeString(claims)
	if err != nil {
		t.Fatal(err)
	}
	changed := base64.RawURLEncoding.EncodeToString(bytes.Replace(raw, []byte("alice"), []byte("malory"), 1))
	for what, forged := range map[string]string{
		"with another user":   changed + "." + sum,
		"without a sum":       claims + ".",
		"with another sum":    claims + "." + strings.Repeat("A", len(sum)),
		"by another key":      sign(t, protocol.Key{Current: bytes.Repeat([]byte("x"), 32)}, ticket("ls")),
		"with something more": text + "A",
		"without anything":    "",
		"too long":            strings.Repeat("A", protocol.MaxTicket) + "." + sum,
	} {
		if got, err := key.Verify(forged, now); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
	for i := range text { // each bit counts
		forged := []byte(text)
		if forged[i] ^= 1; string(forged) == text {
			continue
		}
		if _, err := key.Verify(string(forged), now); err == nil {
			t.Errorf("a ticket with another character at %d is valid", i)
		}
	}
}

func TestAnOldKeyVerifiesAndDoesNotSign(t *testing.T) {
	old, next := bytes.Repeat([]byte("o"), 32), bytes.Repeat([]byte("n"), 32)
	rotated := protocol.Key{Current: next, Previous: old}
	if _, err := rotated.Verify(sign(t, protocol.Key{Current: old}, ticket("ls")), now); err != nil {
		t.Error(err)
	}
	if _, err := (protocol.Key{Current: old}).Verify(sign(t, rotated, ticket("ls")), now); !errors.Is(err, protocol.ErrForged) {
		t.Error(err)
	}
	if _, err := (protocol.Key{Current: []byte("short")}).Sign(ticket("ls")); err == nil {
		t.Error("a short key signs")
	}
	// A key that is missing must not verify what is signed by an empty one.
	if _, err := (protocol.Key{}).Verify(sign(t, key, ticket("ls")), now); !errors.Is(err, protocol.ErrForged) {
		t.Error(err)
	}
}

func TestATicketCoversOneCommandOfOneUserInOneContainer(t *testing.T) {
	of := ticket("sh", "-c", "ls")
	if err := of.Covers("team", "web", "main", "alice", []string{"sh", "-c", "ls"}); err != nil {
		t.Error(err)
	}
	for want, args := range map[string][]string{
		"namespace": {"other", "web", "main", "alice"}, "Pod": {"team", "db", "main", "alice"},
		"container": {"team", "web", "side", "alice"}, "user": {"team", "web", "main", "bob"},
	} {
		if err := of.Covers(args[0], args[1], args[2], args[3], []string{"sh", "-c", "ls"}); err == nil || !strings.Contains(err.Error(), "another "+want) {
			t.Errorf("another %s: %v", want, err)
		}
	}
	for _, command := range [][]string{{"sh", "-c ls"}, {"sh", "-c", "ls", ""}, {"sh"}, nil} {
		if err := of.Covers("team", "web", "main", "alice", command); err == nil {
			t.Errorf("it covers %q", command)
		}
	}
}

func TestACommandIsWrappedAndFoundAgain(t *testing.T) {
	for _, command := range [][]string{{"sh"}, {"--", "--ticket=x"}, {""}, {"a", "", "b c"}} {
		text, got, ok := protocol.Split(protocol.Wrap("T", command))
		if !ok || text != "T" || !reflect.DeepEqual(got, command) {
			t.Errorf("%q becomes %q, %q, %t", command, text, got, ok)
		}
	}
	for _, other := range [][]string{nil, {protocol.Program}, {protocol.Program, "--ticket=T", "--"}, {"/x/session", "--ticket=T", "--", "sh"}, {protocol.Program, "--ticket", "T", "sh"}} {
		if _, got, ok := protocol.Split(other); ok {
			t.Errorf("%q has the command %q", other, got)
		}
	}
}

func TestNamesOfATicketAreBounded(t *testing.T) {
	long := strings.Repeat("x", protocol.MaxName+1)
	for what, change := range map[string]func(*protocol.Ticket){
		"user": func(t *protocol.Ticket) { t.User = long }, "namespace": func(t *protocol.Ticket) { t.Namespace = "" },
		"id": func(t *protocol.Ticket) { t.ID = "../../etc" }, "collector": func(t *protocol.Ticket) { t.Terms.Collectors = nil },
		"wait": func(t *protocol.Ticket) { t.Terms.Wait = -1 }, "max": func(t *protocol.Ticket) { t.Terms.Max = -1 },
		"idle": func(t *protocol.Ticket) { t.Terms.Idle = protocol.MaxSeconds + 1 }, "bytes": func(t *protocol.Ticket) { t.Terms.CA = [][]byte{make([]byte, protocol.MaxTicket)} },
	} {
		of := ticket("ls")
		change(of)
		if _, err := key.Sign(of); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	frames := []protocol.Frame{
		{Type: protocol.Begin, Seq: 1, Data: []byte("{}")},
		{Type: protocol.Output, Seq: 1 << 40, At: time.Hour, Data: make([]byte, protocol.MaxData)},
		{Type: protocol.Alive, Data: []byte{}},
	}
	var wire []byte
	for i := range frames {
		wire = frames[i].Append(wire)
	}
	from := bufio.NewReader(bytes.NewReader(wire))
	for _, want := range frames {
		if got, err := protocol.Read(from); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := protocol.Read(from); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	for n := 1; n < frames[0].Size(); n++ {
		if _, err := protocol.Read(bufio.NewReader(bytes.NewReader(wire[:n]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of %d bytes: %v", n, err)
		}
	}
	tooLong := protocol.Frame{Type: protocol.Output, Seq: 1, Data: make([]byte, protocol.MaxData+1)}
	if _, err := protocol.Read(bufio.NewReader(bytes.NewReader(tooLong.Append(nil)))); !errors.Is(err, protocol.ErrFrame) {
		t.Error(err)
	}
}

func TestAnAliveFrameSaysWhenTheUserWasActive(t *testing.T) {
	for _, want := range []time.Duration{0, time.Microsecond, 5 * time.Hour} {
		if got, ok := protocol.ActivityOf(&protocol.Frame{Data: protocol.Activity(want)}); !ok || got != want {
			t.Errorf("%s becomes %s, %t", want, got, ok)
		}
	}
	for _, data := range [][]byte{nil, {1}, bytes.Repeat([]byte{255}, 8), make([]byte, 9)} {
		if got, ok := protocol.ActivityOf(&protocol.Frame{Data: data}); ok {
			t.Errorf("%x is %s", data, got)
		}
	}
}

func FuzzTicket(f *testing.F) {
	f.Add(sign(f, key, ticket("ls")))
	f.Add("e30." + strings.Repeat("A", 43))
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := protocol.Parse(text)
		if _, forged := key.Verify(text, now); forged == nil && err != nil {
			t.Error("a ticket is valid that cannot be read")
		}
		if err != nil {
			return
		}
		again, err := key.Sign(parsed)
		if err != nil {
			t.Skip() // it would be longer than a ticket may be
		}
		if got, err := key.VerifyExpired(again); err != nil || got.ID != parsed.ID || got.Command != parsed.Command {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	frame := protocol.Frame{Type: protocol.Output, Seq: 7, At: time.Second, Data: []byte("data")}
	f.Add(frame.Append(nil))
	f.Fuzz(func(t *testing.T, wire []byte) {
		from := bufio.NewReader(bytes.NewReader(wire))
		var again []byte
		for {
			frame, err := protocol.Read(from)
			if err != nil {
				break
			}
			again = frame.Append(again)
		}
		if !bytes.HasPrefix(wire, again) {
			t.Errorf("%x is read as %x", wire, again)
		}
	})
}

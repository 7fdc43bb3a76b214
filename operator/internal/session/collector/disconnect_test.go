package collector

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// A Pod that is deleted takes its recorder with it, before that has sent the end.
func TestARecordingWhoseRecorderCannotComeBackIsSealed(t *testing.T) {
	folder := Folder(t.TempDir())
	ended, noted, may := make(chan Seal, 1), make(chan Note, 9), make(chan string, 9)
	_, address := serve(t, Options{
		Storage: folder, Stall: 10 * time.Millisecond, Ended: func(_ *protocol.Ticket, s Seal) { ended <- s },
		Noted: func(_ *protocol.Ticket, n Note) {
			if n.Kind != Silent { // which it may be on a busy machine, too
				noted <- n
			}
		},
		Over: func(context.Context, *protocol.Ticket) (string, error) {
			select {
			case reason := <-may:
				return reason, nil
			default:
				return "", errors.New("the API server is down")
			}
		},
	})
	ticket := ticketOf()
	p := connect(t, address, ticket, 'a')
	head := protocol.Frame{Type: protocol.Begin, Seq: 1, Data: jsonOf(t, protocol.Head{Time: now, Command: []string{"sh"}})}
	if _, err := p.Write(head.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for p.read(t).Type != protocol.Ack {
	}
	_ = p.Close()
	if n := <-noted; n.Kind != Gone { // nobody knows whether it comes back
		t.Errorf("noted is %+v", n)
	}
	may <- ""
	may <- "its Pod was deleted"
	seal := <-ended
	if seal.Frames != 1 || seal.End.Code != 137 || seal.End.Reason != "its Pod was deleted" || !slices.ContainsFunc(seal.Notes, func(n Note) bool { return n.Kind == Gone }) {
		t.Errorf("the seal is %+v", seal)
	}
	if _, err := Verify(t.Context(), folder, ticket.ID, key); err != nil {
		t.Error(err)
	}
	if p := connect(t, address, ticket, 'a'); p.code != 410 {
		t.Errorf("a recorder that comes nevertheless gets %d, %s", p.code, p.text)
	}
	select {
	case n := <-noted:
		t.Errorf("noted is also %+v", n)
	default:
	}
}

func TestASessionThatIsLostWithItsCollectorAndItsPodIsSealed(t *testing.T) {
	folder := Folder(t.TempDir())
	var seals []Seal
	c := New(Options{
		Storage: folder, Settle: 1, Key: func() (protocol.Key, error) { return key, nil }, Ended: func(_ *protocol.Ticket, s Seal) { seals = append(seals, s) },
		Noted: func(_ *protocol.Ticket, n Note) { t.Errorf("noted is %+v", n) },
		Over:  func(context.Context, *protocol.Ticket) (string, error) { return "its Pod was deleted", nil },
	})
	lost, broken := begun(t, folder, key), begun(t, folder, key)
	if err := folder.Create(t.Context(), nameOf(broken, "000002.part"), []byte(strings.Repeat("x", 100))); err != nil {
		t.Fatal(err)
	}
	said(t, folder, "killed.json", time.Hour, heartbeat{Left: []string{broken, lost}})
	if err := c.noteLost(t.Context()); !errors.Is(err, ErrChanged) {
		t.Errorf("of the one that is no recording it says %v", err)
	}
	if err := c.noteLost(t.Context()); err != nil {
		t.Errorf("and says it again: %v", err)
	}
	if len(seals) != 1 || seals[0].ID != lost || seals[0].End.Code != 137 {
		t.Errorf("sealed are %+v", seals)
	}
}

// sealFails is a storage that refuses the seal for the first time.
type sealFails struct {
	Folder
	refused *atomic.Bool
}

func (s sealFails) Create(ctx context.Context, name string, content []byte) error {
	if strings.HasSuffix(name, "/"+sealFile) && !s.refused.Swap(true) {
		return errors.New("the disk is full")
	}
	return s.Folder.Create(ctx, name, content)
}

func TestARecordingThatCouldNotBeSealedIsSealedWhenItsRecorderComesBack(t *testing.T) {
	storage := sealFails{Folder(t.TempDir()), &atomic.Bool{}}
	ended := make(chan Seal, 2)
	_, address := serve(t, Options{Storage: storage, Ended: func(_ *protocol.Ticket, s Seal) { ended <- s }})
	ticket := ticketOf()
	p := connect(t, address, ticket, 'a')
	frames := (&protocol.Frame{Type: protocol.Begin, Seq: 1, Data: jsonOf(t, protocol.Head{Time: now, Command: []string{"sh"}})}).Append(nil)
	if _, err := p.Write((&protocol.Frame{Type: protocol.Exit, Seq: 2, Data: jsonOf(t, protocol.End{Code: 3})}).Append(frames)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, p); err != nil { // it is disconnected
		t.Fatal(err)
	}
	if p = connect(t, address, ticket, 'a'); p.next != 3 {
		t.Fatalf("%d %s: frame %d is next", p.code, p.text, p.next)
	}
	if _, err := io.Copy(io.Discard, p); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(t.Context(), storage, ticket.ID, key); err != nil || len(ended) != 1 || (<-ended).End.Code != 3 {
		t.Errorf("%v, and %d ends", err, len(ended))
	}
}

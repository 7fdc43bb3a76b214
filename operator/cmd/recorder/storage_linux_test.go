package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/admitkit/admitkit/operator/internal/s3gateway"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/collector/s3"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// slowly delays requests.
type slowly struct {
	http.RoundTripper
	by atomic.Int64
}

func (s *slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(time.Duration(s.by.Load())):
		return s.RoundTripper.RoundTrip(r)
	}
}

func TestSessionsAreRecordedInABucketWhateverItsStateIs(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, s3gateway.Start(t, "../../.."))
	slow := &slowly{RoundTripper: http.DefaultTransport.(*http.Transport).Clone()}
	storage, err := s3.New(t.Context(), s3.Options{
		Endpoint: relay.Addr().String(), Insecure: true, Bucket: s3gateway.Bucket, Transport: slow, Delay: 300 * time.Millisecond,
		Credentials: credentials.NewStaticV4(s3gateway.AccessKey, s3gateway.SecretKey, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, func(o *collector.Options) { o.Storage = storage })
	command := sh("echo ready; read x; echo $x; read y; echo $y")
	text := func(id string) (printed string, gaps []string) {
		err := collector.Frames(t.Context(), storage, id, func(f *protocol.Frame) error {
			switch f.Type {
			case protocol.Output:
				printed += string(f.Data)
			case protocol.Gap:
				gaps = append(gaps, string(f.Data))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return printed, gaps
	}
	whole := func(t *testing.T, ticket *protocol.Ticket, c *client) {
		t.Helper()
		got := c.wait()
		seal, err := collector.Verify(t.Context(), storage, ticket.ID, p.key)
		if printed, gaps := text(ticket.ID); err != nil || got.code != 0 || printed != string(got.stdout) || len(gaps) > 0 {
			t.Errorf("%d, %q; the recording is %+v, %v: %q, %q", got.code, got.stdout, seal, err, printed, gaps)
		}
	}
	t.Run("slow: the session waits", func(t *testing.T) {
		ticket := p.ticket(command)
		c := launch(t, "", p.wrap(ticket, command), true)
		c.expect("ready")
		slow.by.Store(int64(time.Second))
		defer slow.by.Store(0)
		c.send("one\n")
		c.expect("one\r\none")
		c.send("two\n")
		whole(t, ticket, c)
	})
	t.Run("another connection goes on with the last piece", func(t *testing.T) {
		front := newRelay(t, p.server.Listener.Addr().String())
		ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Collectors = []string{front.Addr().String()} })
		c := launch(t, "", p.wrap(ticket, command), true)
		c.expect("ready")
		for _, line := range []string{"one", "two"} {
			time.Sleep(400 * time.Millisecond) // a piece is written
			front.cut(false)
			c.send(line + "\n")
			c.expect(line)
		}
		whole(t, ticket, c)
		entries, err := storage.List(t.Context(), ticket.ID)
		if err != nil || !slices.ContainsFunc(entries, func(e collector.Entry) bool { return strings.HasPrefix(e.Name, "000003-") }) {
			t.Errorf("there are not three parts: %v, %v", entries, err)
		}
	})
	for _, closed := range []bool{true, false} {
		name := map[bool]string{true: "unreachable: Closed ends", false: "unreachable: Open goes on, and has a gap"}[closed]
		t.Run(name, func(t *testing.T) {
			if !closed && testing.Short() {
				t.Skip("takes 20 s")
			}
			ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Closed, t.Terms.Wait = closed, 5 })
			c := launch(t, "", p.wrap(ticket, command), true)
			c.expect("ready")
			relay.cut(true)
			c.send("unseen\n")
			if closed {
				if got := c.wait(); got.code != 128+9 || !strings.Contains(string(got.stdout), protocol.ReasonNoCollector) {
					t.Errorf("%d, %q", got.code, got.stdout)
				}
				relay.cut(false)
				return
			}
			time.Sleep(13 * time.Second) // longer than the storage and then the recorder wait
			relay.cut(false)
			deadline := time.Now().Add(patience)
			for gaps := []string{}; len(gaps) == 0 && time.Now().Before(deadline); _, gaps = text(ticket.ID) {
				time.Sleep(100 * time.Millisecond)
			}
			c.send("seen\n")
			got := c.wait()
			if printed, gaps := text(ticket.ID); got.code != 0 || len(gaps) != 1 || !strings.HasSuffix(printed, "seen\r\nseen\r\n") {
				t.Errorf("%d, %q; recorded %q, %q", got.code, got.stdout, printed, gaps)
			}
		})
	}
}

// full is a folder on a disk that can be full for what is appended.
type full struct {
	collector.Folder
	is atomic.Bool
}

func (f *full) Part(ctx context.Context, id string, number int) (collector.Part, error) {
	part, err := f.Folder.Part(ctx, id, number)
	return fullPart{part, f}, err
}

type fullPart struct {
	collector.Part
	of *full
}

func (p fullPart) Append(ctx context.Context, frames []byte) error {
	if p.of.is.Load() {
		return &fs.PathError{Op: "write", Path: "part", Err: syscall.ENOSPC}
	}
	return p.Part.Append(ctx, frames)
}

func TestWhileTheDiskIsFullThePolicyDecides(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		disk := &full{Folder: collector.Folder(t.TempDir())}
		p := newPlace(t, func(o *collector.Options) { o.Storage = disk })
		command := sh("echo ready; read x; echo $x; read y; echo $y")
		ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Closed, t.Terms.Wait = closed, 3 })
		c := launch(t, "", p.wrap(ticket, command), true)
		c.expect("ready")
		disk.is.Store(true)
		c.send("one\n")
		if !closed {
			time.Sleep(4 * time.Second) // longer than it waits
			c.send("two\n")
		}
		got := c.wait()
		if closed && (got.code != 128+9 || !strings.Contains(string(got.stdout), protocol.ReasonNoCollector)) || !closed && got.code != 0 {
			t.Errorf("closed %t: %d, %q", closed, got.code, got.stdout)
		}
		if _, err := collector.Verify(t.Context(), disk, ticket.ID, p.key); !errors.Is(err, collector.ErrNotSealed) {
			t.Errorf("closed %t: the recording: %v", closed, err)
		}
	}
}

// prints prints 3 MB, more than waits in a recorder, and then waits for a line.
var prints = sh("head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99; echo printed; read x; echo $x")

// stores is an observer that says when the storage fails.
type stores struct {
	collector.Observer
	failed chan error
}

func (s stores) Waiting(int) {}
func (s stores) Lost(int64)  {}
func (s stores) Stored(_ time.Duration, err error) {
	if err != nil {
		select {
		case s.failed <- err:
		default:
		}
	}
}

// smallDisk mounts a file system of a size in MiB, of which so many are taken until free is called.
func smallDisk(t *testing.T, size, taken int) (folder string, free func()) {
	t.Helper()
	folder = t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	other := filepath.Join(folder, "other")
	if err := os.WriteFile(other, make([]byte, taken<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder, func() {
		if err := os.Remove(other); err != nil {
			t.Error(err)
		}
	}
}

// A disk of 8 MiB on which others have all but 1 MiB, or all.
func TestOnADiskThatIsFullThePolicyDecides(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		taken         int
		closed        bool
		wait          int
		freed         bool // before the session has waited long enough
		begins, whole bool
		code          int
	}{
		{"Closed pauses until there is room", 7, true, 120, true, true, true, 0},
		{"Open pauses until there is room", 7, false, 120, true, true, true, 0},
		{"Closed ends", 7, true, 3, false, true, false, 128 + 9},
		{"Open goes on, and has a gap", 7, false, 3, false, true, false, 0},
		{"Closed does not begin", 8, true, 3, false, false, false, exitRefused},
		{"Open begins, and is not recorded until there is room", 8, false, 3, false, true, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder, free := smallDisk(t, 8, test.taken)
			disk, failed := collector.Folder(folder), make(chan error, 1)
			p := newPlace(t, func(o *collector.Options) { o.Storage, o.Observer = disk, stores{failed: failed} })
			ticket := p.ticket(prints, func(t *protocol.Ticket) { t.Terms.Closed, t.Terms.Wait = test.closed, test.wait })
			c := launch(t, "", p.wrap(ticket, prints), true)
			if err := <-failed; !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("the storage fails with %v", err)
			}
			if test.freed {
				free()
			}
			if test.code == 0 {
				c.expect("printed")
			} else {
				got := c.wait()
				if got.code != test.code || !strings.Contains(string(got.stdout), protocol.ReasonNoCollector) || strings.Contains(string(got.stdout), "printed") {
					t.Errorf("%d, %d bytes, %q", got.code, len(got.stdout), got.stdout[max(len(got.stdout)-300, 0):])
				}
				if _, err := disk.Verify(ticket.ID, p.key); !errors.Is(err, collector.ErrNotSealed) && test.begins {
					t.Errorf("the recording: %v", err)
				}
				return
			}
			if !test.freed {
				free()
				waitFor(t, func() bool { return len(recordingOf(t, disk, ticket.ID).gaps) > 0 }) // the recorder is back
			}
			c.send("over\n")
			got := c.wait()
			p.explained(t, disk, ticket, got, test.whole)
		})
	}
}

// recordingOf returns what a recording in another storage says so far.
func recordingOf(t *testing.T, in collector.Storage, id string) (r told) {
	t.Helper()
	err := collector.Frames(t.Context(), in, id, func(f *protocol.Frame) error {
		r.numbers = append(r.numbers, f.Seq)
		switch f.Type {
		case protocol.Output:
			r.output = append(r.output, f.Data...)
		case protocol.Gap:
			r.gaps = append(r.gaps, string(f.Data))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return r
}

// explained wants a session that has gone on to be recorded, but for what its gap says.
func (p *place) explained(t *testing.T, in collector.Storage, ticket *protocol.Ticket, got outcome, whole bool) {
	t.Helper()
	r, missing := recordingOf(t, in, ticket.ID), int64(0)
	for _, gap := range r.gaps {
		lost, _ := protocol.LostOf(&protocol.Frame{Type: protocol.Gap, Data: []byte(gap)})
		missing += lost
	}
	seal, err := collector.Verify(t.Context(), in, ticket.ID, p.key)
	if err != nil || got.code != 0 || misplaced(r.numbers) > 0 || int64(len(got.stdout)-len(r.output)) > missing {
		t.Errorf("%d, %+v, %v: of %d bytes %d are recorded, and %v", got.code, seal, err, len(got.stdout), len(r.output), r.gaps)
	}
	if whole != (len(r.gaps) == 0) || !whole && missing == 0 { // a little fits between two failures
		t.Errorf("gaps %v", r.gaps)
	}
}

func TestWhileTheBucketIsSlowThePolicyDecides(t *testing.T) {
	t.Parallel()
	endpoint := s3gateway.Start(t, "../../..")
	for _, test := range []struct {
		name      string
		perSecond int
		closed    bool
		whole     bool
		code      int
	}{
		{"slow, Closed: the session waits", 400_000, true, true, 0},
		{"slow, Open: the session waits", 400_000, false, true, 0},
		{"too slow, Closed: it ends", 1000, true, false, 128 + 9},
		{"too slow, Open: it goes on, and has a gap", 1000, false, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			network := newRelay(t, endpoint)
			storage, err := s3.New(t.Context(), s3.Options{
				Endpoint: network.Addr().String(), Insecure: true, Bucket: s3gateway.Bucket, Transport: http.DefaultTransport.(*http.Transport).Clone(), Delay: 300 * time.Millisecond,
				Credentials: credentials.NewStaticV4(s3gateway.AccessKey, s3gateway.SecretKey, ""),
			})
			if err != nil {
				t.Fatal(err)
			}
			p := newPlace(t, func(o *collector.Options) { o.Storage = storage })
			command := slices.Clone(prints)
			command[2] = "echo ready; read x; " + command[2]
			ticket := p.ticket(command, func(t *protocol.Ticket) { t.Terms.Closed, t.Terms.Wait = test.closed, 10 })
			c := launch(t, "", p.wrap(ticket, command), true)
			c.expect("ready")
			network.throttle(test.perSecond)
			began := time.Now()
			c.send("go\n")
			if test.code != 0 {
				got := c.wait()
				if got.code != test.code || !strings.Contains(string(got.stdout), protocol.ReasonNoCollector) || strings.Contains(string(got.stdout), "printed") {
					t.Errorf("%d, %d bytes, %q", got.code, len(got.stdout), got.stdout[max(len(got.stdout)-300, 0):])
				}
				return
			}
			c.expect("printed")
			if took := time.Since(began); took < time.Second {
				t.Errorf("3 MB are printed after %s, and are in a bucket that takes %d bytes in a second", took, test.perSecond)
			}
			network.throttle(0)
			if !test.whole {
				waitFor(t, func() bool { return len(recordingOf(t, storage, ticket.ID).gaps) > 0 }) // the recorder is back
			}
			c.send("over\n")
			p.explained(t, storage, ticket, c.wait(), test.whole)
		})
	}
}

// redactor knows one secret.
type redactor struct{}

func (redactor) Text(text string) string { return strings.ReplaceAll(text, "hunter2", "[redacted]") }

func (r redactor) Command(command []string) []string {
	return strings.Split(r.Text(strings.Join(command, "\n")), "\n")
}

func TestSecretsAreTakenOutOfWhatIsStored(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(o *collector.Options) {
		o.Redact = redactor{}
	})
	command := []string{"echo", "password", "hunter2"}
	ticket := p.ticket(command)
	got := launch(t, "", p.wrap(ticket, command), true).wait()
	r := p.recording(ticket.ID)
	if string(got.stdout) != "password hunter2\r\n" || string(r.output) != "password [redacted]\r\n" || strings.Join(r.head.Command, " ") != "echo password [redacted]" {
		t.Errorf("printed %q, recorded %q of %q", got.stdout, r.output, r.head.Command)
	}
	if _, err := p.folder.Verify(ticket.ID, p.key); err != nil {
		t.Error(err)
	}
}

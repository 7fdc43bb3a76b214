package main

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/admitkit/admitkit/extension/session/collector"
	"github.com/admitkit/admitkit/extension/session/collector/s3"
	"github.com/admitkit/admitkit/extension/session/protocol"
	"github.com/admitkit/admitkit/internal/testkit/s3gateway"
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
	relay := newRelay(t, s3gateway.Start(t, "../.."))
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

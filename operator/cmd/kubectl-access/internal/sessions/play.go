package sessions

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/operator/internal/screen"
)

// plainJSON decodes what the API server says about errors. The rest is read as it is.
var plainJSON = clientgoscheme.Codecs.WithoutConversion()

// player prints a recording.
type player struct {
	*cli.Base
	speed float64
	idle  time.Duration
	text  bool
	// timed keeps the pauses.
	timed bool
	// ended says that the end of the session was in the recording.
	ended bool
}

// maxCastLine is longer than any line of a recording: a frame has 64 KiB, each byte of
// which may become 6.
const maxCastLine = 1 << 20

func (p *player) run(ctx context.Context, id string, live bool) error {
	s, err := sessions(p.Base, false)
	if err != nil {
		return err
	}
	recording, err := s.open(ctx, id, "", live)
	if err != nil {
		return err
	}
	defer func() { _ = recording.Close() }()
	return p.play(ctx, recording)
}

// play prints the events of an asciicast of version 3.
func (p *player) play(ctx context.Context, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), maxCastLine)
	plain := &screen.Text{Line: func(line string) { _, _ = fmt.Fprintln(p.Out, cli.Escape(line)) }} // as long as it can be written
	defer plain.Flush()
	for first := true; lines.Scan(); {
		line := lines.Bytes()
		if len(line) == 0 {
			continue
		}
		if line[0] == '#' {
			p.Sayf("%s", cli.Escape(string(line)))
			continue
		}
		if first {
			first = false
			continue // the header
		}
		var event event
		if err := json.Unmarshal(line, &event); err != nil {
			return cli.Exitf(cli.CodeError, "the recording is not as it should be: %w", err)
		}
		if err := p.show(ctx, &event, plain); err != nil {
			return err
		}
	}
	switch err := lines.Err(); {
	case ctx.Err() != nil:
		return cli.Exitf(cli.CodeInterrupted, "interrupted")
	case err != nil && !errors.Is(err, context.Canceled):
		return cut(err)
	}
	if !p.ended {
		plain.Flush()
		p.Sayf("[the recording has no end: the session goes on, or its recorder was lost; 'kubectl access sessions list' has its state]")
	}
	return nil
}

// event is a line of an asciicast: seconds since the one before, what it is, and its data.
type event struct {
	after      float64
	code, data string
}

func (e *event) UnmarshalJSON(text []byte) error {
	fields := []any{&e.after, &e.code, &e.data}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 3 {
		return errors.New("an event has three parts")
	}
	return nil
}

func (p *player) show(ctx context.Context, e *event, plain *screen.Text) error {
	if p.timed {
		if err := p.pause(ctx, e.after); err != nil {
			return err
		}
	}
	switch e.code {
	case "o":
		if p.text {
			plain.Write([]byte(e.data))
			return nil
		}
		_, err := io.WriteString(p.Out, e.data)
		return err
	case "m":
		p.Sayf("[%s]", cli.Escape(e.data))
	case "x":
		p.ended = true
		plain.Flush()
		p.Sayf("[the session ended with exit code %s]", cli.Escape(e.data))
	}
	return nil
}

func (p *player) pause(ctx context.Context, seconds float64) error {
	d := time.Duration(seconds / p.speed * float64(time.Second))
	if p.idle > 0 {
		d = min(d, p.idle)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return cli.Exitf(cli.CodeInterrupted, "interrupted")
	}
}

package collector

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Redeemed is what session.json has.
type Redeemed struct {
	Ticket protocol.Ticket `json:"ticket"`
	// Secret is the SHA-256 of the secret of the recorder that redeemed the ticket.
	Secret string    `json:"secretSHA256"`
	At     time.Time `json:"at"`
	// NamespaceUID is that of the namespace at the time, "" if it was not known.
	NamespaceUID string `json:"namespaceUID,omitempty"`
	// MAC is that of all the other fields by the key of tickets.
	MAC string `json:"mac,omitempty"`
}

// size is about how many bytes a recording takes: a frame without data takes some, too.
func (r *recording) size() int64 {
	return r.bytes + int64(r.next)*int64((&protocol.Frame{}).Size()) //nolint:gosec // each frame has come over a network
}

func (r Redeemed) mac(key []byte) string {
	r.MAC = ""
	return macOf(key, "admitkit.dev/session redeemed 1\n", r)
}

// Seal says what a whole recording consists of.
type Seal struct {
	ID string `json:"id"`
	// Frames and Bytes are the number of the frames and the bytes of their data.
	Frames uint64 `json:"frames"`
	Bytes  int64  `json:"bytes"`
	// SHA256 is the end of the chain: the sum of each frame and of the sum before it.
	SHA256 string       `json:"sha256"`
	End    protocol.End `json:"end"`
	// Length is the time from the first frame to the last.
	Length time.Duration `json:"length"`
	At     time.Time     `json:"at"`
	// Notes are what collectors noticed.
	Notes []Note `json:"notes,omitempty"`
	// MAC is that of all the other fields by the key of tickets. Who can write the storage
	// but has no key cannot make a seal.
	MAC string `json:"mac"`
}

const (
	sessionFile = "session.json"
	sealFile    = "seal.json"
	// stopFile has the reason for which a session was ended by hand.
	stopFile   = "stop"
	partSuffix = ".part"
	// maxParts is how many connections one session may have.
	maxParts = 10_000
	// maxFile is the most bytes of a file that is no part.
	maxFile = 1 << 20
)

func nameOf(id, file string) string { return id + "/" + file }

// createJSON makes a file with a value.
func createJSON(to Storage, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	ctx, cancel := stored()
	defer cancel()
	return to.Create(ctx, name, append(text, '\n'))
}

// readFile reads a file that is no part.
func readFile(ctx context.Context, from Storage, name string) ([]byte, error) {
	file, err := from.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxFile))
	return content, errors.Join(err, file.Close())
}

// redeem takes a ticket. The first recorder to come has it; the same one may come again. For
// any other the error is errRedeemed, beside who has it.
func redeem(to Storage, by *Redeemed, key protocol.Key) (*Redeemed, error) {
	ctx, cancel := stored()
	defer cancel()
	name := nameOf(by.Ticket.ID, sessionFile)
	content, err := readFile(ctx, to, name)
	if errors.Is(err, fs.ErrNotExist) {
		if by.At.Unix() >= by.Ticket.Expires {
			return nil, refuse(http.StatusForbidden, "%v, and was not redeemed in this storage, which all replicas must share", protocol.ErrExpired)
		}
		first := *by
		first.MAC = first.mac(key.Current)
		if err := createJSON(to, name, first); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		content, err = readFile(ctx, to, name)
	}
	if err != nil {
		return nil, err
	}
	redeemed := &Redeemed{}
	if err := json.Unmarshal(content, redeemed); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !hmac.Equal([]byte(redeemed.Secret), []byte(by.Secret)) {
		return redeemed, errRedeemed
	}
	return redeemed, nil
}

// readStop returns why a session was ended by hand, nothing if it was not. One whose ticket is
// contested does not go on.
func readStop(from Storage, id string) (reason string, err error) {
	ctx, cancel := stored()
	defer cancel()
	entries, err := from.List(ctx, id)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		switch {
		case isNote(&entry, Contested):
			return "", refuse(http.StatusConflict, "%s", reasonContested)
		case entry.Name == stopFile:
			content, err := readFile(ctx, from, nameOf(id, stopFile))
			if err != nil {
				return "", err
			}
			reason = string(content)
		}
	}
	return reason, nil
}

// recording is a session whose frames arrive.
type recording struct {
	storage Storage
	id      string
	key     protocol.Key
	number  int // of the part
	part    Part
	waiting bytes.Buffer
	chain

	settled time.Time // from when on it can be sealed
	sealed  bool
}

// chain is the state of a recording up to a frame.
type chain struct {
	next  uint64
	bytes int64
	sum   [sha256.Size]byte
	last  time.Duration
	end   *protocol.End
}

func newChain(id string) chain {
	return chain{next: 1, sum: sha256.Sum256([]byte("admitkit.dev/session recording 1\n" + id))}
}

// extend adds the next frame.
func (c *chain) extend(f *protocol.Frame, raw []byte) error {
	hash := sha256.New()
	_, _ = hash.Write(c.sum[:])
	_, _ = hash.Write(raw)
	copy(c.sum[:], hash.Sum(nil))
	c.next, c.bytes, c.last = c.next+1, c.bytes+int64(len(f.Data)), max(c.last, f.At)
	if f.Type != protocol.Exit {
		return nil
	}
	c.end = &protocol.End{}
	if err := json.Unmarshal(f.Data, c.end); err != nil {
		return fmt.Errorf("%w: an end that is no JSON: %w", protocol.ErrFrame, err)
	}
	return nil
}

// resume reads what there is of a recording and begins a new part.
func resume(from Storage, id string, key protocol.Key) (*recording, error) {
	r := &recording{storage: from, id: id, key: key, chain: newChain(id)}
	parts, sealed, err := r.read()
	switch {
	case err != nil:
		return nil, err
	case sealed:
		return nil, refuse(http.StatusGone, "the session has ended")
	case parts >= maxParts:
		return nil, refuse(http.StatusForbidden, "the session has had %d connections", parts)
	}
	ctx, cancel := stored()
	defer cancel()
	for r.number = parts + 1; ; r.number++ {
		if r.part, err = from.Part(ctx, id, r.number); !errors.Is(err, fs.ErrExist) {
			return r, err
		}
	}
}

// read reads what there is, or in a storage of pieces the last mark.
func (r *recording) read() (parts int, sealed bool, err error) {
	ctx, cancel := stored()
	defer cancel()
	if r.storage.Delay() == 0 {
		return read(ctx, r.storage, r.id, &r.chain, func(*protocol.Frame) error { return nil })
	}
	if parts, sealed, err = lastPart(ctx, r.storage, r.id); err != nil || sealed {
		return parts, sealed, err
	}
	return parts, false, r.readCheckpoint(ctx)
}

// add takes a frame. One that is there already counts once.
func (r *recording) add(f *protocol.Frame) error {
	switch {
	case f.Seq == 0 && f.Type == protocol.Alive, f.Seq != 0 && f.Seq < r.next:
		return nil
	case f.Seq != r.next || r.end != nil:
		return fmt.Errorf("%w: got number %d instead of %d", protocol.ErrFrame, f.Seq, r.next)
	}
	raw := f.Append(r.waiting.AvailableBuffer())
	_, _ = r.waiting.Write(raw) // never fails
	return r.extend(f, raw)
}

func (r *recording) pending() int { return r.waiting.Len() }
func (r *recording) ended() bool  { return r.end != nil }

// flush stores what was added.
func (r *recording) flush() error {
	if r.waiting.Len() == 0 {
		return nil
	}
	if r.storage.Delay() > 0 {
		m := r.checkpoint(r.id)
		m.MAC = m.mac(r.key.Current)
		data, _ := json.Marshal(m) // it always marshals
		_, _ = r.waiting.Write((&protocol.Frame{Type: protocol.Mark, Data: data}).Append(nil))
	}
	ctx, cancel := stored()
	defer cancel()
	if err := r.part.Append(ctx, r.waiting.Bytes()); err != nil {
		return err
	}
	if r.waiting.Reset(); r.waiting.Cap() > keptBuffer {
		r.waiting = bytes.Buffer{}
	}
	return nil
}

// keptBuffer is how many bytes of memory a session keeps that does nothing.
const keptBuffer = 8 << 10

func (r *recording) close() { _ = r.part.Close() }

// seal ends the recording. It returns nil if another collector has done so meanwhile.
func (r *recording) seal(now time.Time) (*Seal, error) {
	ctx, cancel := stored()
	defer cancel()
	notes, err := readNotes(ctx, r.storage, r.id, r.key)
	if err != nil {
		return nil, err
	}
	seal := &Seal{
		ID: r.id, Frames: r.next - 1, Bytes: r.bytes, SHA256: hex.EncodeToString(r.sum[:]),
		End: *r.end, Length: r.last, At: now.UTC(), Notes: notes,
	}
	seal.MAC = seal.mac(r.key.Current)
	err = createJSON(r.storage, nameOf(r.id, sealFile), seal)
	if errors.Is(err, fs.ErrExist) {
		seal, err = nil, nil
	}
	r.sealed = err == nil
	return seal, err
}

func (s Seal) mac(key []byte) string {
	s.MAC = ""
	return macOf(key, "admitkit.dev/session seal 1\n", s)
}

// macOf binds a value to one use of the key.
func macOf(key []byte, use string, value any) string {
	text, _ := json.Marshal(value) // it always marshals
	hash := hmac.New(sha256.New, key)
	_, _ = hash.Write([]byte(use))
	_, _ = hash.Write(text)
	return hex.EncodeToString(hash.Sum(nil))
}

// read hands over each frame of a recording once, in order, and extends the chain. parts is
// the number of the last part.
func read(ctx context.Context, from Storage, id string, c *chain, each func(*protocol.Frame) error) (parts int, sealed bool, err error) {
	entries, err := from.List(ctx, id)
	if err != nil {
		return 0, false, err
	}
	for _, entry := range entries {
		sealed = sealed || entry.Name == sealFile
		if !strings.HasSuffix(entry.Name, partSuffix) {
			continue
		}
		if _, err := fmt.Sscanf(entry.Name, "%06d", &parts); err != nil {
			return 0, false, fmt.Errorf("%s: %w", nameOf(id, entry.Name), err)
		}
		if entry.Size == 0 {
			continue
		}
		if err := readPart(ctx, from, nameOf(id, entry.Name), c, each); err != nil {
			return 0, false, fmt.Errorf("%s: %w", nameOf(id, entry.Name), err)
		}
	}
	return parts, sealed, nil
}

// readPart reads a part up to its end, or to a frame that was not written whole because the
// collector ended meanwhile. The recorder has sent that one again.
func readPart(ctx context.Context, from Storage, name string, c *chain, each func(*protocol.Frame) error) error {
	file, err := from.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = readFrames(file, c, each)
	return err
}

// readFrames reads up to the last whole frame, whose end is at size. each gets those that are
// new to the chain, which has them then.
func readFrames(from io.Reader, c *chain, each func(*protocol.Frame) error) (size int64, err error) {
	buffered := bufio.NewReaderSize(from, protocol.MaxData)
	for {
		frame, err := protocol.Read(buffered)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
		size += int64(frame.Size())
		if frame.Seq < c.next {
			continue
		}
		if frame.Seq > c.next {
			return size, fmt.Errorf("frame %d is missing", c.next)
		}
		if err := c.extend(&frame, frame.Append(nil)); err != nil {
			return size, err
		}
		if err := each(&frame); err != nil {
			return size, err
		}
	}
}

package collector

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

// Folder keeps recordings, each in a folder that has the session's ID as its name:
//
//   - session.json has the ticket, and who redeemed it;
//   - 000001.part and so on have the frames, a new one for each connection. Several
//     collectors may share the folder. A frame that is in two parts counts once;
//   - seal.json has the [Seal], once the session has ended.
type Folder string

// Redeemed is what session.json has.
type Redeemed struct {
	Ticket protocol.Ticket `json:"ticket"`
	// Secret is the SHA-256 of the secret of the recorder that redeemed the ticket.
	Secret string    `json:"secretSHA256"`
	At     time.Time `json:"at"`
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
	// MAC is that of all the other fields by the key of tickets. Who can write the folder
	// but has no key cannot make a seal.
	MAC string `json:"mac"`
}

const (
	sessionFile = "session.json"
	sealFile    = "seal.json"
	partPattern = "??????.part"
	// maxParts is how many connections one session may have.
	maxParts = 10_000
)

func (f Folder) path(id string, name string) string { return filepath.Join(string(f), id, name) }

// redeem takes a ticket. The first recorder to come has it; the same one may come again.
func (f Folder) redeem(ticket *protocol.Ticket, secret string, now time.Time) error {
	content, err := os.ReadFile(f.path(ticket.ID, sessionFile))
	if errors.Is(err, fs.ErrNotExist) {
		if now.Unix() >= ticket.Expires {
			return refuse(http.StatusForbidden, "%v", protocol.ErrExpired)
		}
		if err := f.write(ticket.ID, sessionFile, Redeemed{Ticket: *ticket, Secret: secret, At: now.UTC()}); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		content, err = os.ReadFile(f.path(ticket.ID, sessionFile))
	}
	if err != nil {
		return err
	}
	var redeemed Redeemed
	if err := json.Unmarshal(content, &redeemed); err != nil {
		return fmt.Errorf("%s: %w", f.path(ticket.ID, sessionFile), err)
	}
	if !hmac.Equal([]byte(redeemed.Secret), []byte(secret)) {
		return refuse(http.StatusConflict, "the ticket was redeemed at %s", redeemed.At.Format(time.RFC3339))
	}
	return nil
}

// write makes a file that is whole from its beginning. The error is fs.ErrExist if there
// is one already: two collectors may try at the same time.
func (f Folder) write(id, name string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.path(id, ""), 0o700); err != nil { //nolint:gosec // the ID is that of a ticket of ours
		return err
	}
	temporary, err := os.CreateTemp(f.path(id, ""), "."+name+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }() //nolint:gosec // the ID is that of a ticket of ours
	_, err = temporary.Write(append(text, '\n'))
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), f.path(id, name)); err != nil {
		return err
	}
	return f.sync(id)
}

// sync makes the names of the files in a recording's folder last.
func (f Folder) sync(id string) error {
	dir, err := os.Open(f.path(id, "")) //nolint:gosec // the ID is that of a ticket of ours
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// recording is a session whose frames arrive.
type recording struct {
	folder  Folder
	id      string
	key     protocol.Key
	part    *os.File
	waiting bytes.Buffer
	chain
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
func (f Folder) resume(id string, key protocol.Key) (*recording, error) {
	if _, err := os.Stat(f.path(id, sealFile)); err == nil {
		return nil, refuse(http.StatusGone, "the session has ended")
	}
	r := &recording{folder: f, id: id, key: key, chain: newChain(id)}
	parts, err := f.read(id, &r.chain, func(*protocol.Frame) error { return nil })
	if err != nil {
		return nil, err
	}
	if parts >= maxParts {
		return nil, refuse(http.StatusForbidden, "the session has had %d connections", parts)
	}
	for number := parts + 1; r.part == nil; number++ {
		name := f.path(id, fmt.Sprintf("%06d.part", number))
		r.part, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600) //nolint:gosec // the ID is that of a ticket of ours
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if err := f.sync(id); err != nil {
		return nil, errors.Join(err, r.part.Close())
	}
	return r, nil
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

// flush puts what was added on the disk.
func (r *recording) flush() error {
	if r.waiting.Len() == 0 {
		return nil
	}
	if _, err := r.waiting.WriteTo(r.part); err != nil {
		return err
	}
	return r.part.Sync()
}

func (r *recording) close() { _ = r.part.Close() }

// seal ends the recording.
func (r *recording) seal(now time.Time) (Seal, error) {
	seal := Seal{
		ID: r.id, Frames: r.next - 1, Bytes: r.bytes, SHA256: hex.EncodeToString(r.sum[:]),
		End: *r.end, Length: r.last, At: now.UTC(),
	}
	seal.MAC = seal.mac(r.key.Current)
	err := r.folder.write(r.id, sealFile, seal)
	if errors.Is(err, fs.ErrExist) { // by another collector, of the same frames
		err = nil
	}
	return seal, err
}

func (s Seal) mac(key []byte) string {
	s.MAC = ""
	text, _ := json.Marshal(s) // it always marshals
	hash := hmac.New(sha256.New, key)
	_, _ = hash.Write([]byte("admitkit.dev/session seal 1\n"))
	_, _ = hash.Write(text)
	return hex.EncodeToString(hash.Sum(nil))
}

// read hands over each frame of a recording once, in order, and extends the chain. parts is
// the number of the last part.
func (f Folder) read(id string, c *chain, each func(*protocol.Frame) error) (parts int, err error) {
	names, err := filepath.Glob(f.path(id, partPattern))
	if err != nil {
		return 0, err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := readPart(name, c, each); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(names) > 0 {
		_, err = fmt.Sscanf(filepath.Base(names[len(names)-1]), "%06d.part", &parts)
	}
	return parts, err
}

// readPart reads a part up to its end, or to a frame that was not written whole because the
// collector ended meanwhile. The recorder has sent that one again.
func readPart(name string, c *chain, each func(*protocol.Frame) error) error {
	file, err := os.Open(name) //nolint:gosec // an ID has been checked
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	from := bufio.NewReaderSize(file, protocol.MaxData)
	for {
		frame, err := protocol.Read(from)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if frame.Seq < c.next {
			continue
		}
		if frame.Seq > c.next {
			return fmt.Errorf("frame %d is missing", c.next)
		}
		if err := c.extend(&frame, frame.Append(nil)); err != nil {
			return err
		}
		if err := each(&frame); err != nil {
			return err
		}
	}
}

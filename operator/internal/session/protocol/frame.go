package protocol

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Type says what a frame is.
type Type byte

// The frames of the recorder. All but Alive have a sequence number.
const (
	// Begin has the [Head] of the session, and is its first frame.
	Begin Type = 'b'
	// Output is what a terminal showed.
	Output Type = 'o'
	// Input is what was typed.
	Input Type = 'i'
	// Resize has a [Size].
	Resize Type = 'r'
	// Stream has the [StreamSum] of a stream that has ended.
	Stream Type = 's'
	// File has a [FileSum] of a tar stream.
	File Type = 'f'
	// Gap says in its text what is not recorded, and why.
	Gap Type = 'g'
	// Exit has the [End] of the session, and is its last frame.
	Exit Type = 'x'
	// Alive says that the recorder runs. Its data is the [Activity].
	Alive Type = 'k'
)

// The frames of the collector.
const (
	// Ack says that the frame with this number, and each before it, is stored.
	Ack Type = 'A'
	// Say has a line that the recorder shows to the user.
	Say Type = 'S'
	// Stop ends the session. Its text says why.
	Stop Type = 'E'
	// Until has the [Limits] of the session, in place of those before.
	Until Type = 'U'
	// Mark is in a recording only: up to here, its sum is this.
	Mark Type = 'M'
)

// Frame is one message. On the wire it has a head of [headLength] bytes: the type, the
// sequence number, the time in microseconds and the length of the data, in big-endian.
type Frame struct {
	Type Type
	// Seq is 1 for the first frame of a session, and 0 for a frame that need not be stored.
	Seq uint64
	// At is the time since the session began.
	At   time.Duration
	Data []byte
}

const (
	// MaxData is the most bytes of a frame's data.
	MaxData    = 64 << 10
	headLength = 1 + 8 + 8 + 4
)

// ErrFrame is the error of bytes that are no frame.
var ErrFrame = errors.New("not a frame")

// Size returns the bytes of the frame on the wire.
func (f *Frame) Size() int { return headLength + len(f.Data) }

// Append appends the frame as it is on the wire.
func (f *Frame) Append(to []byte) []byte {
	to = append(to, byte(f.Type))
	to = binary.BigEndian.AppendUint64(to, f.Seq)
	to = binary.BigEndian.AppendUint64(to, uint64(f.At/time.Microsecond)) //nolint:gosec // time does not run backwards
	to = binary.BigEndian.AppendUint32(to, uint32(len(f.Data)))           //nolint:gosec // at most MaxData
	return append(to, f.Data...)
}

// Next waits for the head of the next frame, and returns its bytes on the wire. It reads
// nothing of it: [Read] does.
func Next(from *bufio.Reader) (size int, err error) {
	head, err := from.Peek(headLength)
	if err != nil {
		return 0, err
	}
	length := binary.BigEndian.Uint32(head[17:])
	if length > MaxData {
		return 0, fmt.Errorf("%w: type %q, %d bytes", ErrFrame, head[0], length)
	}
	return headLength + int(length), nil
}

// LostOf returns how many bytes are not recorded, as a [Gap] says.
func LostOf(f *Frame) (lost int64, ok bool) {
	if f.Type != Gap {
		return 0, false
	}
	_, err := fmt.Sscanf(string(f.Data), "%d bytes", &lost)
	return max(lost, 0), err == nil
}

// Read reads one frame. At the end of the input, between two frames, the error is io.EOF;
// within a frame it is io.ErrUnexpectedEOF.
func Read(from *bufio.Reader) (Frame, error) {
	var head [headLength]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return Frame{}, err
	}
	micros, length := binary.BigEndian.Uint64(head[9:]), binary.BigEndian.Uint32(head[17:])
	if !known(Type(head[0])) || length > MaxData || micros > uint64(maxAt/time.Microsecond) {
		return Frame{}, fmt.Errorf("%w: type %q, %d bytes", ErrFrame, head[0], length)
	}
	f := Frame{
		Type: Type(head[0]), Seq: binary.BigEndian.Uint64(head[1:]),
		At: time.Duration(micros) * time.Microsecond, Data: make([]byte, length),
	}
	if _, err := io.ReadFull(from, f.Data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// maxAt is longer than any session.
const maxAt = 10 * 365 * 24 * time.Hour

func known(t Type) bool {
	switch t {
	case Begin, Output, Input, Resize, Stream, File, Gap, Exit, Alive, Ack, Say, Stop, Until, Mark:
		return true
	}
	return false
}

// Head is what [Begin] has, as JSON.
type Head struct {
	// Time is when the session began.
	Time time.Time `json:"time"`
	// Command is the command of the user. It is cut to MaxCommand bytes.
	Command []string `json:"command"`
	// Terminal says that the session has a terminal, of this Size and Term.
	Terminal bool   `json:"terminal,omitempty"`
	Size     Size   `json:"size,omitzero"`
	Term     string `json:"term,omitempty"`
}

// MaxCommand is the most bytes of a command in a [Head].
const MaxCommand = 16 << 10

// Shorten returns what a [Head] has of a command.
func Shorten(command []string) []string {
	left := MaxCommand
	for i, argument := range command {
		if left -= len(argument) + 1; left < 0 {
			return append(command[:i:i], "...")
		}
	}
	return command
}

// Size is the size of a terminal.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// StreamSum is what a stream without a terminal was.
type StreamSum struct {
	// Name is stdin, stdout or stderr.
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// FileSum is an entry of a tar stream.
type FileSum struct {
	// Stream is the one that the entry is in.
	Stream string `json:"stream"`
	// Name and Link are cut to MaxPath bytes.
	Name string `json:"name"`
	Link string `json:"link,omitempty"`
	// Type is the entry's type as tar has it: 0 is a file, 5 a directory, 2 a symbolic link.
	Type  string `json:"type"`
	Mode  int64  `json:"mode"`
	Bytes int64  `json:"bytes"`
	// SHA256 is that of a file's content.
	SHA256 string `json:"sha256,omitempty"`
}

// MaxPath is the most bytes of a path in a [FileSum].
const MaxPath = 4 << 10

// End is how a session ended.
type End struct {
	// Code is the exit code, 128 and the signal's number after a signal.
	Code int `json:"code"`
	// Signal is the number of the signal that ended the command, 0 for none.
	Signal int `json:"signal,omitempty"`
	// Reason is empty if the command ended by itself.
	Reason string `json:"reason,omitempty"`
	// Killed counts the processes that were left and were killed. Left counts those that
	// could not be killed.
	Killed int `json:"killed,omitempty"`
	Left   int `json:"left,omitempty"`
}

// Limits say when the recorder ends the session. It ends it by itself, so that a session
// ends on time while no collector is reached, too. Times are relative: the clocks of nodes
// differ.
type Limits struct {
	// Left is the time that is left, in microseconds from now on. 0 is no end.
	Left int64 `json:"leftMicros,omitempty"`
	// Reason is why it ends then.
	Reason string `json:"reason,omitempty"`
	// Idle is for how many seconds the user may do nothing. 0 is for ever.
	Idle int64 `json:"idleSeconds,omitempty"`
}

// Activity returns the data of an Alive frame: when the user did something for the last
// time, since the session began.
func Activity(at time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(at, 0)/time.Microsecond))
}

// ActivityOf returns what [Activity] has. ok is false if the frame has none.
func ActivityOf(alive *Frame) (at time.Duration, ok bool) {
	if len(alive.Data) != 8 {
		return 0, false
	}
	micros := binary.BigEndian.Uint64(alive.Data)
	return time.Duration(micros) * time.Microsecond, micros <= uint64(maxAt/time.Microsecond) //nolint:gosec // checked
}

// The reasons of recorders to end a session. A collector that stops one has its own.
const (
	ReasonHangup      = "its terminal is gone"
	ReasonNoCollector = "no collector of sessions was reached"
	ReasonIdle        = "nothing was typed or sent"
	ReasonMax         = "it took as long as a session may"
	// ReasonAccess begins the reasons of sessions that end with an access request.
	ReasonAccess = "access by request"
)

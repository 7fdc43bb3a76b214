package extension

import (
	"fmt"
	"strings"
)

// Mode says what becomes of what a [Mutator], [Validator] or [Extension] decides.
type Mode string

const (
	// Enforce denies and changes objects. It is the default.
	Enforce Mode = "Enforce"
	// Warn denies and changes nothing. The client is told by warnings what would have been
	// denied or changed.
	Warn Mode = "Warn"
	// Observe denies and changes nothing, and clients are told nothing.
	Observe Mode = "Observe"
)

// UnmarshalText reads a mode, in whatever case. An empty text is an empty Mode.
func (m *Mode) UnmarshalText(text []byte) error {
	for _, known := range []Mode{"", Enforce, Warn, Observe} {
		if strings.EqualFold(string(text), string(known)) {
			*m = known
			return nil
		}
	}
	return fmt.Errorf("%q: must be Enforce, Warn or Observe", text)
}

// MarshalText writes a mode.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m), nil }

// Enforced reports whether the mode is Enforce, which an empty one is.
func (m Mode) Enforced() bool { return m == "" || m == Enforce }

// Mode returns the mode of the extension in the namespace of this request. An extension
// with effects outside the object leaves them out unless it is [Enforce]; see
// [Scope].Modes.
func (r *Request) Mode() Mode {
	if r.mode == "" {
		return Enforce
	}
	return r.mode
}

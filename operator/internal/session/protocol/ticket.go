package protocol

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	// Program is the path of the recorder in a container.
	Program = "/.admitkit/recorder"
	// TokenFile is where the token for collectors is in a container.
	TokenFile = "/.admitkit-token/token"
	// ticketFlag is the flag of the recorder that has the ticket.
	ticketFlag = "--ticket="
	// Life is how long a ticket can be redeemed.
	Life = time.Minute
	// MaxTicket is the most bytes of a signed ticket.
	MaxTicket = 16 << 10
	// MaxName is the most bytes of a name in a ticket, such as that of the user.
	MaxName = 512
	// MinKey is the least bytes of a key.
	MinKey = 32
)

// Ticket is the permission to run one command by the recorder, once.
type Ticket struct {
	// ID is the session: 32 hexadecimal digits, at random.
	ID string `json:"id"`
	// Namespace, Pod, PodUID and Container are where the command runs.
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// User is who gave the command.
	User string `json:"user"`
	// Command is the sum of the command, and Shown that of what a [Head] has of it, if it is cut: see [Sum] and [Shorten].
	Command string `json:"command"`
	Shown   string `json:"shown,omitempty"`
	// Expires is when the ticket can no longer be redeemed, in seconds since 1970.
	Expires int64 `json:"expires"`
	// Grant is the access request with which the session ends, if there is one.
	Grant *Grant `json:"grant,omitempty"`
	// Terms are what the recorder goes by.
	Terms Terms `json:"terms"`
}

// Grant names an access request in the namespace of the Pod.
type Grant struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Terms say how a session is recorded. They are in the ticket so that nobody can change
// them.
type Terms struct {
	// Collectors are the addresses of collectors, host:port, which the recorder tries in
	// turn.
	Collectors []string `json:"collectors"`
	// ServerName is the name in the collectors' certificates. Default: the host.
	ServerName string `json:"serverName,omitempty"`
	// CA has the certificates that the collectors' are verified against, in DER.
	CA [][]byte `json:"ca"`
	// TokenFile is the file with the token of the Pod. Default: [TokenFile].
	TokenFile string `json:"tokenFile,omitempty"`
	// Closed says what happens while no collector is reached: the session waits, and ends.
	// Otherwise it goes on without being recorded.
	Closed bool `json:"closed,omitempty"`
	// Wait is how many seconds the session waits for a collector.
	Wait int `json:"wait"`
	// Input says that what is typed is recorded, too.
	Input bool `json:"input,omitempty"`
	// Max is how many seconds the session may take, and Idle for how many the user may do
	// nothing. 0 is for ever. A collector may say something else: see [Limits].
	Max  int64 `json:"max,omitempty"`
	Idle int64 `json:"idle,omitempty"`
	// Public says that the ticket is in the Pod, which many may read, before its container
	// runs. It can be redeemed from then on.
	Public bool `json:"public,omitempty"`
}

// MaxSeconds is the most seconds of a limit in [Terms].
const MaxSeconds = 365 * 24 * 3600

// NewID returns the ID of a new session.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Sum returns the SHA-256 of a command, in hexadecimal, with a NUL after each argument, as
// audit has it. A shell has it by printf '%s\0' ARGUMENT... | sha256sum.
func Sum(command []string) string {
	hash := sha256.New()
	for _, argument := range command {
		_, _ = io.WriteString(hash, argument+"\x00") // never fails
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// SumShown returns the sum of what a [Head] has of a command, "" if that is all of it.
func SumShown(command []string) string {
	shown := Sum(Shorten(command))
	if shown == Sum(command) {
		return ""
	}
	return shown
}

// Key signs tickets and verifies them.
type Key struct {
	// Current signs. Previous, if there is one, still verifies.
	Current, Previous []byte
}

var encoding = base64.RawURLEncoding

// The reasons for which a ticket is refused.
var (
	ErrMalformed = errors.New("the ticket is malformed")
	ErrForged    = errors.New("the ticket is not signed with the key of this installation")
	ErrExpired   = errors.New("the ticket has expired")
)

// Sign returns the ticket as text.
func (k Key) Sign(t *Ticket) (string, error) {
	if len(k.Current) < MinKey {
		return "", fmt.Errorf("the key of tickets has %d bytes: it must have at least %d", len(k.Current), MinKey)
	}
	if err := t.validate(); err != nil {
		return "", err
	}
	claims, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	text := encoding.EncodeToString(claims) + "." + encoding.EncodeToString(mac(k.Current, claims))
	if len(text) > MaxTicket {
		return "", fmt.Errorf("the ticket has %d bytes, and may have at most %d: name fewer collectors", len(text), MaxTicket)
	}
	return text, nil
}

// Verify returns a ticket that was signed with the key and has not expired.
func (k Key) Verify(text string, now time.Time) (*Ticket, error) {
	t, err := k.VerifyExpired(text)
	if err == nil && now.Unix() >= t.Expires {
		return nil, ErrExpired
	}
	return t, err
}

// VerifyExpired is [Key.Verify] for a ticket that may have expired, because it has been
// redeemed before.
func (k Key) VerifyExpired(text string) (*Ticket, error) {
	claims, sum, err := split(text)
	if err != nil {
		return nil, err
	}
	if !k.Signed(func(key []byte) bool { return hmac.Equal(sum, mac(key, claims)) }) {
		return nil, ErrForged
	}
	return decode(claims)
}

// Signed reports whether a signature is valid by the key, or by the one before.
func (k Key) Signed(valid func(key []byte) bool) bool {
	return slices.ContainsFunc([][]byte{k.Current, k.Previous}, func(key []byte) bool {
		return len(key) >= MinKey && valid(key)
	})
}

// Parse reads a ticket without verifying it.
func Parse(text string) (*Ticket, error) {
	claims, _, err := split(text)
	if err != nil {
		return nil, err
	}
	return decode(claims)
}

func split(text string) (claims, sum []byte, err error) {
	head, tail, found := strings.Cut(text, ".")
	if !found || len(text) > MaxTicket {
		return nil, nil, ErrMalformed
	}
	if claims, err = encoding.Strict().DecodeString(head); err == nil {
		sum, err = encoding.Strict().DecodeString(tail)
	}
	if err != nil || len(sum) != sha256.Size {
		return nil, nil, ErrMalformed
	}
	return claims, sum, nil
}

func decode(claims []byte) (*Ticket, error) {
	t := &Ticket{}
	decoder := json.NewDecoder(bytes.NewReader(claims))
	decoder.DisallowUnknownFields()
	if decoder.Decode(t) != nil || decoder.More() || t.validate() != nil {
		return nil, ErrMalformed
	}
	return t, nil
}

// mac binds the claims to this use of the key.
func mac(key, claims []byte) []byte {
	hash := hmac.New(sha256.New, key)
	_, _ = hash.Write([]byte("admitkit.dev/session ticket 1\n")) // never fails
	_, _ = hash.Write(claims)
	return hash.Sum(nil)
}

// ValidID reports whether id can be the ID of a session. It is then safe as a file's name.
func ValidID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == 16 && strings.ToLower(id) == id
}

func (t *Ticket) validate() error {
	if !ValidID(t.ID) {
		return fmt.Errorf("ticket: id %.40q: must have 32 hexadecimal digits", t.ID)
	}
	for field, value := range map[string]string{
		"namespace": t.Namespace, "pod": t.Pod, "podUID": t.PodUID, "container": t.Container, "user": t.User, "command": t.Command,
	} {
		if value == "" || len(value) > MaxName {
			return fmt.Errorf("ticket: %s has %d bytes: it must have 1 to %d", field, len(value), MaxName)
		}
	}
	if g := t.Grant; g != nil && (g.Kind == "" || g.Name == "" || g.UID == "" || len(g.Kind)+len(g.Name)+len(g.UID) > MaxName) {
		return fmt.Errorf("ticket: the grant must have a kind, a name and a UID, of %d bytes at most", MaxName)
	}
	switch {
	case len(t.Terms.Collectors) == 0:
		return errors.New("ticket: there is no collector")
	case t.Terms.Wait < 0 || t.Terms.Wait > 3600:
		return fmt.Errorf("ticket: wait is %d: it must be 0 to 3600 seconds", t.Terms.Wait)
	case t.Terms.Max < 0 || t.Terms.Max > MaxSeconds, t.Terms.Idle < 0 || t.Terms.Idle > MaxSeconds:
		return fmt.Errorf("ticket: max is %d and idle is %d: they must be 0 to %d seconds", t.Terms.Max, t.Terms.Idle, MaxSeconds)
	}
	return nil
}

// Covers returns an error unless the ticket is for this command of this user.
func (t *Ticket) Covers(namespace, pod, container, user string, command []string) error {
	for _, each := range []struct{ what, is, has string }{
		{"namespace", namespace, t.Namespace},
		{"Pod", pod, t.Pod},
		{"container", container, t.Container},
		{"user", user, t.User},
		{"command", Sum(command), t.Command},
	} {
		if each.is != each.has {
			return fmt.Errorf("the ticket is for another %s", each.what)
		}
	}
	return nil
}

// Wrap returns the command that runs command by the recorder.
func Wrap(ticket string, command []string) []string {
	return append([]string{Program, ticketFlag + ticket, "--"}, command...)
}

// Split returns the ticket and the command of [Wrap]. It does not verify the ticket.
func Split(wrapped []string) (ticket string, command []string, ok bool) {
	if len(wrapped) < 4 || wrapped[0] != Program || !strings.HasPrefix(wrapped[1], ticketFlag) || wrapped[2] != "--" {
		return "", nil, false
	}
	return strings.TrimPrefix(wrapped[1], ticketFlag), wrapped[3:], true
}

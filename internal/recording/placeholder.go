package recording

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strconv"
)

// Placeholders are valid as names and as values of labels.
const prefix = "redacted-"

var placeholders = regexp.MustCompile(prefix + `[0-9a-f]{16}`)

func isPlaceholder(text string) bool {
	return len(text) == len(prefix)+16 && placeholders.MatchString(text)
}

// placeholder returns the placeholder of a secret.
func (w *walk) placeholder(secret string) string {
	if isPlaceholder(secret) {
		return secret
	}
	placeholder := prefix + hex.EncodeToString(w.sum(secret)[:8])
	w.secrets[secret] = placeholder
	return placeholder
}

func (r *Redactor) sum(secret string) []byte {
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(secret))
	return mac.Sum(nil)
}

// number returns the placeholder of a number: one that any integer field can have. Its last four
// digits are a checksum, by which it is known again.
func (r *Redactor) number(secret json.Number) json.Number {
	if isNumberPlaceholder(secret) {
		return secret
	}
	return placeholderOf(uint64(binary.BigEndian.Uint32(r.sum(secret.String()))) % 100_000)
}

func placeholderOf(n uint64) json.Number {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(prefix), n))
	return json.Number(strconv.FormatUint(1_000_000_000+n*10_000+uint64(binary.BigEndian.Uint16(sum[:]))%10_000, 10))
}

func isNumberPlaceholder(number json.Number) bool {
	n, err := strconv.ParseUint(number.String(), 10, 32)
	return err == nil && n >= 1_000_000_000 && n < 2_000_000_000 && placeholderOf((n-1_000_000_000)/10_000) == number
}

// Comparable returns the recorded answer and another one to the same request, in a form in which
// they are equal unless they differ in something that was not replaced: what a handler itself says
// that is secret was replaced with another key.
func (r *Redactor) Comparable(e *Entry, now Answer) (recorded, current Answer, err error) {
	both := [2]Answer{e.Answer, now}
	known := map[string]bool{}
	for _, placeholder := range anyPlaceholder.FindAll(e.Request, -1) {
		known[string(placeholder)] = true
		if plain, ok := decoded(string(placeholder)); ok {
			known[plain] = true
		}
	}
	for i := range both {
		entry := &Entry{Request: e.Request, Answer: both[i]}
		if err := r.Entry(entry); err != nil {
			return recorded, current, err
		}
		text, err := encode(entry.Answer)
		if err != nil {
			return recorded, current, err
		}
		text = anyPlaceholder.ReplaceAllFunc(text, func(found []byte) []byte {
			if known[string(found)] {
				return found
			}
			return unknown(found)
		})
		both[i] = Answer{}
		if err := json.Unmarshal(text, &both[i]); err != nil {
			return recorded, current, err
		}
	}
	return both[0], both[1], nil
}

// anyPlaceholder matches placeholders, also in base64, and what may be one of a number.
var anyPlaceholder = regexp.MustCompile(placeholders.String() + `|cmVkYWN0ZWQt[A-Za-z0-9+/]{22}==|\b1[0-9]{9}\b`)

// unknown returns what stands for a placeholder that the request does not have.
func unknown(placeholder []byte) []byte {
	const zero = prefix + "0000000000000000"
	switch {
	case isPlaceholder(string(placeholder)):
		return []byte(zero)
	case placeholder[0] == 'c':
		return []byte(base64.StdEncoding.EncodeToString([]byte(zero)))
	case isNumberPlaceholder(json.Number(placeholder)):
		return []byte(placeholderOf(0))
	}
	return placeholder
}

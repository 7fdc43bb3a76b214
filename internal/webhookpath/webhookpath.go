// Package webhookpath makes the paths of webhooks ones that nobody can guess, so that who
// calls one has read it in a webhook configuration, as API servers do:
//
//	/mutate/pods/…  becomes  /42-5b1f…/mutate/pods/…
//
// The first element is the number of a period, and a MAC of it and of the group of the path,
// by a key that those who register and those who serve share. What was registered in a
// period that is over is refused after a while; see manager/internal/paths.
package webhookpath

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Key signs paths.
type Key []byte

const (
	keySize = 32
	macSize = 16
)

// NewKey returns a new key.
func NewKey() Key {
	key := make(Key, keySize)
	_, _ = rand.Read(key) // it does not fail
	return key
}

// Valid reports whether the key is as long as one that NewKey makes.
func (k Key) Valid() bool { return len(k) == keySize }

// Sign returns the path as it is registered in a period.
func (k Key) Sign(plain string, period int64) string {
	return "/" + k.element(groupOf(plain), period) + plain
}

// Open returns the path that one of Sign stands for, and its period; ok is false for any
// other path.
func (k Key) Open(signed string) (plain string, period int64, ok bool) {
	element, rest, found := strings.Cut(strings.TrimPrefix(signed, "/"), "/")
	number, _, _ := strings.Cut(element, "-")
	period, err := strconv.ParseInt(number, 10, 64)
	plain = "/" + rest
	if err != nil || !found || path.Clean(plain) != plain {
		return "", 0, false
	}
	if !hmac.Equal([]byte(element), []byte(k.element(groupOf(plain), period))) {
		return "", 0, false
	}
	return plain, period, true
}

func (k Key) element(group string, period int64) string {
	number := strconv.FormatInt(period, 10)
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte(number + "/" + group))
	return number + "-" + hex.EncodeToString(mac.Sum(nil)[:macSize])
}

// groupOf returns what the element of a path is for. Those who read one object, such as a
// CustomResourceDefinition, do not learn the paths in others from it.
func groupOf(plain string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(plain, "/"), "/")
	switch first {
	case "convert":
		return plain
	case "probe": // an entry of the mutating configuration
		return "mutate"
	}
	return first
}

var element = regexp.MustCompile(`/[0-9]{1,19}-[0-9a-f]{32}/`)

// Strip returns the path without the element, if it has one, whoever made it.
func Strip(signed string) string {
	if at := element.FindStringIndex(signed); at != nil {
		return signed[:at[0]] + signed[at[1]-1:]
	}
	return signed
}

// Redact hides the MACs of paths in a text, whose length it does not change.
func Redact(text []byte) []byte {
	return element.ReplaceAllFunc(text, func(found []byte) []byte {
		hidden := append([]byte{}, found...)
		for i := len(hidden) - 1 - 2*macSize; i < len(hidden)-1; i++ {
			hidden[i] = 'x'
		}
		return hidden
	})
}

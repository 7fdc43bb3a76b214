// Package jsonpatch applies JSON patches (RFC 6902) exactly as an API server applies
// those of admission webhooks, quirks included: an index may be negative, an object
// has a null where a copy has nothing to copy, a patch of null has no operations.
// It is the same library (gopkg.in/evanphx/json-patch.v4, as in
// k8s.io/apiserver, pkg/admission/plugin/webhook/mutating/dispatcher.go at v1.37),
// and testing/differential compares the two on random patches.
//
// The library has its limit for copies in a package variable, which belongs to the
// program. So [Patch.Apply] measures them before it calls the library. It has an API
// server's limit for copies, and limits of its own for the rest.
package jsonpatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	library "gopkg.in/evanphx/json-patch.v4"
)

// The limits of a patch.
const (
	// MaxOperations is the most operations that an Extension's patch should have. An
	// API server accepts as many from a client (k8s.io/apiserver,
	// pkg/endpoints/handlers/patch.go), and any number from a webhook. Apply does not
	// check it.
	MaxOperations = 10_000
	// MaxCopies is the most operations of the kind copy. Each may double the
	// document, so that their sizes are known only one after the other.
	MaxCopies = 32
	// MaxCopiedBytes is the most that all copies may add. It is the limit of an API
	// server (JSONPatchMaxCopyBytes in k8s.io/apiserver, pkg/server/config.go).
	MaxCopiedBytes = 3 << 20
	// MaxGrowth is the most that a patch may add to a document, and the most bytes
	// that it may have itself.
	MaxGrowth = 8 << 20
)

// Patch is a patch. Its zero value has no operations.
type Patch struct {
	operations library.Patch
	text       []byte // of the operations, with commas
}

// Decode decodes a patch, an array of operations. What an operation says is looked
// at when it is applied.
func Decode(text []byte) (Patch, error) {
	operations, err := library.DecodePatch(text)
	if err != nil {
		return Patch{}, fmt.Errorf("decoding the patch: %w", err)
	}
	if len(operations) == 0 {
		return Patch{}, nil
	}
	array := bytes.TrimSpace(text)
	return Patch{operations, bytes.TrimSpace(array[1 : len(array)-1])}, nil
}

// Len returns the number of operations.
func (p Patch) Len() int { return len(p.operations) }

// Then returns the patch that has the operations of both.
func (p Patch) Then(next Patch) Patch {
	if p.Len() == 0 {
		return next
	}
	if next.Len() == 0 {
		return p
	}
	return Patch{
		append(p.operations[:p.Len():p.Len()], next.operations...),
		bytes.Join([][]byte{p.text, next.text}, []byte{','}),
	}
}

// Paths returns what the operations change, each as the steps of its path.
func (p Patch) Paths() [][]string {
	var paths [][]string
	add := func(pointer string, err error) {
		if err == nil {
			steps := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
			for i, step := range steps {
				steps[i] = unescape.Replace(step)
			}
			paths = append(paths, steps)
		}
	}
	for _, op := range p.operations {
		if op.Kind() == "move" {
			add(op.From())
		}
		if op.Kind() != "test" {
			add(op.Path())
		}
	}
	return paths
}

// Append appends the JSON of the patch to dst. Each operation has the text that was
// decoded.
func (p Patch) Append(dst []byte) []byte {
	dst = append(dst, '[')
	dst = append(dst, p.text...)
	return append(dst, ']')
}

// Apply applies the patch to a document, which stays as it is.
func (p Patch) Apply(document []byte) ([]byte, error) {
	if len(p.text) > MaxGrowth {
		return nil, fmt.Errorf("applying the patch: it has %d bytes, the limit is %d", len(p.text), MaxGrowth)
	}
	if err := p.checkCopies(document); err != nil {
		return nil, fmt.Errorf("applying the patch: %w", err)
	}
	result, err := apply(p.operations, document)
	if err != nil {
		return nil, fmt.Errorf("applying the patch: %w", err)
	}
	if growth := len(result) - len(document); growth > MaxGrowth {
		return nil, fmt.Errorf("applying the patch: the document grows by %d bytes, the limit is %d", growth, MaxGrowth)
	}
	return result, nil
}

// errPanic is the error of a patch for which the library panics, such as one that
// replaces the whole document by nothing. An API server answers those with an
// internal error too.
var errPanic = errors.New("an operation does not apply")

func apply(operations library.Patch, document []byte) (result []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%w: %v", errPanic, reason)
		}
	}()
	return operations.Apply(document)
}

// checkCopies returns an error if the copies add more than they may.
func (p Patch) checkCopies(document []byte) error {
	if copies, most := p.mostCopied(document); copies > MaxCopies {
		return fmt.Errorf("it has %d copy operations, at most %d are applied", copies, MaxCopies)
	} else if most <= MaxCopiedBytes {
		return nil
	}
	copied := 0
	for i, op := range p.operations {
		if op.Kind() != "copy" {
			continue
		}
		from, err := op.From()
		if err != nil {
			return err
		}
		before, err := apply(p.operations[:i], document)
		if err != nil {
			return err
		}
		if copied += len(valueAt(before, from)); copied > MaxCopiedBytes {
			return fmt.Errorf("its copy operations add more than %d bytes", MaxCopiedBytes)
		}
	}
	return nil
}

// mostCopied returns the number of copies, and what they add if each of them copies
// the whole document. Nearly every patch has so few that this is enough to know.
func (p Patch) mostCopied(document []byte) (copies, most int) {
	for _, op := range p.operations {
		if op.Kind() == "copy" {
			copies++
		}
	}
	if copies == 0 || copies > MaxCopies {
		return copies, 0
	}
	size := encodedSize(document)
	for _, op := range p.operations {
		for _, part := range op {
			if part != nil {
				size += encodedSize(*part)
			}
		}
		if op.Kind() != "copy" {
			continue
		}
		if most += size; most > MaxCopiedBytes {
			break
		}
		size *= 2
	}
	return copies, most
}

// valueAt returns the value at a JSON pointer, as the library finds it; nil if there
// is none.
func valueAt(document json.RawMessage, pointer string) json.RawMessage {
	steps := strings.Split(pointer, "/")
	if len(steps) < 2 {
		return nil
	}
	value := document
	for _, step := range steps[1:] {
		step = unescape.Replace(step)
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch {
		case json.Unmarshal(value, &object) == nil:
			value = object[step]
		case json.Unmarshal(value, &array) == nil:
			i, err := strconv.Atoi(step)
			if err != nil || i < -len(array) || i >= len(array) {
				return nil
			}
			if i < 0 {
				i += len(array)
			}
			value = array[i]
		default:
			return nil
		}
	}
	return value
}

// unescape decodes a step of a JSON pointer.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// encodedSize returns at least the size of JSON when the library has written it: it
// escapes <, > and &, which take six bytes then, as the two line separators of
// Unicode do.
func encodedSize(text []byte) int {
	size := len(text)
	for _, special := range []string{"<", ">", "&", "\u2028", "\u2029"} {
		size += (6 - len(special)) * bytes.Count(text, []byte(special))
	}
	return size
}

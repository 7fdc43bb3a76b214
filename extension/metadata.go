package extension

import (
	"bytes"

	"github.com/go-json-experiment/json"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decodeMetadata decodes the metadata of an object and jumps over the rest,
// which for a Pod is the larger part by far. It does so for an object as every
// API server writes it; when in doubt it leaves all of it to the decoder.
func decodeMetadata(raw []byte, into *metav1.PartialObjectMetadata) error {
	members := topLevel{raw: raw}
	var apiVersion, kind, metadata []byte
	for members.next() {
		switch string(members.key) {
		case `"apiVersion"`:
			members.doubtful = members.doubtful || apiVersion != nil
			apiVersion = members.value
		case `"kind"`:
			members.doubtful = members.doubtful || kind != nil
			kind = members.value
		case `"metadata"`:
			members.doubtful = members.doubtful || metadata != nil
			metadata = members.value
		}
	}
	if members.doubtful {
		return json.Unmarshal(raw, into, asAPIMachinery)
	}
	for _, member := range []struct {
		value []byte
		into  any
	}{{apiVersion, &into.APIVersion}, {kind, &into.Kind}, {metadata, &into.ObjectMeta}} {
		if member.value == nil {
			continue
		}
		if err := json.Unmarshal(member.value, member.into, asAPIMachinery); err != nil {
			return err
		}
	}
	return nil
}

// topLevel goes over the members of a JSON object. It finds where a value ends
// by its brackets and quotes alone.
type topLevel struct {
	raw []byte
	at  int
	// key, with its quotes, and value are those of the present member.
	key, value []byte
	// doubtful is true of what is not a JSON object, or has a key with an
	// escape, which may stand for a name that we look for.
	doubtful bool
}

func (t *topLevel) next() bool {
	first := t.at == 0
	switch c := t.token(); {
	case first && c == '{':
		t.at++
		if t.token() == '}' {
			return t.end()
		}
	case !first && c == ',':
		t.at++
		t.token()
	case !first && c == '}':
		return t.end()
	default:
		return t.doubt()
	}
	start := t.at
	if t.token() != '"' || !t.skip() {
		return t.doubt()
	}
	t.key = t.raw[start:t.at]
	if bytes.IndexByte(t.key, '\\') >= 0 || t.token() != ':' {
		return t.doubt()
	}
	t.at++
	t.token()
	start = t.at
	if !t.skip() {
		return t.doubt()
	}
	t.value = t.raw[start:t.at]
	return true
}

// end is false; nothing may follow the object.
func (t *topLevel) end() bool {
	t.at++
	t.doubtful = t.doubtful || t.token() != 0 || t.at < len(t.raw)
	return false
}

func (t *topLevel) doubt() bool {
	t.doubtful = true
	return false
}

// token moves to the next byte that is not white space and returns it, 0 at the
// end.
func (t *topLevel) token() byte {
	for ; t.at < len(t.raw); t.at++ {
		switch c := t.raw[t.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// skip moves behind the value at hand and reports whether there is one.
func (t *topLevel) skip() bool {
	start, depth := t.at, 0
	for ; t.at < len(t.raw); t.at++ {
		switch t.raw[t.at] {
		case '"':
			if !t.skipString() {
				return false
			}
			if depth == 0 {
				t.at++
				return true
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return t.at > start
			}
			if depth--; depth == 0 {
				t.at++
				return true
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return t.at > start
			}
		}
	}
	return false
}

// skipString moves from a string's first quote to its last.
func (t *topLevel) skipString() bool {
	for t.at++; t.at < len(t.raw); t.at++ {
		switch t.raw[t.at] {
		case '\\':
			t.at++
		case '"':
			return true
		}
	}
	return false
}

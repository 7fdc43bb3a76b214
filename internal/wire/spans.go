package wire

import "math"

// Text is the JSON of one value. After [Scanner.Checked] it knows where its large
// objects and lists end, so that nobody who reads it again scans them only to get past
// them, and how many members they have.
//
// Small ones are not recorded: to look for one takes longer than to scan it.
type Text struct {
	Raw     []byte
	spans   []span // in the order of their starts
	checked bool
}

// span is an object or list in a text.
type span struct{ start, end, members uint32 }

const (
	// leastText is the length from which a text has spans.
	leastText = 1 << 10
	// leastSpan is the least length of a span, in bytes. In a large text it is longer,
	// so that of all spans of one depth there are at most spansOfDepth.
	leastSpan    = 128
	spansOfDepth = 512
	// maxSpans bounds what deep nesting takes: 24 KiB. What comes later is scanned
	// when it is needed.
	maxSpans = 2048
)

// Checked moves past the next value and returns it. The caller checks that it is
// UTF-8.
func (s *Scanner) Checked() (Text, error) {
	s.Peek()
	if rest := len(s.text) - s.at; rest >= leastText && len(s.text) <= math.MaxUint32 {
		least := max(leastSpan, rest/spansOfDepth)
		s.record = &recorder{from: s.at, least: least, spans: make([]span, 0, rest/least)}
	}
	value, err := s.Value()
	text := Text{Raw: value, checked: err == nil}
	if s.record != nil {
		text.spans, s.record = s.record.spans, nil
	}
	return text, err
}

// Scanner returns a scanner at a position of the text. It does not check what it only
// moves past.
func (t *Text) Scanner(at int) Scanner { return Scanner{text: t.Raw, at: at, checked: t} }

// recorder records the spans of a text.
type recorder struct {
	from  int // where the text begins in what is scanned
	least int // the least length of a span
	spans []span
}

// begin notes that an object or list begins, and returns the place of the note.
func (r *recorder) begin(at int) int {
	if len(r.spans) == maxSpans {
		return maxSpans
	}
	r.spans = append(r.spans, span{start: uint32(at - r.from)}) //nolint:gosec // see Checked
	return len(r.spans) - 1
}

// end completes the note at a place. Those after it are inside, and so are shorter.
func (r *recorder) end(place, at, members int) {
	if place == maxSpans {
		return
	}
	noted := &r.spans[place]
	noted.end, noted.members = uint32(at-r.from), uint32(members) //nolint:gosec // see Checked
	if int(noted.end-noted.start) < r.least {
		r.spans = r.spans[:place]
	}
}

// spanAt returns the object or list that begins at a position, nil if it is not
// recorded.
func (t *Text) spanAt(at int) *span {
	low, high := 0, len(t.spans)
	for low < high {
		middle := (low + high) / 2
		if int(t.spans[middle].start) < at {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == len(t.spans) || int(t.spans[low].start) != at {
		return nil
	}
	return &t.spans[low]
}

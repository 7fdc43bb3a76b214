package cli

import (
	"time"
)

// Span is the range of time that --since and --until give. A zero time is no bound.
type Span struct{ From, To time.Time }

// NewSpan parses the values of --since and --until. "" is no bound.
func NewSpan(since, until string) (s Span, err error) {
	if s.From, err = when("--since", since); err == nil {
		s.To, err = when("--until", until)
	}
	return s, err
}

// Has reports whether a time is in the range.
func (s Span) Has(at time.Time) bool {
	return !at.Before(s.From) && (s.To.IsZero() || at.Before(s.To))
}

// when parses a time, or a duration before now. "" is no time.
func when(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, Exitf(CodeUsage, "%s %q: must be a duration such as 24h or 7d, or a time such as 2026-11-21T09:00:00Z", flag, text)
	}
	return at, nil
}

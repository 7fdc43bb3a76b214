package main

import (
	"time"
)

// span is the range of time that --since and --until give. A zero time is no bound.
type span struct{ from, to time.Time }

func newSpan(since, until string) (s span, err error) {
	if s.from, err = when("--since", since); err == nil {
		s.to, err = when("--until", until)
	}
	return s, err
}

func (s span) has(at time.Time) bool {
	return !at.Before(s.from) && (s.to.IsZero() || at.Before(s.to))
}

// when parses a time, or a duration before now. "" is no time.
func when(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := parseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, exitf(codeUsage, "%s %q: must be a duration such as 24h or 7d, or a time such as 2026-11-21T09:00:00Z", flag, text)
	}
	return at, nil
}

package main

import (
	"errors"
	"strings"
)

// splitWords splits a command as a shell does, and refuses what a shell would do more than split:
// expand, redirect, or run another command.
func splitWords(text string) ([]string, error) {
	var s splitter
	for _, r := range text {
		if err := s.take(r); err != nil {
			return nil, err
		}
	}
	if s.quote != 0 || s.escaped {
		return nil, errors.New("a quote is not closed")
	}
	s.end()
	return s.words, nil
}

type splitter struct {
	words   []string
	word    strings.Builder
	in      bool // a word has begun, which may be empty
	quote   rune // the one that is open
	escaped bool // by the backslash before
}

func (s *splitter) take(r rune) error {
	switch {
	case s.escaped:
		if s.quote == '"' && !strings.ContainsRune("\"\\$`", r) {
			s.word.WriteByte('\\')
		}
		s.word.WriteRune(r)
		s.escaped = false
	case r == '\\' && s.quote != '\'':
		s.in, s.escaped = true, true
	case s.quote == r:
		s.quote = 0
	case s.quote == '\'':
		s.word.WriteRune(r)
	case strings.ContainsRune("$`", r), s.quote == 0 && strings.ContainsRune("\n;|&<>()*?", r):
		return errors.New("it is more than one plain command")
	case s.quote == '"':
		s.word.WriteRune(r)
	default:
		s.plain(r)
	}
	return nil
}

// plain takes a character outside of quotes.
func (s *splitter) plain(r rune) {
	switch r {
	case '\'', '"':
		s.in, s.quote = true, r
	case ' ', '\t':
		s.end()
	default:
		s.in = true
		s.word.WriteRune(r)
	}
}

func (s *splitter) end() {
	if s.in {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.in = false
}

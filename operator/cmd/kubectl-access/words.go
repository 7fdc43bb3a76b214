package main

import (
	"errors"
	"strings"
)

// splitWords splits a command as a shell does, and refuses what a shell would do more than split:
// expand, redirect, or run another command.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote, escaped := false, rune(0), false // in a word, within quotes, after a backslash
	for _, r := range text {
		switch {
		case escaped:
			if quote == '"' && !strings.ContainsRune("\"\\$`", r) {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			in, escaped = true, true
		case r == quote:
			quote = 0
		case quote == '\'':
			word.WriteRune(r)
		case r == '$' || r == '`' || quote == 0 && strings.ContainsRune("\n;|&<>()*?", r):
			return nil, errors.New("it is more than one plain command")
		case quote == '"':
			word.WriteRune(r)
		case r == '\'' || r == '"':
			in, quote = true, r
		case r == ' ' || r == '\t':
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote is not closed")
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

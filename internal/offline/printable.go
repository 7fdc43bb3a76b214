package offline

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable returns a text as a terminal may show it: control characters are escaped, since
// the names of some objects, users and messages may have any. Line breaks and tabs stay.
func Printable(text string) string {
	return escape(text, func(r rune) bool { return r != '\n' && r != '\t' })
}

// OneLine is Printable for a text that must not look like several lines or columns.
func OneLine(text string) string { return escape(text, func(rune) bool { return true }) }

func escape(text string, may func(rune) bool) string {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) && may(r) }
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var clean strings.Builder
	for _, r := range text {
		if hidden(r) {
			quoted := strconv.QuoteRune(r)
			clean.WriteString(quoted[1 : len(quoted)-1])
		} else {
			clean.WriteRune(r)
		}
	}
	return clean.String()
}

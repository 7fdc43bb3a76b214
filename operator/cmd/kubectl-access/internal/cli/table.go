package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Table prints objects as a table of kubectl. The next call adds rows to the same
// table.
func (c *Base) Table(columns []Column) Printer {
	out := printers.GetNewTabWriter(c.Out)
	begun := false
	return func(objects ...client.Object) error {
		if len(objects) == 0 {
			return nil
		}
		row := func(cell func(Column) string) {
			cells := make([]string, len(columns))
			for i, col := range columns {
				// Names and reasons are text of other users, which must not control the
				// terminal.
				cells[i] = EscapeLine(cell(col))
			}
			_, _ = fmt.Fprintln(out, strings.Join(cells, "\t")) // Flush returns the error
		}
		if !begun {
			row(func(col Column) string { return col.Name })
			begun = true
		}
		for _, object := range objects {
			row(func(col Column) string { return cmp.Or(col.Of(object), "<none>") })
		}
		return out.Flush()
	}
}

// Column is one of a table. A wide one is only in the format wide.
type Column struct {
	Name string
	Wide bool
	Of   func(client.Object) string
}

// Visible returns the columns of a table. One of all namespaces has a column for the
// namespace.
func Visible(all []Column, wide, everywhere bool) []Column {
	var columns []Column
	for _, col := range all {
		if (!col.Wide || wide) && (col.Name != "NAMESPACE" || everywhere) {
			columns = append(columns, col)
		}
	}
	return columns
}

// Escape keeps text of other users from controlling the terminal. printers.EscapeTerminal
// alone leaves the control characters of C1, such as U+009B, which begins a sequence too, and
// what turns the direction of a line or cannot be seen.
func Escape(text string) string {
	var escaped strings.Builder
	for _, r := range printers.EscapeTerminal(text) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			escaped.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// EscapeLine also keeps the text in its line, and in its column.
func EscapeLine(text string) string {
	return Escape(strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(text))
}

// Moment writes a time with its zone, and nil as nothing.
func Moment(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

// Age writes how old an object is, as kubectl does.
func Age(object client.Object) string {
	return duration.HumanDuration(time.Since(object.GetCreationTimestamp().Time))
}

// Lines prints names and values in two columns, and omits empty values. A value stays in
// its line: a reason must not look like something else that is told.
func Lines(out io.Writer, pairs ...string) error {
	w := printers.GetNewTabWriter(out)
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			_, _ = fmt.Fprintf(w, "%s:\t%s\n", pair[0], EscapeLine(pair[1])) // Flush returns the error
		}
	}
	return w.Flush()
}

// CommandLine shows a command on one line, so that what looks like two arguments
// is two.
func CommandLine(command []string) string {
	words := make([]string, len(command))
	for i, word := range command {
		if words[i] = word; word == "" || strings.ContainsFunc(word, func(r rune) bool { return r == ' ' || r == '"' || r == '\'' || !unicode.IsPrint(r) }) {
			words[i] = strconv.Quote(word)
		}
	}
	return strings.Join(words, " ")
}

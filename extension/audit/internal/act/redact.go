package act

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// DefaultRedact are patterns of names whose values are secret.
var DefaultRedact = []string{
	`passw(or)?d`, `passphrase`, `pwd`, `secret`, `token`, `api[-_]?key`, `access[-_]?key`, `private[-_]?key`,
	`credentials?`, `authorization`, `cookie`, `session[-_]?id`,
}

// redacted replaces a secret.
const redacted = "REDACTED"

// Redactor removes secrets from commands. It recognizes a secret by the name in
// front of it: it guards against mishaps, and not against somebody who wants
// their secret recorded.
type Redactor struct {
	substitutions []substitution
	// flag matches an argument that is a flag whose value is the next argument.
	flag *regexp.Regexp
}

type substitution struct {
	pattern     *regexp.Regexp
	replacement string
}

// NewRedactor returns a Redactor for names that contain one of the patterns,
// in upper or lower case. Without patterns it redacts nothing.
func NewRedactor(patterns ...string) (*Redactor, error) {
	if len(patterns) == 0 {
		return &Redactor{}, nil
	}
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", p, err)
		}
		if p == "" {
			return nil, errors.New("an empty pattern matches every name; to redact nothing, give no patterns")
		}
	}
	name := `[\w.-]*(?:` + strings.Join(patterns, "|") + `)[\w.-]*`
	r := &Redactor{}
	if err := r.compile(name); err != nil {
		return nil, fmt.Errorf("patterns %q together: %w", patterns, err)
	}
	return r, nil
}

// compile prepares the substitutions for names that match a pattern.
func (r *Redactor) compile(name string) (err error) {
	if r.flag, err = regexp.Compile(`(?is)^--?` + name + `$`); err != nil {
		return err
	}
	// A value ends where a shell ends it. It can be quoted.
	const value = `(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"';&|)]+)`
	for _, each := range []struct{ pattern, replacement string }{
		// Bearer and Basic are the schemes of HTTP's Authorization (RFC 9110).
		{`\b(bearer|basic)\s+[\w.~+/=-]+`, "${1} " + redacted},
		// The user information of a URL (RFC 3986, 3.2.1).
		{`(://[^/\s:@"']*):[^/\s@"']+@`, "${1}:" + redacted + "@"},
		// name=value, name: value, "name": "value"
		{`(` + name + `["']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?` + value, "${1}" + redacted},
		// --name value, within the text of a shell command
		{`((?:^|\s)--?` + name + `\s+)` + value, "${1}" + redacted},
	} {
		pattern, err := regexp.Compile(`(?is)` + each.pattern)
		if err != nil {
			return err
		}
		r.substitutions = append(r.substitutions, substitution{pattern, each.replacement})
	}
	return nil
}

// commandLimit is how many bytes of a command a record holds. An object in etcd
// has at most 1.5 MiB, and one byte may become six in JSON.
const commandLimit = 32 << 10

// Record returns a copy of an act's record without secrets, and short enough for
// every sink. Flags say whether something is missing.
func (r *Redactor) Record(a *Act) *v1alpha1.AuditRecord {
	record := a.Record.DeepCopy()
	clean := func(command []string) []string {
		command, whole := limit(command)
		if !whole {
			flag(record, v1alpha1.FlagTruncated)
		}
		redactedCommand := r.Command(command)
		for i := range command {
			if command[i] != redactedCommand[i] {
				flag(record, v1alpha1.FlagRedacted)
			}
		}
		return redactedCommand
	}
	record.Command = clean(record.Command)
	for i := range record.Containers {
		record.Containers[i].Command = clean(record.Containers[i].Command)
	}
	path, whole := limit([]string{record.Path})
	record.Path = r.text(path[0])
	if !whole {
		flag(record, v1alpha1.FlagTruncated)
	}
	return record
}

// Command returns a command and its arguments without their secrets.
func (r *Redactor) Command(command []string) []string {
	if r.flag == nil || command == nil {
		return command
	}
	clean := make([]string, len(command))
	for i, argument := range command {
		if i > 0 && r.flag.MatchString(command[i-1]) && !strings.HasPrefix(argument, "-") {
			clean[i] = redacted
			continue
		}
		clean[i] = r.text(argument)
	}
	return clean
}

func (r *Redactor) text(text string) string {
	for _, s := range r.substitutions {
		text = s.pattern.ReplaceAllString(text, s.replacement)
	}
	return text
}

// limit cuts a command to what a record holds, and reports whether it is whole.
func limit(command []string) ([]string, bool) {
	left := commandLimit
	for i, argument := range command {
		if left -= len(argument); left < 0 {
			short := append([]string{}, command[:i]...)
			return append(short, strings.ToValidUTF8(argument[:len(argument)+left], "")), false
		}
	}
	return command, true
}

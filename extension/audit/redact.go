package audit

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// DefaultRedact are the patterns of names whose values are secret.
var DefaultRedact = []string{
	`passw(or)?d`, `passphrase`, `pwd`, `secret`, `token`, `api[-_]?key`, `access[-_]?key`, `private[-_]?key`,
	`credentials?`, `authorization`, `cookie`, `session[-_]?id`,
}

// redacted stands for what was taken out.
const redacted = "REDACTED"

// Redactor takes secrets out of commands. It knows a secret by the name that
// stands before it, so it is a help against mishaps and no protection from
// somebody who wants their secret recorded.
type Redactor struct {
	rules []rule
	// flag matches an argument that is a flag whose value is the next one.
	flag *regexp.Regexp
}

type rule struct {
	pattern     *regexp.Regexp
	replacement string
}

// NewRedactor returns a Redactor for names that contain one of the patterns,
// whatever their case; without patterns it redacts nothing.
func NewRedactor(patterns ...string) (*Redactor, error) {
	if len(patterns) == 0 {
		return &Redactor{}, nil
	}
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", p, err)
		}
		if p == "" {
			return nil, fmt.Errorf("an empty pattern matches every name; to redact nothing give no pattern")
		}
	}
	name := `[\w.-]*(?:` + strings.Join(patterns, "|") + `)[\w.-]*`
	// What ends a value in a shell's command line, with the quotes that it may be in.
	const value = `(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"';&|)]+)`
	compile := func(pattern string) (*regexp.Regexp, error) {
		compiled, err := regexp.Compile(`(?is)` + pattern)
		if err != nil {
			return nil, fmt.Errorf("patterns %q together: %w", patterns, err)
		}
		return compiled, nil
	}
	r := &Redactor{}
	var err error
	if r.flag, err = compile(`^--?` + name + `$`); err != nil {
		return nil, err
	}
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
		compiled, err := compile(each.pattern)
		if err != nil {
			return nil, err
		}
		r.rules = append(r.rules, rule{compiled, each.replacement})
	}
	return r, nil
}

// Command returns the command and its arguments without their secrets.
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
		clean[i] = r.Text(argument)
	}
	return clean
}

// Text returns a text without its secrets.
func (r *Redactor) Text(text string) string {
	for _, rule := range r.rules {
		text = rule.pattern.ReplaceAllString(text, rule.replacement)
	}
	return text
}

// commandLimit is how many bytes of a command a record holds. An object in etcd
// has at most 1.5 MiB, and one byte may become six in JSON.
const commandLimit = 32 << 10

// record returns a copy of a record without secrets, and short enough for every
// sink. It says so if something is missing.
func (r *Redactor) record(full *v1alpha1.AuditRecord) *v1alpha1.AuditRecord {
	record := full.DeepCopy()
	clean := func(command []string) []string {
		command, whole := limit(command)
		if !whole {
			addFlags(record, v1alpha1.FlagTruncated)
		}
		redactedCommand := r.Command(command)
		for i := range command {
			if command[i] != redactedCommand[i] {
				addFlags(record, v1alpha1.FlagRedacted)
			}
		}
		return redactedCommand
	}
	record.Command = clean(record.Command)
	for i := range record.Containers {
		record.Containers[i].Command = clean(record.Containers[i].Command)
	}
	path, whole := limit([]string{record.Path})
	record.Path = r.Text(path[0])
	if !whole {
		addFlags(record, v1alpha1.FlagTruncated)
	}
	return record
}

// limit cuts a command.
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

// Package redact takes secrets out of texts, commands and paths, for what keeps them: audit
// records, recordings of sessions and of admissions. It recognizes a secret by the name in front of
// it, such as --password or TOKEN=, by its place in a URL, or by the scheme of HTTP's
// Authorization. A secret without any of these stays.
package redact

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Default are patterns of names whose values are secret.
var Default = []string{
	`passw(or)?d`, `passphrase`, `pwd`, `secret`, `token`, `api[-_]?key`, `access[-_]?key`, `private[-_]?key`,
	`credentials?`, `authorization`, `cookie`, `session[-_]?id`,
}

// redacted replaces a secret.
const redacted = "REDACTED"

// Redactor removes secrets. Make one by [New]. It recognizes a secret by the name in
// front of it: it guards against mishaps, and not against somebody who wants
// their secret recorded. Nor may it help somebody who wants to hide a command: a value
// in which a shell could find one stays as it is, see [mayRun].
//
// It reads a text once, from front to back, because anybody who may exec chooses the
// text.
type Redactor struct {
	// secret matches names whose values are secret; nil if there are none.
	secret *regexp.Regexp
	// replace returns what stands for a secret, of a thorough Redactor; nil otherwise.
	replace func(secret string) string
}

// New returns a Redactor for names that contain one of the patterns,
// in upper or lower case. Without patterns it redacts nothing.
func New(patterns ...string) (*Redactor, error) {
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
	secret, err := regexp.Compile(`(?is)` + strings.Join(patterns, "|"))
	if err != nil {
		return nil, fmt.Errorf("patterns %q together: %w", patterns, err)
	}
	return &Redactor{secret: secret}, nil
}

// Thorough returns a Redactor for what is no evidence of commands. It takes values out also where
// a shell could find a command in them, up to the end of the line behind a colon, and the
// secrets that are known by their shape: private keys in PEM, JSON Web Tokens, and the tokens of
// some services. The quotes of a value stay. replace returns what stands for a secret; it must
// return what it has returned before as it is.
func (r *Redactor) Thorough(replace func(secret string) string) *Redactor {
	return &Redactor{secret: r.secret, replace: replace}
}

// IsSecret reports whether the value behind a name is secret.
func (r *Redactor) IsSecret(name string) bool { return r.secret != nil && r.isSecret(name) }

// replaced returns what stands for a secret.
func (r *Redactor) replaced(secret string) string {
	if r.replace == nil {
		return redacted
	}
	return r.replace(secret)
}

// mayRun reports whether a value must stay, because a shell could find a command in it.
func (r *Redactor) mayRun(value string) bool { return r.replace == nil && mayRun(value) }

// Command returns a command and its arguments without their secrets.
func (r *Redactor) Command(command []string) []string {
	if r.secret == nil || command == nil {
		return command
	}
	clean := make([]string, len(command))
	for i, argument := range command {
		if i > 0 && r.isFlag(command[i-1]) && !strings.HasPrefix(argument, "-") && !r.mayRun(argument) {
			clean[i] = r.replaced(argument)
			continue
		}
		clean[i] = r.argument(argument)
	}
	return clean
}

// argument returns an argument without its secrets. A thorough Redactor takes all that follows
// --NAME= or NAME= for its value.
func (r *Redactor) argument(argument string) string {
	name := nameEnd(argument, 0)
	if value := name + 1; r.replace != nil && name > 0 && value < len(argument) && argument[name] == '=' && r.isSecret(argument[:name]) {
		return argument[:value] + r.replace(argument[value:])
	}
	return r.text(argument)
}

// Path returns the path behind a proxy without its secrets. A secret ends at the next
// slash, or the rest of the path could be hidden behind the name of one.
func (r *Redactor) Path(path string) string {
	if r.secret == nil {
		return path
	}
	var clean strings.Builder
	from := 0
	for at := range len(path) {
		if path[at] == '/' && !ofAddress(path, at) {
			clean.WriteString(r.text(path[from:at]) + "/")
			from = at + 1
		}
	}
	return clean.String() + r.text(path[from:])
}

// ofAddress reports whether a slash is one of the two in http://user:password@host.
func ofAddress(text string, at int) bool {
	return strings.HasSuffix(text[:at], ":") && strings.HasPrefix(text[at:], "//") || strings.HasSuffix(text[:at], ":/")
}

// isFlag reports whether an argument is a flag whose value is the next argument.
func (r *Redactor) isFlag(argument string) bool {
	return strings.HasPrefix(argument, "-") && nameEnd(argument, 0) == len(argument) && r.isSecret(argument)
}

// mayRun reports whether a shell could find a command in a value: in a substitution, or
// because the value becomes more than one word.
func mayRun(value string) bool {
	for i := range len(value) {
		if isBlank(value[i]) || separates(value[i]) || expands(value[i]) {
			return true
		}
	}
	return false
}

// expands reports whether a shell makes something else of what follows: `a`, $(a), <(a),
// (a), and rm${IFS}-r or {rm,-r}, which become several words.
func expands(c byte) bool { return strings.IndexByte("`$({", c) >= 0 }

// separates reports whether a command ends here, or a file is written or read.
func separates(c byte) bool { return strings.IndexByte(";&|<>", c) >= 0 }

// Text returns a text, such as what a terminal prints, without its secrets.
func (r *Redactor) Text(text string) string {
	if r.secret == nil {
		return text
	}
	return r.text(text)
}

// text returns a text, such as that of a shell, without its secrets.
func (r *Redactor) text(text string) string {
	if r.replace != nil && hasShape(text) {
		text = shapes.ReplaceAllStringFunc(text, r.replace)
	}
	var clean strings.Builder
	kept := 0 // how much of the text is in clean, or was left out
	for at := 0; at < len(text); {
		from, to, next := r.find(text, at)
		if from == to {
			at = next
			continue
		}
		clean.WriteString(text[kept:from])
		clean.WriteString(r.replaced(text[from:to]))
		kept, at = to, to
	}
	if kept == 0 {
		return text
	}
	return clean.String() + text[kept:]
}

// find returns the secret behind the name that begins here, if there is both, and
// where to look next if not.
func (r *Redactor) find(text string, at int) (from, to, next int) {
	if strings.HasPrefix(text[at:], "://") {
		from, to = r.password(text, at+3)
		return from, to, at + 1
	}
	end := nameEnd(text, at)
	if end == at {
		from, to = r.content(text, at)
		return from, to, at + 1
	}
	name, value := text[at:end], skipSpaces(text, end)
	assigned := assignment(text, end)
	secret := func() bool { return r.isSecret(name) }
	if r.replace != nil {
		assigned = assignedBehind(text, end, assigned)
		if strings.EqualFold(name, "value") {
			secret = func() bool { return r.isNamedTag(text, at) }
		}
		if from, to = passwordOfUser(text, at, end); to > from && !secret() {
			return from, to, end
		}
	}
	switch {
	case isScheme(name) && value > end:
		if from, to = value, tokenEnd(text, value); r.mayRun(text[from:to]) {
			to = from
		}
	case assigned > 0 && secret():
		from = skipScheme(text, assigned)
		from, to = r.value(text, from, strings.IndexByte(text[end:assigned], ':') >= 0)
	case name[0] == '-' && value > end && (at == 0 || isBlank(text[at-1])) && !strings.HasPrefix(text[value:], "-") && secret():
		from, to = r.value(text, value, false)
	}
	return from, to, end
}

// value returns where a value begins and ends. A colon is in front of it, or something else.
func (r *Redactor) value(text string, at int, colon bool) (from, to int) {
	if r.replace == nil {
		return at, valueEnd(text, at)
	}
	if from, to, is := severalLines(text, at); is {
		return from, to
	}
	if prefix := while(text, at, isLiteralPrefix); prefix-at <= 2 && prefix < len(text) && (text[prefix] == '"' || text[prefix] == '\'') {
		at = prefix
	}
	if quote := while(text, at, isBackslash); quote < len(text) && (text[quote] == '"' || text[quote] == '\'') {
		return quote + 1, quoteEnd(text, quote+1, text[at:quote+1])
	}
	part := isUnquoted
	if colon {
		part = func(c byte) bool { return c != '\n' && c != '\r' }
	}
	for to = while(text, at, part); to > at && to+1 < len(text) && text[to] == '\n' && text[to-1] == '\\'; { // it goes on
		to = while(text, to+1, part)
	}
	return at, to
}

// isUnquoted reports whether a byte is part of a value without quotes.
func isUnquoted(c byte) bool { return !isBlank(c) && !separates(c) && c != '"' && c != '\'' }

// severalLines returns a value that may have several lines because of how it begins.
func severalLines(text string, at int) (from, to int, is bool) {
	for _, quote := range []string{`"""`, "'''"} { // as in TOML and Python
		if strings.HasPrefix(text[at:], quote) {
			return at + 3, at + 3 + indexOrEnd(text[at+3:], quote), true
		}
	}
	switch {
	case strings.HasPrefix(text[at:], "<<"):
		from, to = hereDocument(text, at)
		return from, to, true
	case strings.HasPrefix(text[at:], "["):
		return at, min(at+indexOrEnd(text[at:], "]")+1, len(text)), true
	}
	return 0, 0, false
}

// isLiteralPrefix reports whether a byte may be in front of the quote of a text: f"a", $'a', @"a".
func isLiteralPrefix(c byte) bool { return strings.IndexByte("$@bBfFrRuU", c) >= 0 }

// indexOrEnd returns where a part begins, or else the end of the text.
func indexOrEnd(text, part string) int {
	if i := strings.Index(text, part); i >= 0 {
		return i
	}
	return len(text)
}

// hereDocument returns the lines behind <<WORD, up to the line WORD.
func hereDocument(text string, at int) (from, to int) {
	word := while(text, at, func(c byte) bool { return strings.IndexByte("<-~\"'\\", c) >= 0 })
	end := nameEnd(text, word)
	from = min(end+indexOrEnd(text[end:], "\n")+1, len(text))
	if word == end {
		return from, from
	}
	for to = from; to < len(text); {
		line := to + indexOrEnd(text[to:], "\n")
		if strings.TrimSpace(text[to:line]) == text[word:end] {
			return from, max(from, to-1)
		}
		to = min(line+1, len(text))
	}
	return from, to
}

// quoteEnd returns where a quoted value ends: at its quote, which may be escaped itself, or else at
// the end of the text.
func quoteEnd(text string, at int, quote string) int {
	if quote != `"` {
		if end := strings.Index(text[at:], quote); end >= 0 {
			return at + end
		}
		return len(text)
	}
	for ; at < len(text) && text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return min(at, len(text))
}

func isBackslash(c byte) bool { return c == '\\' }

// shapes are those of secrets that need no name.
var shapes = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\z)` +
	`|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*` +
	`|\b(?:gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|sk_live_|rk_live_|npm_|hf_|hv[bs]\.|dop_v1_|AIza|sk-(?:proj|ant|svcacct)-)[A-Za-z0-9_-]{16,}|\bAGE-SECRET-KEY-1[A-Z0-9]+` +
	`|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|hooks\.slack\.com/services/[A-Za-z0-9/]+`)

// hasShape reports whether a text may match shapes. Most texts do not, and this is faster.
func hasShape(text string) bool {
	for _, part := range []string{"PRIVATE KEY", "sk-", "AGE-SECRET-KEY-1", "eyJ", "gh", "github_pat_", "glpat-", "xox", "k_live_", "npm_", "hf_", "hv", "dop_v1_", "AIza", "AKIA", "ASIA", "hooks.slack"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// maxName is the length of the longest name that can be that of a secret.
const maxName = 256

func (r *Redactor) isSecret(name string) bool {
	return len(name) <= maxName && r.secret.MatchString(name)
}

func isBlank(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}

// while returns the first position from at on whose byte is not in the set.
func while(text string, at int, in func(byte) bool) int {
	for at < len(text) && in(text[at]) {
		at++
	}
	return at
}

func nameEnd(text string, at int) int { return while(text, at, isNameByte) }

// skipSpaces returns where the blanks of a line end: behind a line break, a shell has another command.
func skipSpaces(text string, at int) int {
	return while(text, at, func(c byte) bool { return c == ' ' || c == '\t' })
}

// assignment returns the position of the value behind the = or : that follows a name, which can be
// quoted, or 0. A shell takes a word that a blank separates from NAME= for a command.
func assignment(text string, at int) int {
	if at < len(text) && (text[at] == '"' || text[at] == '\'') {
		at++
	}
	sign := skipSpaces(text, at)
	switch {
	case sign == len(text) || text[sign] != '=' && text[sign] != ':':
		return 0
	case text[sign] == '=' && sign == at:
		return sign + 1
	}
	return skipSpaces(text, sign+1)
}

// appended returns the position of the value behind the ?= or += that follows a name, or 0.
func appended(text string, at int) int {
	sign := skipSpaces(text, at)
	if strings.HasPrefix(text[sign:], "?=") || strings.HasPrefix(text[sign:], "+=") {
		return skipSpaces(text, sign+2)
	}
	return 0
}

// called returns the position of the quoted value in name("value"), or 0.
func called(text string, at int) int {
	if strings.HasPrefix(text[at:], `("`) || strings.HasPrefix(text[at:], "('") {
		return at + 1
	}
	return 0
}

// arrow returns the position of the value behind the =>, -> or <- that follows a name, or 0.
func arrow(text string, at int) int {
	sign := skipSpaces(text, while(text, at, func(c byte) bool { return c == '"' || c == '\'' }))
	if strings.HasPrefix(text[sign:], "=>") || strings.HasPrefix(text[sign:], "->") || strings.HasPrefix(text[sign:], "<-") {
		return skipSpaces(text, sign+2)
	}
	return 0
}

// maxTag is the length of the longest tag of XML of which more than its name counts.
const maxTag = 1 << 10

// assignedBehind is assignment, for all signs that a thorough Redactor knows.
func assignedBehind(text string, at, assigned int) int {
	return cmp.Or(arrow(text, at), assigned, assignment(text, while(text, at, isBackslash)), appended(text, at), called(text, at))
}

// content returns the text of an element of XML whose tag, which ends here, has the name of a
// secret, or names one as in <property name="password">.
func (r *Redactor) content(text string, at int) (from, to int) {
	if r.replace == nil || text[at] != '>' {
		return 0, 0
	}
	tag := strings.LastIndexAny(text[max(0, at-maxTag):at], "<>") + max(0, at-maxTag)
	if at == 0 || tag < 0 || text[tag] != '<' || !r.isSecretTag(text[tag+1:at]) {
		return 0, 0
	}
	from = while(text, at+1, isBlank)
	if child := strings.HasPrefix(text[from:], "<") && !strings.HasPrefix(text[from:], "</") && !strings.HasPrefix(text[from:], "<!"); child {
		from = min(from+indexOrEnd(text[from:], ">")+1, len(text))
	}
	if data, is := strings.CutPrefix(text[from:], "<![CDATA["); is {
		from = len(text) - len(data)
		return from, from + indexOrEnd(data, "]]>")
	}
	return from, while(text, from, func(c byte) bool { return c != '<' })
}

// naming matches the attributes of a tag that may name what it has.
var naming = regexp.MustCompile(`(?i)(?:^|\s)(?:name|key|id)\s*=\s*["']([^"']*)["']`)

// isSecretTag reports whether a tag, without its brackets, has the name of a secret, or names one.
func (r *Redactor) isSecretTag(tag string) bool {
	name := tag[:while(tag, 0, func(c byte) bool { return isNameByte(c) || c == ':' })]
	if name == "" || strings.HasSuffix(tag, "/") {
		return false
	}
	named := naming.FindStringSubmatch(tag[len(name):])
	return r.isSecret(name) || named != nil && r.isSecret(named[1])
}

// isNamedTag reports whether a position is in a tag that names a secret in an attribute.
func (r *Redactor) isNamedTag(text string, at int) bool {
	begin := max(0, at-maxTag)
	tag := strings.LastIndexAny(text[begin:at], "<>") + begin
	if tag < begin || text[tag] != '<' {
		return false
	}
	rest := text[at:min(len(text), at+maxTag)]
	named := naming.FindStringSubmatch(text[tag:at] + rest[:indexOrEnd(rest, ">")])
	return named != nil && r.isSecret(named[1])
}

// maxUserPassword is the length of the longest password that is found behind its user.
const maxUserPassword = 256

// passwordOfUser returns the password in user:password@host without a scheme. It is none in an
// address of mail, or in an image with its digest.
func passwordOfUser(text string, at, end int) (from, to int) {
	if end == len(text) || text[end] != ':' || strings.Contains(strings.ToLower(text[at:end]), "mail") {
		return 0, 0
	}
	from = end + 1
	stop := while(text[:min(len(text), from+maxUserPassword)], from, func(c byte) bool { return !isBlank(c) && strings.IndexByte(`/?#"'<>,;`, c) < 0 })
	to = from + strings.LastIndexByte(text[from:stop], '@')
	if to <= from || to+1 == len(text) || strings.HasPrefix(text[to:], "@sha") || !isNameByte(text[to+1]) && text[to+1] != '[' {
		return 0, 0
	}
	return from, to
}

// isScheme reports whether a name ends with a scheme of HTTP's Authorization (RFC
// 9110), which a token follows.
func isScheme(name string) bool {
	word := name[strings.LastIndexAny(name, ".-")+1:]
	return strings.EqualFold(word, "bearer") || strings.EqualFold(word, "basic")
}

// tokenEnd returns the end of the token behind a scheme.
func tokenEnd(text string, at int) int {
	return while(text, at, func(c byte) bool { return isNameByte(c) || strings.IndexByte("~+/=", c) >= 0 })
}

// skipScheme returns the position of the token, if a scheme is before it.
func skipScheme(text string, at int) int {
	end := nameEnd(text, at)
	if token := skipSpaces(text, end); isScheme(text[at:end]) && token > end {
		return token
	}
	return at
}

// password returns the password in the user information of a URL (RFC 3986, 3.2.1)
// that begins here.
func (r *Redactor) password(text string, at int) (from, to int) {
	if r.replace != nil {
		return secretUser(text, at)
	}
	part := func(c byte) bool { return !isBlank(c) && strings.IndexByte(`/@"'`, c) < 0 }
	from = while(text, at, func(c byte) bool { return c != ':' && part(c) }) + 1
	to = while(text, min(from, len(text)), part)
	if to >= len(text) || text[from-1] != ':' || text[to] != '@' || mayRun(text[from:to]) {
		return 0, 0
	}
	return from, to
}

// secretUser returns the password in a URL, which may have an @ itself, or the user if there is
// none and a token may stand there, as in https://TOKEN@host.
func secretUser(text string, at int) (from, to int) {
	end := while(text, at, func(c byte) bool { return !isBlank(c) && strings.IndexByte(`/?#"'`, c) < 0 })
	to = at + strings.LastIndexByte(text[at:end], '@')
	if to < at {
		return 0, 0
	}
	if colon := strings.IndexByte(text[at:to], ':'); colon >= 0 {
		return at + colon + 1, to
	}
	if strings.HasSuffix(text[:at], "http://") || strings.HasSuffix(text[:at], "https://") {
		return at, to
	}
	return 0, 0
}

// valueEnd returns the end of a value, where a shell ends it. It can be quoted. It is
// the beginning if the value may run, see [mayRun].
func valueEnd(text string, from int) int {
	quote, at := byte(0), from
	if at < len(text) && (text[at] == '"' || text[at] == '\'') {
		quote = text[at]
		at++
	}
	for ; at < len(text); at++ {
		switch c := text[at]; {
		case c == quote && quote != 0:
			return at + 1
		case expands(c), quote != 0 && (isBlank(c) || separates(c)):
			return from
		case c == '\\' && quote == '"' && at+1 < len(text) && strings.IndexByte(`"\`, text[at+1]) >= 0:
			at++
		case quote == 0 && (isBlank(c) || separates(c) || strings.IndexByte(`"')`, c) >= 0):
			return at
		}
	}
	return at
}

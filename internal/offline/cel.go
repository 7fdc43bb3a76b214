package offline

import (
	"fmt"
	"slices"
	"strings"
	"text/scanner"
	"unicode"
)

// checkExpression returns why an API server would refuse the CEL expression of a match
// condition: because of its grammar (https://github.com/google/cel-spec, doc/langdef.md),
// or because of a variable or a field of the request that does not exist. It takes an
// expression whose types do not agree, or with a function that does not exist; an API
// server refuses those, too. testing/differential compares the two.
func checkExpression(expression string) error {
	p := &parser{}
	p.lex(expression)
	if p.err == nil {
		p.expression()
	}
	if p.err == nil && p.next().kind != end {
		p.unexpected()
	}
	return p.err
}

// maxNesting bounds the recursion. CEL's own limit is 250.
const maxNesting = 250

type tokenKind int

const (
	end tokenKind = iota
	identifier
	literal
	punctuation
)

type token struct {
	kind   tokenKind
	text   string
	column int
}

// parser is a parser by recursive descent, with a method for each level of precedence.
type parser struct {
	tokens []token
	at     int
	depth  int
	bound  []string // the variables of macros
	err    error
}

func (p *parser) next() token { return p.tokens[p.at] }

func (p *parser) is(texts ...string) bool {
	t := p.next()
	return t.kind == punctuation && slices.Contains(texts, t.text)
}

func (p *parser) take(texts ...string) bool {
	if p.err != nil || !p.is(texts...) {
		return false
	}
	p.at++
	return true
}

func (p *parser) fail(t token, format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("at character %d: %s", t.column, fmt.Sprintf(format, args...))
	}
}

func (p *parser) unexpected() {
	t := p.next()
	hint := map[string]string{"=": "; to compare, write ==", "&": "; write &&", "|": "; write ||", "and": "; write &&", "or": "; write ||", "not": "; write !"}[t.text]
	if t.kind == end {
		p.fail(t, "it ends too early")
		return
	}
	p.fail(t, "unexpected %q%s", t.text, hint)
}

func (p *parser) want(text string) {
	if p.err == nil && !p.take(text) {
		p.unexpected()
	}
}

// expression = or [ "?" or ":" expression ]
func (p *parser) expression() {
	if p.depth++; p.depth > maxNesting {
		p.fail(p.next(), "nested more than %d deep", maxNesting)
	}
	defer func() { p.depth-- }()
	p.binary(0)
	if p.take("?") {
		p.binary(0)
		p.want(":")
		p.expression()
	}
}

// precedence has the binary operators, the weakest first.
var precedence = [][]string{{"||"}, {"&&"}, {"<", "<=", ">=", ">", "==", "!=", "in"}, {"+", "-"}, {"*", "/", "%"}}

func (p *parser) binary(level int) {
	if p.err != nil {
		return
	}
	if level == len(precedence) {
		p.unary()
		return
	}
	p.binary(level + 1)
	for p.take(precedence[level]...) {
		p.binary(level + 1)
	}
}

func (p *parser) unary() {
	for p.take("!") {
	}
	for p.take("-") {
	}
	p.member()
}

// member = primary { "." name [ "(" arguments ")" ] | "[" expression "]" | "{" fields "}" }
func (p *parser) member() {
	path := p.primary()
	for p.err == nil {
		switch {
		case p.take("."):
			optional := p.take("?")
			name := p.next()
			if name.kind != identifier {
				p.unexpected()
				return
			}
			p.at++
			if !optional && p.is("(") {
				p.call(name.text)
				path = nil
				continue
			}
			path = p.field(path, name)
		case p.take("["):
			p.take("?")
			p.expression()
			p.want("]")
			path = nil
		case len(path) > 0 && p.is("{"): // a message; no match condition makes one
			p.fields()
			path = nil
		default:
			return
		}
	}
}

// primary parses the beginning of a member, and returns the name of a variable of the
// API server, the beginning of a path.
func (p *parser) primary() []string {
	t := p.next()
	switch {
	case t.kind == literal:
		p.at++
	case p.take("("):
		p.expression()
		p.want(")")
	case p.take("["):
		p.list("]", func() { p.take("?"); p.expression() })
	case p.is("{"):
		p.fields()
	case t.kind == identifier || p.is("."):
		p.take(".")
		return p.variable()
	default:
		p.unexpected()
	}
	return nil
}

// variable parses a name that stands for itself, or a call.
func (p *parser) variable() []string {
	t := p.next()
	if t.kind != identifier {
		p.unexpected()
		return nil
	}
	p.at++
	switch {
	case slices.Contains(reserved, t.text):
		p.fail(t, "%s is a reserved word", t.text)
		return nil
	case p.is("("):
		p.call(t.text)
		return nil
	case slices.Contains(p.bound, t.text):
		return nil
	case slices.Contains(variables, t.text):
		return []string{t.text}
	case slices.Contains(namespaces, t.text) || slices.Contains(typeNames, t.text):
		return []string{""}
	}
	p.fail(t, "there is no variable %s: match conditions have %s", t.text, strings.Join(variables, ", "))
	return nil
}

// variables are those of match conditions.
var variables = []string{"object", "oldObject", "request", "authorizer"}

// namespaces are the beginnings of the names of functions, such as format.named, and of
// messages, also of some that API servers may get.
var namespaces = []string{"cel", "optional", "sets", "math", "format", "strings", "base64", "google", "json", "lists", "regex", "net", "semver"}

var typeNames = []string{"bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "type", "uint", "timestamp", "duration", "optional_type"}

// requestFields are the fields of the request that CEL sees (k8s.io/apiserver,
// pkg/admission/plugin/cel/compile.go).
var requestFields = map[string][]string{
	"request": {
		"kind", "resource", "subResource", "requestKind", "requestResource", "requestSubResource", "name", "namespace", "operation",
		"userInfo", "dryRun", "options",
	},
	"request.kind": {"group", "version", "kind"}, "request.requestKind": {"group", "version", "kind"},
	"request.resource": {"group", "version", "resource"}, "request.requestResource": {"group", "version", "resource"},
	"request.userInfo": {"username", "uid", "groups", "extra"},
}

// field checks a field of the request.
func (p *parser) field(path []string, name token) []string {
	if len(path) == 0 {
		return nil
	}
	parent := strings.Join(path, ".")
	if fields, typed := requestFields[parent]; typed && !slices.Contains(fields, name.text) {
		p.fail(name, "%s has no field %s: it has %s", parent, name.text, strings.Join(fields, ", "))
	}
	return append(path, name.text)
}

// macros are the functions whose first arguments name variables of the rest, with the
// most variables.
var macros = map[string]int{
	"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "map": 1, "filter": 1, "sortBy": 1, "optMap": 1, "optFlatMap": 1,
	"transformList": 2, "transformMap": 2, "transformMapEntry": 2, "bind": 1,
}

// call parses the arguments of a function.
func (p *parser) call(name string) {
	before := len(p.bound)
	p.want("(")
	for names := macros[name]; names > 0 && p.err == nil && p.next().kind == identifier && p.tokens[p.at+1].text == ","; names-- {
		p.bound = append(p.bound, p.next().text)
		p.at += 2
	}
	p.list(")", p.expression)
	p.bound = p.bound[:before]
}

// fields parses the entries of a map or message.
func (p *parser) fields() {
	p.want("{")
	p.list("}", func() {
		p.take("?")
		p.expression()
		p.want(":")
		p.expression()
	})
}

// list parses what is separated by commas, and the end of it.
func (p *parser) list(closing string, item func()) {
	for p.err == nil && !p.take(closing) {
		item()
		if !p.is(closing) {
			p.want(",")
		}
	}
}

// reserved are the words that name no variable and no function, but may name a field.
var reserved = []string{
	"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
}

// lex splits an expression into tokens.
func (p *parser) lex(text string) {
	var s scanner.Scanner
	s.Init(strings.NewReader(text))
	s.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanFloats
	s.Error = func(*scanner.Scanner, string) {}
	for first := s.Scan(); first != scanner.EOF && p.err == nil; first = s.Scan() {
		if first == '/' && s.Peek() == '/' {
			for c := s.Peek(); c != '\n' && c != scanner.EOF; c = s.Peek() {
				s.Next()
			}
			continue
		}
		t := token{kind: punctuation, column: s.Offset + 1, text: s.TokenText()}
		if first == scanner.Ident {
			p.word(&s, &t)
		} else {
			p.sign(&s, &t, first)
		}
		p.tokens = append(p.tokens, t)
	}
	p.tokens = append(p.tokens, token{kind: end, column: len(text) + 1})
}

// word completes a token that begins with a letter.
func (p *parser) word(s *scanner.Scanner, t *token) {
	quote := s.Peek()
	switch {
	case isPrefix(t.text) && (quote == '"' || quote == '\''):
		t.kind = literal
		p.quoted(s, t, s.Next(), strings.ContainsAny(t.text, "rR"))
	case t.text == "in":
	case slices.Contains([]string{"true", "false", "null"}, t.text):
		t.kind = literal
	case strings.ContainsFunc(t.text, func(r rune) bool { return r > unicode.MaxASCII }):
	default:
		t.kind = identifier
	}
}

// sign completes a token that begins with something else.
func (p *parser) sign(s *scanner.Scanner, t *token, first rune) {
	switch first {
	case '"', '\'':
		t.kind = literal
		p.quoted(s, t, first, false)
	case scanner.Int, scanner.Float:
		t.kind = literal
		if s.Peek() == 'u' || s.Peek() == 'U' {
			s.Next()
		}
	case '`': // a field with other characters, of an object
		t.kind = identifier
		for c := s.Next(); c != '`' && p.err == nil; c = s.Next() {
			if c == scanner.EOF {
				p.fail(*t, "the ` is not closed")
			}
		}
	default:
		if both := t.text + string(s.Peek()); slices.Contains([]string{"&&", "||", "==", "!=", "<=", ">="}, both) {
			s.Next()
			t.text = both
		}
	}
}

// isPrefix reports whether a word before a quote is the prefix of a raw or bytes literal.
func isPrefix(word string) bool {
	return slices.Contains([]string{"r", "b", "br", "rb"}, strings.ToLower(word))
}

// quoted reads a string up to its closing quote. Its opening quote is read.
func (p *parser) quoted(s *scanner.Scanner, t *token, quote rune, raw bool) {
	count := 1
	if s.Peek() == quote {
		s.Next()
		if s.Peek() != quote {
			return // it is empty
		}
		s.Next()
		count = 3
	}
	for closing := 0; closing < count; {
		switch c := s.Next(); {
		case c == scanner.EOF, count == 1 && (c == '\n' || c == '\r'):
			p.fail(*t, "the string is not closed")
			return
		case c == '\\' && !raw:
			if c := s.Next(); !strings.ContainsRune(`abfnrtv"'\?`+"`xXuU01234567", c) {
				p.fail(*t, "the string has the escape \\%c, which is none", c)
				return
			}
			closing = 0
		case c == quote:
			closing++
		default:
			closing = 0
		}
	}
}

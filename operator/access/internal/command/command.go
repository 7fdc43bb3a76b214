// Package command makes the command with which an engineer uses access, of the text
// in an access template.
//
// The text is a template of Go's text/template, of which only a small part is
// understood: fields of the Pod's metadata, index with a key, comments and trimmed
// space. The author of a template is not trusted by the process that reads it, and the
// whole of that language has no bound: a loop of some bytes runs for ever, a width in
// printf fills the memory. So this package takes only Go's parser, and what it refuses
// it names with its position. What it accepts costs no more than its result, which is
// at most [Limit] bytes long.
package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limit is the most bytes that a template and its result may have.
const Limit = 4096

// Template is a parsed text.
type Template struct{ parts []part }

// part is a text, or a field of the metadata.
type part struct {
	text  string
	field func(pod *metav1.ObjectMeta) string // nil for a text
}

// fields are the fields that have a text.
var fields = map[string]func(*metav1.ObjectMeta) string{
	"Name":         func(m *metav1.ObjectMeta) string { return m.Name },
	"GenerateName": func(m *metav1.ObjectMeta) string { return m.GenerateName },
	"Namespace":    func(m *metav1.ObjectMeta) string { return m.Namespace },
	"UID":          func(m *metav1.ObjectMeta) string { return string(m.UID) },
}

// entries are the fields that have texts by key.
var entries = map[string]func(*metav1.ObjectMeta) map[string]string{
	"Labels":      func(m *metav1.ObjectMeta) map[string]string { return m.Labels },
	"Annotations": func(m *metav1.ObjectMeta) map[string]string { return m.Annotations },
}

// Parse parses the text of a template. Its error names the line and what is wrong
// there.
func Parse(text string) (Template, error) {
	if len(text) > Limit {
		return Template{}, fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), Limit)
	}
	tree := parse.New("accessCommand")
	tree.Mode = parse.SkipFuncCheck // index is the only function, see field
	trees := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "", "", trees); err != nil {
		return Template{}, err
	}
	for name := range trees {
		if name != tree.Name {
			return Template{}, fmt.Errorf("accessCommand: define %q is not supported: %s", name, supported)
		}
	}
	var t Template
	for _, node := range tree.Root.Nodes {
		p, err := partOf(node)
		if err != nil {
			where, what := tree.ErrorContext(node)
			return Template{}, fmt.Errorf("%s: %s %w: %s", where, what, err, supported)
		}
		t.parts = append(t.parts, p)
	}
	return t, nil
}

// supported says what a template may have.
var supported = fmt.Sprintf(`use text, {{ .Metadata.F }} where F is %s, {{ .Metadata.M.key }} or {{ index .Metadata.M "key" }} where M is %s`,
	strings.Join(slices.Sorted(maps.Keys(fields)), ", "), strings.Join(slices.Sorted(maps.Keys(entries)), " or "))

// Why a template may not have something.
var (
	errNotSupported = errors.New("is not supported")
	errNoField      = errors.New("is no field of the Pod that a command can have")
)

func partOf(node parse.Node) (part, error) {
	switch node := node.(type) {
	case *parse.TextNode:
		return part{text: string(node.Text)}, nil
	case *parse.ActionNode:
		if len(node.Pipe.Decl) > 0 || len(node.Pipe.Cmds) != 1 {
			return part{}, errNotSupported
		}
		return fieldOf(node.Pipe.Cmds[0].Args)
	}
	return part{}, errNotSupported
}

// fieldOf returns the field that an action names: .Metadata.Name, .Metadata.Labels.app
// or index .Metadata.Labels "app".
func fieldOf(args []parse.Node) (part, error) {
	var path []string
	switch {
	case len(args) == 1:
		field, ok := args[0].(*parse.FieldNode)
		if !ok {
			return part{}, errNotSupported
		}
		path = field.Ident
	case len(args) == 3:
		function, isFunction := args[0].(*parse.IdentifierNode)
		field, isField := args[1].(*parse.FieldNode)
		key, isText := args[2].(*parse.StringNode)
		if !isFunction || function.Ident != "index" || !isField || !isText || len(field.Ident) != 2 {
			return part{}, errNotSupported
		}
		path = append(slices.Clone(field.Ident), key.Text)
	default:
		return part{}, errNotSupported
	}
	if path[0] == "Metadata" {
		if len(path) == 2 && fields[path[1]] != nil {
			return part{field: fields[path[1]]}, nil
		}
		if len(path) == 3 && entries[path[1]] != nil {
			of, key := entries[path[1]], path[2]
			return part{field: func(m *metav1.ObjectMeta) string { return of(m)[key] }}, nil
		}
	}
	return part{}, errNoField
}

// For returns the command for a Pod. A label or annotation that the Pod does not have
// is empty.
func (t Template) For(pod *metav1.ObjectMeta) (string, error) {
	var command strings.Builder
	for _, p := range t.parts {
		text := p.text
		if p.field != nil {
			text = p.field(pod)
		}
		if command.Len()+len(text) > Limit {
			return "", fmt.Errorf("the result is longer than %d bytes", Limit)
		}
		command.WriteString(text)
	}
	return command.String(), nil
}

package rego

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// check sets the defaults of a source, and returns what is wrong with it before it is parsed.
func (s *Source) check() error {
	if s.Query == "" {
		s.Query = DefaultQuery
	}
	if s.Version == "" {
		s.Version = V1
	}
	switch {
	case s.Version != V0 && s.Version != V1:
		return fmt.Errorf("version: %q is neither %s nor %s", s.Version, V0, V1)
	case len(s.Query) > maxQueryBytes:
		return fmt.Errorf("query: it has %d bytes, of at most %d", len(s.Query), maxQueryBytes)
	case len(s.Modules) == 0:
		return errors.New("the policy is empty")
	case len(s.Modules) > MaxModules:
		return fmt.Errorf("the policy has %d modules, of at most %d", len(s.Modules), MaxModules)
	}
	size := 0
	for _, module := range s.Modules {
		size += len(module.Text)
	}
	if size > MaxSourceBytes {
		return fmt.Errorf("the policy has %d bytes, of at most %d", size, MaxSourceBytes)
	}
	return nil
}

// parse parses all modules, and returns the errors of all of them.
func (s *Source) parse() (map[string]*ast.Module, error) {
	modules := make(map[string]*ast.Module, len(s.Modules))
	var failed ast.Errors
	for _, source := range s.Modules {
		if _, twice := modules[source.Name]; twice {
			return nil, fmt.Errorf("two modules are named %q", source.Name)
		}
		module, errs := parseModule(source, s.Version)
		modules[source.Name] = module
		failed = append(failed, errs...)
	}
	if len(failed) == 0 {
		return modules, nil
	}
	err := compileError(failed)
	if s.Version == V1 && s.isV0() {
		err.hint = "it is a policy of v0, as OPA had it before 1.0: set version: v0"
	}
	return nil, err
}

// isV0 tells whether all modules are right in the older version of the language.
func (s *Source) isV0() bool {
	for _, source := range s.Modules {
		if _, errs := parseModule(source, V0); len(errs) > 0 {
			return false
		}
	}
	return true
}

func parseModule(source Module, version string) (*ast.Module, ast.Errors) {
	module, err := ast.ParseModuleWithOpts(source.Name, source.Text, ast.ParserOptions{
		RegoVersion:  regoVersion(version),
		Capabilities: capabilities(version),
	})
	var errs ast.Errors
	switch {
	case errors.As(err, &errs):
		return nil, errs
	case err != nil:
		return nil, ast.Errors{ast.NewError(ast.ParseErr, ast.NewLocation(nil, source.Name, 1, 1), "%s", err.Error())}
	case module == nil:
		// A file of comments alone is no error to the parser, and no module either.
		return nil, ast.Errors{ast.NewError(ast.ParseErr, ast.NewLocation(nil, source.Name, 1, 1), "it has no package")}
	}
	return module, nil
}

func regoVersion(version string) ast.RegoVersion {
	if version == V0 {
		return ast.RegoV0
	}
	return ast.RegoV1
}

// parseQuery accepts references to a document of the policy and nothing else, so that what
// a hook answers is one document and not a program in a field.
func parseQuery(query string) (ast.Ref, error) {
	ref, err := ast.ParseRef(query)
	if err != nil || !ref.HasPrefix(ast.DefaultRootRef) || len(ref) < 2 || !ref.IsGround() {
		return nil, fmt.Errorf("query: %q is not a document of a policy, such as %s", query, DefaultQuery)
	}
	for _, term := range ref[1:] {
		if _, ok := term.Value.(ast.String); !ok {
			return nil, fmt.Errorf("query: %q is not a document of a policy, such as %s", query, DefaultQuery)
		}
	}
	return ref, nil
}

// answers tells whether the policy has a rule that can make the document: at the reference,
// below it, or above it, since a rule's value can be an object.
func answers(compiler *ast.Compiler, ref ast.Ref) bool {
	return len(compiler.GetRules(ref)) > 0
}

func packages(modules map[string]*ast.Module) []string {
	var names []string
	for _, module := range modules {
		names = append(names, module.Package.Path.String())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const (
	// maxErrors is how many errors of a policy are told.
	maxErrors = 10
	// maxMessage is how long one message can be.
	maxMessage = 500
)

// CompileError says what is wrong with a policy.
type CompileError struct {
	// Errors has one for each mistake, at most 10.
	Errors []SourceError
	// More tells whether there are further ones.
	More bool
	hint string
}

// SourceError is one mistake in a policy.
type SourceError struct {
	File    string
	Row     int
	Column  int
	Message string
}

// Error returns the place and the message.
func (e SourceError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Row, e.Column, e.Message)
}

// Error returns a line for each mistake.
func (e *CompileError) Error() string {
	lines := make([]string, 0, len(e.Errors)+2)
	for _, err := range e.Errors {
		lines = append(lines, err.Error())
	}
	if e.More {
		lines = append(lines, "and more")
	}
	if e.hint != "" {
		lines = append(lines, e.hint)
	}
	return strings.Join(lines, "\n")
}

func compileError(errs ast.Errors) *CompileError {
	slices.SortStableFunc(errs, func(a, b *ast.Error) int {
		if a.Location == nil || b.Location == nil {
			return 0
		}
		return a.Location.Compare(b.Location)
	})
	failed := &CompileError{}
	for _, err := range errs {
		if len(failed.Errors) == maxErrors {
			failed.More = true
			break
		}
		if err.Location == nil {
			// The compiler's own "too many errors".
			failed.More = true
			continue
		}
		failed.Errors = append(failed.Errors, SourceError{
			File: err.Location.File, Row: err.Location.Row, Column: err.Location.Col, Message: shorten(explain(err.Message)),
		})
	}
	return failed
}

// explain adds to a message about a builtin that was taken away why it was.
func explain(message string) string {
	if name, ok := strings.CutPrefix(message, "undefined function "); ok {
		if reason, taken := takenAway[name]; taken {
			return fmt.Sprintf("%s: a hook cannot call it, because %s", message, reason)
		}
	}
	return message
}

// shorten keeps a message to a length that fits in a condition.
func shorten(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if runes := []rune(message); len(runes) > maxMessage {
		return string(runes[:maxMessage]) + "..."
	}
	return message
}

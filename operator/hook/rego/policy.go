package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	opa "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// DefaultQuery is what is evaluated if a source names no query.
const DefaultQuery = "data.controller"

// Versions of the language. OPA 1.0 made v1 its default; a policy written for an older
// OPA, without `if` and `contains`, is v0.
const (
	V0 = "v0"
	V1 = "v1"
)

// How large a source can be.
const (
	// MaxModules is how many modules a policy can have.
	MaxModules = 64
	// MaxSourceBytes is how long all of its modules together can be, as long as a ConfigMap.
	MaxSourceBytes = 1 << 20
	// maxQueryBytes is how long a query can be.
	maxQueryBytes = 1024
)

// Module is one file of a policy.
type Module struct {
	// Name says where the text is from. Messages begin with it.
	Name string
	Text string
}

// Source is what a policy is compiled from.
type Source struct {
	Modules []Module
	// Query is the document that is the response, a reference below data. Default: [DefaultQuery].
	Query string
	// Version is [V0] or [V1]. Default: [V1].
	Version string
}

// Options bound an evaluation. A zero field has its default; one above its maximum is an
// error of [Compile].
type Options struct {
	// Timeout is how long an evaluation can take. Default: 1s; at most 10s.
	Timeout time.Duration
	// MaxMemoryBytes is how much an evaluation may build, before anything is
	// collected as garbage: each step, and each builtin whose result can be larger than its
	// operands, is charged before it runs. It is an estimate. Default: 256 MiB; at most 1 GiB.
	MaxMemoryBytes int64
}

// MaxBytes is how long the input, and how long the response of an evaluation can be.
const MaxBytes = 10 << 20

// The largest values of Options, and their defaults.
const (
	MaxTimeout  = 10 * time.Second
	MaxMemory   = 1 << 30
	defaultTime = time.Second
	defaultMem  = 256 << 20
)

// Errors that a caller can tell apart. An evaluation that takes too long is a
// [context.DeadlineExceeded].
var (
	// ErrUndefined means that the query has no value for the input.
	ErrUndefined = errors.New("undefined")
	// ErrLimit means that a limit of [Options] was reached, other than Timeout.
	ErrLimit = errors.New("limit reached")
)

// Policy is a compiled policy. It is safe for concurrent use.
type Policy struct {
	query    string
	options  Options
	prepared opa.PreparedEvalQuery

	// Where a pool evaluates it: see [Pool.Compile].
	pool   *Pool
	source Source
	key    [32]byte
}

// Compile compiles a source. What is wrong with the policy is a [*CompileError] that names each line.
func Compile(source Source, options Options) (*Policy, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	if err := source.check(); err != nil {
		return nil, err
	}
	ref, err := parseQuery(source.Query)
	if err != nil {
		return nil, err
	}
	modules, err := source.parse()
	if err != nil {
		return nil, err
	}
	compiler := newCompiler(source.Version)
	if compiler.Compile(modules); compiler.Failed() {
		return nil, compileError(compiler.Errors)
	}
	if !answers(compiler, ref) {
		return nil, fmt.Errorf("query: no rule is at or below %s; the policy has %s", source.Query, strings.Join(packages(modules), ", "))
	}
	// The query has been parsed and compiled before any context matters.
	prepared, err := opa.New(opa.Compiler(compiler), opa.ParsedQuery(ast.NewBody(ast.NewExpr(ast.NewTerm(ref))))).
		PrepareForEval(context.Background())
	if err != nil {
		return nil, fmt.Errorf("query: %s: %w", source.Query, err)
	}
	return &Policy{query: source.Query, options: options, prepared: prepared}, nil
}

// newCompiler returns a compiler that knows only the builtins that a hook may call.
func newCompiler(version string) *ast.Compiler {
	return ast.NewCompiler().
		WithCapabilities(capabilities(version)).
		WithDefaultRegoVersion(regoVersion(version)).
		SetErrorLimit(maxErrors + 1)
}

// Evaluate returns the value of the query, as JSON, for an input that is JSON. The policy's
// clock stands at now. The same input and clock give the same bytes.
func (p *Policy) Evaluate(ctx context.Context, input []byte, now time.Time) (output []byte, err error) {
	if len(input) > MaxBytes {
		return nil, fmt.Errorf("%s: the input has %d bytes, of at most %d: %w", p.query, len(input), MaxBytes, ErrLimit)
	}
	if p.pool != nil {
		return p.pool.evaluate(ctx, p, input, now)
	}
	value, err := parseInput(input)
	if err != nil {
		return nil, fmt.Errorf("%s: input: %w", p.query, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.Timeout,
		fmt.Errorf("it takes longer than %s: %w", p.options.Timeout, context.DeadlineExceeded))
	defer cancel()
	defer func() {
		if panicked := recover(); panicked != nil {
			output, err = nil, fmt.Errorf("%s: panic: %v\n%s", p.query, panicked, debug.Stack())
		}
	}()
	return p.evaluate(ctx, value, now)
}

func (p *Policy) evaluate(ctx context.Context, input ast.Value, now time.Time) ([]byte, error) {
	m := newMeter(p.options.MaxMemoryBytes)
	// Rego's own way to heed a context is a goroutine for each evaluation.
	stop := context.AfterFunc(ctx, m.Cancel)
	defer stop()
	results, err := p.prepared.Eval(withMeter(ctx, m),
		opa.EvalParsedInput(input),
		opa.EvalTime(now),
		opa.EvalExternalCancel(m),
		opa.EvalQueryTracer(m),
		opa.EvalGenerateJSON(func(term *ast.Term, _ *opa.EvalContext) (any, error) {
			return encode(ctx, term.Value, MaxBytes)
		}),
	)
	switch {
	case m.err != nil:
		return nil, fmt.Errorf("%s: %w", p.query, m.err)
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", p.query, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", p.query, located(err))
	case len(results) == 0 || len(results[0].Expressions) == 0:
		return nil, fmt.Errorf("%s: %w for this input", p.query, ErrUndefined)
	}
	output, ok := results[0].Expressions[0].Value.([]byte)
	if !ok {
		return nil, fmt.Errorf("%s: %w for this input", p.query, ErrUndefined)
	}
	return output, nil
}

// parseInput reads the input with its numbers as they are written.
func parseInput(input []byte) (ast.Value, error) {
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.UseNumber()
	var document any
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the first JSON document")
	}
	return ast.InterfaceToValue(document)
}

// located returns an error of an evaluation with the place in the policy first.
func located(err error) error {
	var failed *topdown.Error
	if errors.As(err, &failed) && failed.Location != nil {
		return fmt.Errorf("%s:%d:%d: %s", failed.Location.File, failed.Location.Row, failed.Location.Col, shorten(failed.Message))
	}
	return err
}

func (o *Options) setDefaults() error {
	if o.Timeout == 0 {
		o.Timeout = defaultTime
	}
	if o.MaxMemoryBytes == 0 {
		o.MaxMemoryBytes = defaultMem
	}
	switch {
	case o.Timeout < 0 || o.Timeout > MaxTimeout:
		return fmt.Errorf("timeout: %s is not between 0s and %s", o.Timeout, MaxTimeout)
	case o.MaxMemoryBytes < 0 || o.MaxMemoryBytes > MaxMemory:
		return fmt.Errorf("maxMemoryBytes: %d is not between 0 and %d", o.MaxMemoryBytes, MaxMemory)
	}
	return nil
}

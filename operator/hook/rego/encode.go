package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// encoder writes a value as JSON, as OPA's server does: sets are arrays, and a key that is
// no string is its own JSON in a string. OPA's own conversion builds the whole document twice
// before anybody can count it, and a small value whose parts are shared can be an endless document.
type encoder struct {
	ctx  context.Context
	out  bytes.Buffer
	most int
	seen int
}

func encode(ctx context.Context, value ast.Value, most int) ([]byte, error) {
	e := &encoder{ctx: ctx, most: most}
	if err := e.write(value); err != nil {
		return nil, err
	}
	return e.out.Bytes(), nil
}

func (e *encoder) write(value ast.Value) error {
	if e.seen++; e.seen%1024 == 0 && e.ctx.Err() != nil {
		return context.Cause(e.ctx)
	}
	var err error
	switch value := value.(type) {
	case ast.Null:
		e.out.WriteString("null")
	case ast.Boolean:
		fmt.Fprint(&e.out, bool(value))
	case ast.Number:
		e.out.WriteString(string(value))
	case ast.String:
		err = e.text(string(value))
	case *ast.Array:
		err = e.list(value.Iter)
	case ast.Set:
		err = e.list(value.Iter)
	case ast.Object:
		err = e.object(value)
	default:
		err = fmt.Errorf("a value of type %s is no JSON", ast.ValueName(value))
	}
	if err == nil && e.out.Len() > e.most {
		return fmt.Errorf("the output has more than %d bytes: %w", e.most, ErrLimit)
	}
	return err
}

func (e *encoder) text(s string) error {
	// Six bytes are the longest that one can become.
	if len(s) > e.most {
		return fmt.Errorf("the output has more than %d bytes: %w", e.most, ErrLimit)
	}
	encoder := json.NewEncoder(&e.out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return err
	}
	e.out.Truncate(e.out.Len() - 1) // the line's end
	return nil
}

func (e *encoder) list(each func(func(*ast.Term) error) error) error {
	e.out.WriteByte('[')
	first := true
	err := each(func(term *ast.Term) error {
		if !first {
			e.out.WriteByte(',')
		}
		first = false
		return e.write(term.Value)
	})
	e.out.WriteByte(']')
	return err
}

func (e *encoder) object(object ast.Object) error {
	e.out.WriteByte('{')
	first := true
	err := object.Iter(func(key, value *ast.Term) error {
		if !first {
			e.out.WriteByte(',')
		}
		first = false
		if err := e.key(key.Value); err != nil {
			return err
		}
		e.out.WriteByte(':')
		return e.write(value.Value)
	})
	e.out.WriteByte('}')
	return err
}

func (e *encoder) key(key ast.Value) error {
	if text, ok := key.(ast.String); ok {
		return e.text(string(text))
	}
	inner, err := encode(e.ctx, key, e.most-e.out.Len())
	if err != nil {
		return err
	}
	return e.text(string(inner))
}

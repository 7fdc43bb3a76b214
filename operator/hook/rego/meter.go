package rego

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// What an evaluation is charged, in bytes.
const (
	// perStep is for a step of the evaluation: an expression that is tried, a rule
	// that is entered. One element of a comprehension takes several.
	perStep = 64
	// perValue is for an element that a builtin makes.
	perValue = 64
)

const (
	// maxDigits is how long a number can be when something is counted with it. 1e999999999
	// is short, and adding 1 to it takes hundreds of megabytes.
	maxDigits = 1024
	// maxPattern and maxSubject are how long a regular expression and what it is matched with
	// can be. The time that a match takes is their product, and it cannot be interrupted.
	maxPattern = 1 << 10
	maxSubject = 256 << 10
	// maxGlob and maxGlobSubject are the same for globs, which go back and forth.
	maxGlob        = 256
	maxGlobSubject = 4 << 10
)

// endlessly is a price that no evaluation can pay.
const endlessly = math.MaxInt64

// meter counts what an evaluation has built, and cancels it when it has built too much. It
// is OPA's tracer, which sees each step, and its cancellation.
type meter struct {
	limit, used int64
	cancelled   atomic.Bool
	err         error
}

var (
	_ topdown.QueryTracer = (*meter)(nil)
	_ topdown.Cancel      = (*meter)(nil)
)

func newMeter(limit int64) *meter { return &meter{limit: limit} }

func (m *meter) Enabled() bool                  { return true }
func (m *meter) Config() topdown.TraceConfig    { return topdown.TraceConfig{} }
func (m *meter) TraceEvent(event topdown.Event) { m.pay(perStep, event.Location, "") }
func (m *meter) Cancel()                        { m.cancelled.Store(true) }
func (m *meter) Cancelled() bool                { return m.cancelled.Load() }

// pay charges the evaluation, and cancels it when it cannot pay.
func (m *meter) pay(price int64, at *ast.Location, name string) bool {
	if price <= m.limit-m.used {
		m.used += price
		return true
	}
	if m.err == nil {
		place := ""
		if at != nil {
			place = fmt.Sprintf("%s:%d:%d: ", at.File, at.Row, at.Col)
		}
		if name != "" {
			place += name + ": "
		}
		m.err = fmt.Errorf("%sthe evaluation builds more than %d bytes: %w", place, m.limit, ErrLimit)
	}
	m.Cancel()
	return false
}

type meterKey struct{}

func withMeter(ctx context.Context, m *meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// price says what a call builds at most, from its operands, without running it.
type price func(m *meter, operands []*ast.Term) int64

// init puts a till in front of the builtins whose result can be much larger than their operands, or that
// cannot be interrupted. OPA has one table of its own builtins for a process, so that this is the only place;
// an evaluation that is not ours has no meter, and pays nothing.
func init() {
	for name, cost := range prices() {
		builtin := topdown.GetBuiltin(name)
		// Else OPA spares itself to pass the context.
		ast.BuiltinMap[name].CanSkipBctx = false
		topdown.RegisterBuiltinFunc(name, func(bctx topdown.BuiltinContext, operands []*ast.Term, iter func(*ast.Term) error) error {
			if bctx.Context != nil {
				if m, ok := bctx.Context.Value(meterKey{}).(*meter); ok && !m.pay(cost(m, operands), bctx.Location, name) {
					return topdown.Halt{Err: m.err}
				}
			}
			return builtin(bctx, operands, iter)
		})
	}
}

func prices() map[string]price {
	table := map[string]price{
		"numbers.range":            ofRange,
		"numbers.range_step":       ofRange,
		"bits.lsh":                 ofShift,
		"sprintf":                  ofSprintf,
		"concat":                   ofConcat,
		"replace":                  ofReplace,
		"strings.replace_n":        ofReplaceN,
		"regex.replace":            ofRegexReplace,
		"json.marshal":             ofTree,
		"yaml.marshal":             ofTree,
		"urlquery.encode_object":   ofTree,
		"internal.template_string": ofTree,
		"object.union_n":           ofTree,
		"object.union":             ofComparison,
		"array.flatten":            ofTree,
		"array.concat":             ofArrays,
		"array.slice":              ofArrays,
		"array.reverse":            ofArrays,
		"glob.match":               ofGlob,
	}
	for _, name := range []string{
		"plus", "minus", "mul", "div", "rem", "abs", "ceil", "floor", "round", "sum", "product", "format_int",
		"bits.or", "bits.and", "bits.negate", "bits.xor", "bits.rsh",
		"to_number", "units.parse", "units.parse_bytes",
	} {
		table[name] = ofNumbers
	}
	for _, name := range []string{
		"regex.match", "re_match", "regex.split", "regex.find_n", "regex.find_all_string_submatch_n", "regex.template_match", "regex.is_valid",
	} {
		table[name] = ofRegex
	}
	for _, name := range []string{"split", "strings.split_n", "json.unmarshal", "yaml.unmarshal", "json.is_valid", "yaml.is_valid", "indexof_n", "urlquery.decode_object"} {
		table[name] = ofText(perValue)
	}
	for _, name := range []string{
		"base64.encode", "base64.decode", "base64url.encode", "base64url.encode_no_pad", "base64url.decode", "hex.encode", "hex.decode",
		"urlquery.encode", "urlquery.decode", "lower", "upper", "strings.reverse", "glob.quote_meta",
	} {
		table[name] = ofText(3)
	}
	return table
}

// ofRange is for as many numbers as there are between two.
func ofRange(_ *meter, operands []*ast.Term) int64 {
	var between [3]int64
	between[2] = 1
	for i := range min(len(operands), 3) {
		number, ok := operands[i].Value.(ast.Number)
		if !ok {
			// The result's term, or an operand that the builtin refuses.
			continue
		}
		n, ok := number.Int64()
		if !ok || n > math.MaxInt32 && i == 2 {
			return endlessly
		}
		between[i] = n
	}
	from, to, step := between[0], between[1], max(between[2], 1)
	distance := float64(to) - float64(from)
	return atMost(perValue * (math.Abs(distance)/float64(step) + 1))
}

func ofShift(m *meter, operands []*ast.Term) int64 {
	if n, ok := operands[1].Value.(ast.Number); ok {
		if by, ok := n.Int64(); !ok || by > 4*maxDigits {
			return endlessly
		}
	}
	return ofNumbers(m, operands)
}

// ofSprintf adds the widths, and assumes that each verb prints the longest operand.
func ofSprintf(m *meter, operands []*ast.Term) int64 {
	format, ok := operands[0].Value.(ast.String)
	arguments, ok2 := operands[1].Value.(*ast.Array)
	if !ok || !ok2 {
		return 0
	}
	longest := int64(0)
	if err := arguments.Iter(func(term *ast.Term) error {
		if number, ok := term.Value.(ast.Number); ok && !countable(string(number)) {
			longest = endlessly
		}
		longest = max(longest, weigh(term.Value, m.limit))
		return nil
	}); err != nil || longest == endlessly {
		return endlessly
	}
	total, width := float64(len(format)), 0.0
	for _, verb := range strings.Split(string(format), "%")[1:] {
		flags := verb
		if end := strings.IndexFunc(verb, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }); end >= 0 {
			flags = verb[:end]
		}
		if strings.Contains(flags, "*") {
			// The width is an operand; fmt takes up to a million.
			width += 1e6
		}
		for _, number := range strings.FieldsFunc(flags, func(r rune) bool { return r < '0' || r > '9' }) {
			n, err := strconv.ParseFloat(number, 64)
			if err != nil {
				return endlessly
			}
			width += min(n, 1e6)
		}
		total += 64 + float64(longest)
	}
	return atMost(total + width)
}

func ofConcat(_ *meter, operands []*ast.Term) int64 {
	delimiter, ok := operands[0].Value.(ast.String)
	if !ok {
		return 0
	}
	total := 0.0
	add := func(term *ast.Term) {
		if text, ok := term.Value.(ast.String); ok {
			total += float64(len(text) + len(delimiter))
		}
	}
	switch list := operands[1].Value.(type) {
	case *ast.Array:
		list.Foreach(add)
	case ast.Set:
		list.Foreach(add)
	}
	return atMost(total)
}

func ofReplace(_ *meter, operands []*ast.Term) int64 {
	text, _ := operands[0].Value.(ast.String)
	old, _ := operands[1].Value.(ast.String)
	replacement, _ := operands[2].Value.(ast.String)
	return atMost(float64(len(text)) + float64(strings.Count(string(text), string(old)))*float64(len(replacement)))
}

func ofReplaceN(_ *meter, operands []*ast.Term) int64 {
	patterns, ok := operands[0].Value.(ast.Object)
	text, ok2 := operands[1].Value.(ast.String)
	if !ok || !ok2 {
		return 0
	}
	total := float64(len(text))
	patterns.Foreach(func(old, replacement *ast.Term) {
		from, _ := old.Value.(ast.String)
		to, _ := replacement.Value.(ast.String)
		total += float64(len(from)) + float64(strings.Count(string(text), string(from)))*float64(len(to))
	})
	return atMost(total)
}

// ofRegexReplace assumes that the pattern matches everywhere, and that a reference to a
// group is all of the text.
func ofRegexReplace(m *meter, operands []*ast.Term) int64 {
	text, _ := operands[0].Value.(ast.String)
	replacement, _ := operands[2].Value.(ast.String)
	if ofRegex(m, operands[:2]) == endlessly {
		return endlessly
	}
	length := float64(len(text) + 1)
	return atMost(length*float64(len(replacement)) + length*float64(strings.Count(string(replacement), "$")))
}

// ofRegex refuses patterns and texts that are too long; which is which differs between builtins.
func ofRegex(_ *meter, operands []*ast.Term) int64 {
	short := false
	total := 0.0
	for _, operand := range operands[:min(len(operands), 2)] {
		text, ok := operand.Value.(ast.String)
		if !ok {
			continue
		}
		short = short || len(text) <= maxPattern
		total += float64(len(text))
		if len(text) > maxSubject {
			return endlessly
		}
	}
	if !short {
		return endlessly
	}
	return atMost(perValue * total)
}

func ofGlob(_ *meter, operands []*ast.Term) int64 {
	pattern, _ := operands[0].Value.(ast.String)
	subject, _ := operands[2].Value.(ast.String)
	if len(pattern) > maxGlob || len(subject) > maxGlobSubject {
		return endlessly
	}
	return 0
}

// ofTree is for what a value is when all of it is written out.
func ofTree(m *meter, operands []*ast.Term) int64 {
	total := 0.0
	for _, operand := range operands {
		total += float64(weigh(operand.Value, m.limit))
	}
	return atMost(total)
}

// ofComparison is free, unless the operands, as trees, are more than there may be: to compare
// two of shared parts takes as long as if they shared none, and cannot be interrupted.
func ofComparison(m *meter, operands []*ast.Term) int64 {
	if cost := ofTree(m, operands); cost > m.limit {
		return cost
	}
	return 0
}

func ofArrays(_ *meter, operands []*ast.Term) int64 {
	total := 0
	for _, operand := range operands {
		if array, ok := operand.Value.(*ast.Array); ok {
			total += array.Len()
		}
	}
	return int64(total) * perValue
}

func ofText(perByte int) price {
	return func(_ *meter, operands []*ast.Term) int64 {
		total := 0
		for _, operand := range operands {
			if text, ok := operand.Value.(ast.String); ok {
				total += len(text)
			}
		}
		return int64(total) * int64(perByte)
	}
}

// ofNumbers refuses numbers that are too long, in an operand or one level below.
func ofNumbers(_ *meter, operands []*ast.Term) int64 {
	total := int64(0)
	check := func(term *ast.Term) {
		switch value := term.Value.(type) {
		case ast.Number:
			if !countable(string(value)) {
				total = endlessly
			}
		case ast.String:
			if !countable(string(value)) {
				total = endlessly
			}
		}
	}
	for _, operand := range operands {
		switch value := operand.Value.(type) {
		case *ast.Array:
			value.Foreach(check)
		case ast.Set:
			value.Foreach(check)
		default:
			check(operand)
		}
	}
	return total
}

// countable tells whether a number has few digits when it is written without an exponent.
func countable(number string) bool {
	if len(number) > maxDigits {
		return false
	}
	at := strings.LastIndexAny(number, "eE")
	if at < 0 {
		return true
	}
	digits := strings.TrimRight(strings.TrimLeft(number[at+1:], "+-"), "iKMGTPEBkmgtpb ")
	exponent, err := strconv.Atoi(digits)
	if errors.Is(err, strconv.ErrRange) {
		return false
	}
	// What is no number is for the builtin to refuse.
	return err != nil || exponent <= maxDigits
}

var errHeavy = errors.New("heavier than that")

// weigh returns how long a value is when it is written out, indented, up to a limit. Shared
// parts count each time, and it takes no longer than the limit allows.
func weigh(value ast.Value, limit int64) int64 {
	total := int64(0)
	if err := weighInto(&total, value, limit, 1); err != nil {
		return endlessly
	}
	return total
}

func weighInto(total *int64, value ast.Value, limit, depth int64) error {
	*total += 2*depth + 4
	if *total > limit {
		return errHeavy
	}
	each := func(term *ast.Term) error { return weighInto(total, term.Value, limit, depth+1) }
	switch value := value.(type) {
	case ast.String:
		*total += int64(len(value))
	case ast.Number:
		*total += int64(len(value))
	case *ast.Array:
		return value.Iter(each)
	case ast.Set:
		return value.Iter(each)
	case ast.Object:
		return value.Iter(func(key, value *ast.Term) error {
			if err := each(key); err != nil {
				return err
			}
			return each(value)
		})
	}
	return nil
}

func atMost(price float64) int64 {
	if price >= math.MaxInt64/2 {
		return endlessly
	}
	return int64(price)
}

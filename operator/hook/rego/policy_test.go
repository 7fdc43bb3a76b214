package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func compile(t testing.TB, version, text string) *Policy {
	t.Helper()
	policy, err := Compile(Source{Version: version, Modules: []Module{{Name: "policy.rego", Text: text}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// rule compiles a policy of one rule in v1.
func rule(t testing.TB, body string) *Policy {
	t.Helper()
	return compile(t, V1, "package controller\n\n"+body)
}

func TestAPolicyAnswersWithItsDocument(t *testing.T) {
	for name, test := range map[string]struct{ version, policy, input, want string }{
		"a set is an array, and an object has its keys in order": {
			V1, "package controller\nchildren contains c if some c in input.names\nstatus := {\"b\": 1, \"a\": {2: [null, true]}}",
			`{"names": ["y", "x", "y"]}`, `{"children":["x","y"],"status":{"a":{"2":[null,true]},"b":1}}`,
		},
		"a policy of v0": {
			V0, "package controller\nchildren[c] { c := input.names[_] }", `{"names": ["x"]}`, `{"children":["x"]}`,
		},
		"a long integer survives": {
			V1, "package controller\nn := input.n", `{"n": 9223372036854775807}`, `{"n":9223372036854775807}`,
		},
		"text that JSON must escape": {
			V1, "package controller\ns := input.s", `{"s": "<\"\u0000>"}`, `{"s":"<\"\u0000>"}`,
		},
		"rules without a value are not there": {
			V1, "package controller\na := 1 if input.x\nb := 2", `{}`, `{"b":2}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := compile(t, test.version, test.policy).Evaluate(t.Context(), []byte(test.input), noon)
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestAPolicysClockIsTheCallers(t *testing.T) {
	policy := rule(t, "now := time.now_ns()\nagain := time.now_ns()")
	for _, now := range []time.Time{noon, noon.Add(time.Hour), time.Unix(0, 0)} {
		got, err := policy.Evaluate(t.Context(), []byte(`{}`), now)
		if want := fmt.Sprintf(`{"again":%d,"now":%[1]d}`, now.UnixNano()); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestTheSameInputGivesTheSameBytes(t *testing.T) {
	policy := rule(t, `children contains {"name": n, "labels": {l: n | some l in input.labels}} if some n in input.names`)
	input := []byte(`{"names": ["c", "a", "b", "e", "d"], "labels": ["z", "y", "x", "w"]}`)
	first, err := policy.Evaluate(t.Context(), input, noon)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if again, err := policy.Evaluate(t.Context(), input, noon); err != nil || string(again) != string(first) {
			t.Fatalf("got %s, %v, then %s", first, err, again)
		}
	}
}

func TestAMistakeInAPolicyIsNamedWithItsLine(t *testing.T) {
	for name, test := range map[string]struct {
		source Source
		want   []string
	}{
		"what does not parse": {
			Source{Modules: []Module{{Name: "configmap/a/b/c", Text: "package controller\n\nx := {"}}}, []string{"configmap/a/b/c:3:"},
		},
		"a variable that nobody has": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\n\n\nx := y"}}}, []string{"inline:4:6: ", "var y is unsafe"},
		},
		"mistakes in two modules": {
			Source{Modules: []Module{{Name: "a", Text: "package controller\nx := {"}, {Name: "b", Text: "package controller\n\ny := ["}}}, []string{"a:2:", "b:3:"},
		},
		"a builtin that was taken away": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\nx := http.send({\"method\": \"get\", \"url\": \"http://a\"})"}}},
			[]string{"inline:2:6: undefined function http.send: a hook cannot call it, because it reaches the network"},
		},
		"a policy of v0 read as v1": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\nx[y] { y := 1 }"}}}, []string{"inline:2:1: ", "set version: v0"},
		},
		"a policy of v1 read as v0": {
			Source{Version: V0, Modules: []Module{{Name: "inline", Text: "package controller\nx contains y if y := 1"}}}, []string{"inline:2:"},
		},
		"nothing":         {Source{}, []string{"the policy is empty"}},
		"comments alone":  {Source{Modules: []Module{{Name: "inline", Text: "# later"}}}, []string{"inline:1:1: "}},
		"another version": {Source{Version: "v2", Modules: []Module{{}}}, []string{`version: "v2" is neither v0 nor v1`}},
		"a query that is no document": {
			Source{Query: "http.send({})", Modules: []Module{{Text: "package controller"}}}, []string{`query: "http.send({})" is not a document of a policy, such as data.controller`},
		},
		"a query for the input": {
			Source{Query: "input.x", Modules: []Module{{Text: "package controller"}}}, []string{`query: "input.x" is not a document`},
		},
		"a query with a variable": {
			Source{Query: "data.controller[x]", Modules: []Module{{Text: "package controller"}}}, []string{`query: "data.controller[x]" is not a document`},
		},
		"a query that no rule answers": {
			Source{Query: "data.controler", Modules: []Module{{Name: "inline", Text: "package controller\nx := 1"}}},
			[]string{"query: no rule is at or below data.controler; the policy has data.controller"},
		},
		"too much": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\n#" + strings.Repeat("x", MaxSourceBytes)}}}, []string{"bytes, of at most 1048576"},
		},
		"too many modules": {Source{Modules: make([]Module, MaxModules+1)}, []string{"65 modules, of at most 64"}},
		"two modules of one name": {
			Source{Modules: []Module{{Name: "a", Text: "package controller"}, {Name: "a", Text: "package controller"}}}, []string{`two modules are named "a"`},
		},
		"a long query": {Source{Query: "data." + strings.Repeat("x", 2000), Modules: []Module{{}}}, []string{"query: it has 2005 bytes, of at most 1024"}},
		"a number that is too big": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\nx := 1e999999999 + 1"}}}, []string{"inline:2:6: number too big"},
		},
		"too deep": {
			Source{Modules: []Module{{Name: "inline", Text: "package controller\nx := " + strings.Repeat("[", 200_000)}}}, []string{"inline:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(test.source, Options{})
			if err == nil {
				t.Fatal("it compiles")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, which has no %q", err, want)
				}
			}
		})
	}
}

func TestOfManyMistakesTheFirstAreTold(t *testing.T) {
	text := "package controller\n" + strings.Repeat("x := unknown"+strings.Repeat("y", 1000)+"\n", 100)
	_, err := Compile(Source{Modules: []Module{{Name: "inline", Text: text}}}, Options{})
	var failed *CompileError
	if !errors.As(err, &failed) || len(failed.Errors) != maxErrors || !failed.More {
		t.Fatalf("got %v", err)
	}
	if len(err.Error()) > maxErrors*(maxMessage+100) {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
	if first := failed.Errors[0]; first.File != "inline" || first.Row != 2 || first.Column == 0 || first.Message == "" {
		t.Errorf("got %+v", first)
	}
}

func TestOptionsAboveTheirMaximumAreRefused(t *testing.T) {
	for want, options := range map[string]Options{
		"timeout: 11s is not between 0s and 10s":    {Timeout: 11 * time.Second},
		"timeout: -1s":                              {Timeout: -time.Second},
		"maxMemoryBytes: 1073741825 is not between": {MaxMemoryBytes: MaxMemory + 1},
	} {
		_, err := Compile(Source{Modules: []Module{{Text: "package controller\nx := 1"}}}, options)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestEveryBuiltinOfOPAIsAllowedOrTakenAway(t *testing.T) {
	known := map[string]bool{}
	for _, builtin := range ast.Builtins {
		known[builtin.Name] = true
		_, taken := takenAway[builtin.Name]
		if allowed[builtin.Name] == taken {
			t.Errorf("%s: allowed %t, taken away %t: read what it does, and put it into exactly one list of builtins.go",
				builtin.Name, allowed[builtin.Name], taken)
		}
		// What is not always the same is the clock, or taken away.
		if builtin.Nondeterministic && !taken && builtin.Name != "time.now_ns" {
			t.Errorf("%s is not deterministic", builtin.Name)
		}
	}
	available, taken := Builtins()
	for _, name := range available {
		if !known[name] {
			t.Errorf("%s is allowed, and OPA does not have it", name)
		}
	}
	for name := range taken {
		if !known[name] {
			t.Errorf("%s is taken away, and OPA does not have it", name)
		}
	}
	for name := range prices() {
		if !known[name] || !allowed[name] {
			t.Errorf("%s has a price, and no policy can call it", name)
		}
	}
}

func TestNoBuiltinThatWasTakenAwayCanBeCalled(t *testing.T) {
	for _, version := range []string{V0, V1} {
		for _, builtin := range ast.Builtins {
			if _, taken := takenAway[builtin.Name]; !taken {
				continue
			}
			arguments := make([]string, builtin.Decl.Arity())
			for i := range arguments {
				arguments[i] = "input.x"
			}
			call := fmt.Sprintf("%s(%s)", builtin.Name, strings.Join(arguments, ", "))
			for _, text := range []string{
				"package controller\nx := y { y := " + call + " }",
				"package controller\nx { y := " + call + " with input as 1; y }",
				// A function put in the place of one that can be called.
				"package controller\nx { f(1) with count as " + builtin.Name + " }\nf(y) { count(y) }",
			} {
				if version == V1 {
					text = strings.NewReplacer("y { y", "y if { y", "x { ", "x if { ", "f(y) {", "f(y) if {").Replace(text)
				}
				_, err := Compile(Source{Version: version, Modules: []Module{{Name: "p", Text: text}}}, Options{})
				if err == nil || !strings.Contains(err.Error(), "undefined") && !strings.Contains(err.Error(), "must not") && !strings.Contains(err.Error(), "p:2:") {
					t.Errorf("%s: %s compiles: %v", version, text, err)
				}
			}
		}
	}
}

// bombs are rules that would take more memory or time than there is.
var bombs = map[string]string{
	"a range":                    `x := count(numbers.range(1, 100000000000))`,
	"a range beyond int64":       `x := count(numbers.range(1, 100000000000000000000000))`,
	"a range downwards":          `x := count(numbers.range(9000000000000000000, -9000000000000000000))`,
	"a range with steps":         `x := count(numbers.range_step(1, 100000000000, 2))`,
	"a range from the input":     `x := count(numbers.range(1, input.many))`,
	"a shift":                    `x := bits.lsh(1, 1000000000000)`,
	"a long exponent":            `x := json.unmarshal("1e999999999") + 1`,
	"a long exponent compared":   `x := json.unmarshal("1e999999999") > 1`,
	"a long exponent in a text":  `x := to_number("1e999999999") + 1`,
	"a long exponent in a sum":   `x := sum([json.unmarshal("1e999999999"), 1])`,
	"a long exponent rounded":    `x := round(json.unmarshal("1e999999999"))`,
	"a long exponent formatted":  `x := format_int(json.unmarshal("1e999999999"), 2)`,
	"a long exponent printed":    `x := sprintf("%d", [json.unmarshal("1e999999999")])`,
	"a long exponent in units":   `x := units.parse_bytes("1e999999999")`,
	"a width":                    `x := count(sprintf(concat("", [s | some _ in numbers.range(1, 10000); s := "%999999d"]), [1]))`,
	"a width that is an operand": `x := count(sprintf(concat("", [s | some _ in numbers.range(1, 10000); s := "%[1]*d"]), [999999]))`,
	"operands used again":        `x := count(sprintf(concat("", [s | some i in numbers.range(1, 10000); s := sprintf("%PREV%d", [i])]), [concat("", [s | some i in numbers.range(1, 100000); s := sprintf("%d", [i])])]))`,
	"a text doubled":             doubled(`concat("", [PREV, PREV])`, `"x"`),
	"a text doubled by sprintf":  doubled(`sprintf("%s%s", [PREV, PREV])`, `"x"`),
	"a text doubled by replace":  doubled(`replace(PREV, "x", "xx")`, `"x"`),
	"a text doubled by replaces": doubled(`strings.replace_n({"x": "xx"}, PREV)`, `"x"`),
	"a text doubled by regexes":  doubled(`regex.replace(PREV, "(.*)", "$1$1")`, `"x"`),
	"a text in a template":       doubled(`$"{PREV}{PREV}"`, `"x"`),
	"a list doubled":             doubled(`array.concat(PREV, PREV)`, `[1]`),
	"a number squared":           doubled(`PREV * PREV`, `99999999`),
	"shared parts written":       doubled(`[PREV, PREV]`, `["x"]`),
	"shared parts in JSON":       doubled(`[PREV, PREV]`, `["x"]`) + "\ny := json.marshal(x)",
	"shared parts in YAML":       doubled(`[PREV, PREV]`, `["x"]`) + "\ny := yaml.marshal(x)",
	"shared parts printed":       doubled(`[PREV, PREV]`, `["x"]`) + "\n" + `y := sprintf("%v", [x])`,
	"shared parts walked":        doubled(`[PREV, PREV]`, `["x"]`) + "\ny := count([1 | walk(x)])",
	"shared parts united":        doubled(`{"a": PREV, "b": PREV}`, `{"x": 1}`) + "\ny := object.union(x, x)",
	"a comprehension":            `x := count([[i, j, k] | some i in numbers.range(1, 1000); some j in numbers.range(1, 1000); some k in numbers.range(1, 1000)])`,
	"a set":                      `x contains [i, j, k] if { some i in numbers.range(1, 1000); some j in numbers.range(1, 1000); some k in numbers.range(1, 1000) }`,
	"a search for nothing":       `x if { some i in numbers.range(1, 10000); some j in numbers.range(1, 10000); i + j == -1 }`,
	"a long pattern":             `x := regex.match(concat("", [s | some _ in numbers.range(1, 200); s := "(x{900}|y)"]), concat("", [s | some _ in numbers.range(1, 100000); s := "xxxx"]))`,
	"a glob that goes back":      `x := glob.match(concat("", [s | some _ in numbers.range(1, 100); s := "*a"]), [], concat("", [s | some _ in numbers.range(1, 100000); s := "a"]))`,
	"a split":                    `x := count([c | some _ in numbers.range(1, 1000); c := split(concat("", [s | some _ in numbers.range(1, 10000); s := "xxxx"]), "")])`,
	"aliases in YAML":            `x := count(json.marshal(yaml.unmarshal(input.bomb)))`,
}

// doubled is a rule that doubles a value sixty times; PREV is the value before.
func doubled(format, start string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "x0 := %s\n", start)
	for i := 1; i <= 60; i++ {
		fmt.Fprintf(&text, "x%d := %s\n", i, strings.ReplaceAll(format, "PREV", fmt.Sprintf("x%d", i-1)))
	}
	return text.String() + "x := x60"
}

func TestWhatWouldTakeAllMemoryIsCancelled(t *testing.T) {
	input, err := json.Marshal(map[string]any{
		"many": int64(1) << 60,
		"bomb": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n" +
			"g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, bomb := range bombs {
		t.Run(name, func(t *testing.T) {
			policy, err := Compile(Source{Modules: []Module{{Name: "policy.rego", Text: "package controller\n\n" + bomb}}},
				Options{MaxMemoryBytes: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			// Without a limit these would not end before the test's own deadline.
			most := watchHeap(t)
			output, err := policy.Evaluate(t.Context(), input, noon)
			// A builtin that refuses by itself leaves its rule undefined, and that is as good.
			refused := err == nil && len(output) < 1000
			if !refused && !errors.Is(err, ErrLimit) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %.200s, %v", output, err)
			}
			if grown := most(); grown > 1<<30 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			t.Logf("%.200v (%.100s)", err, output)
		})
	}
}

// watchHeap returns a function that says by how much the heap had grown at most.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	before := stats.HeapAlloc
	var most atomic.Uint64
	var watching sync.WaitGroup
	stop := make(chan struct{})
	watching.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				var stats runtime.MemStats
				runtime.ReadMemStats(&stats)
				if stats.HeapAlloc > before {
					most.Store(max(most.Load(), stats.HeapAlloc-before))
				}
			}
		}
	})
	return func() uint64 { close(stop); watching.Wait(); return most.Load() }
}

func TestAnEvaluationEndsWithItsTimeoutAndWithItsCaller(t *testing.T) {
	source := Source{Modules: []Module{{Name: "policy.rego", Text: "package controller\n" + bombs["a search for nothing"]}}}
	policy, err := Compile(source, Options{Timeout: 20 * time.Millisecond, MaxMemoryBytes: MaxMemory})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policy.Evaluate(t.Context(), []byte(`{}`), noon); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "it takes longer than 20ms") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the parent is gone"))
	if _, err := policy.Evaluate(ctx, []byte(`{}`), noon); err == nil || !strings.Contains(err.Error(), "the parent is gone") {
		t.Errorf("got %v", err)
	}
}

func TestInputAndOutputAreBounded(t *testing.T) {
	source := Source{Modules: []Module{{Text: "package controller\nx := [input.x | some _ in numbers.range(1, 11)]"}}}
	// The bounds are what is tested, on whatever machine: megabytes can take more than the default second.
	policy, err := Compile(source, Options{Timeout: MaxTimeout})
	if err != nil {
		t.Fatal(err)
	}
	text := func(n int) []byte { return fmt.Appendf(nil, `{"x": %q}`, strings.Repeat("x", n)) }
	for n, want := range map[int]string{50: "", MaxBytes / 10: "the output has more than 10485760 bytes", MaxBytes: "the input has 10485769 bytes, of at most 10485760"} {
		_, err := policy.Evaluate(t.Context(), text(n), noon)
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: got %v", n, err)
		}
	}
}

func TestInputThatIsNoJSONAndRulesThatDisagreeAreErrors(t *testing.T) {
	policy := rule(t, "x := 1 if input.a\n\nx := 2 if input.b")
	for input, want := range map[string]string{
		`{`:                      "input: unexpected EOF",
		`{} {}`:                  "input: there is more after the first JSON document",
		`{"a": true, "b": true}`: "policy.rego:5:1: ",
		"":                       "input: EOF",
	} {
		if _, err := policy.Evaluate(t.Context(), []byte(input), noon); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", input, err, want)
		}
	}
	undefined, err := Compile(Source{Query: "data.controller.x", Modules: []Module{{Text: "package controller\nx := 1 if input.a"}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := undefined.Evaluate(t.Context(), []byte(`{}`), noon); !errors.Is(err, ErrUndefined) {
		t.Errorf("got %v, want that it is undefined", err)
	}
}

func TestPrintPrintsNothing(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = write, write
	got, err := rule(t, `x := 1 if print("hello", input)`).Evaluate(t.Context(), []byte(`{}`), noon)
	os.Stdout, os.Stderr = stdout, stderr
	if closing := write.Close(); closing != nil {
		t.Fatal(closing)
	}
	printed, _ := io.ReadAll(read)
	if err != nil || string(got) != `{"x":1}` || len(printed) > 0 {
		t.Errorf("got %s, %v, and it printed %q", got, err, printed)
	}
}

func TestAPolicyIsEvaluatedByManyAtOnce(t *testing.T) {
	policy := rule(t, "x := input.x\ny := time.now_ns()")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 50 {
				now := noon.Add(time.Duration(i*1000+j) * time.Second)
				got, err := policy.Evaluate(context.Background(), fmt.Appendf(nil, `{"x": %d}`, i), now)
				if want := fmt.Sprintf(`{"x":%d,"y":%d}`, i, now.UnixNano()); err != nil || string(got) != want {
					t.Errorf("got %s, %v, want %s", got, err, want)
				}
			}
		})
	}
	group.Wait()
}

func FuzzCompile(f *testing.F) {
	f.Add("package controller\nx := 1", "data.controller", `{}`)
	f.Add("package controller\nx contains y if some y in input", "data.controller.x", `[1, {"a": null}]`)
	f.Add("package controller\nx[y] { y := 1 }", "data.controller[\"x\"]", `1e400`)
	f.Fuzz(func(t *testing.T, text, query, input string) {
		for _, version := range []string{V0, V1} {
			policy, err := Compile(Source{Version: version, Query: query, Modules: []Module{{Name: "inline", Text: text}}},
				Options{Timeout: 200 * time.Millisecond, MaxMemoryBytes: 16 << 20})
			if err != nil {
				if len(err.Error()) > maxErrors*(maxMessage+2000) {
					t.Errorf("the message has %d bytes", len(err.Error()))
				}
				continue
			}
			output, err := policy.Evaluate(t.Context(), []byte(input), noon)
			if err == nil && !json.Valid(output) {
				t.Errorf("it answers with %q, which is no JSON", output)
			}
			if err != nil && strings.Contains(err.Error(), "panic:") {
				t.Error(err)
			}
		}
	})
}

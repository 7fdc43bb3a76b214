package rego

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
)

// pooled compiles a policy of one rule that a pool evaluates.
func pooled(t testing.TB, pool *Pool, rule string, options Options) *Policy {
	t.Helper()
	policy, err := pool.Compile(Source{Modules: []Module{{Name: "policy.rego", Text: "package controller\n\n" + rule}}}, options)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func newPool(t testing.TB, workers int) *Pool {
	t.Helper()
	pool := NewPool(workers)
	t.Cleanup(pool.Close)
	return pool
}

// list returns a JSON array of so many elements.
func list(n int, element string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

// unbounded are what a parent's author can write for an ordinary rule, and what takes far longer than a
// timeout then.
var unbounded = map[string]struct{ rule, input string }{
	"product":       {`x := product(input.a)`, `{"a":` + list(20000, "1e1000") + `}`},
	"json.patch":    {`x := count(json.patch({"a":[]}, input.ops).a)`, `{"ops":` + list(35000, `{"op":"add","path":"/a/0","value":1}`) + `}`},
	"object.subset": {`x := object.subset(input.a, array.concat(input.b, [2]))`, `{"a":` + list(60000, "1") + `,"b":` + list(30000, "1") + `}`},
	"trim":          {`x := trim(input.a, input.b)`, `{"a":"` + strings.Repeat("é", 300000) + `","b":"` + strings.Repeat("ü", 300000) + `é"}`},
	"walk":          {`x := count([p | walk(input, [p, 1])])`, `{"a":` + strings.Repeat("[", 9000) + "1" + strings.Repeat("]", 9000) + `}`},
	"sort":          {doubling(26, "x", "1") + doubling(26, "y", "1") + `x := sort([x26, y26])`, `{}`},
}

// doubling makes a value of shared parts, which is 2^n as a tree.
func doubling(n int, name, first string) string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s0 := %s\n", name, first)
	for i := 1; i <= n; i++ {
		_, _ = fmt.Fprintf(&b, "%[1]s%[2]d := [%[1]s%[3]d, %[1]s%[3]d]\n", name, i, i-1)
	}
	return b.String()
}

func TestAnEvaluationThatCannotBeInterruptedEndsWithItsProcess(t *testing.T) {
	const timeout = 300 * time.Millisecond
	pool := newPool(t, 1)
	worst := time.Duration(0)
	pool.ended = func(w *worker) { worst = max(worst, w.cmd.ProcessState.UserTime()+w.cmd.ProcessState.SystemTime()) }
	for name, bomb := range unbounded {
		t.Run(name, func(t *testing.T) {
			_, err := pooled(t, pool, bomb.rule, Options{Timeout: timeout}).Evaluate(t.Context(), []byte(bomb.input), noon)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrLimit) {
				t.Errorf("it ends with %v", err)
			}
			// Whatever became of it, the next one is evaluated.
			if got, err := pooled(t, pool, `x := input.a`, Options{Timeout: 10 * time.Second}).Evaluate(t.Context(), []byte(`{"a":1}`), noon); err != nil || string(got) != `{"x":1}` {
				t.Errorf("the next one: %s, %v", got, err)
			}
		})
	}
	testkit.Figure("rego.worst_cpu_s", worst.Seconds(), "s")
	if most := 2 * timeout * time.Duration(runtime.GOMAXPROCS(0)); worst > most { // beside it, garbage is collected
		t.Errorf("an evaluation took %s of the processors, and may take %s", worst, most)
	}
}

// The types of such a policy are 2^60 as trees.
func TestAPolicyThatCannotBeCompiledInTimeIsAnError(t *testing.T) {
	pool := newPool(t, 1)
	pool.compileTime = 2 * time.Second
	source := Source{Modules: []Module{{Name: "policy.rego", Text: "package controller\n\n" + doubling(60, "x", "1") + doubling(60, "y", "1") + "z if x60 == y60"}}}
	if _, err := pool.Compile(source, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if policy := pooled(t, pool, `x := input.a`, Options{}); policy == nil {
		t.Error("another is not compiled")
	}
}

func TestBadParentsDoNotTakeAllWorkers(t *testing.T) {
	pool := newPool(t, 2)
	bad := pooled(t, pool, unbounded["product"].rule, Options{Timeout: 100 * time.Millisecond})
	good := pooled(t, pool, `x := input.a`, Options{Timeout: 10 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range 5 {
		running.Go(func() {
			for ctx.Err() == nil {
				if _, err := bad.Evaluate(ctx, []byte(unbounded["product"].input), noon); err == nil {
					t.Error("it is evaluated")
				}
			}
		})
	}
	longest := time.Duration(0)
	for range 10 {
		began := time.Now()
		if got, err := good.Evaluate(t.Context(), []byte(`{"a":1}`), noon); err != nil || string(got) != `{"x":1}` {
			t.Errorf("beside them: %s, %v", got, err)
		}
		longest = max(longest, time.Since(began))
	}
	testkit.Figure("rego.beside_bombs_max_s", longest.Seconds(), "s")
}

// What the process of a policy answers is what this one would.
func TestAPoolAnswersAsThisProcessDoes(t *testing.T) {
	pool := newPool(t, 0)
	for name, test := range map[string]struct {
		rule, input string
		of          error
	}{
		"a document":                  {`children contains c if some c in input.names`, `{"names":["y","x"]}`, nil},
		"a long integer":              {`n := input.n`, `{"n":9223372036854775807}`, nil},
		"a clock":                     {`now := time.now_ns()`, `{}`, nil},
		"a time zone":                 {`hour := time.clock([0, "Europe/Berlin"])`, `{}`, nil},
		"no value":                    {`x := 1 if input.no`, `{}`, nil},
		"input that is no JSON":       {`x := 1`, `{`, nil},
		"rules that disagree":         {"x := 1 if input.a\nx := 2 if input.a", `{"a":true}`, nil},
		"more than it may build":      {`x := numbers.range(1, input.n)`, `{"n":100000000}`, ErrLimit},
		"a builtin that fails":        {`x := 1 / input.n`, `{"n":0}`, nil},
		"an output that is too large": {`x := [s | some _ in numbers.range(1, 20); s := input.s]`, `{"s":"` + strings.Repeat("x", 1<<20) + `"}`, ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			long := Options{Timeout: 10 * time.Second}
			here, err := Compile(Source{Modules: []Module{{Name: "policy.rego", Text: "package controller\n\n" + test.rule}}}, long)
			if err != nil {
				t.Fatal(err)
			}
			want, wanted := here.Evaluate(t.Context(), []byte(test.input), noon)
			got, err := pooled(t, pool, test.rule, long).Evaluate(t.Context(), []byte(test.input), noon)
			if string(got) != string(want) || fmt.Sprint(err) != fmt.Sprint(wanted) {
				t.Errorf("got %s, %v, want %s, %v", got, err, want, wanted)
			}
			if errors.Is(err, ErrUndefined) != errors.Is(wanted, ErrUndefined) || test.of != nil && !errors.Is(err, test.of) {
				t.Errorf("%v is another kind of error", err)
			}
		})
	}
}

func TestAProcessThatOnlyUsesMemoryIsBounded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux bounds it")
	}
	pool := newPool(t, 1)
	pool.memory = 256 << 20
	greedy := pooled(t, pool, `x := count(json.patch(input.a, [{"op": "add", "path": sprintf("/%d", [i]), "value": input.a} | some i in numbers.range(0, 40)]))`,
		Options{Timeout: 10 * time.Second, MaxMemoryBytes: MaxMemory})
	_, err := greedy.Evaluate(t.Context(), []byte(`{"a":`+list(2_000_000, "1")+`}`), noon)
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "more memory than the 268435456 bytes of its process") {
		t.Errorf("it ends with %v", err)
	}
}

func TestAPoolReusesItsProcessesAndEndsThem(t *testing.T) {
	pool := NewPool(1)
	defer pool.Close()
	pids := map[int]bool{}
	running := func() *worker { // the one that is idle
		pool.mu.Lock()
		defer pool.mu.Unlock()
		if len(pool.idle) != 1 {
			t.Fatalf("%d processes are idle", len(pool.idle))
		}
		return pool.idle[0]
	}
	evaluate := func(policy *Policy) {
		t.Helper()
		if got, err := policy.Evaluate(t.Context(), []byte(`{"a":1}`), noon); err != nil || string(got) != `{"x":1}` {
			t.Fatalf("%s, %v", got, err)
		}
		pids[running().cmd.Process.Pid] = true
	}
	long := Options{Timeout: 10 * time.Second}
	var first *Policy
	for i := range maxPolicies + 2 { // more than a worker keeps
		policy := pooled(t, pool, fmt.Sprintf("x := input.a\n# %d", i), long)
		if evaluate(policy); first == nil {
			first = policy
		}
	}
	if evaluate(first); len(pids) != 1 {
		t.Errorf("%d processes evaluate one after the other", len(pids))
	}
	_ = running().cmd.Process.Kill() // as the kernel does when memory is short
	if _, err := first.Evaluate(t.Context(), []byte(`{"a":1}`), noon); err == nil || !strings.Contains(err.Error(), "the process that evaluates it was ended") {
		t.Errorf("with a process that was killed: %v", err)
	}
	evaluate(first)
	ctx, cancel := context.WithCancelCause(t.Context())
	bomb := pooled(t, pool, unbounded["product"].rule, long)
	errAway := errors.New("nobody waits for it")
	time.AfterFunc(100*time.Millisecond, func() { cancel(errAway) })
	if _, err := bomb.Evaluate(ctx, []byte(unbounded["product"].input), noon); !errors.Is(err, errAway) {
		t.Errorf("a caller who leaves: %v", err)
	}
	evaluate(first)
	last := running()
	pool.Close()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", last.cmd.Process.Pid)); runtime.GOOS == "linux" && err == nil {
		t.Error("a process runs after the pool is closed")
	}
	if _, err := first.Evaluate(t.Context(), []byte(`{"a":1}`), noon); !errors.Is(err, ErrClosed) {
		t.Errorf("after that: %v", err)
	}
}

func TestAPoolIsUsedByManyAtOnce(t *testing.T) {
	pool := newPool(t, 2)
	policy := pooled(t, pool, `x := input.a`, Options{Timeout: 10 * time.Second})
	var running sync.WaitGroup
	for i := range 50 {
		running.Go(func() {
			if got, err := policy.Evaluate(t.Context(), fmt.Appendf(nil, `{"a":%d}`, i), noon); err != nil || string(got) != fmt.Sprintf(`{"x":%d}`, i) {
				t.Errorf("%d: %s, %v", i, got, err)
			}
		})
	}
	running.Wait()
}

func TestAMessageIsBounded(t *testing.T) {
	var wire bytes.Buffer
	if err := newMessages(nil, &wire, 0).send(&answer{Output: make([]byte, 1000)}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"more than it may have": wire.String(), "half a message": wire.String()[:wire.Len()/2], "no message": "x", "nothing": ""} {
		if err := newMessages(strings.NewReader(text), nil, 1000).receive(&answer{}); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	a := &answer{}
	if err := newMessages(&wire, nil, 2000).receive(a); err != nil || len(a.Output) != 1000 {
		t.Errorf("one that is short enough: %v", err)
	}
}

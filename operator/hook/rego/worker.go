package rego

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// workerVariable makes this program a worker. It has the bytes of memory that it may have.
	workerVariable = "ADMITKIT_REGO_WORKER"
	// maxPolicies is how many compiled policies a worker keeps.
	maxPolicies = 64
	// maxQuestion and maxAnswer are how long a message can be: a source and an input, and an output.
	maxQuestion = MaxSourceBytes + MaxBytes + 1<<20
	maxAnswer   = MaxBytes + 1<<20
	// compileTime is how long a process may take to start and to compile a policy: the machine may be busy.
	compileTime = time.Minute
	// readTime is how long a byte of an input may take to read, which counts for no limit.
	readTime = 100 * time.Nanosecond
	// maxProblem is how much is kept of what a worker prints that ends.
	maxProblem = 4 << 10
)

// compilation is what a policy is compiled from.
type compilation struct {
	Source  Source
	Options Options
}

// question is what a worker is asked: to compile a policy, or to evaluate one.
type question struct {
	// Key is the sum of the compilation.
	Key [32]byte
	// Compile is what to compile. Anew says that the worker has to forget all policies before.
	Compile *compilation
	Anew    bool

	// Timeout is how long an evaluation may take, if that is less than the policy's options say.
	Timeout time.Duration
	Input   []byte
	Now     time.Time
}

// answer is an output, or an error.
type answer struct {
	Output  []byte
	Problem string
	// Of is the ordinal, from 1, of the error among kinds that Problem wraps.
	Of int
}

// kinds are the errors of an evaluation that a caller can tell apart.
var kinds = []error{ErrUndefined, ErrLimit, context.DeadlineExceeded, context.Canceled}

// problem is an error that another process has had.
type problem struct {
	text string
	of   error
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.of }

func answerOf(output []byte, err error) *answer {
	if err == nil {
		return &answer{Output: output}
	}
	a := &answer{Problem: err.Error()}
	for i, kind := range kinds {
		if errors.Is(err, kind) {
			a.Of = i + 1
		}
	}
	return a
}

func (a *answer) result() ([]byte, error) {
	if a.Problem == "" {
		return a.Output, nil
	}
	p := &problem{text: a.Problem}
	if a.Of > 0 && a.Of <= len(kinds) {
		p.of = kinds[a.Of-1]
	}
	return nil, p
}

// messages are what two processes send each other. What arrives is bounded.
type messages struct {
	from    io.LimitedReader
	most    int64
	encoder *gob.Encoder
	decoder *gob.Decoder
}

// newMessages returns those between two pipes, of which one that arrives has most bytes.
func newMessages(from io.Reader, to io.Writer, most int64) *messages {
	m := &messages{from: io.LimitedReader{R: from}, most: most, encoder: gob.NewEncoder(to)}
	m.decoder = gob.NewDecoder(&m.from)
	return m
}

func (m *messages) send(message any) error { return m.encoder.Encode(message) }

func (m *messages) receive(message any) error {
	m.from.N = m.most
	return m.decoder.Decode(message)
}

func init() {
	if memory, is := os.LookupEnv(workerVariable); is {
		limitMemory(memory)
		work(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// work answers questions until there are no more.
func work(from io.Reader, to io.Writer) {
	questions, parent := make(chan *question), newMessages(from, to, maxQuestion)
	go func() {
		defer close(questions)
		for {
			q := &question{}
			if err := parent.receive(q); err != nil {
				os.Exit(0) // nobody hears the answer to what is under way
			}
			questions <- q
		}
	}()
	policies := map[[32]byte]*Policy{}
	for q := range questions {
		output, err := reply(policies, q)
		if parent.send(answerOf(output, err)) != nil {
			return
		}
	}
}

func reply(policies map[[32]byte]*Policy, q *question) (output []byte, err error) {
	if q.Anew {
		clear(policies)
	}
	if q.Compile != nil {
		policies[q.Key], err = Compile(q.Compile.Source, q.Compile.Options)
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), q.Timeout, context.DeadlineExceeded)
	defer cancel()
	return policies[q.Key].Evaluate(ctx, q.Input, q.Now)
}

// worker is a process that evaluates policies, one at a time.
type worker struct {
	cmd      *exec.Cmd
	messages *messages
	problems *os.File // what it prints when it ends
	memory   int64
	known    map[[32]byte]bool
	killed   atomic.Bool
	// err is why it is of no use any more, and timer ends it while it is idle.
	err   error
	timer *time.Timer
}

// startWorker starts a process that may have so many bytes of memory.
func startWorker(memory int64) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(program), memory: memory, known: map[[32]byte]bool{}} //nolint:gosec // it is this program
	w.cmd.Env = append(inherited(), workerVariable+"="+strconv.FormatInt(memory, 10), "GOMEMLIMIT="+strconv.FormatInt(memory/10*8, 10))
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	w.messages = newMessages(stdout, stdin, maxAnswer)
	problems, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w.problems, w.cmd.Stderr = problems, stderr
	err = w.cmd.Start()
	_ = stderr.Close() // the process has it
	if err != nil {
		return nil, errors.Join(err, problems.Close())
	}
	return w, nil
}

// inherited is the environment of a worker: how Go runs, and where it finds time zones.
func inherited() (env []string) {
	for _, name := range []string{"GODEBUG", "GOCOVERDIR", "ZONEINFO", "TZ", "SYSTEMROOT"} {
		if value, is := os.LookupEnv(name); is {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// evaluate asks the process. It is killed if it takes too long, or nobody waits for it any more.
func (w *worker) evaluate(ctx context.Context, policy *Policy, input []byte, now time.Time) ([]byte, error) {
	if err := w.compile(ctx, policy, compileTime); err != nil {
		return nil, err
	}
	q := &question{Key: policy.key, Timeout: policy.options.Timeout, Input: input, Now: now}
	if deadline, is := ctx.Deadline(); is {
		q.Timeout = min(q.Timeout, time.Until(deadline))
	}
	return w.ask(ctx, policy, q, policy.options.Timeout*3/2+time.Duration(len(input))*readTime)
}

// compile has the process compile a policy that it does not know.
func (w *worker) compile(ctx context.Context, policy *Policy, within time.Duration) error {
	if w.known[policy.key] {
		return nil
	}
	q := &question{Key: policy.key, Compile: &compilation{policy.source, policy.options}, Anew: len(w.known) >= maxPolicies}
	if q.Anew {
		clear(w.known)
	}
	_, err := w.ask(ctx, policy, q, within)
	w.known[policy.key] = err == nil
	return err
}

func (w *worker) ask(ctx context.Context, policy *Policy, q *question, within time.Duration) ([]byte, error) {
	late := time.AfterFunc(within, w.kill)
	left := context.AfterFunc(ctx, w.kill)
	a := &answer{}
	err := w.messages.send(q)
	if err == nil {
		err = w.messages.receive(a)
	}
	inTime, awaited := late.Stop(), left()
	if err == nil {
		if !inTime || !awaited { // it is being killed: nobody else may have it
			w.err = context.Canceled
		}
		return a.result()
	}
	w.err = err
	if !inTime {
		return nil, fmt.Errorf("%s: it takes longer than %s, and cannot be interrupted, so its process was ended: %w", policy.query, within, context.DeadlineExceeded)
	}
	if !awaited {
		return nil, fmt.Errorf("%s: %w", policy.query, context.Cause(ctx))
	}
	return nil, fmt.Errorf("%s: %w", policy.query, w.why())
}

// why says why the process has ended by itself.
func (w *worker) why() error {
	w.kill() // if it has said something that cannot be understood
	text, _ := io.ReadAll(io.LimitReader(w.problems, maxProblem))
	said := strings.TrimSpace(string(text))
	if first, _, more := strings.Cut(said, "\n"); more {
		said = first
	}
	switch {
	// Go's runtime does not expect in every place that there is no more. The race detector has words of its own.
	case strings.Contains(said, "out of memory"), strings.Contains(said, "cannot allocate memory"), strings.Contains(said, "segmentation violation"),
		strings.Contains(said, "failed to allocate"):
		return fmt.Errorf("it takes more memory than the %d bytes of its process: %w", w.memory, ErrLimit)
	case w.killed.Load() && said == "":
		return errors.New("the process that evaluates it was ended")
	}
	return fmt.Errorf("the process that evaluates it has ended: %s", said)
}

// kill ends the process. It can be called at any time, and more than once.
func (w *worker) kill() {
	w.killed.Store(true)
	_ = w.cmd.Process.Kill() // or it has ended
}

// end ends the process, and waits until it has.
func (w *worker) end() {
	w.kill()
	_ = w.cmd.Wait() // it was killed
	_ = w.problems.Close()
}

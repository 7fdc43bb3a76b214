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
	// maxProblem is how much is kept of what a worker prints that ends.
	maxProblem = 4 << 10
)

// question is what a worker is asked.
type question struct {
	// Key is the sum of the source, which comes with the first question about it. Anew says that
	// the worker has to forget all sources before.
	Key    [32]byte
	Source *Source
	Anew   bool

	Options Options
	// Timeout is how long it may take, if that is less than what Options say.
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
	known := map[[32]byte]Source{}
	compiled := map[[32]byte]*Policy{}
	for q := range questions {
		if q.Anew {
			clear(known)
			clear(compiled)
		}
		if q.Source != nil {
			known[q.Key] = *q.Source
		}
		policy, err := compiled[q.Key], error(nil)
		if policy == nil || policy.options != q.Options {
			policy, err = Compile(known[q.Key], q.Options)
			compiled[q.Key] = policy
		}
		var output []byte
		if err == nil {
			ctx, cancel := context.WithTimeoutCause(context.Background(), q.Timeout, context.DeadlineExceeded)
			output, err = policy.Evaluate(ctx, q.Input, q.Now)
			cancel()
		}
		if parent.send(answerOf(output, err)) != nil {
			return
		}
	}
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
	q := &question{Key: policy.key, Options: policy.options, Timeout: policy.options.Timeout, Input: input, Now: now}
	if deadline, is := ctx.Deadline(); is {
		q.Timeout = min(q.Timeout, time.Until(deadline))
	}
	if !w.known[policy.key] {
		if q.Anew = len(w.known) >= maxPolicies; q.Anew {
			clear(w.known)
		}
		q.Source, w.known[policy.key] = &policy.source, true
	}
	late := time.AfterFunc(policy.options.Timeout*3/2, w.kill)
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
		return nil, fmt.Errorf("%s: it takes longer than %s, and cannot be interrupted, so its process was ended: %w", policy.query, policy.options.Timeout, context.DeadlineExceeded)
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
	// Go's runtime does not expect in every place that there is no more.
	case strings.Contains(said, "out of memory"), strings.Contains(said, "cannot allocate memory"), strings.Contains(said, "segmentation violation"):
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

package webhook

import (
	"context"
	"sync"
	"time"

	"github.com/admitkit/admitkit/internal/host"
)

// requestContext is the context of an HTTP request with a deadline. It does what
// context.WithTimeout and context.AfterFunc do together, with one timer instead of
// two, and makes a channel only for a handler that asks for one. Most handlers do
// not, and the two functions take longer than reading the request.
type requestContext struct {
	context.Context // of the HTTP request
	deadline        time.Time
	timer           *time.Timer

	mu   sync.Mutex
	done chan struct{}
	err  error // set when it ends by itself
}

// begin calls overran at the deadline, unless stop is called before. overran must
// call expire.
func (c *requestContext) begin(parent context.Context, deadline time.Time, overran func()) {
	c.Context, c.deadline = parent, deadline
	c.timer = time.AfterFunc(time.Until(deadline), overran)
}

// expire ends the context because its time is over.
func (c *requestContext) expire() { c.end(context.DeadlineExceeded) }

// stop ends the context when its request is done.
func (c *requestContext) stop() {
	c.timer.Stop()
	c.end(context.Canceled)
}

func (c *requestContext) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
}

// Value implements context.Context. It marks the context as that of an admission.
func (c *requestContext) Value(key any) any {
	if key == host.Admission {
		return (*host.Undeclared)(nil) // nobody asks for them
	}
	return c.Context.Value(key)
}

// Deadline implements context.Context.
func (c *requestContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Err implements context.Context.
func (c *requestContext) Err() error {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.Context.Err()
}

// Done implements context.Context.
func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done != nil {
		return c.done
	}
	c.done = make(chan struct{})
	if c.err != nil {
		close(c.done)
		return c.done
	}
	// When the client leaves, its context ends, and this one with it. If the request
	// ends first, its context ends too, and the function does nothing.
	context.AfterFunc(c.Context, func() { c.end(c.Context.Err()) })
	return c.done
}

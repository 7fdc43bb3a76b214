package webhook

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// Step is one handler's part in an admission. Programs that explain admissions, such
// as `review` and testing/admit, get it from [HandlerOptions].OnStep.
type Step struct {
	// Extension is the handler's name.
	Extension string
	// Result is the one in the metrics: allowed, mutated, denied, error,
	// panic, timeout or canceled.
	Result string
	// Object is the JSON of the object as the handler left it.
	Object []byte
	// Err says why there is no decision; nil if there is one.
	Err error
	// Undeclared are the reads through the manager's cache that were refused, because no
	// extension declares them (extension.Reader).
	Undeclared []string
	// Took is the time in the handler.
	Took time.Duration
}

// tell reports a step. A panic of the function that it reports to is an error of the
// request, as one of the handler would be.
func (p *passage) tell(ctx context.Context, handler *host.Handler, result result, err error, took time.Duration) (told error) {
	defer func() {
		if reason := recover(); reason != nil {
			told = errors.New("OnStep panicked: " + failure.PanicText(reason))
			p.log.Error("OnStep panicked", zap.String("extension", handler.Name), zap.Error(told), zap.ByteString("stack", debug.Stack()))
		}
	}()
	step := Step{Extension: handler.Name, Result: result.String(), Object: slices.Clone(p.object.document.Raw), Err: failure.ForAuthors(err), Took: took, Undeclared: host.TakeUndeclared(ctx)}
	p.onStep(step)
	return err
}

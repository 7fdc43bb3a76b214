package webhook

import (
	"errors"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// Step is one handler's part in an admission. Programs that explain admissions, such
// as `review` and testing/admit, get it from [HandlerOptions].OnStep.
type Step struct {
	// Extension is the handler's name.
	Extension string
	// Result is the one in the metrics: allowed, mutated, denied, error,
	// panic, timeout or canceled; or exempted.
	Result string
	// Object is the JSON of the object as the handler left it; nil if it was cut off.
	Object []byte
	// Reason is the one of a denial or an exemption.
	Reason string
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
func (p *passage) tell(step *Step) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = errors.New("OnStep panicked: " + failure.PanicText(reason))
			p.log.Error("OnStep panicked", zap.String("extension", step.Extension), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	p.onStep(*step)
	return nil
}

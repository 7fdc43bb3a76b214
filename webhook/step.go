package webhook

import (
	"slices"
	"time"

	"github.com/admitkit/admitkit/internal/host"
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
	// Took is the time in the handler.
	Took time.Duration
}

// tell reports a step. It first applies a Mutator's changes to the JSON, so that
// each handler's part is visible.
func (p *passage) tell(handler *host.Handler, result result, err error, took time.Duration) error {
	if err == nil {
		err = p.object.flush()
	}
	p.onStep(Step{
		Extension: handler.Name, Result: result.String(), Object: slices.Clone(p.object.document.Raw), Err: err, Took: took,
	})
	return err
}

// Package conditions is about what the conditions of a SandboxRun or a Workspace say: [Set] sets one, and an
// [Obstacle] is why an object waits.
package conditions

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// MaxReason bounds the message of a condition, in bytes.
const MaxReason = 512

// Set sets a condition of a status.
func Set(conditions *[]metav1.Condition, generation int64, condition string, is bool, reason, message string, now time.Time) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: truncate.Text(message, MaxReason), ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

// Obstacle is why a run waits: a condition that is False.
type Obstacle struct {
	Condition, Reason, Message string
	// Poll says that what it waits for is not watched.
	Poll bool
	// Refused says that the broker was asked and answered no: each time is on record, so it is asked again later and later.
	Refused bool
	// Fatal says that it is in vain to wait.
	Fatal bool
}

// Error implements error: an obstacle is returned as one if it is met on the way.
func (o *Obstacle) Error() string { return o.Message }

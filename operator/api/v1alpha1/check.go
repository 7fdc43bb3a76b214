package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckDecision is what a check decides about a request.
// +kubebuilder:validation:Enum=Allow;Deny
type CheckDecision string

// The decisions of a check.
const (
	CheckAllow CheckDecision = "Allow"
	CheckDeny  CheckDecision = "Deny"
)

// CheckResult is the answer of a check.
type CheckResult struct {
	// Name is the check's.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Decision is Allow or Deny. A request that is denied is never granted.
	Decision CheckDecision `json:"decision"`
	// Message is what the check says about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// MaxDurationSeconds is how long access may last, where that is less than spec.duration,
	// from the same moment on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxDurationSeconds int64 `json:"maxDurationSeconds,omitempty"`
	// Time is when it answered.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// limit returns a duration, or what the check allows of it.
func (c *CheckResult) limit(duration time.Duration) time.Duration {
	if c == nil || c.MaxDurationSeconds <= 0 || c.MaxDurationSeconds >= int64(duration/time.Second)+1 {
		return duration
	}
	return time.Duration(c.MaxDurationSeconds) * time.Second
}

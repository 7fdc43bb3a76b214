package v1alpha1

// RecorderContainer is the init container that brings the recorder of sessions into a Pod. Admission keeps the name from
// others where sessions are recorded.
const RecorderContainer = "admitkit-session"

// ConditionRecorderConnects says of a SandboxRun whether the egress of its Pod lets the recorder of sessions connect to a
// collector. A Pod without the recorder, or without a policy, does not have it.
const ConditionRecorderConnects = "RecorderConnects"

// Reasons of this condition.
const (
	// CollectorAllowed: the operator has named the collector, and the policy lets the Pod reach it.
	CollectorAllowed = "CollectorAllowed"
	// CollectorUnknown: nobody has named the collector. The template opens ports of addresses or Pods, and it may be there.
	CollectorUnknown = "CollectorUnknown"
	// CollectorRefused: nobody has named the collector, and the Pod reaches nothing that could be it. Its sessions end.
	CollectorRefused = "CollectorRefused"
)

// EgressCollector is the collector of recorded sessions that a Pod may reach.
type EgressCollector struct {
	// Namespace is that of its Pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Port is theirs.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

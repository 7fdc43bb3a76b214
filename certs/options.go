package certs

import (
	"time"

	"go.uber.org/zap"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
)

// DefaultPropagationDelay is how long API servers have to learn of a new bundle.
// They learn of it by a watch, usually within milliseconds.
const DefaultPropagationDelay = time.Minute

// Options are the options of [NewAuthority].
type Options struct {
	// Secrets is the client for the Secret's namespace. Required.
	Secrets corev1client.SecretInterface
	// Namespace and Name identify the Secret. Required.
	Namespace, Name string
	// Labels are set on the Secrets when they are created.
	Labels map[string]string
	// Hosts are the DNS names and IP addresses that the leaf is valid for.
	// Required.
	Hosts []string
	// LeafName is the name of a kubernetes.io/tls Secret that holds the leaf, for
	// servers that may not read the CA's key; see [Leaf]. Default: none, the leaf
	// is in memory only.
	LeafName string
	// ReadOnly means that another process creates, repairs and rotates the CA.
	// The authority then needs only the right to get the Secret, and waits while
	// the Secret is missing or malformed.
	ReadOnly bool
	// CALifetime and LeafLifetime default to DefaultCALifetime and
	// DefaultLeafLifetime. A leaf may live at most a third as long as the CA.
	CALifetime, LeafLifetime time.Duration
	// PropagationDelay is how long every client must have trusted the next CA
	// before it signs. Default: DefaultPropagationDelay.
	PropagationDelay time.Duration
	// Publish makes clients trust the bundle. Default: the bundle is not published.
	Publish Publish
	// OnChange is called after each change.
	OnChange func(Change)
	// Clock is the real clock by default. It should agree with the clock of the
	// API servers, because they check the validity.
	Clock clock.WithTicker
	// Logger logs each change with its reason. Default: none.
	Logger *zap.Logger
}

func (o *Options) setDefaults() {
	if o.CALifetime == 0 {
		o.CALifetime = DefaultCALifetime
	}
	if o.LeafLifetime == 0 {
		o.LeafLifetime = DefaultLeafLifetime
	}
	if o.PropagationDelay == 0 {
		o.PropagationDelay = DefaultPropagationDelay
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

// Change is a step that this process took.
type Change struct {
	Step   Step
	Reason string
	// Secret is the name of the Secret that changed.
	Secret string
}

// Step is a kind of change to certificates.
type Step string

// The steps. From NextWritten on they are in the order of a rotation.
const (
	// Created: the Secret had no usable CA and no replica knew one, so a new one
	// was made.
	Created Step = "Created"
	// Restored: the Secret had no usable CA, and a replica wrote the one it knew.
	Restored Step = "Restored"
	// LeafIssued: a leaf was signed.
	LeafIssued Step = "LeafIssued"
	// Withdrawn: the CA and all others were replaced by a new one at once, because
	// [RotateEmergency] was requested.
	Withdrawn Step = "Withdrawn"
	// RotationWaits: a rotation was requested, and cannot begin yet. The reason says until
	// when.
	RotationWaits Step = "RotationWaits"
	// RotationInvalid: [RotateAnnotation] has a value that requests nothing.
	RotationInvalid Step = "RotationInvalid"
	// NextWritten: the next CA is in the Secret.
	NextWritten Step = "NextWritten"
	// BundlePublished: the bundle that clients trust has changed.
	BundlePublished Step = "BundlePublished"
	// NextTrusted: every client was seen to trust the next CA.
	NextTrusted Step = "NextTrusted"
	// Promoted: the next CA signs from now on.
	Promoted Step = "Promoted"
	// PreviousDropped: clients no longer need to trust the previous CA.
	PreviousDropped Step = "PreviousDropped"
)

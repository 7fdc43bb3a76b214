package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// Labels of an AuditEvent, for kubectl get -l. Their values are made by
// [LabelValue]; what a record does not have is no label.
const (
	LabelUser      = "admitkit.dev/user"
	LabelNamespace = "admitkit.dev/namespace"
	LabelPod       = "admitkit.dev/pod"
	LabelDecision  = "admitkit.dev/decision"
	// LabelRequest has the name of the access request.
	LabelRequest = "admitkit.dev/access-request"
	// LabelFolded is "true" on an AuditEvent that stands for a flood.
	LabelFolded = "admitkit.dev/folded"
)

// ObjectSinkOptions are the options of NewObjectSink; the zero value is useful.
type ObjectSinkOptions struct {
	// Retention is how long an AuditEvent is kept, from its record's time.
	// Default: 30 days.
	Retention time.Duration
	// FoldAfter is how many AuditEvents a user can cause in a Pod in a minute.
	// What exceeds them is folded into one, which counts. Default: 100; -1 folds
	// nothing. Each replica counts for itself.
	FoldAfter int
	// DeletableBy are the names of users who may delete AuditEvents, and their
	// CRD, before the end of the retention. Default: nobody.
	DeletableBy []string
	// DeletionsPerSecond bounds the load of deletions at the end of the
	// retention. Default: 50.
	DeletionsPerSecond int
	// Clock is the real one by default.
	Clock clock.PassiveClock
}

// Defaults of ObjectSinkOptions.
const (
	DefaultRetention          = 30 * 24 * time.Hour
	DefaultFoldAfter          = 100
	DefaultDeletionsPerSecond = 50
)

// objectSink writes AuditEvents.
type objectSink struct {
	options ObjectSinkOptions
	floods  floods

	// The following are set by Register.
	client  client.Client
	reviews authenticationv1client.SelfSubjectReviewInterface
	mu      sync.Mutex
	self    string // once it is known
}

// NewObjectSink returns the sink "auditevent": each record is an AuditEvent
// (admitkit.dev/v1alpha1), which nobody can change or delete before the end of
// its retention. It needs the CRDs of config/crd.
func NewObjectSink(options ObjectSinkOptions) Sink {
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.FoldAfter == 0 {
		options.FoldAfter = DefaultFoldAfter
	}
	if options.DeletionsPerSecond == 0 {
		options.DeletionsPerSecond = DefaultDeletionsPerSecond
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &objectSink{options: options, floods: newFloods(options.FoldAfter)}
}

// Name is "auditevent".
func (*objectSink) Name() string { return "auditevent" }

func (s *objectSink) validate() error {
	switch {
	case s.options.Retention < 0:
		return fmt.Errorf("Retention %s must be positive", s.options.Retention)
	case s.options.FoldAfter < -1:
		return fmt.Errorf("FoldAfter %d must be positive, or -1", s.options.FoldAfter)
	case s.options.DeletionsPerSecond < 0:
		return fmt.Errorf("DeletionsPerSecond %d must be positive", s.options.DeletionsPerSecond)
	}
	return nil
}

// parts are what keeps AuditEvents as they are, and what deletes them in the end.
func (s *objectSink) parts() []any {
	return append(s.guards(), &reaper{sink: s})
}

// Register connects to the cluster. Several parts call it.
func (s *objectSink) Register(mgr extension.Manager) error {
	if s.client != nil {
		return nil
	}
	clientset, err := newClientset(mgr)
	if err != nil {
		return err
	}
	s.reviews = clientset.AuthenticationV1().SelfSubjectReviews()
	s.client, err = newClient(mgr)
	return err
}

// isSelf reports whether a user is the manager itself.
func (s *objectSink) isSelf(ctx context.Context, user string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.self == "" {
		review, err := s.reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("asking the API server who the manager is: %w", err)
		}
		s.self = review.Status.UserInfo.Username
	}
	return user == s.self, nil
}

// Write creates the AuditEvent, or counts the record in one that stands for a
// flood.
func (s *objectSink) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun {
		return nil
	}
	f := s.floods.of(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over(s.options.FoldAfter) {
		if err := s.create(ctx, r, false); err != nil {
			return err
		}
		f.count++
		return nil
	}
	next := f.with(r)
	if next.Count == 1 {
		if err := s.create(ctx, r, true); err != nil {
			return err
		}
		f.name = r.ID
	} else if err := s.count(ctx, f.name, next); err != nil {
		return err
	}
	folded.Inc()
	f.status = next
	return nil
}

func (s *objectSink) create(ctx context.Context, r *v1alpha1.AuditRecord, isFold bool) error {
	event := &v1alpha1.AuditEvent{
		ObjectMeta: metav1.ObjectMeta{Name: r.ID, Labels: labelsOf(r)},
		Spec:       v1alpha1.AuditEventSpec{AuditRecord: *r, Folded: isFold},
	}
	if isFold {
		event.Labels[LabelFolded] = "true"
	}
	err := s.client.Create(ctx, event)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating AuditEvent %s: %w", r.ID, err)
	}
	return nil
}

func (s *objectSink) count(ctx context.Context, name string, status v1alpha1.AuditEventStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	event := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := s.client.Status().Patch(ctx, event, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("counting in AuditEvent %s: %w", name, err)
	}
	return nil
}

func labelsOf(r *v1alpha1.AuditRecord) map[string]string {
	labels := map[string]string{LabelDecision: string(r.Decision)}
	set := func(key, value string) {
		if value != "" {
			labels[key] = LabelValue(value)
		}
	}
	set(LabelUser, r.User.Username)
	set(LabelNamespace, r.Namespace)
	set(LabelPod, r.Pod)
	if r.AccessRequest != nil {
		set(LabelRequest, r.AccessRequest.Name)
	}
	return labels
}

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// LabelValue returns what stands for a name in a label: the name itself where
// it can, and otherwise what is left of it and a part of its SHA-256 sum, so
// that different names have different labels.
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	readable := notInLabel.ReplaceAllString(name, "_")
	const room = validation.LabelValueMaxLength - 1 - 2*8
	return "u" + readable[:min(len(readable), room-1)] + "-" + hex.EncodeToString(sum[:8])
}

package facts

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/access/internal/check"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// Facts are what is known about a request at one moment, before anything is
// decided. Which of the last ones were read depends on the stage.
type Facts struct {
	Kind grant.Kind
	Key  types.NamespacedName

	// Request is nil when it is gone or being deleted.
	Request v1alpha1.Request
	// End is when its access ends, unless the request is invalid, and KeepUntil
	// how long the request is kept after that.
	End, KeepUntil time.Time
	Invalid        error
	// LastMove is the last move of the end that this process has told.
	LastMove Move

	// Role, the record of the grant, and Binding are nil if they do not exist.
	Role    *rbacv1.Role
	Binding *rbacv1.RoleBinding
	// LastRole is the Role as it was, if the request is gone and the garbage collector was
	// first.
	LastRole *rbacv1.Role
	// Unbound says that this process has deleted the RoleBinding.
	Unbound bool

	// Closed says that no access is granted in the namespace; nothing else is then read.
	Closed *rules.Refusal
	// TemplateGone says that the template of a grant was deleted, or that the one that a
	// request has waited for does not exist.
	TemplateGone bool
	// WarnBefore is how long before its end a grant is announced to end, 0 for never.
	WarnBefore time.Duration
	// Enforced says that something limits requests with singleUse to one session.
	Enforced bool
	// Template is nil if it does not exist.
	Template v1alpha1.Template
	// NoCheck says that the check which the template names does not exist, and Trouble why
	// it has not answered.
	NoCheck *rules.Refusal
	Trouble string
	// Decisions are about this request, if it waits for approval.
	Decisions []v1alpha1.AccessDecision
	// OthersOpen are the user's other requests that count for the template's limit.
	OthersOpen []v1alpha1.Request
	// Target is what an access Pod is made after, nil if the template has a Pod
	// spec. Chosen is the Pod that exec access would be to. NoTarget says why there
	// is neither.
	Target   *workload.Workload
	Chosen   *corev1.Pod
	NoTarget error
	// Unended says why sessions in the Pod cannot be ended or limited, if the template, or
	// the record of the grant, wants that.
	Unended *rules.Refusal
	// NewRole is the role that a request would get; NoRole says why it gets none, or
	// loses the one that it has.
	NewRole grant.Choice
	NoRole  *rules.Refusal

	// EgressOptions are the operator's, nil if the kind makes no Pod. Policies are those of the
	// name of what the request gets, There is the Pod of that name, and APIServer where the API
	// server is reached, all as the cache has them.
	EgressOptions *egress.Options
	Policies      []*unstructured.Unstructured
	There         *corev1.Pod
	APIServer     []netip.AddrPort
	// Hold is what holds the access Pod that is to be made, nil if the template has no
	// egress; NoHold says why it cannot be held.
	Hold   *v1alpha1.EgressDecision
	NoHold *rules.Refusal

	// Own is the access Pod of a grant as it is now, nil if that is not known yet,
	// and Lost says what has become of the Pod of a grant that no longer exists.
	Own  *corev1.Pod
	Lost string
	// Made is the access Pod that must go with the request.
	Made grant.Choice
}

// Stage is how far a request has come. It says what there is to decide, and so what
// must be known.
type Stage int

// The stages, in the order in which they are found out.
const (
	Gone     Stage = iota // the request no longer exists
	Invalid               // its duration cannot be parsed
	Over                  // its access has ended
	Stale                 // what it has belongs to an earlier request of its name
	Used                  // its single use has begun
	Asking                // it has nothing yet
	Recorded              // its Pod is recorded in the Role
	Granted               // it has the RoleBinding
)

// Stage comes from what the cache has: the request, Role and RoleBinding. The end
// comes first, since it needs nothing but the request itself.
func (f *Facts) Stage(now time.Time) Stage {
	switch {
	case f.Request == nil:
		return Gone
	case f.Invalid != nil:
		return Invalid
	case v1alpha1.Over(f.Request, now):
		return Over
	case f.stale():
		return Stale
	case f.Request.GetRequestStatus().UsedBy != nil:
		return Used
	case f.Role == nil:
		return Asking
	case f.Binding == nil:
		return Recorded
	}
	return Granted
}

// Settled returns the Pod or role that an earlier grant of the request was about, if there
// was one: the status has it, where the API server lets nobody change it. Somebody
// may have written it before the manager did, and so it can only take access away.
func (f *Facts) Settled() grant.Choice {
	return grant.ChosenIn(f.Request.GetRequestStatus())
}

// Disowned reports whether the Pod no longer owns the RoleBinding, as when somebody
// deletes it with --cascade=orphan. A later Pod of its name must not inherit that.
func (f *Facts) Disowned() bool {
	if f.Kind.GivesRole {
		return f.Binding != nil && !f.Kind.Owns(f.Binding, f.Request.GetUID())
	}
	return f.Binding != nil && !slices.ContainsFunc(f.Binding.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Pod" && o.UID == grant.ChoiceOf(f.Role).UID
	})
}

// Drifted reports whether the RoleBinding does not say what was granted: somebody has
// changed it while no webhook kept them from that, or made it anew.
func (f *Facts) Drifted() bool {
	if f.Binding == nil {
		return false
	}
	want, err := grant.NewBinding(f.Kind, f.Request, f.Role)
	return err != nil || !grant.IsSameGrant(f.Binding, want)
}

// TemplateLate reports whether the template did not come in time, or was made anew after
// that.
func (f *Facts) TemplateLate() bool {
	if f.Template == nil {
		return f.TemplateGone
	}
	return f.Template.GetCreationTimestamp().After(grant.WaitsUntil(f.Request))
}

// IsOfAnother reports whether the template is not the one on whose terms the request
// waits for approval, or got it.
func (f *Facts) IsOfAnother() bool {
	terms := f.Request.GetRequestSpec().Approval
	return terms != nil && f.Template != nil && terms.TemplateUID != string(f.Template.GetUID())
}

// GivesOther reports whether the template gives something else than what others are to approve, or have.
func (f *Facts) GivesOther() bool {
	terms := f.Request.GetRequestSpec().Approval
	return terms != nil && terms.Gives != "" && terms.SkippedFor == "" && f.Template != nil && terms.Gives != rules.GivenBy(f.Template)
}

// Incomplete reports whether a request lacks what its template says, because that did not
// exist when it was made, or did not say it.
func (f *Facts) Incomplete() bool {
	spec, made, came := f.Request.GetRequestSpec(), f.Request.GetCreationTimestamp(), f.Template.GetCreationTimestamp()
	narrower := f.Template.GetAccessConfig().SingleUse && !spec.SingleUse
	return spec.Requester != nil && !came.Before(&made) && (spec.Duration == "" || narrower) || f.ApprovalIsMissing()
}

// ApprovalIsMissing reports whether the template needs approval, and the request does not
// know: it came before the template, or before that needed any. The choice
// of a Pod or a role is no grant yet: a quota may have refused the rest.
func (f *Facts) ApprovalIsMissing() bool {
	spec := f.Request.GetRequestSpec()
	return f.Template != nil && spec.Approval == nil && spec.Requester != nil && f.Request.GetRequestStatus().GrantedAt == nil && rules.TermsOf(f.Template, spec) != nil
}

// CheckIsMissing reports whether the template names a check, and the request was neither
// granted nor checked: the template did not name it when something was chosen for it.
func (f *Facts) CheckIsMissing() bool {
	status := f.Request.GetRequestStatus()
	return f.Template != nil && f.Template.GetAccessConfig().Check != "" && status.Check == nil && status.GrantedAt == nil
}

// WaitsForApproval reports whether nobody has approved the request yet, and somebody must.
func (f *Facts) WaitsForApproval() bool {
	_, waits := v1alpha1.BeginOf(f.Request)
	return waits
}

// Verdicts are the decisions that count so far about a request that waits for approval.
func (f *Facts) Verdicts() []v1alpha1.Verdict {
	if !f.WaitsForApproval() {
		return nil
	}
	return v1alpha1.Verdicts(f.Request, f.Decisions)
}

// stale reports whether a request has what an earlier one of its name has left.
func (f *Facts) stale() bool {
	uid := string(f.Request.GetUID())
	return f.Role != nil && f.Role.Annotations[grant.AnnotationRequestUID] != uid ||
		f.Binding != nil && f.Binding.Annotations[grant.AnnotationRequestUID] != uid
}

// MayBeBound reports whether the RoleBinding must be deleted at the end. Until the
// request says that its access has ended, that is so even if the cache has none: it
// holds only what has our label, and the label can be removed. Once this process has
// deleted it, a RoleBinding in the cache only shows that the cache is behind.
func (f *Facts) MayBeBound() bool {
	return f.IsKept() || !f.Unbound && (f.Binding != nil || !grant.Ended(f.Request))
}

// IsKept reports whether the RoleBinding would outlast its deletion.
func (f *Facts) IsKept() bool { return f.Binding != nil && len(f.Binding.Finalizers) > 0 }

// isOf reports whether a template is the one by which a grant was made, if that is on
// record.
func (f *Facts) isOf(t v1alpha1.Template) bool {
	if f.Role == nil {
		return true
	}
	uid := f.Role.Annotations[grant.AnnotationTemplateUID]
	return uid == "" || uid == string(t.GetUID())
}

// Subject returns the request as something that a check is asked about.
func (f *Facts) Subject() check.Subject {
	return check.Subject{Kind: f.Kind.Name, Key: f.Key, UID: f.Request.GetUID()}
}

// ErrBehind is not logged: what the cache lacks is on its way.
func (f *Facts) ErrBehind() error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource(f.Kind.RequestKind).GroupResource(), f.Key.Name, errors.New("the cache is behind"))
}

// Move is a move of the end of access.
type Move struct{ From, To time.Time }

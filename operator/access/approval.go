package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// defaultApprovalTimeout is the CRD's default.
const defaultApprovalTimeout = "1h"

// termsOf returns what the approval of a request depends on, nil if nobody needs to approve.
func termsOf(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *v1alpha1.ApprovalTerms {
	approval := t.GetAccessConfig().Approval
	if approval == nil || approval.Required == 0 {
		return nil
	}
	terms := &v1alpha1.ApprovalTerms{
		TemplateUID: string(t.GetUID()), Required: approval.Required, Groups: approval.Groups, Users: approval.Users,
		Timeout: cmp.Or(approval.Timeout, defaultApprovalTimeout),
	}
	if spec.OnBehalfOf != "" || spec.Requester == nil {
		return terms
	}
	for _, group := range approval.SkipGroups {
		if slices.Contains(spec.Requester.Groups, group) {
			terms.SkippedFor = group
			break
		}
	}
	return terms
}

// allowsApproval refuses the system's users where somebody must approve: whoever may use
// a ServiceAccount could ask as that, and approve as themselves.
func allowsApproval(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *refusal {
	config, who := t.GetAccessConfig(), spec.Requester.Username
	if termsOf(t, spec) == nil || spec.OnBehalfOf != "" || !strings.HasPrefix(who, "system:") || slices.Contains(config.AllowedUsers, who) {
		return nil
	}
	return refuse(v1alpha1.ReasonNotAllowed, "user %q is one of the system's, and template %q needs approval: whoever may use it could approve their own request; "+
		"ask as a person, or have allowedUsers name it", who, t.GetName())
}

// approvalIsMissing reports whether the template needs approval, and the request does not
// know: it came before the template, or before that needed any. What was chosen for it is
// no grant: a quota may have kept it from that.
func (f *facts) approvalIsMissing() bool {
	spec := f.request.GetRequestSpec()
	return f.template != nil && spec.Approval == nil && spec.Requester != nil && f.request.GetRequestStatus().GrantedAt == nil && termsOf(f.template, spec) != nil
}

// verdicts are the decisions that count so far about a request that waits for approval.
func (f *facts) verdicts() []v1alpha1.Verdict {
	if !f.waitsForApproval() {
		return nil
	}
	return v1alpha1.Verdicts(f.request, f.decisions)
}

func (f *facts) waitsForApproval() bool {
	_, waits := v1alpha1.BeginOf(f.request)
	return waits
}

// judge says what the decisions about a request lead to, nil to nothing yet.
func (f *facts) judge(now time.Time) *decision {
	verdicts := f.verdicts()
	if len(verdicts) == 0 {
		return nil
	}
	last := verdicts[len(verdicts)-1]
	switch {
	case last.Decision == v1alpha1.DecisionDeny:
		d := decision{dead: true, status: newState(f.request, f.end)}
		d.status.RevokedAt, d.status.Verdicts = &metav1.Time{Time: now}, verdicts
		d.status.neverApproved(v1alpha1.ReasonDenied, fmt.Sprintf("denied by %s: %s", last.Username, last.Reason))
		return &d
	case len(verdicts) == int(f.request.GetRequestSpec().Approval.Required):
		approved := f.request.DeepCopyObject().(v1alpha1.Request)
		approved.GetRequestStatus().ApprovedAt, approved.GetRequestStatus().Verdicts = &last.Time, verdicts
		end, _ := v1alpha1.EndOf(approved) // one that is invalid is not asked about
		d := decision{status: newState(approved, end)}
		d.status.approval(approved)
		return &d
	}
	return nil
}

// unapproved refuses a request that waits for approval.
func (f *facts) unapproved() *refusal {
	if !f.waitsForApproval() {
		return nil
	}
	return &refusal{
		reason: v1alpha1.ReasonWaiting, message: waitingFor(f.request, f.verdicts()), condition: v1alpha1.ConditionApproved, quiet: true,
	}
}

func waitingFor(req v1alpha1.Request, verdicts []v1alpha1.Verdict) string {
	until, _ := v1alpha1.BeginOf(req)
	return fmt.Sprintf("waiting for approval: it has %s, and waits until %s", req.GetRequestSpec().Approval.Count(len(verdicts)), until.UTC().Format(time.RFC3339))
}

// approval says how it stands with the approval of a request.
func (s *state) approval(req v1alpha1.Request) {
	terms := req.GetRequestSpec().Approval
	switch {
	case terms == nil:
	case !terms.Needed():
		s.set(v1alpha1.ConditionApproved, true, "Skipped", "without approval, as a member of "+terms.SkippedFor)
	case req.GetRequestStatus().ApprovedAt != nil:
		s.set(v1alpha1.ConditionApproved, true, "Approved", "approved by "+approvers(req.GetRequestStatus().Verdicts))
	}
}

// newVerdicts returns the verdicts of those who have none yet.
func newVerdicts(before, after []v1alpha1.Verdict) []v1alpha1.Verdict {
	return slices.DeleteFunc(slices.Clone(after), func(v v1alpha1.Verdict) bool {
		return slices.ContainsFunc(before, func(b v1alpha1.Verdict) bool { return b.Username == v.Username })
	})
}

func approvers(verdicts []v1alpha1.Verdict) string {
	names := make([]string, len(verdicts))
	for i := range verdicts {
		names[i] = verdicts[i].Username
	}
	return strings.Join(names, ", ")
}

// neverApproved says that a request has ended without having been approved.
func (s *state) neverApproved(reason, message string) {
	s.nothing(reason, message)
	s.ExpiresAt = nil
	s.set(v1alpha1.ConditionApproved, false, reason, message)
	s.set(v1alpha1.ConditionAccessStillValid, false, reason, message)
}

// withoutApproval says for a record that nobody approved, and why that was not needed.
func withoutApproval(spec *v1alpha1.RequestSpec) string {
	if spec.Approval == nil || spec.Approval.Needed() {
		return ""
	}
	return ", without approval as a member of " + spec.Approval.SkippedFor
}

// indexDecided finds the decisions about a request by its UID.
const indexDecided = "decided"

func (a *shared) indexDecisions(ctx context.Context) error {
	return a.cluster.GetFieldIndexer().IndexField(ctx, &v1alpha1.AccessDecision{}, indexDecided, func(obj client.Object) []string {
		return []string{obj.(*v1alpha1.AccessDecision).Spec.Request.UID}
	})
}

// decisionsAbout returns the decisions about a request.
func (a *shared) decisionsAbout(ctx context.Context, namespace, uid string) ([]v1alpha1.AccessDecision, error) {
	var list v1alpha1.AccessDecisionList
	if err := a.cached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{indexDecided: uid}); err != nil {
		return nil, fmt.Errorf("listing the decisions about the request: %w", err)
	}
	return list.Items, nil
}

// decidedBy finds the request that a decision is about.
func (r *requests) decidedBy(_ context.Context, object client.Object) []types.NamespacedName {
	about := object.(*v1alpha1.AccessDecision).Spec.Request
	if about.Kind != r.kind.request {
		return nil
	}
	return []types.NamespacedName{{Namespace: object.GetNamespace(), Name: about.Name}}
}

// decisions stamps and admits decisions. Their CRD keeps them from being changed.
type decisions struct {
	*shared
	claims pendingDecisions
}

// Register connects to the cluster.
func (v *decisions) Register(mgr extension.Manager) error { return v.setup(mgr) }

// Mutate writes who decides, and makes the request the owner, with which the decision goes.
func (v *decisions) Mutate(_ context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		old := &v1alpha1.AccessDecision{}
		if err := req.Old(old); err != nil {
			return err
		}
		if d.Spec.Decider == nil { // a manifest that is applied again lacks it
			d.Spec.Decider = old.Spec.Decider
		}
		return nil
	}
	if who := d.Spec.Decider; who != nil && who.Username != "" && who.Username != req.User().Username {
		return nil // Validate refuses it
	}
	d.Spec.Decider = deciderOf(req)
	if k, found := kindOfRequest(d.Spec.Request.Kind); found {
		d.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: k.request, Name: d.Spec.Request.Name, UID: types.UID(d.Spec.Request.UID),
		}}
	}
	return nil
}

func deciderOf(req *extension.Request) *v1alpha1.Requester {
	user := req.User()
	return &v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}
}

// kindOfRequest returns the kind of access whose requests have a Kind.
func kindOfRequest(request string) (kind, bool) {
	for _, k := range kinds {
		if k.request == request {
			return k, true
		}
	}
	return kind{}, false
}

// Validate refuses decisions that would not count, and says why.
func (v *decisions) Validate(ctx context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		return nil // the spec cannot change, and nothing else matters
	}
	err := v.validate(ctx, d, req)
	if refused, ok := errors.AsType[*refusal](err); ok {
		deniedTotal.WithLabelValues("decision", refused.reason).Inc()
		return extension.Deny(refused.message)
	}
	return err
}

func (v *decisions) validate(ctx context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if refused := v.places.closed(req.Namespace); refused != nil {
		return refused
	}
	if !apiequality.Semantic.DeepEqual(d.Spec.Decider, deciderOf(req)) { // or a webhook after ours changed it
		return refuse(v1alpha1.ReasonNotAllowed, "spec.decider does not name the user who decides, %q: leave it out; nobody decides for another", req.User().Username)
	}
	request, err := v.decided(ctx, d)
	if err != nil {
		return err
	}
	if err := request.GetRequestSpec().May(d.Spec.Decider); err != nil {
		return refuse(v1alpha1.ReasonNotAllowed, "%s %q: %v", d.Spec.Request.Kind, d.Spec.Request.Name, err)
	}
	before, err := v.decisionsAbout(ctx, req.Namespace, d.Spec.Request.UID)
	if err != nil {
		return err
	}
	for i := range before {
		if by := before[i].Spec.Decider; by != nil && strings.EqualFold(by.Username, d.Spec.Decider.Username) {
			return refuse(reasonChanged, "user %q has decided about %s %q before, by AccessDecision %s: each person decides once",
				by.Username, d.Spec.Request.Kind, d.Spec.Request.Name, before[i].Name)
		}
	}
	if !req.DryRun() && !v.claims.take(pendingDecision{d.Spec.Request.UID, strings.ToLower(d.Spec.Decider.Username)}, v.options.Clock.Now()) {
		return refuse(reasonChanged, "user %q is deciding about %s %q at this moment: each person decides once; if that decision was not stored, try again in %s",
			d.Spec.Decider.Username, d.Spec.Request.Kind, d.Spec.Request.Name, pendingFor)
	}
	return nil
}

// decided returns the request that a decision is about, if it waits for decisions.
func (v *decisions) decided(ctx context.Context, d *v1alpha1.AccessDecision) (v1alpha1.Request, error) {
	about := d.Spec.Request
	k, found := kindOfRequest(about.Kind)
	if !found {
		return nil, refuse(reasonInvalidName, "spec.request.kind: %q is not PodAccessRequest, ExecAccessRequest or RoleAccessRequest", about.Kind)
	}
	if refused := noName("spec.request.name", about.Name); refused != nil {
		return nil, refused
	}
	request := k.newRequest()
	err := v.live.Get(ctx, types.NamespacedName{Namespace: d.Namespace, Name: about.Name}, request)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(reasonInvalidName, "spec.request: %s %s/%s does not exist", about.Kind, d.Namespace, about.Name)
	case err != nil:
		return nil, fmt.Errorf("reading the request: %w", err)
	case string(request.GetUID()) != about.UID:
		return nil, refuse(reasonChanged, "spec.request.uid: %s %s/%s has the UID %s, and not %s: look at the request that you decide about", about.Kind, d.Namespace, about.Name, request.GetUID(), about.UID)
	}
	status := request.GetRequestStatus()
	switch {
	case request.GetRequestSpec().Approval == nil:
		return nil, refuse(reasonEnded, "%s %s/%s needs no approval; to end access set its spec.revoked", about.Kind, d.Namespace, about.Name)
	case status.ApprovedAt != nil:
		return nil, refuse(reasonEnded, "%s %s/%s has been approved already, at %s; to end access set its spec.revoked",
			about.Kind, d.Namespace, about.Name, status.ApprovedAt.UTC().Format(time.RFC3339))
	case v1alpha1.Over(request, v.options.Clock.Now()):
		return nil, refuse(reasonEnded, "%s %s/%s no longer waits for decisions", about.Kind, d.Namespace, about.Name)
	}
	return request, nil
}

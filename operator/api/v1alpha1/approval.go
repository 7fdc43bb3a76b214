package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Approval says who must agree to a request before it is granted.
// +kubebuilder:validation:XValidation:rule="(has(self.required) ? self.required : 0) == 0 || (has(self.groups) ? size(self.groups) : 0) + (has(self.users) ? size(self.users) : 0) > 0",message="groups or users must name somebody who may approve; set required to 0 if nobody needs to approve"
// +kubebuilder:validation:XValidation:rule="(has(self.required) ? self.required : 0) <= (has(self.users) ? size(self.users) : 0) || (has(self.groups) && size(self.groups) > 0)",message="required: as many people could never approve; name groups, or more users"
type Approval struct {
	// Required is how many people must approve. Default: 0, nobody.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Required int32 `json:"required,omitempty"`

	// Groups are those whose members may approve and deny.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Groups []string `json:"groups,omitempty"`

	// Users may approve and deny without being in a group. ServiceAccounts count only
	// if they are named here: who may create tokens of one would be a second person.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Users []string `json:"users,omitempty"`

	// Timeout is how long a request waits for its approvals, from its creation: a Go
	// duration such as 30m.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="must be a duration from 1s to 168h, such as 90m or 48h; hours are the largest unit"
	Timeout string `json:"timeout,omitempty"`

	// SkipGroups are those whose members need no approval, for emergencies
	// (break-glass). Their requests say so, and so do the records. It does not apply to
	// requests on behalf of others.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	SkipGroups []string `json:"skipGroups,omitempty"`
}

// ApprovalTerms are what a request's approval depends on, as its template said when the
// request was made. The server sets them.
type ApprovalTerms struct {
	// TemplateUID is the UID of that template. Another of its name grants nothing to
	// the request.
	// +kubebuilder:validation:MaxLength=128
	TemplateUID string `json:"templateUID"`
	// Gives is the SHA-256 of what the template gave when the request was made: its target, Pod,
	// verbs and command. A template that gives something else ends the request, so that nobody
	// gets what others have not approved.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Gives string `json:"gives,omitempty"`
	// Required is how many people must approve.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Required int32 `json:"required"`
	// Groups are those whose members may approve and deny.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
	// Users may approve and deny, too.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	Users []string `json:"users,omitempty"`
	// Timeout is how long the request waits, from its creation.
	// +kubebuilder:validation:MaxLength=64
	Timeout string `json:"timeout"`
	// SkippedFor is the group for whose sake no approval is needed, if that is so.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	SkippedFor string `json:"skippedFor,omitempty"`
}

// Needed reports whether a request waits for approvals before it is granted.
func (t *ApprovalTerms) Needed() bool { return t != nil && t.SkippedFor == "" }

// Who names those who may approve, for messages.
func (t *ApprovalTerms) Who() string {
	var who []string
	if len(t.Groups) > 0 {
		who = append(who, "groups: "+strings.Join(t.Groups, ", "))
	}
	if len(t.Users) > 0 {
		who = append(who, "users: "+strings.Join(t.Users, ", "))
	}
	return strings.Join(who, "; ")
}

// Count says how many of the approvals there are.
func (t *ApprovalTerms) Count(approvals int) string {
	if t.Required == 1 {
		return fmt.Sprintf("%d of 1 approval (%s)", approvals, t.Who())
	}
	return fmt.Sprintf("%d of %d approvals (%s)", approvals, t.Required, t.Who())
}

// May reports whether a user may approve and deny a request of this spec, and if not,
// says why. People are told apart by their names.
func (s *RequestSpec) May(who *Requester) error {
	terms := s.Approval
	switch {
	case !terms.Needed():
		return fmt.Errorf("the request needs no approval")
	case s.Requester != nil && strings.EqualFold(who.Username, s.Requester.Username): // who signs in may be spelt in several ways
		return fmt.Errorf("user %q made the request, and nobody decides about their own; to take it back set its spec.revoked", who.Username)
	case s.OnBehalfOf != "" && strings.EqualFold(who.Username, s.OnBehalfOf):
		return fmt.Errorf("the request is for user %q, and nobody decides about their own access", who.Username)
	case slices.Contains(terms.Users, who.Username):
		return nil
	case strings.HasPrefix(who.Username, serviceAccountPrefix):
		return fmt.Errorf("%q is a ServiceAccount, and those decide only where the template's approval.users names them", who.Username)
	case slices.ContainsFunc(who.Groups, func(group string) bool { return slices.Contains(terms.Groups, group) }):
		return nil
	}
	return fmt.Errorf("user %q is not one of those who may approve (%s)", who.Username, terms.Who())
}

const serviceAccountPrefix = "system:serviceaccount:"

// Decision is what somebody decides about a request.
// +kubebuilder:validation:Enum=Approve;Deny
type Decision string

// The decisions. One Deny ends a request.
const (
	DecisionApprove Decision = "Approve"
	DecisionDeny    Decision = "Deny"
)

// DecidedRequest names the request that a decision is about. The UID tells it from a
// later one of its name.
type DecidedRequest struct {
	// Kind is the request's.
	// +kubebuilder:validation:Enum=PodAccessRequest;ExecAccessRequest;RoleAccessRequest
	Kind string `json:"kind"`
	// Name is the request's, in the namespace of the decision.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID is the request's: kubectl get shows it with -o yaml.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
}

// AccessDecisionSpec is what somebody decides about a request.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a decision cannot be changed"
// +kubebuilder:validation:XValidation:rule="self.decision != 'Deny' || (has(self.reason) && self.reason.trim().size() > 0)",message="reason: say why you deny the request"
type AccessDecisionSpec struct {
	// Request is what the decision is about.
	Request DecidedRequest `json:"request"`
	// Decision is Approve or Deny.
	Decision Decision `json:"decision"`
	// Reason says why. Only an approval may leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// Decider is who decides. The server sets it, and refuses another name.
	// +optional
	Decider *Requester `json:"decider,omitempty"`
}

// AccessDecision approves or denies a request for access. RBAC says who may create
// decisions, the request's spec.approval whose count. It counts once, when the request
// is decided: what becomes of it afterwards moves nothing.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=ad,categories={access,admitkit}
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.request.kind`
// +kubebuilder:printcolumn:name="Request",type=string,JSONPath=`.spec.request.name`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.decider.username`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AccessDecision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AccessDecisionSpec `json:"spec"`
}

// AccessDecisionList is a list of AccessDecisions.
// +kubebuilder:object:root=true
type AccessDecisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AccessDecision `json:"items"`
}

// Verdict is a decision that counted.
type Verdict struct {
	// Username is whose it was.
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username"`
	// Decision is Approve or Deny.
	Decision Decision `json:"decision"`
	// Reason is the decision's.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// Time is when the decision was made, by the API server's clock.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// Verdicts returns the decisions that count about a request, one for each person, in
// the order in which they were made: those up to the approval that decides, or to the
// first denial, which is the last. Of the decisions of one second denials come first.
func Verdicts(r Request, decisions []AccessDecision) (verdicts []Verdict) {
	spec, until := r.GetRequestSpec(), approvalUntil(r)
	decisions = slices.Clone(decisions)
	slices.SortFunc(decisions, func(x, y AccessDecision) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time),
			-cmp.Compare(x.Spec.Decision, y.Spec.Decision), // Deny before Approve
			cmp.Compare(x.UID, y.UID))
	})
	for i := range decisions {
		d := &decisions[i].Spec
		late := decisions[i].CreationTimestamp.After(until)
		if d.Request.UID != string(r.GetUID()) || d.Decider == nil || late || spec.May(d.Decider) != nil {
			continue
		}
		// As in May: strings.ToLower would tell some spellings apart that EqualFold does not.
		if slices.ContainsFunc(verdicts, func(v Verdict) bool { return strings.EqualFold(v.Username, d.Decider.Username) }) {
			continue
		}
		verdicts = append(verdicts, Verdict{
			Username: d.Decider.Username, Decision: d.Decision, Reason: d.Reason, Time: decisions[i].CreationTimestamp,
		})
	}
	// A denial ends the request whenever it came, as long as nothing is granted.
	required := int(spec.Approval.Required)
	if i := slices.IndexFunc(verdicts, func(v Verdict) bool { return v.Decision == DecisionDeny }); i >= 0 {
		return append(verdicts[:min(i, required-1)], verdicts[i])
	}
	return verdicts[:min(len(verdicts), required)]
}

// approvalUntil returns until when a request waits for approvals. One whose timeout
// cannot be parsed does not wait.
func approvalUntil(r Request) time.Time {
	timeout, err := time.ParseDuration(r.GetRequestSpec().Approval.Timeout)
	if err != nil {
		timeout = 0
	}
	return r.GetCreationTimestamp().Add(timeout)
}

// BeginOf returns when the duration of a request begins: with its creation, or, where
// it needs approval, with the approval that decided, but never later than the request
// would have waited for that. waits says that it waits for approval still; the time is
// then until when.
func BeginOf(r Request) (begin time.Time, waits bool) {
	begin = r.GetCreationTimestamp().Time
	if !r.GetRequestSpec().Approval.Needed() {
		return begin, false
	}
	until, approved := approvalUntil(r), r.GetRequestStatus().ApprovedAt
	switch {
	case approved == nil:
		return until, true
	case approved.Time.Before(begin):
		return begin, false
	case approved.After(until):
		return until, false
	}
	return approved.Time, false
}

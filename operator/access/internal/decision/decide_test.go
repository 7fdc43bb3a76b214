package decision

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// hasRole gives a request the record of a grant, which owner made.
func hasRole(owner types.UID) func(*facts.Facts) {
	return func(f *facts.Facts) {
		name := "web-0"
		if f.Kind.MakesPod {
			name = f.Kind.Resource(f.Key).Name
		}
		f.Role = &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				grant.AnnotationRequestUID: string(owner), grant.AnnotationPodUID: "p", grant.AnnotationMessage: "run", grant.AnnotationSubjects: "[]",
			}},
			Rules: []rbacv1.PolicyRule{{ResourceNames: []string{name}}},
		}
		if f.Kind.MakesPod {
			f.Made = grant.ChoiceOf(f.Role)
		}
	}
}

func evicts(f *facts.Facts) {
	f.Role.Annotations[grant.AnnotationOnExpiry] = string(v1alpha1.ExpiryEvict)
}

// hasBinding gives a request the RoleBinding of a grant, which owner made.
func hasBinding(owner types.UID) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Binding = &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role"}, ObjectMeta: metav1.ObjectMeta{
			Annotations:     map[string]string{grant.AnnotationRequestUID: string(owner)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "p"}},
		}}
	}
}

func isUnknown(f *facts.Facts) {
	f.Chosen, f.NoTarget = nil, workload.UnknownPodError("Pod shop/web-1 does not exist")
}
func isInvalid(f *facts.Facts) { f.Invalid = errors.New("spec.duration: no duration") }
func isUsed(f *facts.Facts) {
	f.Request.GetRequestStatus().UsedBy = &v1alpha1.Use{Username: "alice", Verb: "exec"}
}

func noTemplate(f *facts.Facts) { f.Template = nil }
func oneUse(f *facts.Facts)     { f.Template.GetAccessConfig().SingleUse = true }
func noDuration(f *facts.Facts) {
	f.Request.GetRequestSpec().Duration = ""
	f.End, _ = v1alpha1.EndOf(f.Request)
}

func templateAt(made time.Time) func(*facts.Facts) {
	return func(f *facts.Facts) { f.Template.SetCreationTimestamp(metav1.NewTime(made)) }
}

func revokedAt(at time.Time) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Request.GetRequestStatus().RevokedAt = &metav1.Time{Time: at}
		f.End, _ = v1alpha1.EndOf(f.Request)
		f.KeepUntil = grant.KeepUntil(f.Request, 24*time.Hour)
	}
}

func revokedBy(user string) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Request.GetRequestSpec().Revoked = &v1alpha1.Revocation{By: user, At: &metav1.Time{Time: factstest.Created}}
		f.End, _ = v1alpha1.EndOf(f.Request)
	}
}

// does names what a decision does, in the order in which it is done.
func does(d Decision) (done []string) {
	for _, step := range []struct {
		name string
		due  bool
	}{
		{"unbind", d.Unbind},
		{"late", d.Late},
		{"remove " + d.Remove.Name, d.Remove.Name != ""},
		{"evict " + d.Evict.Name, d.Evict.Name != ""},
		{"unrecord", d.Unrecord},
		{"complete", d.Complete},
		{"grant", d.Grant != nil},
		{"discard", d.Discard},
		{"behind", d.Behind},
	} {
		if step.due {
			done = append(done, step.name)
		}
	}
	return done
}

// says names the condition of a decision's status that does not hold, and why.
func says(d Decision, condition string) string {
	if d.Status == nil {
		return ""
	}
	d.Status.Settle()
	c := meta.FindStatusCondition(d.Status.Conditions, condition)
	if c == nil || c.Status == metav1.ConditionTrue {
		return "ready=" + fmt.Sprint(d.Status.Ready)
	}
	return c.Reason
}

func TestWhatIsDoneAboutARequest(t *testing.T) {
	early, late, kept := factstest.Created.Add(time.Minute), factstest.Created.Add(time.Hour), factstest.Created.Add(25*time.Hour)
	end := Schedule{factstest.Created.Add(time.Hour), controller.PriorityEnd}
	for sentence, test := range map[string]struct {
		facts *facts.Facts
		now   time.Time
		does  []string
		says  string // of AccessResourcesCreated
		next  Schedule
	}{
		"a request is granted":                       {factstest.About(grant.ExecAccess), early, []string{"grant"}, "ready=false", end},
		"a request for a Pod is granted":             {factstest.About(grant.PodAccess), early, []string{"grant"}, "ready=false", end},
		"a grant that lacks the RoleBinding gets it": {factstest.About(grant.ExecAccess, hasRole("1")), early, []string{"grant"}, "ready=true", end},
		"a grant is left alone":                      {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1")), early, nil, "ready=true", end},
		"a lost Pod is not granted again":            {factstest.About(grant.ExecAccess, hasRole("1"), func(f *facts.Facts) { f.Lost = rules.PodGone }), early, nil, "PodGone", end},
		"a grant whose Pod is lost ends":             {factstest.About(grant.PodAccess, hasRole("1"), hasBinding("1"), func(f *facts.Facts) { f.Lost = rules.PodReplaced }), early, []string{"unbind"}, "PodGone", end},
		"a grant whose sessions cannot end any more": {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), func(f *facts.Facts) { f.Unended = rules.CannotEnd("web", rules.NoSessions(v1alpha1.ExpiryEndSession)) }), early, []string{"unbind"}, "NotRecorded", end},
		"no grant where sessions cannot end":         {factstest.About(grant.ExecAccess, func(f *facts.Facts) { f.Unended = rules.CannotEnd("web", rules.NoSessions(v1alpha1.ExpiryEndSession)) }), early, nil, "NotRecorded", end},
		"a binding that its Pod does not own goes":   {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), func(f *facts.Facts) { f.Binding.OwnerReferences = nil }), early, []string{"unbind"}, "", end},
		"a binding to somebody else goes": {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), func(f *facts.Facts) {
			f.Binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "mallory"}}
		}), early, []string{"unbind"}, "", end},
		"a request that lost its Role keeps its Pod":       {factstest.About(grant.ExecAccess, factstest.SettledOn("web-0", "p")), early, []string{"grant"}, "ready=false", end},
		"a request that lost its Role gets no other Pod":   {factstest.About(grant.ExecAccess, factstest.SettledOn("web-0", "q")), early, nil, "PodGone", end},
		"a request whose Pod is gone gets no other":        {factstest.About(grant.ExecAccess, factstest.SettledOn("web-1", "p"), isUnknown), early, nil, "PodGone", end},
		"a request that lost its Role, and its template":   {factstest.About(grant.ExecAccess, factstest.SettledOn("web-0", "p"), noTemplate, func(f *facts.Facts) { f.TemplateGone = true }), early, nil, "TemplateMissing", Schedule{At: factstest.Created.Add(v1alpha1.TemplateWait)}},
		"a used request loses the RoleBinding alone":       {factstest.About(grant.PodAccess, hasRole("1"), hasBinding("1"), isUsed), early, []string{"unbind"}, "Used", end},
		"what an earlier request left goes first":          {factstest.About(grant.PodAccess, hasRole("0"), hasBinding("0")), early, []string{"unbind", "remove podaccess-a", "unrecord", "behind"}, "", end},
		"a binding that an earlier request left goes":      {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("0")), early, []string{"unbind", "unrecord", "behind"}, "", end},
		"a request that is gone loses all":                 {factstest.About(grant.PodAccess, hasRole("1"), hasBinding("1"), factstest.IsGone), early, []string{"unbind", "remove podaccess-a", "unrecord"}, "", Schedule{}},
		"a request that is gone and had nothing":           {factstest.About(grant.ExecAccess, factstest.IsGone), early, nil, "", Schedule{}},
		"a request that is gone has its Pod evicted":       {factstest.About(grant.ExecAccess, hasRole("1"), evicts, factstest.IsGone), early, []string{"evict web-0", "unrecord"}, "", Schedule{}},
		"an invalid request loses all":                     {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), isInvalid), early, []string{"unbind", "unrecord"}, "DurationInvalid", Schedule{}},
		"the end takes RoleBinding and Pod, and no more":   {factstest.About(grant.PodAccess, hasRole("1"), hasBinding("1")), late, []string{"unbind", "late", "remove podaccess-a"}, "", Schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"the end evicts nothing before the clean-up":       {factstest.About(grant.ExecAccess, hasRole("1"), evicts, hasBinding("1")), late, []string{"unbind", "late"}, "", Schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"a nanosecond before the end nothing ends":         {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1")), late.Add(-1), nil, "ready=true", end},
		"the clean-up evicts":                              {factstest.About(grant.ExecAccess, hasRole("1"), evicts, func(f *facts.Facts) { f.Unbound = true }), late, []string{"evict web-0", "unrecord"}, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"a cache that is behind keeps no clean-up waiting": {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), func(f *facts.Facts) { f.Unbound = true }), late, []string{"unrecord"}, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"the end believes no cache":                        {factstest.About(grant.ExecAccess), late, []string{"unbind", "late"}, "", Schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"the first clean-up believes no cache":             {factstest.About(grant.ExecAccess, func(f *facts.Facts) { f.Unbound = true }), late, []string{"unrecord"}, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended has nothing to lose": {factstest.About(grant.ExecAccess, factstest.SaysEnded), late, nil, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended, but has a Role":     {factstest.About(grant.ExecAccess, factstest.SaysEnded, hasRole("1")), late, []string{"unrecord"}, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended before its time":     {factstest.About(grant.ExecAccess, factstest.SaysEnded, hasRole("1"), hasBinding("1")), early, nil, "ready=true", end},
		"a request that was kept long enough goes":         {factstest.About(grant.ExecAccess, factstest.SaysEnded), kept, []string{"discard"}, "Expired", Schedule{kept, controller.PriorityCleanup}},
		"a revoked request is over":                        {factstest.About(grant.ExecAccess, factstest.SaysEnded, revokedAt(factstest.Created)), early, nil, "Revoked", Schedule{kept, controller.PriorityCleanup}},
		"a request revoked by a clock that is ahead":       {factstest.About(grant.PodAccess, hasRole("1"), hasBinding("1"), revokedAt(late.Add(time.Hour))), early, []string{"unbind", "late", "remove podaccess-a"}, "", Schedule{early.Add(cleanupDelay), controller.PriorityCleanup}},
		"a revocation before it was made discards nothing": {factstest.About(grant.ExecAccess, factstest.SaysEnded, revokedAt(time.Time{})), early, nil, "Revoked", Schedule{kept, controller.PriorityCleanup}},
		"a request that a user revoked is over":            {factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"), revokedBy("bob")), early, []string{"unbind", "late"}, "", Schedule{early.Add(cleanupDelay), controller.PriorityCleanup}},
		"a request that a user revoked says so":            {factstest.About(grant.ExecAccess, hasRole("1"), revokedBy("bob"), func(f *facts.Facts) { f.Unbound = true }), early, []string{"unrecord"}, "Revoked", Schedule{kept, controller.PriorityCleanup}},
		"a request waits for its template":                 {factstest.About(grant.ExecAccess, noTemplate), early, nil, "TemplateMissing", Schedule{At: factstest.Created.Add(v1alpha1.TemplateWait)}},
		"a request whose template has not come ends":       {factstest.About(grant.ExecAccess, noTemplate, func(f *facts.Facts) { f.TemplateGone = true }), factstest.Created.Add(v1alpha1.TemplateWait), nil, "TemplateMissing", end},
		"a template that came too late gives nothing":      {factstest.About(grant.ExecAccess, templateAt(factstest.Created.Add(v1alpha1.TemplateWait+time.Second))), factstest.Created.Add(20 * time.Minute), nil, "TemplateMissing", end},
		"a template that came gives the duration":          {factstest.About(grant.ExecAccess, templateAt(early), noDuration), early, []string{"complete"}, "", Schedule{factstest.Created.Add(v1alpha1.TemplateWait), controller.PriorityEnd}},
		"a template that came narrows to a single use":     {factstest.About(grant.ExecAccess, templateAt(early), oneUse), early, []string{"complete"}, "", end},
		"a single use that nothing limits is refused":      {factstest.About(grant.ExecAccess, oneUse, func(f *facts.Facts) { f.Request.GetRequestSpec().SingleUse = true }), early, nil, "SingleUse", end},
		"a request revoked after its end had expired":      {factstest.About(grant.ExecAccess, factstest.SaysEnded, revokedAt(late.Add(time.Hour))), late, nil, "Expired", Schedule{kept, controller.PriorityCleanup}},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := Of(test.facts, test.now)
			if done := does(d); fmt.Sprint(done) != fmt.Sprint(test.does) {
				t.Errorf("it does %q, want %q", done, test.does)
			}
			if said := says(d, v1alpha1.ConditionAccessResourcesCreated); said != test.says {
				t.Errorf("it says %q, want %q", said, test.says)
			}
			if !d.Next.At.Equal(test.next.At) || d.Next.Priority != test.next.Priority {
				t.Errorf("it comes back at %+v, want %+v", d.Next, test.next)
			}
			if d.Dead && d.Live {
				t.Error("it counts as live and as dead")
			}
		})
	}
}

func TestWhyARequestIsNotGranted(t *testing.T) {
	spec := func(change func(*v1alpha1.RequestSpec)) func(*facts.Facts) {
		return func(f *facts.Facts) { change(f.Request.GetRequestSpec()) }
	}
	config := func(change func(*v1alpha1.AccessConfig)) func(*facts.Facts) {
		return func(f *facts.Facts) { change(f.Template.GetAccessConfig()) }
	}
	noTarget := func(err error) func(*facts.Facts) { return func(f *facts.Facts) { f.NoTarget = err } }
	open := func(name string) func(*facts.Facts) {
		return func(f *facts.Facts) {
			other := factstest.About(grant.ExecAccess).Request
			other.SetName(name)
			f.OthersOpen = []v1alpha1.Request{other}
		}
	}
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "deployments"}, "web")
	for sentence, test := range map[string]struct {
		facts             *facts.Facts
		reason, condition string
		waits, warns      bool
	}{
		"without a template":                    {factstest.About(grant.ExecAccess, func(f *facts.Facts) { f.Template = nil }), "TemplateMissing", "TargetTemplateExists", false, true},
		"without a requester":                   {factstest.About(grant.ExecAccess, spec(func(s *v1alpha1.RequestSpec) { s.Requester = nil })), "RequesterUnknown", "AccessResourcesCreated", false, true},
		"not allowed":                           {factstest.About(grant.ExecAccess, spec(func(s *v1alpha1.RequestSpec) { s.Requester.Groups = nil })), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user who may not ask for others": {factstest.About(grant.ExecAccess, factstest.ForOther("bob", "alice", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user who is allowed by a group":  {factstest.About(grant.ExecAccess, factstest.ForOther("bot", "carol", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user of the system":              {factstest.About(grant.ExecAccess, factstest.ForOther("bot", "system:admin", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for who asks, by another door":         {factstest.About(grant.ExecAccess, factstest.ForOther("alice", "alice", "alice")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for one, by a template for groups": {factstest.About(grant.ExecAccess, factstest.ForOther("bot", "alice", "bot"), config(func(c *v1alpha1.AccessConfig) {
			c.Subjects = v1alpha1.SubjectsGroups
		})), "TemplateInvalid", "AccessResourcesCreated", false, true},
		"for too long":                 {factstest.About(grant.ExecAccess, spec(func(s *v1alpha1.RequestSpec) { s.Duration = "3h" })), "DurationTooLong", "AccessDurationsValid", false, true},
		"by a template out of order":   {factstest.About(grant.ExecAccess, config(func(c *v1alpha1.AccessConfig) { c.MaxDuration = "1m" })), "TemplateInvalid", "AccessDurationsValid", false, true},
		"without a reason":             {factstest.About(grant.ExecAccess, config(func(c *v1alpha1.AccessConfig) { c.RequireReason = true })), "ReasonMissing", "AccessResourcesCreated", false, true},
		"for more than a single use":   {factstest.About(grant.ExecAccess, config(func(c *v1alpha1.AccessConfig) { c.SingleUse = true })), "SingleUse", "AccessResourcesCreated", false, true},
		"for one more than is allowed": {factstest.About(grant.ExecAccess, config(func(c *v1alpha1.AccessConfig) { c.MaxConcurrent = 1 }), open("b")), "TooMany", "AccessResourcesCreated", true, true},
		"without a target":             {factstest.About(grant.ExecAccess, noTarget(fmt.Errorf("target: %w", notFound))), "TargetMissing", "AccessResourcesCreated", true, false},
		"without a Pod that is ready":  {factstest.About(grant.ExecAccess, noTarget(fmt.Errorf("%w is ready", workload.ErrNoPod))), "NoPod", "AccessResourcesCreated", true, false},
		"to a Pod of somebody else":    {factstest.About(grant.ExecAccess, noTarget(workload.UnknownPodError("no"))), "UnknownPod", "AccessResourcesCreated", true, true},
		"without a command":            {factstest.About(grant.ExecAccess, config(func(c *v1alpha1.AccessConfig) { c.AccessCommand = "{{ .None }}" })), "TemplateInvalid", "AccessMessage", false, true},
		"to a Pod without a command":   {factstest.About(grant.PodAccess, config(func(c *v1alpha1.AccessConfig) { c.AccessCommand = "{{ .None }}" })), "TemplateInvalid", "AccessMessage", true, true},
		"to a Pod that cannot be made": {factstest.About(grant.PodAccess, func(f *facts.Facts) { f.Template.(*v1alpha1.PodAccessTemplate).Spec.PodSpec = &corev1.PodSpec{} }), "TemplateInvalid", "AccessResourcesCreated", true, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := Of(test.facts, factstest.Created)
			if done := does(d); len(done) > 0 {
				t.Errorf("it does %q", done)
			}
			for _, condition := range []string{test.condition, v1alpha1.ConditionAccessResourcesCreated, v1alpha1.ConditionAccessResourcesReady} {
				if said := says(d, condition); said != test.reason {
					t.Errorf("%s is %q, want %q", condition, said, test.reason)
				}
			}
			if d.Waits != test.waits || (d.Status.Warning != nil) != test.warns {
				t.Errorf("it waits: %t, warns: %t", d.Waits, d.Status.Warning != nil)
			}
		})
	}
}

func TestARevocationIsWrittenOnce(t *testing.T) {
	for sentence, test := range map[string]struct {
		facts *facts.Facts
		now   time.Time
		due   bool
		live  bool
	}{
		"of a request whose time has not passed": {factstest.About(grant.ExecAccess), factstest.Created, true, true},
		"of a request whose time has passed":     {factstest.About(grant.ExecAccess), factstest.Created.Add(time.Hour), true, false},
		"of a request that was revoked before":   {factstest.About(grant.ExecAccess, revokedAt(factstest.Created)), factstest.Created, false, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			status, live := Revocation(test.facts.Request, test.now)
			if (status != nil) != test.due || live != test.live {
				t.Fatalf("it is due: %t, live: %t", status != nil, live)
			}
			if status != nil && !status.RevokedAt.Time.Equal(test.now) {
				t.Errorf("it says %s", status.RevokedAt)
			}
			if ended := status != nil && meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionAccessStillValid); ended != test.live {
				t.Errorf("it says that it ended: %t", ended)
			}
		})
	}
}

// The status that was to be written with the grant may be lost: to a conflict, or with the
// process.
func TestAGrantSaysWhoAllowedItAlsoIfTheFirstStatusWasLost(t *testing.T) {
	f := factstest.About(grant.ExecAccess, hasRole("1"), hasBinding("1"))
	f.Request.GetRequestSpec().Approval = &v1alpha1.ApprovalTerms{Required: 1}
	status := f.Request.GetRequestStatus()
	status.ApprovedAt = &metav1.Time{Time: factstest.Created}
	status.Check = &v1alpha1.CheckResult{Name: "allow", Decision: v1alpha1.CheckAllow}
	for _, condition := range []string{v1alpha1.ConditionApproved, v1alpha1.ConditionChecked} {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaiting})
	}
	d := Of(f, factstest.Created.Add(time.Minute))
	d.Status.Settle()
	for _, condition := range []string{v1alpha1.ConditionApproved, v1alpha1.ConditionChecked} {
		if !meta.IsStatusConditionTrue(d.Status.Conditions, condition) {
			t.Errorf("%s: %+v", condition, d.Status.Conditions)
		}
	}
}

package access

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

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

var created = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// about returns the facts about a request for an hour, made at created by alice, who
// is allowed to.
func about(k kind, more ...func(*facts)) *facts {
	req, template := k.newRequest(), k.newTemplate()
	req.SetNamespace("shop")
	req.SetName("a")
	req.SetUID("1")
	req.SetCreationTimestamp(metav1.NewTime(created))
	*req.GetRequestSpec() = v1alpha1.RequestSpec{TemplateName: "web", Duration: "1h", Requester: &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}}
	template.SetName("web")
	*template.GetAccessConfig() = v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, DefaultDuration: "1h", MaxDuration: "2h"}
	f := &facts{
		kind: k, key: types.NamespacedName{Namespace: "shop", Name: "a"}, request: req,
		end: created.Add(time.Hour), keepUntil: created.Add(25 * time.Hour), template: template,
	}
	if t, ok := template.(*v1alpha1.PodAccessTemplate); ok {
		t.Spec.PodSpec = &corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}
	} else {
		f.chosen = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p"}}
	}
	for _, change := range more {
		change(f)
	}
	return f
}

// hasRole gives a request the record of a grant, which owner made.
func hasRole(owner types.UID) func(*facts) {
	return func(f *facts) {
		name := "web-0"
		if f.kind.makesPod {
			name = f.kind.resource(f.key).Name
		}
		f.role = &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				AnnotationRequestUID: string(owner), AnnotationPodUID: "p", annotationMessage: "run", AnnotationSubjects: "[]",
			}},
			Rules: []rbacv1.PolicyRule{{ResourceNames: []string{name}}},
		}
		if f.kind.makesPod {
			f.made = choiceOf(f.role)
		}
	}
}

func evicts(f *facts) { f.role.Annotations[AnnotationOnExpiry] = string(v1alpha1.ExpiryEvict) }

// hasBinding gives a request the RoleBinding of a grant, which owner made.
func hasBinding(owner types.UID) func(*facts) {
	return func(f *facts) {
		f.binding = &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role"}, ObjectMeta: metav1.ObjectMeta{
			Annotations:     map[string]string{AnnotationRequestUID: string(owner)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "p"}},
		}}
	}
}

// settledOn says which Pod an earlier grant of the request was about.
func settledOn(name, uid string) func(*facts) {
	return func(f *facts) {
		f.request.GetRequestStatus().PodName, f.request.GetRequestStatus().PodUID = name, uid
	}
}

func isUnknown(f *facts) {
	f.chosen, f.noTarget = nil, workload.UnknownPodError("Pod shop/web-1 does not exist")
}
func isGone(f *facts)    { f.request = nil }
func isInvalid(f *facts) { f.invalid = errors.New("spec.duration: no duration") }
func isUsed(f *facts) {
	f.request.GetRequestStatus().UsedBy = &v1alpha1.Use{Username: "alice", Verb: "exec"}
}

func saysEnded(f *facts) {
	f.request.GetRequestStatus().Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccessStillValid, Status: metav1.ConditionFalse}}
}

// forOther has a user, of the group devs, ask for another, by a template that lets bots ask
// for alice and system:admin.
func forOther(user, other string, bots ...string) func(*facts) {
	return func(f *facts) {
		spec, config := f.request.GetRequestSpec(), f.template.GetAccessConfig()
		spec.Requester.Username, spec.OnBehalfOf = user, other
		config.AllowedUsers, config.AskFor = []string{"alice", "system:admin"}, &v1alpha1.AskFor{Users: bots}
	}
}

func noTemplate(f *facts) { f.template = nil }
func oneUse(f *facts)     { f.template.GetAccessConfig().SingleUse = true }
func noDuration(f *facts) {
	f.request.GetRequestSpec().Duration = ""
	f.end, _ = v1alpha1.EndOf(f.request)
}

func templateAt(made time.Time) func(*facts) {
	return func(f *facts) { f.template.SetCreationTimestamp(metav1.NewTime(made)) }
}

func revokedAt(at time.Time) func(*facts) {
	return func(f *facts) {
		f.request.GetRequestStatus().RevokedAt = &metav1.Time{Time: at}
		f.end, _ = v1alpha1.EndOf(f.request)
		f.keepUntil = keepUntil(f.request, DefaultRetention)
	}
}

func revokedBy(user string) func(*facts) {
	return func(f *facts) {
		f.request.GetRequestSpec().Revoked = &v1alpha1.Revocation{By: user, At: &metav1.Time{Time: created}}
		f.end, _ = v1alpha1.EndOf(f.request)
	}
}

// does names what a decision does, in the order in which it is done.
func (d decision) does() (done []string) {
	for _, step := range []struct {
		name string
		due  bool
	}{
		{"unbind", d.unbind},
		{"late", d.late},
		{"remove " + d.remove.name, d.remove.name != ""},
		{"evict " + d.evict.name, d.evict.name != ""},
		{"unrecord", d.unrecord},
		{"complete", d.complete},
		{"grant", d.grant != nil},
		{"discard", d.discard},
		{"behind", d.behind},
	} {
		if step.due {
			done = append(done, step.name)
		}
	}
	return done
}

// says names the condition of a decision's status that does not hold, and why.
func (d decision) says(condition string) string {
	if d.status == nil {
		return ""
	}
	d.status.settle()
	c := meta.FindStatusCondition(d.status.Conditions, condition)
	if c == nil || c.Status == metav1.ConditionTrue {
		return "ready=" + fmt.Sprint(d.status.Ready)
	}
	return c.Reason
}

func TestWhatIsDoneAboutARequest(t *testing.T) {
	early, late, kept := created.Add(time.Minute), created.Add(time.Hour), created.Add(25*time.Hour)
	end := schedule{created.Add(time.Hour), controller.PriorityEnd}
	for sentence, test := range map[string]struct {
		facts *facts
		now   time.Time
		does  []string
		says  string // of AccessResourcesCreated
		next  schedule
	}{
		"a request is granted":                       {about(execAccess), early, []string{"grant"}, "ready=false", end},
		"a request for a Pod is granted":             {about(podAccess), early, []string{"grant"}, "ready=false", end},
		"a grant that lacks the RoleBinding gets it": {about(execAccess, hasRole("1")), early, []string{"grant"}, "ready=true", end},
		"a grant is left alone":                      {about(execAccess, hasRole("1"), hasBinding("1")), early, nil, "ready=true", end},
		"a lost Pod is not granted again":            {about(execAccess, hasRole("1"), func(f *facts) { f.lost = podGone }), early, nil, "PodGone", end},
		"a grant whose Pod is lost ends":             {about(podAccess, hasRole("1"), hasBinding("1"), func(f *facts) { f.lost = podReplaced }), early, []string{"unbind"}, "PodGone", end},
		"a grant whose sessions cannot end any more": {about(execAccess, hasRole("1"), hasBinding("1"), func(f *facts) { f.unended = cannotEnd("web", noSessions(v1alpha1.ExpiryEndSession)) }), early, []string{"unbind"}, "NotRecorded", end},
		"no grant where sessions cannot end":         {about(execAccess, func(f *facts) { f.unended = cannotEnd("web", noSessions(v1alpha1.ExpiryEndSession)) }), early, nil, "NotRecorded", end},
		"a binding that its Pod does not own goes":   {about(execAccess, hasRole("1"), hasBinding("1"), func(f *facts) { f.binding.OwnerReferences = nil }), early, []string{"unbind"}, "", end},
		"a binding to somebody else goes": {about(execAccess, hasRole("1"), hasBinding("1"), func(f *facts) {
			f.binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "mallory"}}
		}), early, []string{"unbind"}, "", end},
		"a request that lost its Role keeps its Pod":       {about(execAccess, settledOn("web-0", "p")), early, []string{"grant"}, "ready=false", end},
		"a request that lost its Role gets no other Pod":   {about(execAccess, settledOn("web-0", "q")), early, nil, "PodGone", end},
		"a request whose Pod is gone gets no other":        {about(execAccess, settledOn("web-1", "p"), isUnknown), early, nil, "PodGone", end},
		"a request that lost its Role, and its template":   {about(execAccess, settledOn("web-0", "p"), noTemplate, func(f *facts) { f.templateGone = true }), early, nil, "TemplateMissing", schedule{at: created.Add(v1alpha1.TemplateWait)}},
		"a used request loses the RoleBinding alone":       {about(podAccess, hasRole("1"), hasBinding("1"), isUsed), early, []string{"unbind"}, "Used", end},
		"what an earlier request left goes first":          {about(podAccess, hasRole("0"), hasBinding("0")), early, []string{"unbind", "remove podaccess-a", "unrecord", "behind"}, "", end},
		"a binding that an earlier request left goes":      {about(execAccess, hasRole("1"), hasBinding("0")), early, []string{"unbind", "unrecord", "behind"}, "", end},
		"a request that is gone loses all":                 {about(podAccess, hasRole("1"), hasBinding("1"), isGone), early, []string{"unbind", "remove podaccess-a", "unrecord"}, "", schedule{}},
		"a request that is gone and had nothing":           {about(execAccess, isGone), early, nil, "", schedule{}},
		"a request that is gone has its Pod evicted":       {about(execAccess, hasRole("1"), evicts, isGone), early, []string{"evict web-0", "unrecord"}, "", schedule{}},
		"an invalid request loses all":                     {about(execAccess, hasRole("1"), hasBinding("1"), isInvalid), early, []string{"unbind", "unrecord"}, "DurationInvalid", schedule{}},
		"the end takes RoleBinding and Pod, and no more":   {about(podAccess, hasRole("1"), hasBinding("1")), late, []string{"unbind", "late", "remove podaccess-a"}, "", schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"the end evicts nothing before the clean-up":       {about(execAccess, hasRole("1"), evicts, hasBinding("1")), late, []string{"unbind", "late"}, "", schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"a nanosecond before the end nothing ends":         {about(execAccess, hasRole("1"), hasBinding("1")), late.Add(-1), nil, "ready=true", end},
		"the clean-up evicts":                              {about(execAccess, hasRole("1"), evicts, func(f *facts) { f.unbound = true }), late, []string{"evict web-0", "unrecord"}, "Expired", schedule{kept, controller.PriorityCleanup}},
		"a cache that is behind keeps no clean-up waiting": {about(execAccess, hasRole("1"), hasBinding("1"), func(f *facts) { f.unbound = true }), late, []string{"unrecord"}, "Expired", schedule{kept, controller.PriorityCleanup}},
		"the end believes no cache":                        {about(execAccess), late, []string{"unbind", "late"}, "", schedule{late.Add(cleanupDelay), controller.PriorityCleanup}},
		"the first clean-up believes no cache":             {about(execAccess, func(f *facts) { f.unbound = true }), late, []string{"unrecord"}, "Expired", schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended has nothing to lose": {about(execAccess, saysEnded), late, nil, "Expired", schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended, but has a Role":     {about(execAccess, saysEnded, hasRole("1")), late, []string{"unrecord"}, "Expired", schedule{kept, controller.PriorityCleanup}},
		"a request that says it ended before its time":     {about(execAccess, saysEnded, hasRole("1"), hasBinding("1")), early, nil, "ready=true", end},
		"a request that was kept long enough goes":         {about(execAccess, saysEnded), kept, []string{"discard"}, "Expired", schedule{kept, controller.PriorityCleanup}},
		"a revoked request is over":                        {about(execAccess, saysEnded, revokedAt(created)), early, nil, "Revoked", schedule{kept, controller.PriorityCleanup}},
		"a request revoked by a clock that is ahead":       {about(podAccess, hasRole("1"), hasBinding("1"), revokedAt(late.Add(time.Hour))), early, []string{"unbind", "late", "remove podaccess-a"}, "", schedule{early.Add(cleanupDelay), controller.PriorityCleanup}},
		"a revocation before it was made discards nothing": {about(execAccess, saysEnded, revokedAt(time.Time{})), early, nil, "Revoked", schedule{kept, controller.PriorityCleanup}},
		"a request that a user revoked is over":            {about(execAccess, hasRole("1"), hasBinding("1"), revokedBy("bob")), early, []string{"unbind", "late"}, "", schedule{early.Add(cleanupDelay), controller.PriorityCleanup}},
		"a request that a user revoked says so":            {about(execAccess, hasRole("1"), revokedBy("bob"), func(f *facts) { f.unbound = true }), early, []string{"unrecord"}, "Revoked", schedule{kept, controller.PriorityCleanup}},
		"a request waits for its template":                 {about(execAccess, noTemplate), early, nil, "TemplateMissing", schedule{at: created.Add(v1alpha1.TemplateWait)}},
		"a request whose template has not come ends":       {about(execAccess, noTemplate, func(f *facts) { f.templateGone = true }), created.Add(v1alpha1.TemplateWait), nil, "TemplateMissing", end},
		"a template that came too late gives nothing":      {about(execAccess, templateAt(created.Add(v1alpha1.TemplateWait+time.Second))), created.Add(20 * time.Minute), nil, "TemplateMissing", end},
		"a template that came gives the duration":          {about(execAccess, templateAt(early), noDuration), early, []string{"complete"}, "", schedule{created.Add(v1alpha1.TemplateWait), controller.PriorityEnd}},
		"a template that came narrows to a single use":     {about(execAccess, templateAt(early), oneUse), early, []string{"complete"}, "", end},
		"a single use that nothing limits is refused":      {about(execAccess, oneUse, func(f *facts) { f.request.GetRequestSpec().SingleUse = true }), early, nil, "SingleUse", end},
		"a request revoked after its end had expired":      {about(execAccess, saysEnded, revokedAt(late.Add(time.Hour))), late, nil, "Expired", schedule{kept, controller.PriorityCleanup}},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := decide(test.facts, test.now)
			if does := d.does(); fmt.Sprint(does) != fmt.Sprint(test.does) {
				t.Errorf("it does %q, want %q", does, test.does)
			}
			if says := d.says(v1alpha1.ConditionAccessResourcesCreated); says != test.says {
				t.Errorf("it says %q, want %q", says, test.says)
			}
			if !d.next.at.Equal(test.next.at) || d.next.priority != test.next.priority {
				t.Errorf("it comes back at %+v, want %+v", d.next, test.next)
			}
			if d.dead && d.live {
				t.Error("it counts as live and as dead")
			}
		})
	}
}

func TestWhyARequestIsNotGranted(t *testing.T) {
	spec := func(change func(*v1alpha1.RequestSpec)) func(*facts) {
		return func(f *facts) { change(f.request.GetRequestSpec()) }
	}
	config := func(change func(*v1alpha1.AccessConfig)) func(*facts) {
		return func(f *facts) { change(f.template.GetAccessConfig()) }
	}
	noTarget := func(err error) func(*facts) { return func(f *facts) { f.noTarget = err } }
	open := func(name string) func(*facts) {
		return func(f *facts) {
			other := about(execAccess).request
			other.SetName(name)
			f.othersOpen = []v1alpha1.Request{other}
		}
	}
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "deployments"}, "web")
	for sentence, test := range map[string]struct {
		facts             *facts
		reason, condition string
		waits, warns      bool
	}{
		"without a template":                    {about(execAccess, func(f *facts) { f.template = nil }), "TemplateMissing", "TargetTemplateExists", false, true},
		"without a requester":                   {about(execAccess, spec(func(s *v1alpha1.RequestSpec) { s.Requester = nil })), "RequesterUnknown", "AccessResourcesCreated", false, true},
		"not allowed":                           {about(execAccess, spec(func(s *v1alpha1.RequestSpec) { s.Requester.Groups = nil })), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user who may not ask for others": {about(execAccess, forOther("bob", "alice", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user who is allowed by a group":  {about(execAccess, forOther("bot", "carol", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for a user of the system":              {about(execAccess, forOther("bot", "system:admin", "bot")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for who asks, by another door":         {about(execAccess, forOther("alice", "alice", "alice")), "NotAllowed", "AccessResourcesCreated", false, true},
		"for one, by a template for groups": {about(execAccess, forOther("bot", "alice", "bot"), config(func(c *v1alpha1.AccessConfig) {
			c.Subjects = v1alpha1.SubjectsGroups
		})), "TemplateInvalid", "AccessResourcesCreated", false, true},
		"for too long":                 {about(execAccess, spec(func(s *v1alpha1.RequestSpec) { s.Duration = "3h" })), "DurationTooLong", "AccessDurationsValid", false, true},
		"by a template out of order":   {about(execAccess, config(func(c *v1alpha1.AccessConfig) { c.MaxDuration = "1m" })), "TemplateInvalid", "AccessDurationsValid", false, true},
		"without a reason":             {about(execAccess, config(func(c *v1alpha1.AccessConfig) { c.RequireReason = true })), "ReasonMissing", "AccessResourcesCreated", false, true},
		"for more than a single use":   {about(execAccess, config(func(c *v1alpha1.AccessConfig) { c.SingleUse = true })), "SingleUse", "AccessResourcesCreated", false, true},
		"for one more than is allowed": {about(execAccess, config(func(c *v1alpha1.AccessConfig) { c.MaxConcurrent = 1 }), open("b")), "TooMany", "AccessResourcesCreated", true, true},
		"without a target":             {about(execAccess, noTarget(fmt.Errorf("target: %w", notFound))), "TargetMissing", "AccessResourcesCreated", true, false},
		"without a Pod that is ready":  {about(execAccess, noTarget(fmt.Errorf("%w is ready", workload.ErrNoPod))), "NoPod", "AccessResourcesCreated", true, false},
		"to a Pod of somebody else":    {about(execAccess, noTarget(workload.UnknownPodError("no"))), "UnknownPod", "AccessResourcesCreated", true, true},
		"without a command":            {about(execAccess, config(func(c *v1alpha1.AccessConfig) { c.AccessCommand = "{{ .None }}" })), "TemplateInvalid", "AccessMessage", false, true},
		"to a Pod without a command":   {about(podAccess, config(func(c *v1alpha1.AccessConfig) { c.AccessCommand = "{{ .None }}" })), "TemplateInvalid", "AccessMessage", true, true},
		"to a Pod that cannot be made": {about(podAccess, func(f *facts) { f.template.(*v1alpha1.PodAccessTemplate).Spec.PodSpec = &corev1.PodSpec{} }), "TemplateInvalid", "AccessResourcesCreated", true, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := decide(test.facts, created)
			if does := d.does(); len(does) > 0 {
				t.Errorf("it does %q", does)
			}
			for _, condition := range []string{test.condition, v1alpha1.ConditionAccessResourcesCreated, v1alpha1.ConditionAccessResourcesReady} {
				if says := d.says(condition); says != test.reason {
					t.Errorf("%s is %q, want %q", condition, says, test.reason)
				}
			}
			if d.waits != test.waits || (d.status.warning != nil) != test.warns {
				t.Errorf("it waits: %t, warns: %t", d.waits, d.status.warning != nil)
			}
		})
	}
}

func TestARevocationIsWrittenOnce(t *testing.T) {
	for sentence, test := range map[string]struct {
		facts *facts
		now   time.Time
		due   bool
		live  bool
	}{
		"of a request whose time has not passed": {about(execAccess), created, true, true},
		"of a request whose time has passed":     {about(execAccess), created.Add(time.Hour), true, false},
		"of a request that was revoked before":   {about(execAccess, revokedAt(created)), created, false, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			status, live := revocation(test.facts.request, test.now)
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

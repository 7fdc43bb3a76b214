package access_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// panel is a namespace with templates that need approval, and the people who decide.
type panel struct {
	namespace string
	// sam, sue and sid are in the group sre and may create decisions, carol is named by
	// the templates; dan may create decisions that do not count, and eve none.
	sam, sue, sid, carol, dan, eve *controlplane.User
	// oncall is alice in the group that needs no approval, bot asks for alice.
	oncall, bot *controlplane.User
	named       atomic.Int32
}

func newPanel(t *testing.T) *panel {
	t.Helper()
	p := &panel{namespace: common(t)}
	for name, user := range map[string]struct {
		into   **controlplane.User
		groups []string
	}{
		"sam": {&p.sam, []string{"sre", "deciders"}}, "sue": {&p.sue, []string{"sre", "deciders"}}, "sid": {&p.sid, []string{"sre", "deciders", "engineers", "devs"}},
		"carol": {&p.carol, []string{"deciders", "engineers"}}, "dan": {&p.dan, []string{"deciders"}}, "eve": {&p.eve, []string{"sre", "engineers"}},
		"olga": {&p.oncall, []string{"devs", "engineers", "oncall"}}, "ticketbot": {&p.bot, []string{"engineers", "oncall"}},
	} {
		added, err := cluster.AddUser(name, user.groups...)
		if err != nil {
			t.Fatal(err)
		}
		*user.into = added
	}
	letDecide(t, p.namespace, "deciders", "system:serviceaccounts:"+p.namespace)
	deployment(t, p.namespace, "web", 1)
	testkit.Create(t, admin, p.template("two", 2, "1h"), p.template("one", 1, "1h"), p.template("quick", 1, "4s"))
	pods := podTemplate(p.namespace, "two", ref("Deployment", "web"), "devs")
	pods.Spec.AccessConfig.Approval = p.approval(2, "1h")
	testkit.Create(t, admin, pods)
	return p
}

// Who decided, or may write decisions, holds it back by a finalizer.
func TestADecisionThatIsDeletedDoesNotCountWhoeverHoldsItBack(t *testing.T) {
	t.Parallel()
	p := newPanel(t)
	req := p.ask(t, alice, "two")
	d := decision(req, v1alpha1.DecisionApprove, "")
	d.Finalizers = []string{"example.com/held"}
	testkit.Create(t, as(t, p.sam), d)
	waitsWith(t, req, 1)
	if err := admin.Delete(t.Context(), d.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	waitsWith(t, req, 0)
	approved(t, req, p.sue)
	waitsWith(t, req, 1)
	if err := admin.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Error(err)
	}
}

// letDecide lets members of groups create decisions.
func letDecide(t *testing.T, namespace string, groups ...string) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deciders"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "access-decider"},
	}
	for _, group := range groups {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
	}
	testkit.Create(t, admin, binding)
	question := testkit.Question("", namespace, rule("admitkit.dev", "create", "accessdecisions"))
	question.Groups = groups[:1]
	testkit.AwaitRight(t, admin, question, true)
}

func (p *panel) approval(required int32, timeout string) *v1alpha1.Approval {
	return &v1alpha1.Approval{
		Required: required, Groups: []string{"sre", "system:serviceaccounts:" + p.namespace}, Users: []string{"carol", "system:serviceaccount:" + p.namespace + ":trusted"},
		Timeout: timeout, SkipGroups: []string{"oncall"},
	}
}

func (p *panel) template(name string, required int32, timeout string) *v1alpha1.ExecAccessTemplate {
	t := execTemplate(p.namespace, name, ref("Deployment", "web"), "devs")
	t.Spec.AccessConfig.AllowedUsers = []string{"alice"}
	t.Spec.AccessConfig.AskFor = &v1alpha1.AskFor{Users: []string{"ticketbot"}}
	t.Spec.AccessConfig.Approval = p.approval(required, timeout)
	return t
}

// ask makes a request of a name of its own, and waits until it is looked at.
func (p *panel) ask(t *testing.T, user *controlplane.User, template string, change ...func(*v1alpha1.ExecAccessRequest)) *v1alpha1.ExecAccessRequest {
	t.Helper()
	req := execRequest(p.namespace, fmt.Sprintf("r%d", p.named.Add(1)), template)
	for _, fn := range change {
		fn(req)
	}
	testkit.Create(t, as(t, user), req)
	await(t, req, "is looked at", func() bool { return len(req.Status.Conditions) > 0 })
	return req
}

func decision(req request, word v1alpha1.Decision, reason string) *v1alpha1.AccessDecision {
	kind := "ExecAccessRequest"
	switch req.(type) {
	case *v1alpha1.PodAccessRequest:
		kind = "PodAccessRequest"
	case *v1alpha1.RoleAccessRequest:
		kind = "RoleAccessRequest"
	}
	return &v1alpha1.AccessDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: req.GetNamespace(), GenerateName: req.GetName() + "-"},
		Spec: v1alpha1.AccessDecisionSpec{
			Request: v1alpha1.DecidedRequest{Kind: kind, Name: req.GetName(), UID: string(req.GetUID())}, Decision: word, Reason: reason,
		},
	}
}

func approve(t *testing.T, user *controlplane.User, req request) (*v1alpha1.AccessDecision, error) {
	t.Helper()
	d := decision(req, v1alpha1.DecisionApprove, "")
	return d, as(t, user).Create(t.Context(), d)
}

// approved approves as each of the users, which must be possible.
func approved(t *testing.T, req request, users ...*controlplane.User) (last *v1alpha1.AccessDecision) {
	t.Helper()
	for _, user := range users {
		d, err := approve(t, user, req)
		if err != nil {
			t.Errorf("%s cannot approve: %v", user.Name, err)
		}
		last = d
	}
	return last
}

func waitsWith(t *testing.T, req request, approvals int) {
	t.Helper()
	await(t, req, fmt.Sprintf("waits with %d approvals", approvals), func() bool {
		c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, v1alpha1.ConditionApproved)
		return fails(req, v1alpha1.ConditionApproved, v1alpha1.ReasonWaiting) && strings.Contains(c.Message, fmt.Sprintf("has %d of ", approvals))
	})
	stillWaits(t, req)
}

// stillWaits wants that nothing was granted. It is asked of the API server when all that
// could lead to a grant has been answered.
func stillWaits(t *testing.T, req request) {
	t.Helper()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(bindingOf(req)), &rbacv1.RoleBinding{}); err == nil {
		t.Error("access is granted")
	}
	if req.GetRequestStatus().ApprovedAt != nil || req.GetRequestStatus().ExpiresAt != nil || req.GetRequestStatus().PodName != "" {
		t.Errorf("the status is %+v", req.GetRequestStatus())
	}
}

func endsFor(t *testing.T, req request, reason, message string) {
	t.Helper()
	await(t, req, "has ended", func() bool {
		return fails(req, v1alpha1.ConditionApproved, reason) && holds(req, v1alpha1.ConditionAccessStillValid) == false
	})
	if c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, v1alpha1.ConditionApproved); !strings.Contains(c.Message, message) {
		t.Errorf("the condition says %q, want %q", c.Message, message)
	}
	stillWaits(t, req)
}

// isGranted waits for the grant, and wants its end to be the duration after the decision.
func isGranted(t *testing.T, req request, decided *v1alpha1.AccessDecision) {
	t.Helper()
	await(t, req, "is ready", func() bool { return req.GetRequestStatus().Ready })
	duration, err := time.ParseDuration(req.GetRequestSpec().Duration)
	if err != nil {
		t.Fatal(err)
	}
	status := req.GetRequestStatus()
	if want := decided.CreationTimestamp.Add(duration); !status.ApprovedAt.Equal(&decided.CreationTimestamp) || !status.ExpiresAt.Time.Equal(want) {
		t.Errorf("approved at %s until %s, want %s and %s", status.ApprovedAt, status.ExpiresAt, decided.CreationTimestamp, want)
	}
}

// approveAs approves with kubectl as another user.
func approveAs(t *testing.T, by *controlplane.User, req request, user string, groups ...string) (string, error) {
	t.Helper()
	d := decision(req, v1alpha1.DecisionApprove, "")
	args := []string{"create", "--validate=false", "-f", "-", "--as", user} // else kubectl asks for a schema first
	for _, group := range append(groups, "system:authenticated") {
		args = append(args, "--as-group", group)
	}
	create := cluster.Kubectl(t.Context(), by, args...)
	create.Stdin = strings.NewReader(fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: AccessDecision, metadata: {namespace: %s, generateName: %s}, "+
		"spec: {request: {kind: ExecAccessRequest, name: %s, uid: %s}, decision: Approve}}", d.Namespace, d.GenerateName, req.GetName(), req.GetUID()))
	output, err := create.CombinedOutput()
	return string(output), err
}

func lasts(duration string) func(*v1alpha1.ExecAccessRequest) {
	return func(req *v1alpha1.ExecAccessRequest) { req.Spec.Duration = duration }
}

func inNameOf(user string) func(*v1alpha1.ExecAccessRequest) {
	return func(req *v1alpha1.ExecAccessRequest) { req.Spec.OnBehalfOf = user }
}

// approvals are the cases of the table, by what they show.
var approvals = map[string]func(*testing.T, *panel){
	"without approvals a request waits": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		waitsWith(t, req, 0)
		if canExec(t, alice, p.namespace, "web") {
			t.Error("alice has access")
		}
	},
	"one of two approvals is not enough": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		approved(t, req, p.sam)
		waitsWith(t, req, 1)
	},
	"two approvals grant, and the second begins the time": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		isGranted(t, req, approved(t, req, p.sam, p.sue))
		soonCanExec(t, alice, p.namespace, req.Status.PodName)
		if canExec(t, p.sam, p.namespace, req.Status.PodName) {
			t.Error("not alice alone has access")
		}
		if !holds(req, v1alpha1.ConditionApproved) || len(req.Status.Verdicts) != 2 || req.Status.GrantedAt == nil {
			t.Errorf("the status is %+v", req.Status)
		}
		story := commons.told.of(req)
		if len(story) == 4 {
			slices.Sort(story[1:3]) // decisions of one second have no order
		}
		if !slices.Equal(story, []string{"asked alice", "approved sam", "approved sue", "granted alice"}) {
			t.Errorf("the records are %q", story)
		}
	},
	"access ends the duration after the approval": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one", lasts("1h"))
		isGranted(t, req, approved(t, req, p.sam))
		notBefore(t, endsIn(t, alice, req, 2*time.Second), "alice has no access any more", func() bool { return gone(t, bindingOf(req)) })
		await(t, req, "has ended", func() bool { return fails(req, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonExpired) })
	},
	"a Pod is made only when it is approved": func(t *testing.T, p *panel) {
		req := podRequest(p.namespace, "own", "two")
		testkit.Create(t, as(t, alice), req)
		approved(t, req, p.sam)
		waitsWith(t, req, 1)
		isGranted(t, req, approved(t, req, p.sue))
	},
	"a user who is named approves": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		isGranted(t, req, approved(t, req, p.carol))
	},
	"one denial ends a request": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		testkit.Create(t, as(t, p.sam), decision(req, v1alpha1.DecisionDeny, "use the replica"))
		endsFor(t, req, v1alpha1.ReasonDenied, "denied by sam: use the replica")
		_, err := approve(t, p.sue, req)
		refused(t, err, "no longer waits for decisions")
		if story := commons.told.of(req); !slices.Equal(story, []string{"asked alice", "denied sam"}) {
			t.Errorf("the records are %q", story)
		}
	},
	"a denial after an approval ends it, too": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		approved(t, req, p.sam)
		testkit.Create(t, as(t, p.sue), decision(req, v1alpha1.DecisionDeny, "not today"))
		endsFor(t, req, v1alpha1.ReasonDenied, "denied by sue: not today")
	},
	"a denial says why, and about what": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		refused(t, as(t, p.sam).Create(t.Context(), decision(req, v1alpha1.DecisionDeny, " ")), "reason: say why you deny the request")
		d := decision(req, v1alpha1.DecisionDeny, "no")
		d.Spec.Request.Kind = "Pod"
		refused(t, as(t, p.sam).Create(t.Context(), d), "spec.request.kind")
		waitsWith(t, req, 0)
	},
	"without approval in time a request ends": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "quick")
		endsFor(t, req, v1alpha1.ReasonTimedOut, "not approved in time: it had 0 of 1 approval")
		_, err := approve(t, p.sam, req)
		refused(t, err, "no longer waits for decisions")
		if story := commons.told.of(req); !slices.Equal(story, []string{"asked alice", "timed-out alice"}) {
			t.Errorf("the records are %q", story)
		}
	},
	"nobody approves a request that is for them": func(t *testing.T, p *panel) {
		template := p.template("for-carol", 1, "1h")
		template.Spec.AccessConfig.AllowedUsers = []string{"carol"}
		testkit.Create(t, admin, template)
		req := p.ask(t, p.bot, "for-carol", inNameOf("carol"))
		_, err := approve(t, p.carol, req)
		refused(t, err, `the request is for user "carol"`)
		isGranted(t, req, approved(t, req, p.sam))
	},
	"who has no right to create decisions cannot": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		_, err := approve(t, p.eve, req)
		refused(t, err, "cannot create resource \"accessdecisions\"")
	},
	"who races stores one decision": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		sam := as(t, p.sam)
		var stored atomic.Int32
		var racers sync.WaitGroup
		for range 10 {
			racers.Go(func() {
				if sam.Create(t.Context(), decision(req, v1alpha1.DecisionApprove, "")) == nil {
					stored.Add(1)
				}
			})
		}
		racers.Wait()
		if n := stored.Load(); n != 1 {
			t.Errorf("%d decisions are stored", n)
		}
		waitsWith(t, req, 1)
	},
	"impersonation without the right is refused by the API server": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		if output, err := approveAs(t, p.dan, req, "sam", "sre", "deciders"); err == nil || !strings.Contains(output, `cannot impersonate`) {
			t.Errorf("%v: %s", err, output)
		}
		waitsWith(t, req, 0)
	},
	"with the right, the user who is impersonated counts": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		if output, err := approveAs(t, cluster.Admin(), req, "sam", "sre", "deciders"); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		await(t, req, "is ready", func() bool { return req.Status.Ready })
		if by := req.Status.Verdicts[0].Username; by != "sam" {
			t.Errorf("approved by %s", by)
		}
	},
	"a decision cannot be edited": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		d := approved(t, req, p.sam)
		refused(t, patch(t, cluster.Admin(), d, `{"spec":{"decision":"Deny","reason":"after all"}}`), "a decision cannot be changed")
		refused(t, patch(t, cluster.Admin(), d, `{"spec":{"decider":{"username":"sue"}}}`), "a decision cannot be changed")
		waitsWith(t, req, 1)
	},
	"a decision that is deleted before it decides does not count": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		d := approved(t, req, p.sam)
		waitsWith(t, req, 1)
		if err := admin.Delete(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		waitsWith(t, req, 0)
		approved(t, req, p.sue)
		waitsWith(t, req, 1)
	},
	"a decision that is deleted and made again after it decided moves nothing": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		d := approved(t, req, p.sam)
		isGranted(t, req, d)
		before := *req.Status.ExpiresAt
		if err := admin.Delete(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		_, err := approve(t, p.sam, req)
		refused(t, err, "has been approved already")
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil || !req.Status.ExpiresAt.Equal(&before) || !req.Status.Ready {
			t.Errorf("%v: the status is %+v", err, req.Status)
		}
	},
	"a decision does not count for the next request of the name": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		approved(t, req, p.sam)
		waitsWith(t, req, 1)
		if err := admin.Delete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		again := execRequest(p.namespace, req.Name, "two")
		testkit.Create(t, as(t, alice), again)
		approved(t, again, p.sue)
		waitsWith(t, again, 1)
	},
	"nobody gets what others have not approved": func(t *testing.T, p *panel) {
		for name, change := range map[string]string{
			"moves": `{"spec":{"controllerTargetRef":{"name":"vault"}}}`,
			"verbs": `{"spec":{"accessConfig":{"verbs":["exec","ephemeralcontainers","portforward"]}}}`,
		} {
			template := p.template(name, 2, "1h")
			testkit.Create(t, admin, template)
			req := p.ask(t, alice, name)
			approved(t, req, p.sam)
			waitsWith(t, req, 1)
			if err := admin.Patch(t.Context(), template, client.RawPatch(types.MergePatchType, []byte(change))); err != nil {
				t.Fatal(err)
			}
			await(t, req, "has ended by the change", func() bool {
				return strings.Contains(fmt.Sprint(req.Status.Conditions), "the template gives something else")
			})
			if _, err := approve(t, p.sue, req); err == nil {
				t.Error("it can still be approved")
			}
			if req.Status.Ready || req.Status.RevokedAt == nil {
				t.Errorf("%+v", req.Status)
			}
		}
	},
	"who asks cannot say who approves": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two", func(req *v1alpha1.ExecAccessRequest) {
			req.Spec.Approval = &v1alpha1.ApprovalTerms{TemplateUID: "x", Required: 1, Users: []string{"mallory"}, Timeout: "100h", SkippedFor: "devs"}
		})
		if req.Spec.Approval.Required != 2 || req.Spec.Approval.SkippedFor != "" || req.Spec.Approval.Timeout != "1h" {
			t.Errorf("the terms are %+v", req.Spec.Approval)
		}
		refused(t, patch(t, alice, req.DeepCopy(), `{"spec":{"approval":{"required":1}}}`), "approval cannot be changed")
		refused(t, patch(t, alice, req.DeepCopy(), `{"spec":{"approval":{"skippedFor":"devs"}}}`), "approval cannot be changed")
		waitsWith(t, req, 0)
	},
	"only the manager says that a request is approved": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		for _, forged := range []string{
			`{"status":{"approvedAt":"2020-01-01T00:00:00Z"}}`,
			`{"status":{"verdicts":[{"username":"sam","decision":"Approve","time":"2020-01-01T00:00:00Z"}]}}`,
			`{"status":{"grantedAt":"2020-01-01T00:00:00Z"}}`,
		} {
			err := admin.Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(forged)))
			refused(t, err, "only admitkit writes them")
		}
		waitsWith(t, req, 0)
	},
	"nobody changes when a request was approved": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one")
		isGranted(t, req, approved(t, req, p.sam))
		for _, forged := range []string{`{"status":{"approvedAt":"2040-01-01T00:00:00Z"}}`, `{"status":{"approvedAt":null}}`, `{"status":{"verdicts":null}}`} {
			err := admin.Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(forged)))
			refused(t, err, "status")
		}
	},
	"a template that is eased later eases nothing": func(t *testing.T, p *panel) {
		template := p.template("eased", 2, "1h")
		testkit.Create(t, admin, template)
		req := p.ask(t, alice, "eased")
		if err := patch(t, cluster.Admin(), template, `{"spec":{"accessConfig":{"approval":null}}}`); err != nil {
			t.Fatal(err)
		}
		approved(t, req, p.sam)
		waitsWith(t, req, 1)
	},
	"a template that is made again grants nothing to who asked before": func(t *testing.T, p *panel) {
		template := p.template("again", 2, "1h")
		testkit.Create(t, admin, template)
		req := p.ask(t, alice, "again")
		if err := admin.Delete(t.Context(), template); err != nil {
			t.Fatal(err)
		}
		testkit.Create(t, admin, p.template("again", 1, "1h"))
		await(t, req, "has ended", func() bool { return fails(req, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonTemplateMissing) })
		_, err := approve(t, p.sam, req)
		refused(t, err, "no longer waits")
	},
	"a request that came before its template needs the approval of that": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "later")
		testkit.Create(t, admin, p.template("later", 1, "1h"))
		waitsWith(t, req, 0)
		isGranted(t, req, approved(t, req, p.sam))
	},
	"what is approved is not extended": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "one", lasts("30m"))
		refused(t, patch(t, alice, req.DeepCopy(), `{"spec":{"duration":"31m"}}`), "duration cannot be extended, because others approve this one")
		isGranted(t, req, approved(t, req, p.sam))
		refused(t, patch(t, alice, req.DeepCopy(), `{"spec":{"duration":"31m"}}`), "duration cannot be extended, because others approve this one")
		if err := patch(t, alice, req, `{"spec":{"duration":"10m"}}`); err != nil {
			t.Error(err)
		}
		want := req.Status.ApprovedAt.Add(10 * time.Minute)
		await(t, req, "ends sooner", func() bool { return req.Status.ExpiresAt.Time.Equal(want) })
	},
	"a member of a group for emergencies needs no approval, and that is on record": func(t *testing.T, p *panel) {
		req := p.ask(t, p.oncall, "two")
		await(t, req, "is ready", func() bool { return req.Status.Ready })
		if c := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionApproved); c == nil || c.Reason != "Skipped" || !strings.Contains(c.Message, "without approval, as a member of oncall") {
			t.Errorf("the condition is %+v", c)
		}
		if req.Spec.Approval.SkippedFor != "oncall" || !commons.told.says(req, "granted", "without approval as a member of oncall") {
			t.Errorf("the terms are %+v; the records do not say it", req.Spec.Approval)
		}
		if err := patch(t, p.oncall, req, `{"spec":{"duration":"2h"}}`); err != nil {
			t.Errorf("it is not extended: %v", err)
		}
	},
	"emergencies of who asks are none of those who are asked for": func(t *testing.T, p *panel) {
		req := p.ask(t, p.bot, "two", inNameOf("alice"))
		waitsWith(t, req, 0)
	},
	"who asked takes back what waits": func(t *testing.T, p *panel) {
		req := p.ask(t, alice, "two")
		if err := patch(t, alice, req, `{"spec":{"revoked":{}}}`); err != nil {
			t.Fatal(err)
		}
		endsFor(t, req, v1alpha1.ReasonRevoked, "revoked by alice")
		_, err := approve(t, p.sam, req)
		refused(t, err, "no longer waits")
	},
	"a template that nobody could meet is refused": func(t *testing.T, p *panel) {
		template := p.template("nobody", 1, "1h")
		template.Spec.AccessConfig.Approval.Groups, template.Spec.AccessConfig.Approval.Users = nil, nil
		refused(t, admin.Create(t.Context(), template), "groups or users must name somebody who may approve")
		template = p.template("too-few", 3, "1h")
		template.Spec.AccessConfig.Approval.Groups = nil
		refused(t, admin.Create(t.Context(), template), "required: as many people could never approve")
	},
	"a template that lets others in without approval is refused": func(t *testing.T, p *panel) {
		template := p.template("all", 1, "1h")
		template.Spec.AccessConfig.AskFor, template.Spec.AccessConfig.Subjects = nil, v1alpha1.SubjectsGroups
		refused(t, admin.Create(t.Context(), template), "approval.skipGroups needs subjects Requester")
	},
	"a template whose approvers could let themselves in is refused": func(t *testing.T, p *panel) {
		template := p.template("groups", 1, "1h")
		template.Spec.AccessConfig.AskFor, template.Spec.AccessConfig.Subjects, template.Spec.AccessConfig.Approval.SkipGroups = nil, v1alpha1.SubjectsGroups, nil
		refused(t, admin.Create(t.Context(), template), "approval.required needs subjects Requester")
	},
	"a timeout beyond a week is refused": func(t *testing.T, p *panel) {
		refused(t, admin.Create(t.Context(), p.template("long", 1, "169h")), "must be a duration from 1s to 168h")
	},
}

func TestApprovalsCountAsTheTemplateSays(t *testing.T) {
	t.Parallel()
	p := newPanel(t)
	var wrong atomic.Int32
	t.Run("cases", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(approvals)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				defer func() {
					if t.Failed() {
						wrong.Add(1)
					}
				}()
				approvals[name](t, p)
			})
		}
	})
	testkit.Figure("approval.cases", float64(len(approvals)), "cases")
	testkit.Figure("approval.wrong", float64(wrong.Load()), "cases")
}

func TestADecisionThatDoesNotCountIsDenied(t *testing.T) {
	t.Parallel()
	p := &panel{namespace: inShop}
	w := webhooks(t, p.template("one", 1, "1h"), execTemplate(inShop, "open", ref("Deployment", "web"), "devs"))
	asked, own := stored(t, w, "alice", execRequest(inShop, "asked", "one")), stored(t, w, "sid", execRequest(inShop, "own", "one"))
	open, decided := stored(t, w, "alice", execRequest(inShop, "at-once", "open")), stored(t, w, "alice", execRequest(inShop, "decided", "one"))
	first := decision(decided, v1alpha1.DecisionApprove, "")
	first.Name, first.Spec.Decider = "first", &v1alpha1.Requester{Username: "sam", Groups: []string{"sre"}}
	w.With(first)
	const twice = `user "sam" has decided about ExecAccessRequest "decided" before, by AccessDecision first: each person decides once`
	type spec = v1alpha1.AccessDecisionSpec
	for sentence, test := range map[string]struct {
		user   string
		about  *v1alpha1.ExecAccessRequest
		change func(*spec)
		parts  []string
	}{
		"approval by who asks":              {"sid", own, func(*spec) {}, []string{`user "sid" made the request, and nobody decides about their own`}},
		"approval by who asks, spelt so":    {"Sid", own, func(*spec) {}, []string{"nobody decides about their own"}},
		"denial by who asks":                {"sid", own, func(s *spec) { s.Decision, s.Reason = v1alpha1.DecisionDeny, "no" }, []string{"set its spec.revoked"}},
		"by a user in no group":             {"dan", asked, func(*spec) {}, []string{`user "dan" is not one of those who may approve (groups: sre`}},
		"by who has decided":                {"sam", decided, func(*spec) {}, []string{twice}},
		"by who has decided, spelt so":      {"Sam", decided, func(*spec) {}, []string{twice}},
		"in the name of another":            {"dan", asked, func(s *spec) { s.Decider = &v1alpha1.Requester{Username: "sam", Groups: []string{"sre"}} }, []string{`spec.decider does not name the user who decides, "dan"`}},
		"with groups of another":            {"dan", asked, func(s *spec) { s.Decider = &v1alpha1.Requester{Username: "dan", Groups: []string{"sre"}} }, []string{"is not one of those who may approve"}},
		"by a ServiceAccount, by its group": {"system:serviceaccount:shop:other", asked, func(*spec) {}, []string{"is a ServiceAccount, and those decide only where the template's approval.users names them"}},
		"about another UID":                 {"sam", asked, func(s *spec) { s.Request.UID = "another" }, []string{"spec.request.uid", string(asked.UID)}},
		"about what does not exist":         {"sam", asked, func(s *spec) { s.Request.Name = "missing" }, []string{"does not exist"}},
		"about what cannot exist":           {"sam", asked, func(s *spec) { s.Request.Name = "a/b" }, []string{"spec.request.name"}},
		"about what needs none":             {"sam", open, func(*spec) {}, []string{"needs no approval"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := decision(test.about, v1alpha1.DecisionApprove, "")
			test.change(&d.Spec)
			denied(t, by(w, test.user).Create(d), test.parts...)
		})
	}
	t.Run("by a ServiceAccount that is named counts", func(t *testing.T) {
		if result := by(w, "system:serviceaccount:shop:trusted").DryRun().Create(decision(asked, v1alpha1.DecisionApprove, "")); !result.Allowed {
			t.Error(result.Reason)
		}
	})
}

func TestARequestThatNeedsApprovalIsNotMadeNorExtendedAroundIt(t *testing.T) {
	t.Parallel()
	p := &panel{namespace: inShop}
	accounts, few, since := p.template("accounts", 1, "1h"), p.template("few", 1, "1h"), p.template("since", 1, "1h")
	accounts.Spec.AccessConfig.AllowedGroups = []string{"system:serviceaccounts:shop"}
	few.Spec.AccessConfig.MaxConcurrent = 1
	since.Spec.AccessConfig.Approval = nil
	w := webhooks(t, accounts, few, since, p.template("two", 2, "1h"))
	extended := func(c *admit.Client, req *v1alpha1.ExecAccessRequest) *admit.Result {
		longer := req.DeepCopy()
		longer.Spec.Duration = "1h"
		return c.Update(req, longer)
	}
	const needed = "needs approval for what you ask"
	t.Run("a ServiceAccount asks only by name", func(t *testing.T) {
		denied(t, by(w, "system:serviceaccount:shop:other").Create(execRequest(inShop, "by-account", "accounts")), "whoever may use it could approve their own request")
	})
	t.Run("what waits counts as open", func(t *testing.T) {
		stored(t, w, "alice", execRequest(inShop, "few", "few"))
		denied(t, by(w, "alice").Create(execRequest(inShop, "few-more", "few")), "allows a user 1 open requests")
	})
	t.Run("what was granted before approval was needed is not extended without", func(t *testing.T) {
		req := execRequest(inShop, "before", "since")
		req.Spec.Duration = "5m"
		req = stored(t, w, "alice", req)
		if result := extended(by(w, "alice"), req); !result.Allowed {
			t.Errorf("before: %s", result.Reason)
		}
		w.With(p.template("since", 1, "1h"))
		denied(t, extended(by(w, "alice"), req), needed)
	})
	t.Run("who left the group for emergencies extends nothing", func(t *testing.T) {
		req := execRequest(inShop, "emergency", "two")
		req.Spec.Duration = "5m"
		req = stored(t, w, "olga", req)
		denied(t, extended(w.As("olga", "devs", "engineers"), req), needed)
	})
}

// What was chosen for a request is in its status before it is granted, and a quota comes
// between.
func TestWhatAQuotaHeldUpNeedsTheApprovalThatItsTemplateHasGained(t *testing.T) {
	t.Parallel()
	p := newPanel(t)
	quota := noMoreBindings(t, p.namespace)
	var held []request
	for name, forgets := range map[string]bool{"recorded": false, "whose-record-is-lost": true} {
		template := p.template(name, 1, "1h")
		template.Spec.AccessConfig.Approval = nil
		testkit.Create(t, admin, template)
		req := p.ask(t, alice, name)
		await(t, req, "is held up", func() bool {
			return fails(req, v1alpha1.ConditionAccessResourcesCreated, "NotAllowed") && req.Status.PodUID != ""
		})
		changed := template.DeepCopy()
		changed.Spec.AccessConfig.Approval = p.approval(1, "1h")
		if err := admin.Patch(t.Context(), changed, client.MergeFrom(template)); err != nil {
			t.Fatal(err)
		}
		if forgets {
			if err := client.IgnoreNotFound(admin.Delete(t.Context(), &rbacv1.Role{ObjectMeta: resourceOf(req)})); err != nil {
				t.Fatal(err)
			}
		}
		await(t, req, "waits for approval", func() bool { return fails(req, v1alpha1.ConditionApproved, v1alpha1.ReasonWaiting) })
		held = append(held, req)
	}
	if err := admin.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	for _, req := range held {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(bindingOf(req)), &rbacv1.RoleBinding{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: access is granted without approval: %v", req.GetRequestSpec().TemplateName, err)
		}
		isGranted(t, req, approved(t, req, p.sam))
	}
}

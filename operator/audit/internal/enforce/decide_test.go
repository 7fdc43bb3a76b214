package enforce

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// A real API server cannot be made to fail at one call and not at another.
func TestWhatCannotBeDecidedIsRefusedButToWhoIsExempt(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	broken := errors.New("the API server is away")
	kindOf := func(obj runtime.Object, want runtime.Object) bool {
		switch want.(type) {
		case *v1alpha1.ExecAccessRequest:
			_, ok := obj.(*v1alpha1.ExecAccessRequest)
			return ok
		case *corev1.Pod, *corev1.Namespace:
			_, ok := obj.(*metav1.PartialObjectMetadata)
			return ok
		}
		return false
	}
	failGet := func(what runtime.Object) interceptor.Funcs {
		return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if kindOf(obj, what) {
				return broken
			}
			return c.Get(ctx, key, obj, opts...)
		}}
	}
	for name, test := range map[string]struct {
		fault   interceptor.Funcs
		kubelet bool
		rule    Rule
	}{
		"nothing fails": {},
		"the grants cannot be listed": {fault: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return broken
		}}, rule: RuleUndecided},
		"the Pod cannot be read":     {fault: failGet(&corev1.Pod{}), rule: RuleUndecided},
		"the request cannot be read": {fault: failGet(&v1alpha1.ExecAccessRequest{}), rule: RuleUndecided},
		"the claim cannot be written": {fault: interceptor.Funcs{SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return broken
		}}, rule: RuleUndecided},
		"the Namespace cannot be read": {fault: failGet(&corev1.Namespace{}), kubelet: true, rule: RuleUndecided},
	} {
		scheme := runtime.NewScheme()
		if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
			t.Fatal(err)
		}
		req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "shop", UID: "1", CreationTimestamp: metav1.Time{Time: now}}}
		req.Spec.Duration, req.Spec.SingleUse, req.Spec.Requester = "1h", true, &v1alpha1.Requester{Username: "alice"}
		objects := []client.Object{
			req,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "2"}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{Label: "true"}}},
			&rbacv1.Role{
				ObjectMeta: metav1.ObjectMeta{
					Name: "execaccess-r", Namespace: "shop", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: "2"},
					Annotations: map[string]string{v1alpha1.AnnotationRequestUID: "1", v1alpha1.AnnotationPodUID: "2", v1alpha1.AnnotationSubjects: `[{"kind":"User","name":"alice"}]`},
				},
				Rules: []rbacv1.PolicyRule{{Resources: []string{"pods/exec"}, ResourceNames: []string{"web"}}},
			},
		}
		for _, exempt := range []bool{false, true} {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(req).WithInterceptorFuncs(test.fault).Build()
			var options Options
			if exempt {
				options.ExemptUsers = []string{"alice"}
			}
			e := New(options, c, clocktesting.NewFakePassiveClock(now))
			a := &act.Act{Request: &extension.Request{}, Record: v1alpha1.AuditRecord{
				ID: "uid", Way: v1alpha1.WayExec, Namespace: "shop", Pod: "web", User: v1alpha1.AuditUser{Username: "alice"},
			}}
			if test.kubelet {
				a.Record.Way, a.Object = v1alpha1.WayNodeProxy, &corev1.NodeProxyOptions{Path: "/exec/shop/web/main"}
			}
			said := e.Decide(t.Context(), a)
			wantDenied := test.rule != "" && !exempt
			if said.Denied != wantDenied || said.Rule != string(test.rule) || said.BreakGlass != (test.rule != "" && exempt) {
				t.Errorf("%s, exempt %t: %+v", name, exempt, said)
			}
		}
	}
}

// Two replicas have read the same request: one of the two writes counts, and a
// write of another kind in between spoils neither.
func TestOfTwoClaimsOneWins(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "shop", UID: "1"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).Build()
	g := &grants{client: c, clock: clocktesting.NewFakePassiveClock(now)}
	read := func() *v1alpha1.ExecAccessRequest {
		req := &v1alpha1.ExecAccessRequest{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(stored), req); err != nil {
			t.Fatal(err)
		}
		return req
	}
	first, second := read(), read()
	between := read()
	between.Status.PodName = "web"
	if err := c.Status().Update(t.Context(), between); err != nil {
		t.Fatal(err)
	}
	a := func(id string) *act.Act {
		return &act.Act{Record: v1alpha1.AuditRecord{ID: id, Way: v1alpha1.WayExec, User: v1alpha1.AuditUser{Username: "alice"}}}
	}
	if err := g.claim(t.Context(), first, a("1")); err != nil {
		t.Errorf("the first claim: %v", err)
	}
	if err := g.claim(t.Context(), second, a("2")); !errors.Is(err, errUsed) {
		t.Errorf("the second claim: %v", err)
	}
	if used := read().Status.UsedBy; used == nil || used.UID != "1" || read().Status.PodName != "web" {
		t.Errorf("the request says that it was used by %+v", used)
	}
}

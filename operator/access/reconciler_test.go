package access

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// broken is an API server that answers no read.
type broken struct{ client.Reader }

func (broken) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

// The garbage collector may delete the Role of a request that is gone after an attempt has read, and before it ends: the
// next one tells by that Role that access has ended.
func TestARoleThatGoesDuringAnAttemptIsKeptForTheNext(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	empty := fake.NewClientBuilder().WithScheme(scheme).Build()
	r := newRequests(&shared{Connection: &kube.Connection{Cached: empty, Live: empty, Writer: empty}}, grant.ExecAccess)
	key := factstest.About(grant.ExecAccess).Key
	f, err := r.facts.Read(t.Context(), key, nil, factstest.Created)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{}
	r.facts.LastRoles.Store(key, role)
	if _, err := r.apply(t.Context(), f, decision.Of(f, factstest.Created)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []*rbacv1.Role{role, nil} {
		if f, err = r.facts.Read(t.Context(), key, nil, factstest.Created); err != nil || f.LastRole != want {
			t.Errorf("the Role is %v, want %v: %v", f.LastRole, want, err)
		}
		if _, err := r.apply(t.Context(), f, decision.Of(f, factstest.Created)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheEndOfAccessWaitsForNoReadFromTheAPIServer(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	late := factstest.Created.Add(time.Hour)
	for _, k := range []grant.Kind{grant.PodAccess, grant.ExecAccess} {
		f := factstest.About(k)
		empty := fake.NewClientBuilder().WithScheme(scheme).Build()
		r := newRequests(&shared{Connection: &kube.Connection{Cached: empty, Live: broken{}}}, k)
		got, err := r.facts.Read(t.Context(), f.Key, f.Request, late)
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if d := decision.Of(got, late); !d.Unbind {
			t.Errorf("%s: the RoleBinding stays: %+v", k.Name, d)
		}
		r.facts.Unbound.Store(f.Key, true)
		if _, err := r.facts.Read(t.Context(), f.Key, f.Request, late); k.MakesPod && err == nil {
			t.Error("the clean-up believes the cache about the access Pod")
		}
	}
}

func TestAFailureAfterTheRetentionIsRetriedEverMoreSlowly(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	f := factstest.About(grant.PodAccess)
	f.Request.GetRequestSpec().Duration = "1h"
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.Request).Build()
	clock := clocktesting.NewFakePassiveClock(factstest.Created.Add(48 * time.Hour))
	r := newRequests(&shared{Connection: &kube.Connection{Settings: kube.Settings{Clock: clock}, Log: zap.NewNop(), Cached: cached, Live: broken{}}, keep: facts.Retention{Keep: time.Hour}}, grant.PodAccess)
	r.facts.Unbound.Store(f.Key, true)
	var last time.Duration
	for range 5 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: f.Key})
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter <= last {
			t.Errorf("it is tried again after %s, and before that after %s", result.RequeueAfter, last)
		}
		last = result.RequeueAfter
	}
}

// A grant begins and ends at the moment for which decide has planned it.
func TestARequestComesBackAtTheVeryMomentOfItsSchedule(t *testing.T) {
	end := factstest.Created.Add(time.Hour)
	for ago, want := range map[time.Duration]time.Duration{
		time.Hour: time.Hour, 1500 * time.Millisecond: 1500 * time.Millisecond, 1: 1,
		0: 1, -time.Minute: 1, // at once: 0 would be never
	} {
		r := newRequests(&shared{Connection: &kube.Connection{Settings: kube.Settings{Clock: clocktesting.NewFakePassiveClock(end.Add(-ago))}}}, grant.ExecAccess)
		if result := r.result(decision.Schedule{At: end, Priority: controller.PriorityEnd}); result.RequeueAfter != want || *result.Priority != controller.PriorityEnd {
			t.Errorf("%s before the end it comes back after %+v", ago, result)
		}
	}
	if result := newRequests(&shared{Connection: &kube.Connection{}}, grant.ExecAccess).result(decision.Schedule{}); result.RequeueAfter != 0 || result.Priority != nil {
		t.Errorf("without a schedule it comes back after %+v", result)
	}
}

// hung is an API server that answers no read, not even when the context ends.
type hung struct {
	client.Reader
	release chan struct{}
}

func (h hung) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	<-h.release
	return errors.New("released")
}

func TestAStepThatHangsHoldsNeitherItsWorkerNorTheManager(t *testing.T) {
	synctest.Test(t, aStepHangs)
}

func aStepHangs(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	live := hung{release: make(chan struct{})}
	defer close(live.release)
	f := factstest.About(grant.ExecAccess)
	f.Request.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	f.Request.GetRequestSpec().Duration = "3s"
	f.Template.(*v1alpha1.ExecAccessTemplate).Namespace = "shop"
	f.Template.(*v1alpha1.ExecAccessTemplate).Spec.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "web-0"}
	f.Template.(*v1alpha1.ExecAccessTemplate).Spec.AccessConfig.SingleUse = false
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "execaccess-a"}}
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.Request, f.Template).WithStatusSubresource(f.Request).Build()
	writer := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.Request.DeepCopyObject().(client.Object), binding).WithStatusSubresource(f.Request).Build()
	a := &shared{Connection: &kube.Connection{Settings: kube.Settings{Clock: clock.RealClock{}}, Log: zap.NewNop(), Cached: cached, Live: live, Writer: writer}, keep: facts.Retention{Keep: time.Hour}}
	r := newRequests(a, grant.ExecAccess)
	item := reconcile.Request{NamespacedName: f.Key}

	result, err := r.Reconcile(t.Context(), item)
	if end := f.Request.GetCreationTimestamp().Add(3 * time.Second); err != nil || time.Since(end) != leaveAfter {
		t.Errorf("the worker was free %s after the end: %v", time.Since(end), err)
	}
	if result.RequeueAfter > 20*time.Millisecond || result.Priority == nil || *result.Priority != controller.PriorityEnd {
		t.Errorf("the end comes after %+v", result)
	}
	if _, err := r.Reconcile(t.Context(), item); err != nil || !apierrors.IsNotFound(writer.Get(t.Context(), client.ObjectKeyFromObject(binding), binding)) {
		t.Errorf("access does not end while an earlier attempt hangs: %v", err)
	}

	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, reconcile := range map[string]func() error{
		"a request": func() error { _, err := r.reconcile(stopped, f.Key); return err },
		"a template": func() error {
			// One of its own, because the step that was left behind still reads the other.
			templates := newTemplates(&shared{Connection: &kube.Connection{Settings: a.Settings, Log: a.Log, Cached: live, Live: live, Writer: writer}, keep: a.keep}, grant.ExecAccess)
			templates.targets = &workload.Watches{}
			_, err := templates.Reconcile(stopped, item)
			return err
		},
	} {
		began := time.Now()
		if err := reconcile(); err == nil || time.Since(began) > leaveAfter {
			t.Errorf("the manager stops %s after %s: %v", name, time.Since(began), err)
		}
	}
}

func TestAStepThatPanicsFailsAlone(t *testing.T) {
	_, err := within(t.Context(), time.Minute, func(context.Context) (int, error) { panic("no such field") })
	if err == nil || !strings.Contains(err.Error(), "panic: no such field") || !strings.Contains(err.Error(), "reconciler_test.go") {
		t.Errorf("got %v", err)
	}
}

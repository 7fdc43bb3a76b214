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

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// broken is an API server that answers no read.
type broken struct{ client.Reader }

func (broken) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

func TestTheEndOfAccessWaitsForNoReadFromTheAPIServer(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	late := created.Add(time.Hour)
	for _, k := range []kind{podAccess, execAccess} {
		f := about(k)
		empty := fake.NewClientBuilder().WithScheme(scheme).Build()
		r := newRequests(&shared{cached: empty, live: broken{}}, k)
		got, err := r.read(t.Context(), f.key, f.request, late)
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		if d := decide(got, late); !d.unbind {
			t.Errorf("%s: the RoleBinding stays: %q", k.name, d.does())
		}
		r.unbound.Store(f.key, true)
		if _, err := r.read(t.Context(), f.key, f.request, late); k.makesPod && err == nil {
			t.Error("the clean-up believes the cache about the access Pod")
		}
	}
}

func TestAFailureAfterTheRetentionIsRetriedEverMoreSlowly(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	f := about(podAccess)
	f.request.GetRequestSpec().Duration = "1h"
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.request).Build()
	clock := clocktesting.NewFakePassiveClock(created.Add(48 * time.Hour))
	r := newRequests(&shared{options: Options{Clock: clock, Retention: time.Hour}, log: zap.NewNop(), cached: cached, live: broken{}}, podAccess)
	r.unbound.Store(f.key, true)
	var last time.Duration
	for range 5 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: f.key})
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
	end := created.Add(time.Hour)
	for ago, want := range map[time.Duration]time.Duration{
		time.Hour: time.Hour, 1500 * time.Millisecond: 1500 * time.Millisecond, 1: 1,
		0: 1, -time.Minute: 1, // at once: 0 would be never
	} {
		r := newRequests(&shared{options: Options{Clock: clocktesting.NewFakePassiveClock(end.Add(-ago))}}, execAccess)
		if result := r.result(schedule{end, controller.PriorityEnd}); result.RequeueAfter != want || *result.Priority != controller.PriorityEnd {
			t.Errorf("%s before the end it comes back after %+v", ago, result)
		}
	}
	if result := newRequests(&shared{}, execAccess).result(schedule{}); result.RequeueAfter != 0 || result.Priority != nil {
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
	f := about(execAccess)
	f.request.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	f.request.GetRequestSpec().Duration = "3s"
	f.template.(*v1alpha1.ExecAccessTemplate).Namespace = "shop"
	f.template.(*v1alpha1.ExecAccessTemplate).Spec.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "web-0"}
	f.template.(*v1alpha1.ExecAccessTemplate).Spec.AccessConfig.SingleUse = false
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "execaccess-a"}}
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.request, f.template).WithStatusSubresource(f.request).Build()
	writer := fake.NewClientBuilder().WithScheme(scheme).WithObjects(f.request.DeepCopyObject().(client.Object), binding).WithStatusSubresource(f.request).Build()
	a := &shared{options: Options{Clock: clock.RealClock{}, Retention: time.Hour}, log: zap.NewNop(), cached: cached, live: live, writer: writer}
	r := newRequests(a, execAccess)
	item := reconcile.Request{NamespacedName: f.key}

	result, err := r.Reconcile(t.Context(), item)
	if end := f.request.GetCreationTimestamp().Add(3 * time.Second); err != nil || time.Since(end) != leaveAfter {
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
		"a request": func() error { _, err := r.reconcile(stopped, f.key); return err },
		"a template": func() error {
			// One of its own, because the step that was left behind still reads the other.
			templates := newTemplates(&shared{options: a.options, log: a.log, cached: live, live: live, writer: writer}, execAccess)
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
	if err == nil || !strings.Contains(err.Error(), "panic: no such field") || !strings.Contains(err.Error(), "facts_test.go") {
		t.Errorf("got %v", err)
	}
}

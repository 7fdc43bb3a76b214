package access

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// broken is an API server that answers no read.
type broken struct{ client.Reader }

func (broken) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

func TestTheEndOfAccessWaitsForNoReadFromTheAPIServer(t *testing.T) {
	scheme, err := newScheme()
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
	scheme, err := newScheme()
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

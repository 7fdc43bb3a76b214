package access

import (
	"context"
	"errors"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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

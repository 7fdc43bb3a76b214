package access

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Admission takes its time, so that a request that was made earlier may come later.
func TestOfRequestsThatComeInAnyOrderNotOneIsPromisedTooMuch(t *testing.T) {
	for sentence, test := range map[string]struct{ first, second *facts }{
		"the later second": {made("a", created), made("b", created.Add(time.Second))},
		"the same second":  {made("b", created), made("a", created)},
		"the earlier one":  {made("b", created.Add(time.Second)), made("a", created)},
	} {
		t.Run(sentence, func(t *testing.T) {
			r, cache := promising(t)
			for _, f := range []*facts{test.first, test.second} {
				if err := cache.Create(t.Context(), f.request); err != nil {
					t.Fatal(err)
				}
				if err := r.promise(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			if len(test.first.othersOpen) != 0 || len(test.second.othersOpen) != 1 {
				t.Errorf("the first finds %d others, the second %d", len(test.first.othersOpen), len(test.second.othersOpen))
			}
			r.promises.forget(test.first.key)
			if len(r.promises.made) != 0 {
				t.Errorf("promises are left: %v", r.promises.made)
			}
		})
	}
}

// With a limit of one, each would wait for the other for ever.
func TestOfRequestsInTheSameSecondOneIsPromised(t *testing.T) {
	r, cache := promising(t)
	requests := []*facts{made("a", created), made("b", created), made("c", created)}
	for _, f := range requests {
		if err := cache.Create(t.Context(), f.request); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range requests {
		if err := r.promise(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.promises.made) != 1 {
		t.Errorf("%d of %d are promised access: %v", len(r.promises.made), len(requests), r.promises.made)
	}
}

// made returns the facts about a request by a template that allows one.
func made(name string, at time.Time) *facts {
	return about(execAccess, func(f *facts) {
		f.key.Name = name
		f.request.SetName(name)
		f.request.SetUID(types.UID(name))
		f.request.SetCreationTimestamp(metav1.NewTime(at))
		f.template.GetAccessConfig().MaxConcurrent = 1
	})
}

// promising returns what promises access, and its cache.
func promising(t *testing.T) (*requests, client.Client) {
	t.Helper()
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cache := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.ExecAccessRequest{}, indexAsker, askers).Build()
	return newRequests(&shared{options: Options{Clock: clocktesting.NewFakePassiveClock(created)}, cached: cache}, execAccess), cache
}

package facts_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Admission takes its time, so that a request that was made earlier may come later.
func TestOfRequestsThatComeInAnyOrderNotOneIsPromisedTooMuch(t *testing.T) {
	for sentence, test := range map[string]struct{ first, second *facts.Facts }{
		"the later second": {made("a", factstest.Created), made("b", factstest.Created.Add(time.Second))},
		"the same second":  {made("b", factstest.Created), made("a", factstest.Created)},
		"the earlier one":  {made("b", factstest.Created.Add(time.Second)), made("a", factstest.Created)},
	} {
		t.Run(sentence, func(t *testing.T) {
			r, cache := promising(t)
			for _, f := range []*facts.Facts{test.first, test.second} {
				if err := cache.Create(t.Context(), f.Request); err != nil {
					t.Fatal(err)
				}
				if err := r.Promise(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			if len(test.first.OthersOpen) != 0 || len(test.second.OthersOpen) != 1 {
				t.Errorf("the first finds %d others, the second %d", len(test.first.OthersOpen), len(test.second.OthersOpen))
			}
			r.Forget(test.first.Key)
			if len(r.Promised()) != 0 {
				t.Errorf("promises are left: %v", r.Promised())
			}
		})
	}
}

// With a limit of one, each would wait for the other for ever.
func TestOfRequestsInTheSameSecondOneIsPromised(t *testing.T) {
	r, cache := promising(t)
	requests := []*facts.Facts{made("a", factstest.Created), made("b", factstest.Created), made("c", factstest.Created)}
	for _, f := range requests {
		if err := cache.Create(t.Context(), f.Request); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range requests {
		if err := r.Promise(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.Promised()) != 1 {
		t.Errorf("%d of %d are promised access: %v", len(r.Promised()), len(requests), r.Promised())
	}
}

// made returns the facts about a request by a template that allows one.
func made(name string, at time.Time) *facts.Facts {
	return factstest.About(grant.ExecAccess, func(f *facts.Facts) {
		f.Key.Name = name
		f.Request.SetName(name)
		f.Request.SetUID(types.UID(name))
		f.Request.SetCreationTimestamp(metav1.NewTime(at))
		f.Template.GetAccessConfig().MaxConcurrent = 1
	})
}

// promising returns what promises access, and its cache.
func promising(t *testing.T) (*facts.Reader, client.Client) {
	t.Helper()
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	if err := kube.Index(t.Context(), indexer{builder}); err != nil {
		t.Fatal(err)
	}
	cache := builder.Build()
	return facts.NewReader(&kube.Connection{Settings: kube.Settings{Clock: clocktesting.NewFakePassiveClock(factstest.Created)}, Cached: cache}, grant.ExecAccess, nil, facts.Retention{}), cache
}

// indexer gives a fake client the indexes of the cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(object, field, extract)
	return nil
}

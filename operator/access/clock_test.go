package access_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
)

// dated makes the API server's clock look ahead to a manager, whose own is then behind.
type dated struct {
	next  http.RoundTripper
	ahead time.Duration
}

func (d dated) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return nil, err
	}
	response.Header.Set("Date", date.Add(d.ahead).Format(http.TimeFormat))
	return response, nil
}

// To a manager whose clock is 50 minutes behind, a request is 50 minutes old when it is
// made. To one whose clock is as much ahead, a request for a
// second is to end in 50 minutes.
func TestAccessEndsByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	off := func(ahead time.Duration) func(*manager.Options) {
		return func(o *manager.Options) {
			o.RESTConfig = rest.CopyConfig(o.RESTConfig)
			o.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, ahead} })
		}
	}
	t.Run("a clock that is behind prolongs nothing", func(t *testing.T) {
		t.Parallel()
		namespace := testkit.ManagerNamespace(t, admin)
		deployment(t, namespace, "web", 1)
		startOn(t, namespace, freeport.For(t), access.Options{}, off(50*time.Minute))
		testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
		req := execRequest(namespace, "a", "web")
		req.Spec.Duration = "2h"
		granted(t, alice, req)
		// That clock has whole seconds.
		end := endsIn(t, alice, req, 50*time.Minute+3*time.Second).Add(-50*time.Minute - time.Second)
		notBefore(t, end, "alice has no access any more", func() bool { return !canExec(t, alice, namespace, req.Status.PodName) })
	})
	t.Run("a clock that is ahead shortens nothing", func(t *testing.T) {
		t.Parallel()
		namespace := testkit.ManagerNamespace(t, admin)
		deployment(t, namespace, "web", 1)
		startOn(t, namespace, freeport.For(t), access.Options{}, off(-50*time.Minute))
		testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
		first, second := execRequest(namespace, "a", "web"), execRequest(namespace, "b", "web")
		first.Spec.Duration = "1s"
		testkit.Create(t, as(t, alice), first)
		testkit.Eventually(t, "a second has passed", func(context.Context) bool { return time.Since(first.CreationTimestamp.Time) > 2*time.Second })
		await(t, first, "is granted", func() bool { return first.Status.Ready })
		granted(t, alice, second)                              // the manager has worked on all that was due
		soonCanExec(t, alice, namespace, first.Status.PodName) // for the API server its time has not come
	})
}

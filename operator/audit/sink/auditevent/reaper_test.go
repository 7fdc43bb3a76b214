package auditevent

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
)

// event returns an AuditEvent that was made at a time.
func event(name string, at time.Time) *v1alpha1.AuditEvent {
	e := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1", CreationTimestamp: metav1.NewTime(at)}}
	e.Spec.AuditRecord = *audittest.Record(name, at)
	return e
}

// newReaper returns one whose cache and API server have these AuditEvents.
func newReaper(t *testing.T, options Options, cached []client.Object, stored []client.Object) (*reaper, client.Client, *observer.ObservedLogs) {
	t.Helper()
	e, ok := New(options).(*events)
	if !ok {
		t.Fatal("the sink is of another type")
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored...).Build()
	e.client = server
	core, logs := observer.New(zap.InfoLevel)
	return &reaper{
		events: e, cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cached...).Build(), log: zap.New(core),
		pace: rate.NewLimiter(deletionsPerSecond, deletionsPerSecond),
	}, server, logs
}

func (r *reaper) reconcile(t *testing.T, name string) reconcile.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestAnAuditEventIsDeletedWhenItsTimeIsOverAndTheClocksAgree(t *testing.T) {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	counts := event("e", at)
	later := metav1.NewMicroTime(at.Add(time.Minute))
	counts.Status.LastTime = &later
	timeless := event("e", at)
	timeless.Spec.Time = metav1.MicroTime{}
	for sentence, test := range map[string]struct {
		cached, stored *v1alpha1.AuditEvent
		now            time.Duration
		ahead          *time.Duration
		deleted        bool
		again          time.Duration
		log            string
	}{
		"at the end of its retention":       {now: time.Hour, ahead: new(time.Duration), deleted: true},
		"a moment before":                   {now: time.Hour - time.Millisecond, ahead: new(time.Duration), again: time.Millisecond},
		"while the API server is behind":    {now: time.Hour, ahead: new(-maxSkew - time.Second), again: maxSkew, log: "no AuditEvent is deleted while the clocks differ"},
		"while the API server is ahead":     {now: time.Hour, ahead: new(maxSkew + time.Second), again: maxSkew, log: "no AuditEvent is deleted while the clocks differ"},
		"before the API server has said":    {now: time.Hour, again: maxSkew, log: "no AuditEvent is deleted while the clocks differ"},
		"one that has counted since":        {now: time.Hour, ahead: new(time.Duration), stored: counts},
		"one whose time somebody has taken": {now: time.Hour, ahead: new(time.Duration), cached: timeless, log: "an AuditEvent has no time"},
	} {
		t.Run(sentence, func(t *testing.T) {
			cached, stored := event("e", at), event("e", at)
			if test.cached != nil {
				cached = test.cached
			}
			if test.stored != nil {
				stored = test.stored
			}
			clock := clocktesting.NewFakePassiveClock(at.Add(test.now))
			r, server, logs := newReaper(t, Options{Retention: time.Hour, Clock: clock}, []client.Object{cached}, []client.Object{stored})
			r.events.server.ahead.Store(test.ahead)
			if result := r.reconcile(t, "e"); result.RequeueAfter != test.again {
				t.Errorf("it is looked at again after %s, want %s", result.RequeueAfter, test.again)
			}
			if err := server.Get(t.Context(), client.ObjectKey{Name: "e"}, &v1alpha1.AuditEvent{}); (err != nil) != test.deleted {
				t.Errorf("deleted, want %t: %v", test.deleted, err)
			}
			if told := logs.FilterMessageSnippet(test.log).Len(); test.log != "" && told != 1 || test.log == "" && logs.Len() != 0 {
				t.Errorf("it is logged: %v", logs.All())
			}
		})
	}
}

func TestManyAuditEventsAreDeletedAtABoundedRate(t *testing.T) {
	const n = 3 * deletionsPerSecond
	synctest.Test(t, func(t *testing.T) {
		var all []client.Object
		for i := range n {
			all = append(all, event(fmt.Sprint("old-", i), time.Now().Add(-time.Hour)))
		}
		r, _, _ := newReaper(t, Options{Retention: time.Millisecond}, all, all)
		r.events.server.ahead.Store(new(time.Duration))
		began := time.Now()
		for _, each := range all {
			r.reconcile(t, each.GetName())
		}
		// The first deletionsPerSecond may go at once.
		if took, want := time.Since(began), time.Second*(n-deletionsPerSecond)/deletionsPerSecond; took.Round(time.Millisecond) != want {
			t.Errorf("%d are gone within %s, want %s", n, took, want)
		}
	})
}

func TestTheAPIServersTimeIsThatOfItsAnswers(t *testing.T) {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	s := &serverClock{clock: clocktesting.NewFakePassiveClock(at)}
	says := ""
	transport := s.listen(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{Header: http.Header{"Date": {says}}, Body: http.NoBody}, nil
	}))
	for _, test := range []struct {
		says  string
		ahead time.Duration
		agree bool
	}{
		{"", 0, false},
		{at.Add(maxSkew).Format(http.TimeFormat), maxSkew, true},
		{at.Add(-maxSkew - time.Second).Format(http.TimeFormat), -maxSkew - time.Second, false},
		{"nonsense", -maxSkew - time.Second, false},
		{at.Format(http.TimeFormat), 0, true},
	} {
		says = test.says
		answer, err := transport.RoundTrip(&http.Request{})
		if err != nil || answer.Body.Close() != nil {
			t.Fatal(err)
		}
		if ahead, agree := s.agrees(); ahead != test.ahead || agree != test.agree {
			t.Errorf("after %q it is %s ahead, agrees: %t", test.says, ahead, agree)
		}
	}
}

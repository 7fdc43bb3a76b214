package access_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// notified is what a receiver of CloudEvents has got.
type notified struct {
	ID, Source, Type, Subject string
	Time                      time.Time
	Data                      access.Notification
}

type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []notified
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var batch []notified
		if err := json.NewDecoder(req.Body).Decode(&batch); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, batch...)
	}))
	t.Cleanup(r.Close)
	return r
}

// about returns what came about a request, in order.
func (r *receiver) about(req request) (got []notified) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.got {
		if n.Data.UID == string(req.GetUID()) {
			got = append(got, n)
		}
	}
	return got
}

// tells waits for the steps of a request, and wants each once, in this order.
func (r *receiver) tells(t *testing.T, req request, want ...string) []notified {
	t.Helper()
	var steps []string
	testkit.Eventually(t, req.GetName()+" has its last step", func(context.Context) bool {
		steps = nil
		for _, n := range r.about(req) {
			steps = append(steps, n.Data.Step)
		}
		return slices.Contains(steps, want[len(want)-1])
	})
	if !slices.Equal(steps, want) {
		t.Errorf("%s: notified of %q, want %q", req.GetName(), steps, want)
	}
	return r.about(req)
}

func TestEachStepOfARequestIsNotifiedOnce(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	to := newReceiver(t)
	options := access.Options{Notifications: deliver.EventOptions{Options: deliver.Options{URL: to.URL}, Source: "test"}, WarnBefore: 5 * time.Minute}
	port := freeport.For(t)
	r := startOn(t, namespace, port, options, nil)
	decider, err := cluster.AddUser("nina", "sre", "deciders")
	if err != nil {
		t.Fatal(err)
	}
	letDecide(t, namespace, "deciders")
	for name, timeout := range map[string]string{"web": "1h", "quick": "15s"} {
		template := execTemplate(namespace, name, ref("Deployment", "web"), "devs")
		template.Spec.AccessConfig.Approval = &v1alpha1.Approval{Required: 1, Groups: []string{"sre"}, Timeout: timeout}
		testkit.Create(t, admin, template)
	}
	ask := func(name, template, duration string) *v1alpha1.ExecAccessRequest {
		req := execRequest(namespace, name, template)
		req.Spec.Duration, req.Spec.Reason = duration, "incident 7"
		testkit.Create(t, as(t, alice), req)
		return req
	}
	whole, late, denied, revoked, deleted := ask("whole", "web", "40s"), ask("late", "quick", "1h"), ask("denied", "web", "1h"), ask("revoked", "web", "1h"), ask("deleted", "web", "1h")
	for _, req := range []*v1alpha1.ExecAccessRequest{whole, denied, revoked, deleted} {
		await(t, req, "waits", func() bool { return fails(req, v1alpha1.ConditionApproved, v1alpha1.ReasonWaiting) })
	}
	approved(t, whole, decider)
	approved(t, revoked, decider)
	approved(t, deleted, decider)
	if err := as(t, decider).Create(t.Context(), decision(denied, v1alpha1.DecisionDeny, "use the replica")); err != nil {
		t.Fatal(err)
	}
	await(t, revoked, "is ready", func() bool { return revoked.Status.Ready })
	await(t, deleted, "is ready", func() bool { return deleted.Status.Ready })
	if err := patch(t, alice, revoked, `{"spec":{"revoked":{"reason":"done"}}}`); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	// A busy machine has 10 seconds to announce the end. A quiet one need not wait for it.
	to.tells(t, whole, "asked", "waiting", "approved", "granted", "ending")
	await(t, whole, "has announced its end", func() bool { return whole.Status.EndAnnounced != nil })
	expires := whole.Status.EndAnnounced.Time
	_ = patch(t, alice, whole, `{"spec":{"duration":"1s"}}`) // refused if it has ended by now
	story := to.tells(t, whole, "asked", "waiting", "approved", "granted", "ending", "ended")
	to.tells(t, late, "asked", "waiting", "timed-out")
	refusal := to.tells(t, denied, "asked", "waiting", "denied")
	revocation := to.tells(t, revoked, "asked", "waiting", "approved", "granted", "revoked", "ended")
	to.tells(t, deleted, "asked", "waiting", "approved", "granted", "ended")

	await(t, whole, "has ended", func() bool { return fails(whole, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonExpired) })
	for _, n := range story {
		if n.Source != "test" || n.Type != "dev.admitkit.access."+n.Data.Step || n.Subject != "ExecAccessRequest/"+namespace+"/whole" || n.Time.IsZero() ||
			n.Data.Requester != "alice" || n.Data.Template != "web" || n.Data.Reason != "incident 7" || !strings.HasPrefix(n.ID, string(whole.UID)+"-"+n.Data.Step) {
			t.Errorf("notified of %+v", n)
		}
	}
	if w := story[1].Data.Waiting; w == nil || w.Approvals != 0 || w.Required != 1 || !slices.Equal(w.Groups, []string{"sre"}) || story[1].Data.Until == nil {
		t.Errorf("of the wait it says %+v", story[1].Data)
	}
	if a := story[2].Data; a.By != "nina" || a.Waiting.Approvals != 1 {
		t.Errorf("of the approval it says %+v", a)
	}
	for _, n := range story[3:5] {
		if n.Data.Until == nil || !n.Data.Until.Equal(expires) || n.Data.Pod != whole.Status.PodName {
			t.Errorf("of the grant it says %+v", n.Data)
		}
	}
	// A quarter of the 40 seconds before the end.
	if early := expires.Sub(story[4].Time); early <= 0 || early > 11*time.Second {
		t.Errorf("announced %s before the end", early)
	}
	if d := refusal[2].Data; d.By != "nina" || !strings.Contains(d.Message, "use the replica") {
		t.Errorf("of the denial it says %+v", d)
	}
	if d := revocation[4].Data; d.By != "alice" || !strings.Contains(d.Message, "done") {
		t.Errorf("of the revocation it says %+v", d)
	}
	for _, reason := range []string{"AccessRequested", "ApprovalNeeded", "AccessEndsSoon", "AccessEnded"} {
		testkit.Eventually(t, "there is one Event "+reason, func(ctx context.Context) bool {
			var events eventsv1.EventList
			err := admin.List(ctx, &events, client.InNamespace(namespace), client.MatchingFields{"reason": reason})
			mine := slices.DeleteFunc(events.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != whole.UID })
			return err == nil && len(mine) == 1 && mine[0].Series == nil
		})
	}

	// Another manager says nothing again; that it looks at all of them shows by one that is new.
	r.stop()
	before := len(to.about(whole)) + len(to.about(late)) + len(to.about(denied)) + len(to.about(revoked))
	logger, _ := testkit.Logger(t)
	testkit.Start(t, newManager(t, manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", Port: port, Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: logger, RESTConfig: managerUser.Config, RegisterWebHook: new(bool),
	}, options))
	awaitWebhooks(t, namespace)
	to.tells(t, ask("another", "web", "1h"), "asked", "waiting")
	if after := len(to.about(whole)) + len(to.about(late)) + len(to.about(denied)) + len(to.about(revoked)); after != before {
		t.Errorf("after the restart %d were sent again", after-before)
	}
}

// lostNotifications reads the counter.
func lostNotifications(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "admitkit_access_notifications_lost_total" {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no counter")
	return 0
}

func TestAReceiverThatIsDownDelaysNoGrant(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	logger, logs := testkit.Logger(t)
	startOn(t, namespace, freeport.For(t), access.Options{
		Notifications: deliver.EventOptions{Options: deliver.Options{URL: fmt.Sprintf("http://127.0.0.1:%d", freeport.For(t)), MaxQueued: 3}},
	}, func(o *manager.Options) { o.Logger = logger })
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	for i := range 5 {
		granted(t, alice, execRequest(namespace, fmt.Sprint("r", i), "web"))
	}
	// Of asked and granted of each, three wait.
	testkit.Eventually(t, "the others are counted", func(context.Context) bool { return lostNotifications(t) >= 7 })
	said := logs.FilterMessageSnippet("notifications about access requests are lost").FilterLevelExact(zapcore.ErrorLevel).Len()
	if said != 1 {
		t.Errorf("the log says %d times that notifications are lost", said)
	}
}

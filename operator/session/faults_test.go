package session_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
)

// hasEvent waits for an Event about a session.
func (i *installation) hasEvent(name string) (event eventsv1.Event) {
	i.t.Helper()
	testkit.Succeeds(i.t, time.Minute, "there is the Event "+name, func(ctx context.Context) error {
		return i.Admin.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: "session." + name}, &event)
	})
	return event
}

func TestTheManagerStartsWithoutTheStorageOfRecordings(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	i, _ := collecting(t, func(o *session.Options) {
		keeps := collector.Folder(o.Folder)
		o.Folder, o.Location = "", "s3://recordings/"
		o.Storage = func(context.Context) (collector.Storage, error) {
			if !works.Load() {
				return nil, errors.New("the service is not reached")
			}
			return keeps, nil
		}
	})
	web := i.pod("web")
	text, ticket := i.ticketFor("web", "id") // admission works
	token, secret := i.token(web, session.Audience), strings.Repeat("s", 64)
	if status, said, _, _ := connect(t, ticket, text, token, secret); status != http.StatusServiceUnavailable || !strings.Contains(said, "recordings cannot be kept at the moment") || strings.Contains(said, "reached") {
		t.Errorf("%d %s", status, said)
	}
	works.Store(true)
	testkit.Succeeds(t, time.Minute, "the storage is tried again", func(context.Context) error {
		status, said, conn, from := connect(t, ticket, text, token, secret)
		if status != http.StatusSwitchingProtocols {
			return fmt.Errorf("%d %s", status, said)
		}
		send(t, conn, from)
		return nil
	})
}

func TestATicketThatNobodyRedeemsIsOnRecord(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	i, _ := collecting(t, func(o *session.Options) { o.AuditObjects, o.Clock, o.Unrecorded = true, clock, session.Open })
	web := i.pod("web")
	text, begins := i.ticketFor("web", "id")
	_, never := i.ticketFor("web", "id")
	status, said, conn, from := connect(t, begins, text, i.token(web, session.Audience), strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	clock.SetTime(clock.Now().Add(protocol.Life + time.Minute))
	if event := i.hasEvent(never.ID + ".never-began"); event.Reason != "SessionUnrecorded" || event.Regarding.UID != web.UID || !strings.Contains(event.Note, "alice: no recorder came for it") {
		t.Errorf("the Event is %+v", event)
	}
	reader := testkit.Client(t, server.Admin(), scheme)
	reason := func(id string) string {
		var record v1alpha1.AuditEvent
		if err := reader.Get(t.Context(), client.ObjectKey{Name: id}, &record); err != nil {
			t.Fatal(err)
		}
		if record.Status.Session == nil {
			return ""
		}
		return record.Status.Session.Reason
	}
	if got := reason(never.ID); !strings.HasPrefix(got, v1alpha1.ReasonNeverBegan+": ") {
		t.Errorf("the AuditEvent says %q", got)
	}
	if got := reason(begins.ID); got != "" {
		t.Errorf("of a session that runs the AuditEvent says %q", got)
	}
	send(t, conn, from)
}

// A process of the Pod may present the ticket before or after its recorder does.
func TestATicketThatTwoPresentIsOnRecord(t *testing.T) {
	i, folder := collecting(t, func(o *session.Options) { o.AuditObjects, o.NoCollector = true, session.Open })
	web := i.pod("web")
	reader := testkit.Client(t, server.Admin(), scheme)
	for name, sealed := range map[string]bool{"before its recording is sealed": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			text, ticket := i.ticketFor("web", "id")
			token := i.token(web, session.Audience)
			status, said, conn, from := connect(t, ticket, text, token, strings.Repeat("t", 64))
			if status != http.StatusSwitchingProtocols {
				t.Fatalf("%d %s", status, said)
			}
			if sealed {
				send(t, conn, from)
			}
			if status, said, _, _ := connect(t, ticket, text, token, strings.Repeat("r", 64)); status != http.StatusConflict || !strings.Contains(said, "cannot determine") {
				t.Errorf("the second one gets %d %s", status, said)
			}
			if !sealed {
				send(t, conn, from)
			}
			testkit.Succeeds(t, time.Minute, "the AuditEvent says it", func(ctx context.Context) error {
				var exec, contest v1alpha1.AuditEvent
				if err := errors.Join(reader.Get(ctx, client.ObjectKey{Name: ticket.ID}, &exec), reader.Get(ctx, client.ObjectKey{Name: ticket.ID + ".contested"}, &contest)); err != nil {
					return err
				}
				if s := exec.Status.Session; s == nil || !s.Contested || s.SHA256 == "" || contest.Spec.User.Username != "alice" || contest.Spec.Pod != "web" {
					return fmt.Errorf("%+v, and %+v", s, contest.Spec)
				}
				return nil
			})
			if _, err := folder.Verify(ticket.ID, i.key); !errors.Is(err, collector.ErrContested) {
				t.Errorf("the recording: %v", err)
			}
		})
	}
}

func TestAPodWhoseSessionGoesOnAfterItsEndIsEvicted(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	i, folder := collecting(t, func(o *session.Options) {
		o.Clock, o.Unrecorded, o.Max, o.Evict = clock, session.Open, time.Second, true
	})
	web := newPod(i.Namespace, "web")
	web.Labels = map[string]string{"app": "web"}
	testkit.Create(t, i.Admin, web)
	// The budget does not count others.
	testkit.ChangeStatus(t, i.Admin, web, func(web *corev1.Pod) { web.Status.Phase = corev1.PodRunning })
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: web.Labels}},
	}
	testkit.Create(t, i.Admin, budget)
	text, ticket := i.ticketFor("web", "id")
	token, secret := i.token(web, session.Audience), strings.Repeat("s", 64)
	status, said, _, _ := connect(t, ticket, text, token, secret)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	if status, _, _, _ := connect(t, ticket, text, token, strings.Repeat("x", 64)); status != http.StatusConflict {
		t.Errorf("the ticket is redeemed twice: %d", status)
	}
	if event := i.hasEvent(ticket.ID + ".contested"); event.Reason != "SessionNoted" {
		t.Errorf("the Event is %+v", event)
	}
	if event := i.hasEvent(ticket.ID + ".not-evicted"); event.Reason != "SessionNotEvicted" || !strings.Contains(event.Note, "the recorder has said nothing") {
		t.Errorf("the Event is %+v", event)
	}
	if err := i.Admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(time.Minute)) // when it is tried again
	if event := i.hasEvent(ticket.ID + ".evicted"); event.Reason != "SessionEvicted" || event.Regarding.UID != web.UID {
		t.Errorf("the Event is %+v", event)
	}
	testkit.Succeeds(t, time.Minute, "the Pod is gone", func(ctx context.Context) error {
		if err := i.Admin.Get(ctx, client.ObjectKeyFromObject(web), web); client.IgnoreNotFound(err) != nil || err == nil && web.DeletionTimestamp == nil {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	entries, err := folder.List(t.Context(), ticket.ID)
	kinds := map[string]bool{}
	for _, entry := range entries {
		if kind, ok := strings.CutPrefix(entry.Name, "note-"); ok {
			kind, _, _ = strings.Cut(kind, "-")
			kinds[kind] = true
		}
	}
	if err != nil || !kinds[collector.Contested] || !kinds[collector.Silent] {
		t.Errorf("the recording has notes of %v: %v", kinds, err)
	}
}

// Who deletes a Pod says how long it has to end, which can be days.
func TestAPodThatSomebodyLetsEndMuchLaterIsEvicted(t *testing.T) {
	t.Parallel()
	i, _ := collecting(t, func(o *session.Options) { o.Unrecorded, o.Evict = session.Open, true })
	web := newPod(i.Namespace, "web")
	web.Spec.NodeName = "somewhere" // else it is gone at once
	testkit.Create(t, i.Admin, web)
	text, ticket := i.ticketFor("web", "id")
	status, said, _, _ := connect(t, ticket, text, i.token(web, session.Audience), strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	if err := i.Admin.Delete(t.Context(), web, client.GracePeriodSeconds(86400)); err != nil {
		t.Fatal(err)
	}
	i.hasEvent(ticket.ID + ".silent")
	testkit.Succeeds(t, time.Minute, "the Pod ends as soon as it would by itself", func(ctx context.Context) error {
		if err := i.Admin.Get(ctx, client.ObjectKeyFromObject(web), web); err != nil {
			return client.IgnoreNotFound(err)
		}
		if grace := *web.DeletionGracePeriodSeconds; grace > *web.Spec.TerminationGracePeriodSeconds {
			return fmt.Errorf("it has %d s", grace)
		}
		return nil
	})
}

package audit_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// written counts what etcd keeps of objects: each version of each, until the API server
// compacts etcd minutes later.
type written struct {
	mu       sync.Mutex
	versions int
	bytes    int
	largest  int
}

// watchWritten counts the objects of a kind until the test ends. which chooses the
// counter of an object, or nil.
func watchWritten(t *testing.T, list client.ObjectList, which func(client.Object) *written, options ...client.ListOption) {
	t.Helper()
	events, err := admin.Watch(t.Context(), list, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			object, ok := event.Object.(client.Object)
			if !ok || event.Type == watch.Deleted {
				continue
			}
			text, err := json.Marshal(object)
			if w := which(object); err == nil && w != nil {
				w.add(len(text))
			}
		}
	}()
}

func (w *written) add(size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions++
	w.bytes += size
	w.largest = max(w.largest, size)
}

func (w *written) so() (versions, bytes, largest int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.versions, w.bytes, w.largest
}

// watchAuditEvents counts those of a user, without and with folds.
func watchAuditEvents(t *testing.T, user *controlplane.User) (own, folds *written) {
	t.Helper()
	own, folds = &written{}, &written{}
	watchWritten(t, &v1alpha1.AuditEventList{}, func(object client.Object) *written {
		if object.(*v1alpha1.AuditEvent).Spec.Folded {
			return folds
		}
		return own
	}, client.MatchingLabels{auditevent.LabelUser: user.Name})
	return own, folds
}

// attack execs from many clients at once, in Pods of any name, without a session. The
// API server may say one of the answers.
func attack(t *testing.T, user *controlplane.User, ns string, n int, answers ...string) {
	t.Helper()
	clients := testkit.Long(64, 16) // all of one fold wait for one write, which has 8 s
	config := rest.CopyConfig(user.Config)
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Error(err)
		return
	}
	var done sync.WaitGroup
	for c := range clients {
		done.Go(func() {
			for i := c; i < n; i += clients {
				path := fmt.Sprintf("/api/v1/namespaces/%s/pods/no-such-pod-%d/exec?stdout=true&command=evil&command=%[2]d", ns, i)
				err := clientset.CoreV1().RESTClient().Post().MaxRetries(0).RequestURI(path).Do(context.Background()).Error()
				if err == nil || !slices.ContainsFunc(answers, func(answer string) bool { return strings.Contains(err.Error(), answer) }) {
					t.Errorf("exec %d: %v", i, err)
					return
				}
			}
		})
	}
	done.Wait()
}

// aFloodDoesNotFillEtcd execs in Pods that do not exist, each of another name
// and with another command, as somebody would who wants to fill etcd.
func aFloodDoesNotFillEtcd(t *testing.T) {
	user, err := cluster.AddUser("flooder", "developers")
	if err != nil {
		t.Fatal(err)
	}
	n := testkit.Long(10_000, 300)
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{
		// Beside other tests the API server may be slow.
		{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed, Timeout: audit.MaxTimeout},
		{Sink: sink.NewEvent()},
	}})
	own, folds := watchAuditEvents(t, user)
	notes := &written{}
	watchWritten(t, &eventsv1.EventList{}, func(client.Object) *written { return notes }, client.InNamespace(ns))
	began := time.Now()
	attack(t, user, ns, n, "not found")
	var events []v1alpha1.AuditEvent
	counted, folded := int64(0), 0
	testkit.Eventually(t, "every act is counted", func(context.Context) bool {
		events, counted, folded = eventsOf(t, user, ns), 0, 0
		for _, event := range events {
			counted += max(event.Status.Count, 1)
			if event.Spec.Folded {
				folded++
			}
		}
		return counted >= int64(n)
	})
	took := time.Since(began)
	if counted != int64(n) {
		t.Errorf("%d of %d execs are counted", counted, n)
	}
	if missing := n - len(commandsOf(events)); missing != 0 {
		t.Errorf("the records have neither text nor sum of %d commands", missing)
	}
	ownVersions, ownBytes, _ := own.so()
	foldVersions, foldBytes, largest := folds.so()
	_, noteBytes, _ := notes.so()
	mb := float64(ownBytes+foldBytes+noteBytes) / 1e6
	t.Logf("%d execs: %d AuditEvents of their own, %d versions of %d folds, the largest of %d bytes, %d of Events, in %s: %.1f MB", n, ownVersions, foldVersions, folded, largest, noteBytes, took, mb)
	if most := auditevent.DefaultFoldAfter * (int(took.Minutes()) + 2); ownVersions > most {
		t.Errorf("one user made %d AuditEvents, want at most %d", ownVersions, most)
	}
	// A fold is written twice a second: the longer the same takes, the more. Each has two
	// versions besides, of its beginning, and in two minutes there are two at a time.
	if most := 4*(int(took.Seconds())+1) + 2*folded; foldVersions > most || largest > 24<<10 {
		t.Errorf("the folds have %d versions, the largest of %d bytes; want at most %d of 24 KiB", foldVersions, largest, most)
	}
	if testing.Short() {
		return
	}
	testkit.Figure("etcd.flood_mb", mb, "MB")
	if mb > 5 {
		t.Errorf("%d execs take %.1f MB of etcd, want less than 5", n, mb)
	}
}

// commandsOf returns the sums of all commands that AuditEvents have, or have the sum of.
func commandsOf(events []v1alpha1.AuditEvent) map[string]bool {
	sums := map[string]bool{}
	add := func(command []string) {
		sums[fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(command, "\x00")+"\x00")))] = true
	}
	for i := range events {
		add(events[i].Spec.Command)
		for _, act := range events[i].Status.Acts {
			add(act.Command)
		}
		for _, sum := range events[i].Status.UnlistedSHA256 {
			sums[sum] = true
		}
	}
	return sums
}

// TestNoneOfTooManyPassesUnrecorded overloads a manager whose sink is slow.
func TestNoneOfTooManyPassesUnrecorded(t *testing.T) {
	t.Parallel()
	ns := testkit.ManagerNamespace(t, admin)
	kept, overloaded := &memory{}, make(chan struct{})
	slow := sinkFunc{name: "slow", do: func(ctx context.Context, r *v1alpha1.AuditRecord) error {
		if r.User.Username != alice.Name {
			return nil
		}
		select {
		case <-overloaded:
			return kept.Write(ctx, r)
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	logger, logs := testkit.Logger(t)
	n := testkit.Long(2000, 64)
	startWith(t, manager.Options{
		OperatorFingerprint: "admitkit", Logger: logger, Namespaces: []string{ns}, Host: "127.0.0.1", Port: freeport.For(t), RESTConfig: managerUser.Config, RegisterWebHook: new(bool),
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration), MaxInFlight: 2},
	}, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{{Sink: slow, FailurePolicy: audit.Closed, Timeout: audit.MaxTimeout}}})
	attacked := make(chan struct{})
	go func() {
		defer close(attacked)
		attack(t, alice, ns, n, "not found", "failed calling webhook", "is only allowed when it is recorded")
	}()
	testkit.Eventually(t, "a request is one too many", func(context.Context) bool {
		return logs.FilterField(zap.Int("code", http.StatusTooManyRequests)).Len() > 0
	})
	close(overloaded)
	<-attacked
	records := map[string]bool{}
	for _, r := range kept.of("alice") {
		records[r.ID] = true
	}
	passed, refused := 0, 0
	testkit.Eventually(t, "the API server has logged all", func(context.Context) bool {
		passed, refused = 0, 0
		for _, e := range acts(t, ns) {
			if e.Status.Code != http.StatusNotFound { // which comes after admission
				refused++
				continue
			}
			if passed++; !records[e.record()] {
				t.Errorf("%s passed without a record", e.URI)
			}
		}
		return passed+refused >= n
	})
	t.Logf("%d passed, %d were refused", passed, refused)
	if passed == 0 {
		t.Error("nothing passed")
	}
}

package audit_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/sink"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
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

// watchAuditEvents counts those of alice, without and with folds.
func watchAuditEvents(t *testing.T) (own, folds *written) {
	t.Helper()
	own, folds = &written{}, &written{}
	watchWritten(t, &v1alpha1.AuditEventList{}, func(object client.Object) *written {
		if object.(*v1alpha1.AuditEvent).Spec.Folded {
			return folds
		}
		return own
	}, client.MatchingLabels{auditevent.LabelUser: "alice"})
	return own, folds
}

// attack execs from many clients at once, in Pods of any name, without a session.
func attack(t *testing.T, ns string, n int, query func(i int) (pod string, options url.Values)) {
	t.Helper()
	attackWith(t, ns, n, query, "not found", "not valid")
}

// attackWith also says what the API server may answer.
func attackWith(t *testing.T, ns string, n int, query func(i int) (pod string, options url.Values), answers ...string) {
	t.Helper()
	const clients = 64
	config := rest.CopyConfig(alice.Config)
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	for c := range clients {
		done.Go(func() {
			for i := c; i < n; i += clients {
				pod, options := query(i)
				path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec?%s", ns, pod, options.Encode())
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

// TestAFloodOfExecsDoesNotFillEtcd execs in Pods that do not exist, each of another name
// and with another command, as somebody would who wants to fill etcd.
func TestAFloodOfExecsDoesNotFillEtcd(t *testing.T) {
	nobodysEvents(t)
	n := testkit.Long(10_000, 700)
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, audit.Options{Sinks: []audit.SinkOptions{
		// Beside other tests the API server may be slow.
		{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed, Timeout: 8 * time.Second},
		{Sink: sink.NewEvent()},
	}})
	own, folds := watchAuditEvents(t)
	notes := &written{}
	watchWritten(t, &eventsv1.EventList{}, func(client.Object) *written { return notes }, client.InNamespace(ns))
	began := time.Now()
	attack(t, ns, n, func(i int) (string, url.Values) {
		return fmt.Sprint("no-such-pod-", i), url.Values{"command": {"evil", fmt.Sprint(i)}, "stdout": {"true"}}
	})
	counted := int64(0)
	testkit.Eventually(t, "every act is counted", func(context.Context) bool {
		counted = 0
		for _, event := range eventsOf(t, ns) {
			counted += max(event.Status.Count, 1)
		}
		return counted >= int64(n)
	})
	if missing := n - len(commandsOf(eventsOf(t, ns))); missing != 0 {
		t.Errorf("the records have neither text nor sum of %d commands", missing)
	}
	ownVersions, ownBytes, _ := own.so()
	foldVersions, foldBytes, largest := folds.so()
	_, noteBytes, _ := notes.so()
	mb := float64(ownBytes+foldBytes+noteBytes) / 1e6
	t.Logf("%d execs: %d AuditEvents of their own, %d versions of folds, the largest of %d bytes, %d of Events: %.1f MB", n, ownVersions, foldVersions, largest, noteBytes, mb)
	if testing.Short() {
		// The long form takes up to three minutes, which can each have 100 of their own.
		mb = 3*float64(ownBytes+noteBytes)/1e6 + float64(foldBytes)/float64(max(n-ownVersions, 1))*10_000/1e6
	} else {
		testkit.Figure("etcd.flood_mb", mb, "MB")
	}
	if most := auditevent.DefaultFoldAfter * (int(time.Since(began).Minutes()) + 2); ownVersions > most {
		t.Errorf("one user made %d AuditEvents, want at most %d", ownVersions, most)
	}
	// A fold is written twice a second: the longer the same takes, the more.
	if most := float64(testkit.Long(5, 10)); counted != int64(n) || mb > most {
		t.Errorf("%d of %d execs are counted; 10,000 take %.1f MB of etcd, want less than %.0f", counted, n, mb, most)
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

// TestNobodyMakesARecordLong asks for a container whose name has 900 KiB.
func TestNobodyMakesARecordLong(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, objectsOnly(auditevent.Options{}))
	own, _ := watchAuditEvents(t)
	runPod(t, ns, "shop")
	n := testkit.Long(60, 4)
	attack(t, ns, n, func(int) (string, url.Values) {
		return "shop", url.Values{"command": {"true"}, "container": {strings.Repeat("c", 900<<10)}}
	})
	testkit.Eventually(t, "all are recorded", func(context.Context) bool { return len(eventsOf(t, ns)) == n })
	for _, event := range eventsOf(t, ns) {
		if r := event.Spec; len(r.Container) > 1<<10 || !strings.Contains(r.Container, "SHA-256") || len(r.Flags) != 1 || r.Flags[0] != v1alpha1.FlagTruncated {
			t.Errorf("the container has %d bytes, %v", len(r.Container), r.Flags)
		}
	}
	if versions, bytes, largest := own.so(); largest > 4<<10 {
		t.Errorf("%d versions take %d bytes, the largest %d", versions, bytes, largest)
	}
}

// TestNoneOfTooManyPassesUnrecorded overloads a manager whose sink is slow.
func TestNoneOfTooManyPassesUnrecorded(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	slow := sinkFunc{name: "slow", do: func(ctx context.Context, r *v1alpha1.AuditRecord) error {
		select {
		case <-time.After(20 * time.Millisecond):
			return kept.Write(ctx, r)
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	options := audit.Options{Sinks: []audit.SinkOptions{{Sink: slow, FailurePolicy: audit.Closed}}}
	logger, logs := testkit.Logger(t)
	n := testkit.Long(2000, 64)
	managerOptions := manager.Options{
		OperatorFingerprint: "admitkit", Logger: logger, Namespace: ns, Host: "127.0.0.1", Port: freeport.For(t), RESTConfig: managerUser.Config, RegisterWebHook: new(bool),
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration), MaxInFlight: 2},
	}
	startWith(t, managerOptions, options)
	attackWith(t, ns, n, func(i int) (string, url.Values) {
		return fmt.Sprint("pod-", i), url.Values{"command": {"true"}}
	}, "not found", "failed calling webhook", "is only allowed when it is recorded")
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
	// The API server asks again for a while when it is told to.
	if passed == 0 || logs.FilterMessage("admission failed").Len() == 0 {
		t.Error("the manager was not overloaded, or nothing passed")
	}
}

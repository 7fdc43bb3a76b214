package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func TestOnlyAPodInWhichTheSessionCouldGoOnIsEvicted(t *testing.T) {
	given := time.Now()
	ticket := &protocol.Ticket{PodUID: "uid", Container: "web", Expires: given.Add(protocol.Life).Unix()}
	started := func(after time.Duration) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(given.Add(after))}}
	}
	for what, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a Pod of which nothing is known": {func(*corev1.Pod) {}, true},
		"another Pod of the name":         {func(p *corev1.Pod) { p.UID = "other" }, false},
		"a Pod that ends": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
			p.Status.ContainerStatuses[0].State = started(-time.Hour)
		}, false},
		"a Pod that ends much later": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(86400))
			p.Status.ContainerStatuses[0].State = started(-time.Hour)
		}, true},
		"a Pod that has ended":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"its container runs":             {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = started(-time.Hour) }, true},
		"its container was started anew": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = started(time.Minute) }, false},
		"its container has ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{}
		}, false},
		"another container was started anew": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Name = "other" }, true},
		"an ephemeral container runs": {func(p *corev1.Pod) {
			p.Status.EphemeralContainerStatuses, p.Status.ContainerStatuses = p.Status.ContainerStatuses, nil
			p.Status.EphemeralContainerStatuses[0].State = started(time.Minute)
		}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(30))}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}}}
		if what == "a Pod of which nothing is known" {
			pod.Status.ContainerStatuses = nil
		}
		test.change(pod)
		if got := lives(pod, ticket); got != test.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}

// onePod is a Pod that is there, or an error.
type onePod struct {
	corev1client.CoreV1Interface
	corev1client.PodInterface

	pod corev1.Pod
	err error
}

func (p *onePod) Pods(string) corev1client.PodInterface { return p }

func (p *onePod) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
	return &p.pod, p.err
}

func TestOnlyARecorderWhoseContainerHasEndedCannotComeBack(t *testing.T) {
	now := time.Now()
	ticket := &protocol.Ticket{PodUID: "uid", Container: "web", Expires: now.Add(protocol.Life).Unix(), Terms: protocol.Terms{Max: 60}}
	running := func(since time.Time) func(*onePod) {
		return func(p *onePod) {
			p.pod.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}
		}
	}
	for what, test := range map[string]struct {
		change func(*onePod)
		want   string
		fails  bool
	}{
		"its container runs": {running(now.Add(-time.Hour)), "", false},
		"its container had just begun, by the clock of a node that is ahead": {running(now.Add(time.Minute)), "", false},
		"its container was started anew":                                     {running(now.Add(time.Hour)), "its container has ended", false},
		"its Pod is told to end, and has not": {func(p *onePod) {
			running(now.Add(-time.Hour))(p)
			p.pod.DeletionTimestamp = new(metav1.Now())
		}, "", false},
		"its Pod has ended":        {func(p *onePod) { p.pod.Status.Phase = corev1.PodSucceeded }, "its container has ended", false},
		"its Pod is another":       {func(p *onePod) { p.pod.UID = "other" }, "its Pod was deleted", false},
		"its Pod is gone":          {func(p *onePod) { p.err = apierrors.NewNotFound(corev1.Resource("pods"), "web") }, "its Pod was deleted", false},
		"nobody knows of its Pod":  {func(p *onePod) { p.err = apierrors.NewServiceUnavailable("down") }, "", true},
		"nobody may know of a Pod": {func(p *onePod) { p.err = apierrors.NewForbidden(corev1.Resource("pods"), "web", nil) }, "", true},
	} {
		core := &onePod{pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}}}}
		test.change(core)
		r := &receiver{shared: &shared{core: core, clock: clocktesting.NewFakePassiveClock(now)}}
		got, err := r.over(t.Context(), ticket)
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// pods are Pods that are there. Each has a PodDisruptionBudget that refuses its eviction,
// unless it is free.
type pods struct {
	corev1client.CoreV1Interface
	corev1client.PodInterface

	mu      sync.Mutex
	free    map[string]bool
	started map[string]time.Time // when the container of each was started anew
	evicted []string
}

func (p *pods) Pods(string) corev1client.PodInterface { return p }

func (p *pods) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(p.started[name])}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", State: state}}},
	}, nil
}

func (p *pods) EvictV1(_ context.Context, eviction *policyv1.Eviction) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.free[eviction.Name] {
		return apierrors.NewTooManyRequests("the disruption budget needs it", 10)
	}
	p.evicted = append(p.evicted, eviction.Name)
	return nil
}

// evicting is a replica that evicts Pods.
func evicting(t *testing.T, clock clock.PassiveClock, storage collector.Storage) (*evictions, *pods) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "key"), bytes.Repeat([]byte("k"), protocol.MinKey), 0o600); err != nil {
		t.Fatal(err)
	}
	core := &pods{free: map[string]bool{}}
	return newEvictions(&shared{options: Options{KeyFolder: folder, Unrecorded: Closed}, core: core, clock: clock, log: zap.NewNop()}, storage), core
}

func ticketIn(pod string) *protocol.Ticket {
	return &protocol.Ticket{ID: protocol.NewID(), Namespace: "shop", Pod: pod, PodUID: "uid-" + pod, Container: "web", User: "alice", Expires: time.Now().Unix()}
}

// turn tries each Pod whose turn it is.
func (e *evictions) turn(ctx context.Context) (tried int) {
	for next := e.next(); next != nil; next = e.next() {
		e.settle(ctx, next, e.evict(ctx, next))
		tried++
	}
	return tried
}

func files(t *testing.T, storage collector.Storage) int {
	t.Helper()
	entries, err := storage.List(t.Context(), journalFolder)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestPodsWithBudgetsKeepNoOtherFromItsEviction(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	e, core := evicting(t, clock, collector.Folder(t.TempDir()))
	const held = 300
	for n := range held {
		e.add(ticketIn(fmt.Sprintf("held-%d", n)), collector.Note{Kind: collector.Silent, Text: "it is silent"})
	}
	if tried := e.turn(t.Context()); tried != held || e.count() != held {
		t.Fatalf("%d are tried, and %d wait", tried, e.count())
	}
	core.free["web"] = true
	web := ticketIn("web")
	for range 2 { // the second time it is under way
		e.add(web, collector.Note{Kind: collector.Gone, Text: "it is gone"})
	}
	if tried := e.turn(t.Context()); tried != 1 || len(core.evicted) != 1 || core.evicted[0] != "web" {
		t.Errorf("%d are tried, and %v evicted", tried, core.evicted)
	}
	// The others wait longer and longer, and then their notes remain.
	began, turns := clock.Now(), 1
	for ; e.count() > 0 && turns < 100; turns++ {
		clock.SetTime(clock.Now().Add(pauseAfter(turns)))
		e.turn(t.Context())
	}
	if took := clock.Now().Sub(began); turns != evictTries || took < 5*time.Minute || took > 6*time.Minute || files(t, e.journal.storage) != 0 {
		t.Errorf("they are tried %d times in %s, and %d are left", turns, took, files(t, e.journal.storage))
	}
}

func TestASessionThatBeganLaterHasItsPodEvictedHoweverThatOfAnEarlierOneGoes(t *testing.T) {
	storage := collector.Folder(t.TempDir())
	e, core := evicting(t, clock.RealClock{}, storage)
	early := ticketIn("web")
	e.add(early, collector.Note{Kind: collector.Gone})
	e.turn(t.Context()) // which its budget refuses
	core.started = map[string]time.Time{"web": time.Unix(early.Expires, 0).Add(time.Second - protocol.Life)}
	for after := range int64(3) { // in the container that was started anew
		late := ticketIn("web")
		late.Expires = early.Expires + 2 + after
		e.add(late, collector.Note{Kind: collector.Gone})
	}
	if n := files(t, storage); n != 2 {
		t.Errorf("the journal has %d: the one under way, and the last one", n)
	}
	core.free["web"] = true
	e.pods[keyOf(early)].due = time.Time{}
	if e.turn(t.Context()); !slices.Equal(core.evicted, []string{"web"}) || e.count() != 0 || files(t, storage) != 0 {
		t.Errorf("%v are evicted, %d wait, and %d files are left", core.evicted, e.count(), files(t, storage))
	}
}

func TestOfTooManyEvictionsTheOneTriedMostMakesRoom(t *testing.T) {
	e, _ := evicting(t, clock.RealClock{}, collector.Folder(t.TempDir()))
	for n := range maxEvictions {
		e.enter(&eviction{Ticket: *ticketIn(fmt.Sprintf("held-%d", n)), tries: 1 + n%7})
	}
	e.add(ticketIn("web"), collector.Note{Kind: collector.Silent})
	if next := e.next(); next == nil || next.Ticket.Pod != "web" || e.count() != maxEvictions {
		t.Errorf("the next of %d is %+v", e.count(), next)
	}
}

func TestARestartGoesOnWithEvictions(t *testing.T) {
	storage := collector.Folder(t.TempDir())
	before, _ := evicting(t, clock.RealClock{}, storage)
	web := ticketIn("web")
	web.Terms = protocol.Terms{Collectors: []string{"c:1"}}
	before.add(web, collector.Note{Kind: collector.Gone, Text: "it is gone"})
	before.turn(t.Context()) // which its budget refuses
	// Who can write the storage has no Pod evicted.
	stranger, _ := evicting(t, clock.RealClock{}, storage)
	stranger.journal.key = func() (protocol.Key, error) {
		return protocol.Key{Current: bytes.Repeat([]byte("x"), protocol.MinKey)}, nil
	}
	stranger.add(ticketIn("other"), collector.Note{Kind: collector.Gone})
	after, core := evicting(t, clock.RealClock{}, storage)
	core.free["web"], core.free["other"] = true, true
	if err := after.adoptOlder(t.Context(), adoptAge); err != nil || after.count() != 0 {
		t.Errorf("what another replica has under way is taken over: %d, %v", after.count(), err)
	}
	if err := after.adoptOlder(t.Context(), 0); !errors.Is(err, errJournal) || after.count() != 1 {
		t.Errorf("%d are adopted, %v", after.count(), err)
	}
	after.turn(t.Context())
	if len(core.evicted) != 1 || core.evicted[0] != "web" || files(t, storage) != 1 {
		t.Errorf("%v are evicted, and %d files are left", core.evicted, files(t, storage))
	}
}

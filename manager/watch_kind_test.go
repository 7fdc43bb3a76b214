package manager_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// sightings is a WatcherOf of any kind that keeps its events, and the last object.
type sightings[T client.Object] struct {
	recorder
	last       atomic.Pointer[T]
	registered atomic.Int64
}

func seeing[T client.Object]() *sightings[T] { return &sightings[T]{recorder: *newRecorder()} }

func (s *sightings[T]) Register(extension.Manager) error { s.registered.Add(1); return nil }

func (s *sightings[T]) Watch(_ context.Context, _ extension.Manager, event watch.EventType, object T) {
	if object.GetName() == "panic" {
		panic("boom")
	}
	if object.GetName() == "kube-root-ca.crt" {
		return // a controller manager's
	}
	s.last.Store(&object)
	s.events <- string(event) + " " + object.GetName()
}

// configMap returns a ConfigMap with a label.
func configMap(name, team string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
}

func TestAWatcherOfSeesTheObjectsOfItsKindThatItsSelectorSelects(t *testing.T) {
	namespace, other := newNamespace(t), newNamespace(t)
	maps := clientset.CoreV1().ConfigMaps(namespace)
	create := func(namespace string, object *corev1.ConfigMap) {
		t.Helper()
		if _, err := clientset.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(namespace, configMap("existing", "a"))
	create(namespace, configMap("foreign", "b"))
	create(other, configMap("elsewhere", "a"))
	teamA := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	typed, loose, bare := seeing[*corev1.ConfigMap](), seeing[*unstructured.Unstructured](), seeing[*metav1.PartialObjectMetadata]()
	namespaces := seeing[*corev1.Namespace]()
	pods := newRecorder()
	start(t, manager.Options{Namespace: namespace, Watching: manager.WatchingOptions{LeaderElection: true}},
		extension.Watching(typed, extension.WatchScope{Selector: teamA}),
		extension.Watching(loose, extension.WatchScope{Selector: teamA, Kind: kind}),
		extension.Watching(bare, extension.WatchScope{Selector: teamA, Kind: kind}),
		extension.Watching(namespaces, extension.WatchScope{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}),
		pods)
	expect := func(want string) {
		t.Helper()
		for _, r := range []*recorder{&typed.recorder, &loose.recorder, &bare.recorder} {
			r.expect(t, want)
		}
	}
	expect("ADDED existing")
	namespaces.expect(t, "ADDED "+namespace)
	if managed := (*typed.last.Load()).ManagedFields; len(managed) > 0 {
		t.Errorf("the object is not trimmed: %v", managed)
	}
	create(namespace, configMap("panic", "a"))
	create(namespace, configMap("new", "a"))
	expect("ADDED new")
	patch := func(text string) {
		t.Helper()
		if _, err := maps.Patch(t.Context(), "new", "application/merge-patch+json", []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"data":{"a":"b"}}`)
	expect("MODIFIED new")
	patch(`{"metadata":{"labels":{"team":"b"}}}`)
	expect("DELETED new")
	patch(`{"metadata":{"labels":{"team":"a"}}}`)
	expect("ADDED new")
	if err := maps.Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("DELETED new")
	createPod(t, namespace, newPod("pod"))
	pods.expect(t, "ADDED pod")
	if n := typed.registered.Load(); n != 1 {
		t.Errorf("the watcher was registered %d times", n)
	}
}

func TestAWatcherOfThatCannotWatchEndsTheStart(t *testing.T) {
	gadget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
	r := newManager(t, manager.Options{Namespace: newNamespace(t)}, extension.Watching(seeing[*unstructured.Unstructured](), extension.WatchScope{Kind: gadget}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "watching Gadget: the API server does not have this kind in example.com/v1: install its CustomResourceDefinition") {
		t.Errorf("got %v", err)
	}
	for name, test := range map[string]struct {
		watcher any
		want    string
	}{
		"no kind":              {extension.Watching(seeing[*unstructured.Unstructured](), extension.WatchScope{}), "WatchScope.Kind: required"},
		"another kind":         {extension.Watching(seeing[*corev1.Secret](), extension.WatchScope{Kind: gadget}), "WatchScope.Kind"},
		"a wrong selector":     {extension.Watching(seeing[*corev1.Secret](), extension.WatchScope{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "is"}}}}), "WatchScope.Selector"},
		"no watcher":           {extension.Watching[*corev1.Secret](nil, extension.WatchScope{}), "is nil"},
		"an interface":         {extension.Watching(seeing[client.Object](), extension.WatchScope{}), "must be a pointer"},
		"one that is not made": {&mapLedger{}, "add extension.Watching(x, scope)"},
	} {
		t.Run(name, func(t *testing.T) {
			mgr := newManager(t, manager.Options{Namespace: "apps"})
			if err := mgr.AddExtension(test.watcher); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// mapLedger is a WatcherOf of ConfigMaps that keeps those of its events, and counts
// impossible events.
type mapLedger struct {
	slow time.Duration

	mu         sync.Mutex
	events     int
	known      map[string]*corev1.ConfigMap
	last       map[string]uint64
	outOfOrder []string
}

func (l *mapLedger) Watch(_ context.Context, _ extension.Manager, event watch.EventType, object *corev1.ConfigMap) {
	if l.slow > 0 {
		time.Sleep(l.slow) // this is what the watcher is about
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	version, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
	known := l.known[object.Name]
	if err != nil || version < l.last[object.Name] || (event == watch.Added) != (known == nil) || known != nil && known.UID != object.UID {
		l.outOfOrder = append(l.outOfOrder, fmt.Sprintf("%s of %s at %s after %d", event, object.Name, object.ResourceVersion, l.last[object.Name]))
	}
	l.events++
	l.last[object.Name], l.known[object.Name] = version, object
	if event == watch.Deleted {
		delete(l.known, object.Name)
	}
}

func (l *mapLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// agrees reports whether the watcher knows what the API server has.
func (l *mapLedger) agrees(list []corev1.ConfigMap) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range list {
		if known := l.known[list[i].Name]; known == nil || known.ResourceVersion != list[i].ResourceVersion || known.UID != list[i].UID {
			return false
		}
	}
	return len(l.known) == len(list)
}

func TestWatchersOfAKindLoseNothingWhileTheAPIServerRestartsAndVersionsExpire(t *testing.T) {
	names, period, slow := 2000, 30*time.Second, 10*time.Millisecond
	if testing.Short() {
		names, period, slow = 200, 3*time.Second, 5*time.Millisecond
	}
	namespace := newNamespace(t)
	maps := clientset.CoreV1().ConfigMaps(namespace)
	for i := range names {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprint("map-", i), "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var cut atomic.Bool
	var expired atomic.Int64
	watched := cluster.Config()
	watched.Wrap(func(next http.RoundTripper) http.RoundTripper { return network{next, &cut, &expired} })
	newLedger := func(slow time.Duration) *mapLedger {
		return &mapLedger{slow: slow, known: map[string]*corev1.ConfigMap{}, last: map[string]uint64{}}
	}
	quick, slowOne := newLedger(0), newLedger(slow)
	scope := extension.WatchScope{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}}
	r := newManager(t, manager.Options{Namespace: namespace, RESTConfig: watched, Watching: manager.WatchingOptions{QueueLength: 50}},
		extension.Watching(slowOne, scope), extension.Watching(quick, scope))
	done := make(chan error, 1)
	go func() { done <- r.Watch(t.Context()) }()
	testkit.Within(t, time.Minute, "the watcher got what exists", func(context.Context) bool { return quick.count() >= names })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				randomMap(ctx, namespace, fmt.Sprint("map-", rand.IntN(names)))
			}
		})
	}
	time.Sleep(period / 2)
	cut.Store(true) // while the watch is cut off, its resource version expires
	time.Sleep(period / 2)
	if err := errors.Join(cluster.CompactEtcd(t.Context()), cluster.RestartAPIServer(t.Context())); err != nil {
		t.Fatal(err)
	}
	cut.Store(false)
	stop()
	group.Wait()
	for _, l := range []*mapLedger{quick, slowOne} {
		testkit.Within(t, 2*time.Minute, "the watcher knows what the API server has", func(ctx context.Context) bool {
			list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "team=a"})
			return err == nil && l.agrees(list.Items)
		})
	}
	r.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if expired.Load() == 0 {
		t.Error("no resource version expired: the test shows nothing")
	}
	if quick.events <= slowOne.events {
		t.Errorf("the slow watcher had time for everything, %d events: its queue was never full", slowOne.events)
	}
	for _, l := range []*mapLedger{quick, slowOne} {
		if len(l.outOfOrder) > 0 {
			t.Errorf("%d events are out of order, the first is %s", len(l.outOfOrder), l.outOfOrder[0])
		}
	}
}

// randomMap creates, changes or deletes a ConfigMap, or takes it out of the selector. The
// API server may be down meanwhile.
func randomMap(ctx context.Context, namespace, name string) {
	maps := clientset.CoreV1().ConfigMaps(namespace)
	var err error
	switch rand.IntN(10) {
	case 0, 1:
		err = maps.Delete(ctx, name, metav1.DeleteOptions{})
	case 2, 3:
		_, err = maps.Create(ctx, configMap(name, "a"), metav1.CreateOptions{})
	case 4:
		_, err = maps.Patch(ctx, name, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"team":"b"}}}`), metav1.PatchOptions{})
	default:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"team":"a","n":"%d"}}}`, rand.Int32())
		_, err = maps.Patch(ctx, name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond) // of an outage there is no end to wait for
	}
}

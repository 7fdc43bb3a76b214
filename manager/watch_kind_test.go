package manager_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
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
	t.Parallel()
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
	start(t, manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}},
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
	t.Parallel()
	gadget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}}, extension.Watching(seeing[*unstructured.Unstructured](), extension.WatchScope{Kind: gadget}))
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
		"one that is not made": {newLedger[*corev1.Secret](), "add extension.Watching(x, scope)"},
	} {
		t.Run(name, func(t *testing.T) {
			mgr := newManager(t, manager.Options{Namespaces: []string{"apps"}})
			if err := mgr.AddExtension(test.watcher); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

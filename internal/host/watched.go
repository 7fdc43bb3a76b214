package host

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiunstructured "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
)

// Watched is what a [extension.WatcherOf] sees.
type Watched struct {
	Kind     schema.GroupVersionKind
	Selector *metav1.LabelSelector
	// Object is an empty object of the kind in the form that the watcher takes.
	Object client.Object
}

// NewList returns an empty list of the objects.
func (w Watched) NewList(scheme *runtime.Scheme) (client.ObjectList, error) {
	kind := w.Kind
	kind.Kind += "List"
	switch formOf(w.Object) {
	case unstructured:
		list := &apiunstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		return list, nil
	case metadata:
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		return list, nil
	}
	made, err := scheme.New(kind)
	if err != nil {
		return nil, err
	}
	list, ok := made.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("%s is not a list of objects", kind)
	}
	return list, nil
}

// WatchedBy returns what a watcher sees; ok is false for a Watcher of Pods.
func WatchedBy(w extension.Watcher, scheme *runtime.Scheme) (watched Watched, ok bool, err error) {
	of, ok := w.(*extension.KindWatcher)
	if !ok {
		return Watched{}, false, nil
	}
	_, scope, object := inside.Watched(of)
	if object == nil {
		return Watched{}, true, fmt.Errorf("%s: its type must be a pointer, such as *corev1.ConfigMap", WatcherName(w))
	}
	watched = Watched{Kind: scope.Kind, Selector: scope.Selector, Object: object.DeepCopyObject().(client.Object)}
	if err := CheckSelector(scope.Selector); err != nil {
		return watched, true, fmt.Errorf("%s: WatchScope.Selector: %w", WatcherName(w), err)
	}
	if formOf(object) != typed && scope.Kind.Empty() {
		return watched, true, fmt.Errorf("%s: WatchScope.Kind: required for a %T", WatcherName(w), object)
	}
	if formOf(object) != typed {
		watched.Object.GetObjectKind().SetGroupVersionKind(scope.Kind)
	}
	kind, err := kindOf(watched.Object, scheme)
	if err != nil {
		return watched, true, fmt.Errorf("%s: %w", WatcherName(w), err)
	}
	if !scope.Kind.Empty() && scope.Kind != kind {
		return watched, true, fmt.Errorf("%s: WatchScope.Kind: %s: a %T is a %s", WatcherName(w), scope.Kind, object, kind)
	}
	watched.Kind = kind
	return watched, true, nil
}

// WatcherName returns the Go type of a watcher.
func WatcherName(w extension.Watcher) string { return fmt.Sprintf("%T", valueOf(w)) }

// valueOf returns what a watcher was made of.
func valueOf(w extension.Watcher) any {
	if of, ok := w.(*extension.KindWatcher); ok {
		value, _, _ := inside.Watched(of)
		return value
	}
	return w
}

// checkWatcher returns why a KindWatcher cannot be called.
func checkWatcher(w *extension.KindWatcher) error {
	value := valueOf(w)
	if value == nil || isNil(value) {
		return errors.New("the WatcherOf of an extension.KindWatcher is nil: make one with extension.Watching")
	}
	return nil
}

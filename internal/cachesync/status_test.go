package cachesync_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/admitkit/admitkit/internal/cachesync"
)

func TestAStatusSaysWhichInformersAreNotFilledAndWhy(t *testing.T) {
	refused := make(chan struct{})
	refuse := func(ctx context.Context) error {
		select {
		case refused <- struct{}{}:
		case <-ctx.Done():
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	}
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return nil, refuse(ctx) },
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) { return nil, refuse(ctx) },
	}, &corev1.Pod{}, 0, nil)
	status := cachesync.New(clientgoscheme.Scheme, logr.Discard())
	if err := status.Check(); err != nil {
		t.Errorf("without an informer: %v", err)
	}
	remove := status.Add(corev1.SchemeGroupVersion.WithKind("Pod"), informer)
	if err := status.Check(); err == nil || err.Error() != "the cache of Pod is not filled: its objects are being listed" {
		t.Errorf("before it runs: %v", err)
	}
	go informer.RunWithContext(t.Context())
	for range 3 { // a watch and a list; the error of both is known when they are tried again
		<-refused
	}
	if err := status.Check(); err == nil || !strings.Contains(err.Error(), "the cache of Pod is not filled: ") || !strings.Contains(err.Error(), "is forbidden: no: grant get, list and watch") {
		t.Errorf("without the right: %v", err)
	}
	remove()
	if err := status.Check(); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
}

func TestAMissingKindIsExplained(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
	const want = "the API server does not have this kind in example.com/v1: install its CustomResourceDefinition"
	for _, err := range []error{&meta.NoKindMatchError{}, apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{}, "", "", 0, false)} {
		if got := cachesync.Explain(kind, err); got.Error() != want {
			t.Errorf("%T is explained as %q", err, got)
		}
	}
}

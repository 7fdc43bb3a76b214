package touch

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The API server says that a budget does not allow it.
func TestAnEvictionThatABudgetPutsOffIsTriedAgain(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "b", Annotations: map[string]string{AnnotationTouchedAt: now.Add(-time.Minute).Format(time.RFC3339Nano)},
	}}
	refused := apierrors.NewTooManyRequests("it would violate the budget", 0)
	kube := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
			return refused
		},
	}).Build()
	told := events.NewFakeRecorder(10)
	e := NewEvictor(Options{EvictAfter: time.Second, MaxEvictAfter: time.Hour, Unmanaged: true}, testclock.NewFakePassiveClock(now))
	e.log, e.events, e.cached, e.writer = zap.NewNop(), told, kube, kube
	result, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
	if err != nil || result.RequeueAfter != 10*time.Second || len(told.Events) != 1 || !strings.HasPrefix(<-told.Events, "Warning EvictionPutOff") {
		t.Errorf("%v, again after %s", err, result.RequeueAfter)
	}
}

// Without a kubelet a Pod that is being deleted is soon gone, so this needs a fake.
func TestATouchedPodThatSomebodyLetsEndMuchLaterIsEvicted(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		grace *int64
		want  bool
	}{
		"it goes on":                                   {nil, true},
		"it ends, as soon as it would by itself":       {new(int64(30)), false},
		"it ends at once":                              {new(int64(0)), false},
		"it ends a day later, as whoever deleted said": {new(int64(86400)), true},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "a", Name: "b", Finalizers: []string{"example.com/stays"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
				Annotations: map[string]string{AnnotationTouchedAt: now.Add(-time.Minute).Format(time.RFC3339Nano)},
			},
			Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(30))},
		}
		if test.grace != nil {
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.NewTime(now)), test.grace
		}
		evicted := false
		kube := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
			SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
				evicted = true
				return nil
			},
		}).Build()
		e := NewEvictor(Options{EvictAfter: time.Second, MaxEvictAfter: time.Hour, Unmanaged: true}, testclock.NewFakePassiveClock(now))
		e.log, e.events, e.cached, e.writer = zap.NewNop(), events.NewFakeRecorder(10), kube, kube
		if _, err := e.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil || evicted != test.want {
			t.Errorf("%s: evicted: %t, %v", name, evicted, err)
		}
	}
}

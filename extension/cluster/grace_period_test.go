package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// punctual is an extension whose Pods end on time.
type punctual struct{ asked atomic.Int32 }

func (p *punctual) Validate(ctx context.Context, object *unstructured.Unstructured, req *extension.Request) error {
	p.asked.Add(1)
	pod, err := cluster.Lengthened(ctx, admin, object, req)
	if err != nil || pod == nil {
		return err
	}
	return extension.Denyf("Pod %s has %d s", pod.Name, *pod.Spec.TerminationGracePeriodSeconds)
}

func TestADeletionThatGivesAPodLongerIsFoundAndNoOtherIsAskedAbout(t *testing.T) {
	namespace, p := testkit.Namespace(t, admin), &punctual{}
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "punctual", Namespaces: []string{namespace}, Host: "127.0.0.1", RESTConfig: server.Config(),
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
	})
	if err == nil {
		err = mgr.AddExtension(extension.Validating(p, cluster.GracePeriodScope("punctual", nil, "other-", "lingers-")))
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, mgr)
	deletion := func(options ...client.DeleteOption) func(context.Context, *corev1.Pod) error {
		return func(ctx context.Context, pod *corev1.Pod) error { return admin.Delete(ctx, pod, options...) }
	}
	collection := func(options ...client.DeleteAllOfOption) func(context.Context, *corev1.Pod) error {
		return func(ctx context.Context, pod *corev1.Pod) error {
			return admin.DeleteAllOf(ctx, pod, append(options, client.InNamespace(namespace), client.MatchingFields{"metadata.name": pod.Name})...)
		}
	}
	eviction := func(options *metav1.DeleteOptions) func(context.Context, *corev1.Pod) error {
		return func(ctx context.Context, pod *corev1.Pod) error {
			return admin.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{DeleteOptions: options})
		}
	}
	day := int64(86400)
	first := pod(namespace, "lingers-first", "no")
	first.Spec.NodeName = "somewhere"
	testkit.Create(t, admin, first)
	testkit.Eventually(t, "the API server calls the webhook", func(ctx context.Context) bool {
		return apierrors.IsForbidden(deletion(client.GracePeriodSeconds(day), client.DryRunAll)(ctx, first))
	})
	for i, test := range []struct {
		name   string
		do     func(context.Context, *corev1.Pod) error
		refuse bool
		asked  int32
	}{
		{"a deletion", deletion(), false, 0},
		{"a deletion at once", deletion(client.GracePeriodSeconds(0)), false, 0},
		{"a deletion with its own period", deletion(client.GracePeriodSeconds(30)), false, 0},
		{"a deletion with a second more", deletion(client.GracePeriodSeconds(31)), true, 1},
		{"a deletion with a day", deletion(client.GracePeriodSeconds(day)), true, 1},
		{"a trial with a day", deletion(client.GracePeriodSeconds(day), client.DryRunAll), true, 1},
		{"the deletion of many", collection(), false, 0},
		{"the deletion of many with a day", collection(client.GracePeriodSeconds(day)), true, 1},
		{"an eviction", eviction(nil), false, 0},
		{"an eviction with other options", eviction(&metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}), false, 0},
		{"an eviction with its own period", eviction(&metav1.DeleteOptions{GracePeriodSeconds: new(int64(30))}), false, 1},
		{"an eviction with a day", eviction(&metav1.DeleteOptions{GracePeriodSeconds: &day}), true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := pod(namespace, fmt.Sprintf("lingers-%d", i), "no")
			of.Spec.NodeName = "somewhere" // else it is gone at once, whatever was asked for
			testkit.Create(t, admin, of)
			p.asked.Store(0)
			if err := test.do(t.Context(), of); apierrors.IsForbidden(err) != test.refuse || !test.refuse && err != nil || p.asked.Load() != test.asked {
				t.Errorf("asked %d times: %v", p.asked.Load(), err)
			}
		})
	}
	p.asked.Store(0)
	foreign := pod(namespace, "foreign", "no")
	foreign.Spec.NodeName = "somewhere"
	testkit.Create(t, admin, foreign)
	if err := errors.Join(collection(client.GracePeriodSeconds(day))(t.Context(), foreign), eviction(&metav1.DeleteOptions{GracePeriodSeconds: &day})(t.Context(), foreign)); err != nil || p.asked.Load() > 0 {
		t.Errorf("of another Pod, asked %d times: %v", p.asked.Load(), err)
	}
	err = eviction(&metav1.DeleteOptions{GracePeriodSeconds: &day})(t.Context(), pod(namespace, "lingers-nobody", "no"))
	if !apierrors.IsNotFound(err) {
		t.Errorf("an eviction of a Pod that is not there: %v", err)
	}
}

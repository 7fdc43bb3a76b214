package access_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestATemplateWhoseWorkloadOutgrewItsCapIsNotReady(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	web := deployment(t, namespace, "web", 1)
	template := podTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.MaxMemory = quantity("1Gi")
	testkit.Create(t, admin, template)
	is := func(ready bool, what string) {
		t.Helper()
		testkit.Eventually(t, "the template "+what, func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(template), template) == nil && template.Status.Ready == ready &&
				meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAccessPodValid) != nil
		})
	}
	request := func(memory string) {
		t.Helper()
		before := web.DeepCopy()
		web.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *quantity(memory)}
		if err := admin.Patch(t.Context(), web, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	is(true, "is ready")
	request("2Gi")
	is(false, "is not ready")
	c := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAccessPodValid)
	if want := "spec.maxMemory: the requests of the containers come to 2Gi, more than 1Gi"; c.Status != metav1.ConditionFalse || c.Message != want {
		t.Errorf("it says %q, want %q", c.Message, want)
	}
	testkit.Eventually(t, "an Event says why", func(ctx context.Context) bool {
		var events corev1.EventList
		if admin.List(ctx, &events, client.InNamespace(namespace)) != nil {
			return false
		}
		for _, event := range events.Items {
			if event.InvolvedObject.Name == "web" && event.Reason == "TemplateNotReady" && strings.Contains(event.Message, "spec.maxMemory") {
				return true
			}
		}
		return false
	})
	request("512Mi")
	is(true, "is ready again")
}

package sandbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Guards cover the subresources by which an API server lets metadata change. These are
// they: one that does more than this needs guards that cover it.
func TestWhichSubresourcesChangeMetadata(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, admin)
	pod := func() client.Object {
		p := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "work", Image: image}}}}
		return p
	}
	job := func() client.Object {
		j := &batchv1.Job{Spec: batchv1.JobSpec{Suspend: new(true)}}
		j.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: image}}}
		return j
	}
	update := func(sub string) func(context.Context, client.Object) error {
		return func(ctx context.Context, o client.Object) error { return admin.SubResource(sub).Update(ctx, o) }
	}
	bind := func(ctx context.Context, o client.Object) error {
		binding := &corev1.Binding{ObjectMeta: *metaOf(o), Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"}}
		binding.ResourceVersion = ""
		return admin.SubResource("binding").Create(ctx, o, binding)
	}
	got := map[string]string{}
	for name, c := range map[string]struct {
		made  func() client.Object
		write func(context.Context, client.Object) error
	}{
		"pods/status":              {pod, update("status")},
		"pods/resize":              {pod, update("resize")},
		"pods/ephemeralcontainers": {pod, update("ephemeralcontainers")},
		"pods/binding":             {pod, bind},
		"jobs/status":              {job, update("status")},
		"sandboxruns/status": {func() client.Object {
			return &v1alpha1.SandboxRun{Spec: v1alpha1.SandboxRunSpec{TemplateRef: v1alpha1.SandboxRunTemplateRef{Name: "none"}, Prompt: "a"}}
		}, update("status")},
	} {
		object := c.made()
		object.SetNamespace(namespace)
		object.SetGenerateName("subresource-")
		testkit.Create(t, admin, object)
		before := object.DeepCopyObject().(client.Object)
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // its controller writes, too
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(before), object); err != nil {
				return err
			}
			object.SetLabels(map[string]string{"added": "a"})
			object.SetAnnotations(map[string]string{"added": "a"})
			object.SetFinalizers([]string{"example.com/added"})
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "added", UID: "added"}})
			return c.write(t.Context(), object)
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(before), object); err != nil {
			t.Fatal(err)
		}
		var changed []string
		for what, is := range map[string]bool{
			"labels": object.GetLabels()["added"] != "", "annotations": object.GetAnnotations()["added"] != "",
			"finalizers": slices.Contains(object.GetFinalizers(), "example.com/added"), "owners": len(object.GetOwnerReferences()) > 0,
		} {
			if is {
				changed = append(changed, what)
			}
		}
		slices.Sort(changed)
		got[name] = strings.Join(changed, " ")
		object.SetFinalizers(nil)
		_ = admin.Update(t.Context(), object) // the namespace goes with it
	}
	want := map[string]string{
		"pods/status": "annotations finalizers labels", "pods/binding": "annotations labels", "pods/resize": "", "pods/ephemeralcontainers": "",
		"jobs/status": "annotations finalizers labels owners", "sandboxruns/status": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func metaOf(o client.Object) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), Labels: o.GetLabels(), Annotations: o.GetAnnotations(), Finalizers: o.GetFinalizers(), OwnerReferences: o.GetOwnerReferences(),
	}
}

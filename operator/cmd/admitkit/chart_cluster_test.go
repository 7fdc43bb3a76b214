package main

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/testing/controlplane"
)

func TestAnAPIServerTakesTheChart(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{})
	admin, err := client.New(cluster.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{releaseNamespace, "apps", "other"} {
		// https://kubernetes.io/docs/concepts/security/pod-security-standards/
		if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	// Where Pods may have the network of their node.
	if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nodes"}}); err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{} // most documents of one variant are those of another
	all := maps.Clone(variants)
	maps.Copy(all, hooksVariants)
	for name, values := range all {
		t.Run(name, func(t *testing.T) {
			for _, document := range render(t, values) {
				if tried[document] {
					continue
				}
				tried[document] = true
				object := &unstructured.Unstructured{}
				if err := object.UnmarshalJSON(jsonOf(t, document)); err != nil {
					t.Fatal(err)
				}
				if object.GroupVersionKind().Group == "monitoring.coreos.com" {
					continue // the API server does not know it
				}
				if err := admin.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
				if template := podOf(decode(t, document)); template != nil {
					pod := podFrom(template)
					if pod.Spec.HostNetwork {
						pod.Namespace = "nodes"
					}
					if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
						t.Errorf("a Pod of %s: %v", object.GetName(), err)
					}
				}
			}
		})
	}
	t.Run("a server that is not ready does not hold up the drain of its node", func(t *testing.T) {
		objects := objectsOf(t, render(t, ""))
		// Of this budget nobody has counted the Pods, so that it allows no disruption.
		budget := objects[slices.IndexFunc(objects, func(o metav1.Object) bool { _, is := o.(*policyv1.PodDisruptionBudget); return is })]
		pod := podFrom(podOf(serverOf(objects)))
		pod.Spec.ServiceAccountName = ""
		for _, object := range []client.Object{budget.(client.Object), pod} {
			if err := admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
		if err := admin.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		// A client tries again for minutes what a budget refuses.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := admin.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}); err != nil {
			t.Error(err)
		}
	})
}

// podFrom returns the Pod of a template.
func podFrom(template *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = "pod", releaseNamespace
	return pod
}

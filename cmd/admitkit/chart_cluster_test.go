package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/testing/controlplane"
)

func TestAnAPIServerTakesTheChart(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{})
	admin, err := client.New(cluster.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{releaseNamespace, "apps"} {
		// https://kubernetes.io/docs/concepts/security/pod-security-standards/
		if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, document := range render(t, values) {
				object := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
					t.Fatal(err)
				}
				if object.GroupVersionKind().Group == "monitoring.coreos.com" {
					continue // the API server does not know it
				}
				if err := admin.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
				if template := podOf(decode(t, document)); template != nil {
					pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
					pod.Name, pod.Namespace = "pod", releaseNamespace
					if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
						t.Errorf("a Pod of %s: %v", object.GetName(), err)
					}
				}
			}
		})
	}
}

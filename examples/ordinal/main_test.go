package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/admit"
)

// The unit test of an extension needs no cluster.
func TestTheOrdinalIsTheNumberAtTheEndOfTheName(t *testing.T) {
	client := admit.New(t, extension.MutatingFunc(addOrdinal, extension.Scope{}))
	for name, want := range map[string]string{"db-0": "0", "db-12": "12", "web-7d4b9-x2x": "", "db": "", "db--1": "1"} {
		result := client.Create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "registry.example.com/db:1"}}},
		})
		got := ""
		if env := result.Pod().Spec.Containers[0].Env; len(env) > 0 {
			got = env[0].Value
		}
		if got != want {
			t.Errorf("the ordinal of %s is %q, want %q", name, got, want)
		}
	}
}

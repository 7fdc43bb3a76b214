package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The token controller writes a token of any ServiceAccount of the namespace into a Secret that asks for it.
func TestWhatMayMakeSecretsForRunsGetsNoToken(t *testing.T) {
	cluster := controlplane.Run(t, controlplane.Options{})
	admin := testkit.Client(t, cluster.Admin(), testkit.Scheme())
	for _, name := range []string{"sandbox-system", "broker", "agents"} {
		testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, command := range [][]string{append(slices.Clone(manifests), "--sandbox-namespaces=agents"), brokered} {
		output, err := execute(t, command...)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(output, "---\n") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatal(err)
			}
			object, is := map[string]client.Object{
				"Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{},
				"ValidatingAdmissionPolicy": &admissionregistrationv1.ValidatingAdmissionPolicy{}, "ValidatingAdmissionPolicyBinding": &admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
			}[kind.Kind]
			if !is {
				continue
			}
			if err := yaml.Unmarshal([]byte(document), object); err != nil {
				t.Fatal(err)
			}
			if err := client.IgnoreAlreadyExists(admin.Create(t.Context(), object)); err != nil {
				t.Fatal(err)
			}
		}
	}
	user, err := testkit.ServiceAccount(cluster, "sandbox-system", "sandbox-reconciler")
	if err != nil {
		t.Fatal(err)
	}
	reconciler := testkit.Client(t, user, admin.Scheme())
	secret := func(name string, of corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{Type: of, ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}}
	}
	testkit.Eventually(t, "it is kept from tokens", func(ctx context.Context) bool { // a policy counts a moment after it is made
		err := reconciler.Create(ctx, secret("token", corev1.SecretTypeServiceAccountToken), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "creates no Secret with a token")
	})
	if err := reconciler.Create(t.Context(), secret("prompt", corev1.SecretTypeOpaque)); err != nil {
		t.Errorf("it makes no Secret of its own: %v", err)
	}
}

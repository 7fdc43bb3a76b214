package main

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

const bindingKinds = "--hooks-kinds=transientrolebindings.example.com,transientclusterrolebindings.example.com,rolebindings.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io"

// policyIs makes a text the policy of the example.
func policyIs(t *testing.T, text string) {
	t.Helper()
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {namespace: transient-binding, name: policy}, data: {controller.rego: %q}}", text))
}

// example applies the controllers of the example and its policy, which it returns.
func example(t *testing.T) string {
	t.Helper()
	policy, err := os.ReadFile(seed + "policy/controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	policyIs(t, string(policy))
	for _, document := range exampleOf(t, "hooks-transient-binding", "controllers.yaml", "") {
		apply(t, document)
	}
	return string(policy)
}

// bound makes a binding that ends in a while, and waits until it is there.
func bound(t *testing.T, name string, lasts time.Duration) (binding *rbacv1.RoleBinding, until time.Time) {
	t.Helper()
	until = time.Now().Add(lasts).Truncate(time.Second)
	object := parent("TransientRoleBinding", "apps", name, time.Now().Add(-time.Minute), until, user("eve"))
	testkit.Create(t, admin, object)
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), object) })
	binding = &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
	testkit.Succeeds(t, time.Minute, name+" is bound", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKeyFromObject(binding), binding)
	})
	return binding, until
}

func unbound(t *testing.T, binding *rbacv1.RoleBinding, until time.Time) {
	t.Helper()
	testkit.Within(t, time.Minute, binding.Name+" goes", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(binding), binding))
	})
	if early := time.Until(until); early > 0 {
		t.Errorf("%s went %s early", binding.Name, early)
	}
}

func TestABrokenPolicyKeepsNoBindingPastItsEnd(t *testing.T) {
	policy := example(t)
	var stopped *rbacv1.RoleBinding
	var until time.Time
	runs := func(subtest *testing.T) { run(subtest, bindingKinds, "--hooks-namespaces=transient-binding") }
	if !t.Run("while the program runs", func(subtest *testing.T) {
		runs(subtest)
		ends, at := bound(t, "ends", 5*time.Second)
		lasts, _ := bound(t, "lasts", time.Hour)
		policyIs(subtest, "package controller {")
		hasCondition(subtest, "CompositeController", "transient-rolebinding", "Converged", "False PolicyInvalid")
		unbound(subtest, ends, at)
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(lasts), lasts); err != nil {
			subtest.Errorf("what has not ended: %v", err)
		}
		policyIs(subtest, policy)
		hasCondition(subtest, "CompositeController", "transient-rolebinding", "Converged", "True")
		stopped, until = bound(t, "stopped", 5*time.Second)
		policyIs(subtest, "package controller {")
	}) {
		return
	}
	time.Sleep(time.Until(until)) // it is over while nothing runs
	t.Run("when the program runs again", func(subtest *testing.T) {
		runs(subtest)
		unbound(subtest, stopped, until)
	})
}

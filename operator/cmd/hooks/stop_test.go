package main

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestNothingRunsOnAfterTheProgramHasStopped(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("it calls a policy", func(t *testing.T) {
		run(t, "--hooks-kinds=transientrolebindings.example.com,rolebindings.rbac.authorization.k8s.io")
		apply(t, `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: stops}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: stops}}}
  childResources: [{apiVersion: rbac.authorization.k8s.io/v1, resource: rolebindings}]
  hooks:
    sync: {rego: {inline: "package controller\n\nstatus := {\"called\": true}\nchildren := []"}}
---
apiVersion: example.com/v1
kind: TransientRoleBinding
metadata: {name: stops, namespace: apps, labels: {test: stops}}
`)
		testkit.Eventually(t, "the policy has been called", func(ctx context.Context) bool { return called(ctx, t, "stops") == 1 })
	})
	// Connections are shared by who has the same certificate, and end when they have been idle.
	idle := goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run")
	if err := goleak.Find(before, idle); err != nil {
		t.Error(err)
	}
	if err := cluster.Kubectl(t.Context(), nil, "delete", "compositecontroller/stops").Run(); err != nil {
		t.Error(err)
	}
}

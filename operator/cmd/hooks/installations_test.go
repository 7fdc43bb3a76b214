package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// painted is a controller of one installation, whose hook wants something that Kubernetes
// refuses, so that it has Events, too.
const painted = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: %[1]s, labels: {installation: %[2]s}}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: transientrolebindings, labelSelector: {matchLabels: {test: %[1]s}}}
  childResources: [{apiVersion: rbac.authorization.k8s.io/v1, resource: rolebindings}]
  hooks: {sync: {rego: {inline: "package controller\n\nstatus := {\"called\": true}\nchildren := [{\"apiVersion\": \"rbac.authorization.k8s.io/v1\", \"kind\": \"RoleBinding\", \"metadata\": {\"name\": \"%[1]s\"}}]"}}}
`

func TestTwoInstallationsShareACluster(t *testing.T) {
	paint := func(name, colour string) { t.Helper(); apply(t, fmt.Sprintf(painted, name, colour)) }
	makes := func(parent, test string) {
		t.Helper()
		apply(t, fmt.Sprintf("{apiVersion: example.com/v1, kind: TransientRoleBinding, metadata: {name: %s, namespace: apps, labels: {test: %s}}}", parent, test))
	}
	paint("moves", "blue")
	paint("stays", "green")
	t.Cleanup(func() {
		_ = cluster.Kubectl(context.WithoutCancel(t.Context()), nil, "delete", "compositecontroller/moves", "compositecontroller/stays").Run()
		_ = cluster.Kubectl(context.WithoutCancel(t.Context()), nil, "delete", "-n", "apps", "transientrolebinding", "-l", "test in (moves,stays)").Run()
	})
	makes("first", "moves")
	makes("other", "stays")
	touched := func(name string) bool {
		controller := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController"}}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, controller); err != nil {
			t.Fatal(err)
		}
		var events eventsv1.EventList
		if err := admin.List(t.Context(), &events); err != nil {
			t.Fatal(err)
		}
		for _, event := range events.Items {
			if strings.HasPrefix(event.Note, name+": ") {
				return true
			}
		}
		return controller.Object["status"] != nil || called(t.Context(), t, name) > 0
	}
	t.Run("one runs what it selects and touches nothing else, and lets go what is selected no more", func(t *testing.T) {
		run(t, bindingKinds, "--hooks-target-label-selector=installation=blue")
		hasCondition(t, "CompositeController", "moves", "Converged", "False", "apps/first")
		if touched("stays") {
			t.Error("it touched what it does not select")
		}
		paint("moves", "green")
		makes("second", "moves")
		time.Sleep(testkit.Long(5*time.Second, time.Second)) // that nothing happens takes time to see
		if count := called(t.Context(), t, "moves"); count != 1 {
			t.Errorf("the hook was called for %d parents", count)
		}
	})
	t.Run("the other takes it over, by the name that Metacontroller gives the flag", func(t *testing.T) {
		run(t, bindingKinds, "--target-label-selector=installation=green")
		testkit.Eventually(t, "it is called for the parents of both", func(ctx context.Context) bool {
			return called(ctx, t, "moves") == 2 && called(ctx, t, "stays") == 1
		})
		hasCondition(t, "CompositeController", "moves", "Converged", "False", "2 objects")
	})
}

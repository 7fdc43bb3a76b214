package main

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/admitkit/admitkit/examples/preview/v1"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

func environment(namespace, name string, ttl time.Duration) *v1.PreviewEnvironment {
	env := &v1.PreviewEnvironment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.PreviewEnvironmentSpec{Image: "registry.example.com/web:1"}}
	if ttl != 0 {
		env.Spec.TTL = &metav1.Duration{Duration: ttl}
	}
	return env
}

func eventually(t *testing.T, what string, holds func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, holds); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Admission needs no cluster.
func TestAnEnvironmentHasItsCreatorAndATimeToLive(t *testing.T) {
	defaults, rules := admissions()
	alice := admit.New(t, defaults, rules).As("alice")
	env := alice.Create(environment("default", "web", 0)).Object.(*v1.PreviewEnvironment)
	if env.Spec.RequestedBy != "alice" || env.Spec.TTL.Duration != 8*time.Hour {
		t.Errorf("the spec is %+v", env.Spec)
	}
	forged := environment("default", "forged", time.Hour)
	forged.Spec.RequestedBy = "bob"
	for want, env := range map[string]*v1.PreviewEnvironment{
		`spec.requestedBy: "bob": must be you, "alice"`:               forged,
		"spec.ttl: 73h0m0s: must be more than 0s and at most 72h0m0s": environment("default", "forever", 73*time.Hour),
		"spec.ttl: -1s: must be more than 0s":                         environment("default", "past", -time.Second),
	} {
		if result := alice.Create(env); result.Allowed || !strings.Contains(result.Reason, want) {
			t.Errorf("%s: %t, %q, want %q", env.Name, result.Allowed, result.Reason, want)
		}
	}
}

func TestPreviewEnvironments(t *testing.T) {
	// The garbage collector belongs to the controller manager.
	cluster := controlplane.Run(t, controlplane.Options{CRDPaths: []string{"crd"}, ControllerManager: true})
	installed := managertest.Run(t, cluster, managertest.Options{Name: "preview"}, build)
	admin := installed.Admin
	deploymentOf := func(ctx context.Context, env *v1.PreviewEnvironment) (*appsv1.Deployment, error) {
		deployment := &appsv1.Deployment{}
		return deployment, admin.Get(ctx, client.ObjectKeyFromObject(env), deployment)
	}

	t.Run("it runs, is repaired, and takes changes", func(t *testing.T) {
		env := environment(installed.Namespace, "web", time.Hour)
		if err := admin.Create(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		if env.Spec.RequestedBy != "admin" {
			t.Errorf("the spec is %+v", env.Spec)
		}
		runs := func(image string) {
			t.Helper()
			eventually(t, "it runs "+image, func(ctx context.Context) (bool, error) {
				deployment, err := deploymentOf(ctx, env)
				return err == nil && deployment.Spec.Template.Spec.Containers[0].Image == image, client.IgnoreNotFound(err)
			})
		}
		runs("registry.example.com/web:1")
		deployment, err := deploymentOf(t.Context(), env)
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(t.Context(), deployment); err != nil {
			t.Fatal(err)
		}
		runs("registry.example.com/web:1")
		env.Spec.Image = "registry.example.com/web:2"
		if err := admin.Update(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		runs("registry.example.com/web:2")
		env.Spec.RequestedBy = "mallory"
		if err := admin.Update(t.Context(), env); err == nil || !strings.Contains(err.Error(), "cannot change") {
			t.Errorf("another creator: %v", err)
		}
	})

	t.Run("it ends with its Deployment, and not before its time", func(t *testing.T) {
		env := environment(installed.Namespace, "brief", time.Hour)
		if err := admin.Create(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs", func(ctx context.Context) (bool, error) {
			_, err := deploymentOf(ctx, env)
			return err == nil, client.IgnoreNotFound(err)
		})
		// In seconds from now, however long it took to run.
		ttl := (time.Since(env.CreationTimestamp.Time) + 2*time.Second).Round(time.Second)
		env.Spec.TTL = &metav1.Duration{Duration: ttl}
		if err := admin.Update(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func(ctx context.Context) (bool, error) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(env), env)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		if lived := time.Since(env.CreationTimestamp.Time); lived < ttl {
			t.Errorf("it lived for %s", lived)
		}
		eventually(t, "the Deployment is gone", func(ctx context.Context) (bool, error) {
			_, err := deploymentOf(ctx, env)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
	})

	t.Run("a Deployment of somebody else stays as it is", func(t *testing.T) {
		labels := map[string]string{"app": "db"}
		foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: installed.Namespace, Name: "db"}}
		foreign.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		foreign.Spec.Template.Labels = labels
		foreign.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "registry.example.com/db:1"}}
		if err := admin.Create(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		env := environment(installed.Namespace, "db", 2*time.Second)
		if err := admin.Create(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the environment is gone", func(ctx context.Context) (bool, error) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(env), env)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		deployment, err := deploymentOf(t.Context(), env)
		if err != nil || deployment.UID != foreign.UID || deployment.Spec.Template.Spec.Containers[0].Name != "db" || len(deployment.OwnerReferences) > 0 {
			t.Errorf("%v, it is now %+v", err, deployment)
		}
	})
}

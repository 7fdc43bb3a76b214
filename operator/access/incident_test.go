package access_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestDeletingATemplateEndsWhatItGaveForGood(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	testkit.Create(t, admin, template)
	req := execRequest(namespace, "a", "web")
	req.Spec.Duration = "1h"
	granted(t, alice, req)
	if err := admin.Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	binding := client.ObjectKey{Namespace: namespace, Name: v1alpha1.ExecAccessPrefix + "a"}
	gone := func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, binding, &rbacv1.RoleBinding{})) && apierrors.IsNotFound(admin.Get(ctx, binding, &rbacv1.Role{}))
	}
	testkit.Eventually(t, "access has ended", gone)
	await(t, req, "says so", func() bool {
		return req.Status.RevokedAt != nil && !req.Status.Ready && fails(req, "AccessStillValid", "TemplateMissing")
	})

	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	next := execRequest(namespace, "b", "web") // the template is at work again
	next.Spec.Duration = "1h"
	granted(t, alice, next)
	if !gone(t.Context()) {
		t.Error("a template that was made again gives access back")
	}
}

func TestAPodThatRunsButIsNotReadyIsWhatAnIncidentIsAbout(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 2)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	var pods corev1.PodList
	if err := admin.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	sick, well := &pods.Items[0], &pods.Items[1]
	i := slices.IndexFunc(sick.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	sick.Status.Conditions[i].Status = corev1.ConditionFalse
	if err := admin.Status().Update(t.Context(), sick); err != nil {
		t.Fatal(err)
	}
	named := execRequest(namespace, "named", "web")
	named.Spec.TargetPod, named.Spec.Duration = sick.Name, "1h"
	granted(t, alice, named)
	soonCanExec(t, alice, namespace, sick.Name)
	other := execRequest(namespace, "any", "web")
	other.Spec.Duration = "1h"
	granted(t, alice, other)
	if other.Status.PodName != well.Name {
		t.Error("a Pod that is ready is not preferred")
	}

	t.Run("and can be waited for by its name", func(t *testing.T) {
		for _, args := range [][]string{
			{"wait", "pod/" + well.Name, "--for=condition=Ready", "--timeout=20s"},
			{"get", "pods", "--field-selector=metadata.name=" + sick.Name},
		} {
			output, err := cluster.Kubectl(t.Context(), alice, append([]string{"-n", namespace}, args...)...).CombinedOutput()
			if err != nil {
				t.Errorf("kubectl %v: %v: %s", args, err, output)
			}
		}
		if output, err := cluster.Kubectl(t.Context(), alice, "get", "pods", "-n", namespace).CombinedOutput(); err == nil {
			t.Errorf("alice lists all Pods: %s", output)
		}
	})
}

func TestARequestOfSomebodyElseIsNotMadeNorRestoredFromABackup(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	req := execRequest(namespace, "a", "web")
	req.Spec.Requester = &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}
	if err := as(t, bob).Create(t.Context(), req.DeepCopy()); err == nil || !strings.Contains(err.Error(), "spec.requester does not name the user who makes the request") {
		t.Errorf("bob asks for alice: %v", err)
	}
	req.Spec.Requester.UID = "an old one"
	if err := as(t, alice).Create(t.Context(), req); err != nil || req.Spec.Requester.UID == "an old one" {
		t.Errorf("alice applies her own manifest again: %v, %+v", err, req.Spec.Requester)
	}
}

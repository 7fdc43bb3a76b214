package access_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
)

func TestAnEngineerGetsExecAccessToOnePodAndLosesItAtTheEnd(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 2)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	var pods corev1.PodList
	if err := admin.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	target, other := pods.Items[0].Name, pods.Items[1].Name
	if canExec(t, alice, namespace, target) {
		t.Fatal("alice can exec before she asks")
	}
	req := execRequest(namespace, "a", "web")
	req.Spec.TargetPod, req.Spec.Duration = target, "1h"
	granted(t, alice, req)
	testkit.Within(t, soon(), "alice can exec", func(context.Context) bool { return canExec(t, alice, namespace, target) })
	if !can(t, alice, namespace, target, "get", "log") {
		t.Error("alice cannot read the log")
	}
	for _, verb := range []string{"attach", "portforward"} {
		if can(t, alice, namespace, target, "create", verb) {
			t.Errorf("alice got %s, which the template does not give", verb)
		}
	}
	if canExec(t, bob, namespace, target) {
		t.Error("bob, of the same group, can exec by alice's request")
	}
	if canExec(t, alice, namespace, other) {
		t.Error("alice can exec into another Pod")
	}
	output, err := cluster.Kubectl(t.Context(), alice, strings.Fields(strings.Replace(strings.TrimPrefix(req.Status.AccessMessage, "kubectl "), "-ti", "", 1)+" -c true")...).CombinedOutput()
	if err != nil {
		t.Errorf("the access message %q does not work: %v: %s", req.Status.AccessMessage, err, output)
	}
	end := endsIn(t, alice, req, 3*time.Second)
	notBefore(t, end, "alice cannot exec any more", func() bool { return !canExec(t, alice, namespace, target) })
	await(t, req, "says that it ended", func() bool { return fails(req, "AccessStillValid", "Expired") && !req.Status.Ready })
	if !req.Status.ExpiresAt.Time.Equal(end) {
		t.Errorf("it expired at %s, want %s", req.Status.ExpiresAt, end)
	}
	for _, reason := range []string{"AccessGranted", "AccessReady", "AccessEnded"} {
		testkit.Eventually(t, "there is an Event "+reason, func(ctx context.Context) bool {
			var events eventsv1.EventList
			return admin.List(ctx, &events, client.InNamespace(namespace), client.MatchingFields{"reason": reason}) == nil &&
				len(events.Items) == 1 && events.Items[0].Regarding.UID == req.UID
		})
	}
}

func TestAnEngineerGetsAnAccessPodAndLosesItAtTheEnd(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	start(t, namespace, access.Options{Retention: 2 * time.Second})
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	req := granted(t, alice, podRequest(namespace, "a", "web"))
	testkit.Within(t, soon(), "alice can exec", func(context.Context) bool { return canExec(t, alice, namespace, "podaccess-a") })
	if output, err := cluster.Kubectl(t.Context(), alice, "exec", "-n", namespace, "podaccess-a", "--", "true").CombinedOutput(); err != nil {
		t.Errorf("kubectl exec: %v: %s", err, output)
	}
	if canExec(t, bob, namespace, "podaccess-a") {
		t.Error("bob can exec into alice's Pod")
	}
	end := endsIn(t, alice, req, 3*time.Second)
	notBefore(t, end, "alice cannot exec any more", func() bool { return !canExec(t, alice, namespace, "podaccess-a") })
	testkit.Eventually(t, "the Pod is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "podaccess-a"}, &corev1.Pod{}))
	})
	testkit.Eventually(t, "the request goes when it has been kept", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(req), req))
	})
	if kept := time.Since(end); kept < 2*time.Second {
		t.Errorf("the request was kept for %s only", kept)
	}
}

func TestNothingRunsOnAfterTheManagerHasStopped(t *testing.T) {
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	before := goleak.IgnoreCurrent()
	r := start(t, namespace, access.Options{})
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	granted(t, alice, execRequest(namespace, "a", "web"))
	r.stop()
	// Connections are shared by who has the same certificate, the test's own
	// clients too, and end when they have been idle for long.
	idle := goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run")
	if err := goleak.Find(before, idle); err != nil {
		t.Error(err)
	}
}

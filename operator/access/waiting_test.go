package access_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// apply applies a manifest as a user, and returns what kubectl says.
func apply(t *testing.T, user *controlplane.User, manifest string, args ...string) string {
	t.Helper()
	cmd := cluster.Kubectl(t.Context(), user, append([]string{"apply", "-f", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(manifest)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

func manifestOf(namespace, name, spec string) string {
	return fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: ExecAccessRequest, metadata: {name: %s, namespace: %s}, spec: {%s}}", name, namespace, spec)
}

func TestARequestThatIsAppliedBeforeItsTemplateWaitsForIt(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	if says := apply(t, alice, manifestOf(namespace, "early", "templateName: later")); !strings.Contains(says, "Warning: ExecAccessTemplate "+namespace+"/later does not exist: the request waits for it until") {
		t.Errorf("kubectl says %q", says)
	}
	apply(t, mallory, manifestOf(namespace, "not-hers", "templateName: later"))
	apply(t, alice, manifestOf(namespace, "too-long", "templateName: later, duration: 3h"))
	early, notHers, tooLong := execRequest(namespace, "early", ""), execRequest(namespace, "not-hers", ""), execRequest(namespace, "too-long", "")
	for _, req := range []request{early, notHers, tooLong} {
		await(t, req, "says that it waits", func() bool {
			c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, "TargetTemplateExists")
			return fails(req, "TargetTemplateExists", "TemplateMissing") && strings.Contains(c.Message, "the request waits for it until "+req.GetCreationTimestamp().Add(10*time.Minute).UTC().Format(time.RFC3339))
		})
	}
	testkit.Eventually(t, "an Event says that it waits", func(ctx context.Context) bool {
		var events corev1.EventList
		if admin.List(ctx, &events, client.InNamespace(namespace)) != nil {
			return false
		}
		for _, event := range events.Items {
			if event.InvolvedObject.Name == "early" && event.Reason == "TemplateMissing" && strings.Contains(event.Message, "waits for it until") {
				return true
			}
		}
		return false
	})
	refused(t, patch(t, alice, execRequest(namespace, "early", ""), `{"spec":{"duration":"2h"}}`), "later does not exist")
	refused(t, patch(t, bob, execRequest(namespace, "early", ""), `{"spec":{"duration":"1h"}}`), "requester only")
	refused(t, patch(t, cluster.Admin(), execRequest(namespace, "early", ""), `{"spec":{"requester":{"username":"mallory"}}}`), "requester cannot be changed")

	testkit.Create(t, admin, execTemplate(namespace, "later", ref("Deployment", "web"), "devs"))
	await(t, early, "is granted", func() bool { return early.Status.Ready })
	if who := early.Spec.Requester; who.Username != "alice" || early.Spec.Duration != "1h" {
		t.Errorf("it was granted to %+v for %q", who, early.Spec.Duration)
	}
	soonCanExec(t, alice, namespace, early.Status.PodName)
	if end := early.CreationTimestamp.Add(time.Hour); !early.Status.ExpiresAt.Time.Equal(end) {
		t.Errorf("it ends at %s, not at %s", early.Status.ExpiresAt, end)
	}
	await(t, notHers, "is not allowed", func() bool { return fails(notHers, "AccessResourcesCreated", "NotAllowed") })
	await(t, tooLong, "is too long", func() bool { return fails(tooLong, "AccessDurationsValid", "DurationTooLong") })
}

func TestAUserHasOnlySoManyRequestsThatWait(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	for i := range 5 {
		req := execRequest(namespace, fmt.Sprint("wait-", i), fmt.Sprint("none-", i))
		testkit.Create(t, as(t, alice), req)
		await(t, req, "waits", func() bool { return fails(req, "TargetTemplateExists", "TemplateMissing") })
	}
	refused(t, as(t, alice).Create(t.Context(), execRequest(namespace, "wait-5", "none-5")), `user "alice" has 5 requests already that wait`, "wait-0", "kubectl access revoke")
	testkit.Create(t, as(t, bob), execRequest(namespace, "bobs", "none"))
	refused(t, as(t, bob).Create(t.Context(), &v1alpha1.ExecAccessRequest{ObjectMeta: execRequest(namespace, "nothing", "").ObjectMeta, Spec: v1alpha1.ExecAccessRequestSpec{
		RequestSpec: v1alpha1.RequestSpec{TemplateName: "none", Duration: "0s"},
	}}), "spec.duration: 0s must be more than 0")
}

// advancing is a clock that can be put forward.
type advancing struct {
	clock.RealClock
	by atomic.Int64
}

func (a *advancing) Now() time.Time                  { return time.Now().Add(time.Duration(a.by.Load())) }
func (a *advancing) Since(t time.Time) time.Duration { return a.Now().Sub(t) }

func TestARequestWhoseTemplateDoesNotComeInTimeEndsAndSaysSo(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	now := &advancing{}
	start(t, namespace, access.Options{Clock: now})
	bare, long := execRequest(namespace, "bare", "later"), execRequest(namespace, "long", "later")
	long.Spec.Duration = "2h"
	testkit.Create(t, as(t, alice), bare, long)
	for _, req := range []*v1alpha1.ExecAccessRequest{bare, long} {
		await(t, req, "waits", func() bool { return fails(req, "TargetTemplateExists", "TemplateMissing") })
	}
	now.by.Store(int64(11 * time.Minute))
	for _, req := range []*v1alpha1.ExecAccessRequest{bare, long} {
		if err := patch(t, alice, execRequest(namespace, req.Name, ""), `{"metadata":{"labels":{"look":"again"}}}`); err != nil {
			t.Fatal(err)
		}
		await(t, req, "has ended", func() bool {
			c := meta.FindStatusCondition(req.Status.Conditions, "AccessStillValid")
			return fails(req, "AccessStillValid", "TemplateMissing") && strings.Contains(c.Message, "did not come within 10m0s of the request; make another request")
		})
	}
	testkit.Create(t, admin, execTemplate(namespace, "later", ref("Deployment", "web"), "devs"))
	next := execRequest(namespace, "next", "later") // the template is at work
	next.Spec.Duration = "2h"
	granted(t, alice, next)
	if !gone(t, bindingOf(bare)) || !gone(t, bindingOf(long)) {
		t.Error("a template that came too late gives access")
	}
}

func TestApplyingARequestAgainThatHasEndedSaysSo(t *testing.T) {
	t.Parallel()
	namespace := requestable(t)
	manifest := manifestOf(namespace, "again", "templateName: web")
	apply(t, alice, manifest, "--server-side")
	if says := apply(t, alice, manifest, "--server-side"); strings.Contains(says, "Warning") {
		t.Errorf("of one that lives kubectl says %q", says)
	}
	if err := patch(t, alice, execRequest(namespace, "again", ""), `{"spec":{"revoked":{}}}`); err != nil {
		t.Fatal(err)
	}
	if says := apply(t, alice, manifest, "--server-side"); !strings.Contains(says, "Warning: access ended at") || !strings.Contains(says, "make another request") {
		t.Errorf("kubectl says %q", says)
	}
}

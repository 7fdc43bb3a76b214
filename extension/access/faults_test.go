package access_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// left counts what of a namespace's grants is still there.
func left(ctx context.Context, namespace string) (int, error) {
	ours := client.MatchingLabels{"app.kubernetes.io/managed-by": "admitkit-access"}
	count := 0
	for _, list := range []client.ObjectList{&rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.PodList{}} {
		if err := admin.List(ctx, list, client.InNamespace(namespace), ours); err != nil {
			return 0, err
		}
		switch list := list.(type) {
		case *rbacv1.RoleBindingList:
			count += len(list.Items)
		case *rbacv1.RoleList:
			count += len(list.Items)
		case *corev1.PodList:
			count += len(list.Items)
		}
	}
	return count, nil
}

// faults are what breaks while access is granted.
var faults = []struct {
	name string
	// forAll says that the fault is one for all tests.
	forAll bool
	do     func(t *testing.T, namespace string, p *process) *process
}{
	{"the templates are deleted", false, func(t *testing.T, namespace string, p *process) *process {
		for _, object := range []client.Object{podTemplate(namespace, "web", ref("", "")), execTemplate(namespace, "web", ref("", ""))} {
			if err := admin.Delete(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}},
	{"the templates are broken", false, func(t *testing.T, namespace string, p *process) *process {
		withoutWebhooks(t, namespace, func() {
			for _, object := range []client.Object{podTemplate(namespace, "web", ref("", "")), execTemplate(namespace, "web", ref("", ""))} {
				if err := patch(t, cluster.Admin(), object, `{"spec":{"accessConfig":{"accessCommand":"{{","defaultDuration":"0s"},"controllerTargetRef":{"name":"nonsense"}}}`); err != nil {
					t.Fatal(err)
				}
			}
		})
		return p
	}},
	{"the target is deleted", false, func(t *testing.T, namespace string, p *process) *process {
		if err := admin.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}); err != nil {
			t.Fatal(err)
		}
		return p
	}},
	{"the API server restarts", true, func(t *testing.T, _ string, p *process) *process {
		if err := cluster.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p
	}},
	{"the manager is killed while it grants", false, func(t *testing.T, _ string, p *process) *process {
		p.kill()
		options := p.options
		options.Metrics, options.LeaderElection = "", false
		return startProcess(t, options)
	}},
}

// Whatever breaks while access is granted, or while it lasts: none outlives its
// end, and of none is something left.
func TestNoAccessOutlivesItsEndWhateverBreaks(t *testing.T) {
	var overstayed atomic.Int32
	t.Cleanup(func() { testkit.Figure("faults.overstayed", float64(overstayed.Load()), "grants") })
	n := testkit.Long(20, 4)
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			if !fault.forAll {
				t.Parallel()
			}
			namespace := testkit.ManagerNamespace(t, admin)
			deployment(t, namespace, "web", 2)
			p := startManagerProcess(t, namespace)
			testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
			testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
			c := as(t, alice)
			var requests []request
			var end time.Time
			for i := range n {
				for _, req := range []request{podRequest(namespace, fmt.Sprintf("r-%d", i), "web"), execRequest(namespace, fmt.Sprintf("r-%d", i), "web")} {
					req.GetRequestSpec().Duration = "12s"
					testkit.Create(t, c, req)
					requests = append(requests, req)
					end = req.GetCreationTimestamp().Add(12 * time.Second)
				}
			}
			// Some are granted by now and some are about to be.
			fault.do(t, namespace, p)
			testkit.Within(t, time.Until(end)+5*time.Second, "the last end has come", func(context.Context) bool { return time.Now().After(end) })
			// The lateness has a test of its own; this one allows for what was
			// broken at that moment.
			testkit.Within(t, 10*time.Second, "nothing is left", func(ctx context.Context) bool {
				remaining, err := left(ctx, namespace)
				return err == nil && remaining == 0
			})
			for _, req := range requests {
				await(t, req, "says that it ended", func() bool {
					return (fails(req, "AccessStillValid", "Expired") || fails(req, "AccessStillValid", "TemplateMissing")) && !req.GetRequestStatus().Ready
				})
				pod := "podaccess-" + req.GetName()
				if name := req.GetRequestStatus().PodName; name != "" {
					pod = name
				}
				if canExec(t, alice, namespace, pod) {
					overstayed.Add(1)
					t.Errorf("alice can still exec into %s", pod)
				}
			}
		})
	}
}

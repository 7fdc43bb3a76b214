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
var faults = map[string]func(t *testing.T, namespace string, p *process){
	"the templates are deleted": func(t *testing.T, namespace string, _ *process) {
		for _, object := range []client.Object{podTemplate(namespace, "web", ref("", "")), execTemplate(namespace, "web", ref("", ""))} {
			if err := admin.Delete(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	},
	"the templates are broken": func(t *testing.T, namespace string, _ *process) {
		withoutWebhooks(t, namespace, func() {
			for _, object := range []client.Object{podTemplate(namespace, "web", ref("", "")), execTemplate(namespace, "web", ref("", ""))} {
				if err := patch(t, cluster.Admin(), object, `{"spec":{"accessConfig":{"accessCommand":"{{","defaultDuration":"0s"},"controllerTargetRef":{"name":"nonsense"}}}`); err != nil {
					t.Fatal(err)
				}
			}
		})
	},
	"the target is deleted": func(t *testing.T, namespace string, _ *process) {
		if err := admin.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}); err != nil {
			t.Fatal(err)
		}
	},
	"the manager is killed while it grants": func(t *testing.T, _ string, p *process) {
		p.Kill()
		options := p.options
		options.Metrics = ""
		startProcess(t, options) // it leads when the lease of the one that was killed is over
	},
}

// Whatever breaks while access is granted, or while it lasts: none outlives its
// end, and of none is something left.
func TestNoAccessOutlivesItsEndWhateverBreaks(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { testkit.Figure("faults.overstayed", float64(overstayed.Load()), "grants") })
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nothingOutlives(t, fault)
		})
	}
}

// It restarts for all tests, so that this one is alone, and before the others.
func TestNoAccessOutlivesItsEndWhenTheAPIServerRestarts(t *testing.T) {
	nothingOutlives(t, func(t *testing.T, _ string, _ *process) {
		if err := cluster.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// overstayed are the grants of either test that outlived their end.
var overstayed atomic.Int32

func nothingOutlives(t *testing.T, fault func(*testing.T, string, *process)) {
	t.Helper()
	n := testkit.Long(20, 4)
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 2)
	p := startManagerProcess(t, namespace)
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	c := as(t, alice)
	var requests []request
	var end time.Time
	// One of each kind is granted for long, so that even on a busy machine there is access to outlive its end.
	first := []request{podRequest(namespace, "first", "web"), execRequest(namespace, "first", "web")}
	for _, req := range first {
		req.GetRequestSpec().Duration = "1h"
		granted(t, alice, req)
		soonCanExec(t, alice, namespace, req.GetRequestStatus().PodName)
		requests = append(requests, req)
	}
	for i := range n - 1 {
		for _, req := range []request{podRequest(namespace, fmt.Sprintf("r-%d", i), "web"), execRequest(namespace, fmt.Sprintf("r-%d", i), "web")} {
			req.GetRequestSpec().Duration = "12s"
			testkit.Create(t, c, req)
			requests = append(requests, req)
		}
	}
	for _, req := range first {
		end = endsIn(t, alice, req, 12*time.Second)
	}
	// Some are granted by now and some are about to be.
	fault(t, namespace, p)
	// The lateness has a test of its own; what was broken at the end may take a while.
	testkit.Eventually(t, "nothing is left", func(ctx context.Context) bool {
		remaining, err := left(ctx, namespace)
		return err == nil && remaining == 0 && time.Now().After(end)
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
}

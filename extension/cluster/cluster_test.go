package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

var (
	server *controlplane.ControlPlane
	admin  client.Client
)

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, controlplane.Options{ControllerManager: true}, func(c *controlplane.ControlPlane) (err error) {
		server = c
		admin, err = testkit.NewClient(c.Admin(), nil)
		return err
	}))
}

// reader is an extension with a cache of labelled Pods.
type reader struct {
	own        ctrlcluster.Cluster
	named      string
	namespaces []string
}

func (r *reader) Register(mgr extension.Manager) (err error) {
	r.own, err = cluster.New(mgr, cluster.Options{Name: "reader", Namespaces: r.namespaces, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{"read": "yes"}), Transform: cluster.TrimPod},
	}})
	r.named = strings.Join(mgr.GetNamespaces(), ",") + " " + mgr.GetWebhookNamespace() + " " + mgr.GetFingerprint()
	return err
}

func (*reader) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

func pod(namespace, name, read string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"read": read}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
}

func TestAnExtensionReadsItsOwnPodsFromMemory(t *testing.T) {
	namespace, elsewhere := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	testkit.Create(t, admin, pod(namespace, "mine", "yes"), pod(namespace, "foreign", "no"), pod(elsewhere, "far", "yes"))
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, RESTConfig: server.Config()})
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{}
	if err := mgr.AddExtension(r); err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, mgr)
	var pods corev1.PodList
	testkit.Eventually(t, "the cache has the Pod", func(ctx context.Context) bool {
		return r.own.GetCache().List(ctx, &pods) == nil && len(pods.Items) == 1
	})
	if p := pods.Items[0]; p.Name != "mine" || p.UID == "" || len(p.Spec.Containers) != 0 || len(p.ManagedFields) != 0 {
		t.Errorf("the cache has %+v", p)
	}
	if want := namespace + " " + namespace + " admitkit"; r.named != want {
		t.Errorf("the host is %q, want %q", r.named, want)
	}
}

// gathering lets questions about namespaces through once all of them have been asked.
type gathering struct {
	asked sync.Map
	left  atomic.Int32
	all   chan struct{}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

func (g *gathering) wait(req *http.Request) error {
	if strings.Contains(req.URL.Path, "/namespaces/of-many-") {
		if _, again := g.asked.LoadOrStore(req.URL.Path, true); !again && g.left.Add(-1) == 0 {
			close(g.all)
		}
		select {
		case <-g.all:
		case <-req.Context().Done():
			return req.Context().Err()
		}
	}
	return nil
}

// A cache that waits for one namespace after the other takes 100 ms for each at least. Here it
// would wait for ever.
func TestManyNamespacesAreReadAtTheSameTime(t *testing.T) {
	r, g := &reader{}, &gathering{all: make(chan struct{})}
	for n := range 100 {
		r.namespaces = append(r.namespaces, fmt.Sprintf("of-many-%d", n))
		g.left.Add(1)
	}
	config := server.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if err := g.wait(req); err != nil {
				return nil, err
			}
			return next.RoundTrip(req)
		})
	})
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{testkit.Namespace(t, admin)}, RESTConfig: config})
	if err == nil {
		err = mgr.AddExtension(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, mgr)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := r.own.GetCache().GetInformer(ctx, &corev1.Pod{}); err != nil {
		t.Fatal(err)
	}
	// GetInformer waits only for a cache that has started.
	if synced := r.own.GetCache().WaitForCacheSync(ctx); !synced || g.left.Load() != 0 {
		t.Fatalf("%d namespaces were not asked, synced: %v", g.left.Load(), synced)
	}
	took := time.Since(begin)
	testkit.Figure("cluster.sync100_s", took.Seconds(), "s")
	if took > testkit.Long(8*time.Second, time.Minute) {
		t.Errorf("the cache of 100 namespaces synced after %s", took)
	}
}

func TestAnEvictionIsOfThatVeryPod(t *testing.T) {
	ctx, namespace := t.Context(), testkit.Namespace(t, admin)
	p := pod(namespace, "web", "no")
	testkit.Create(t, admin, p)
	another, older := p.DeepCopy(), p.DeepCopy()
	another.UID = "another"
	older.ResourceVersion = "1"
	for name, wrong := range map[string]*corev1.Pod{"another UID": another, "an older version": older} {
		if err := cluster.Evict(ctx, admin, wrong); !apierrors.IsConflict(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	all := intstr.FromString("100%")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: p.Labels}},
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := admin.Status().Update(ctx, p); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, budget)
	testkit.Eventually(t, "the budget is in force", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) == nil && budget.Status.ObservedGeneration > 0
	})
	if err := cluster.Evict(ctx, admin, p); !errors.Is(err, cluster.ErrPutOff) || !apierrors.IsTooManyRequests(err) {
		t.Errorf("against a budget: got %v", err)
	}
	if err := admin.Delete(ctx, budget); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "the eviction", func(ctx context.Context) error { return cluster.Evict(ctx, admin, p) })
	testkit.Eventually(t, "the Pod is gone", func(ctx context.Context) bool { return apierrors.IsNotFound(cluster.Evict(ctx, admin, p)) })
}

func TestTheManagerLearnsItsOwnNameOnce(t *testing.T) {
	var self cluster.Self
	name, err := self.Username(t.Context(), admin)
	if err != nil || name != server.Admin().Name {
		t.Errorf("got %q, %v, want %q", name, err, server.Admin().Name)
	}
	if again, err := self.Username(t.Context(), nil); again != name || err != nil {
		t.Errorf("the second time: %q, %v", again, err)
	}
}

package cluster_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// worker reconciles the Pods of some namespaces.
type worker struct {
	namespaces []string
	own        ctrlcluster.Cluster
	seen       chan client.ObjectKey
}

func (w *worker) Register(mgr extension.Manager) (err error) {
	if w.own, err = cluster.New(mgr, cluster.Options{Name: "worker", Namespaces: w.namespaces}); err != nil {
		return err
	}
	c, err := controller.New("worker", mgr.GetKubeManager(), controller.Options{Reconciler: w})
	if err != nil {
		return err
	}
	return c.Watch(source.Kind[client.Object](w.own.GetCache(), &corev1.Pod{}, &handler.EnqueueRequestForObject{}))
}

func (w *worker) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := w.own.GetCache().Get(ctx, req.NamespacedName, &corev1.Pod{}); err != nil {
		return reconcile.Result{}, err
	}
	w.seen <- req.NamespacedName
	return reconcile.Result{}, nil
}

// Whoever may delete Roles in one namespace can take the manager's rights there. After the
// next start it must still end access in all others.
func TestANamespaceThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	cluster.SetPatience(t, time.Second)
	good, bad := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	user, err := testkit.ServiceAccount(server, good, "worker")
	if err != nil {
		t.Fatal(err)
	}
	read := func(namespace string) []client.Object {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: "worker"}
		return []client.Object{
			&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}}},
			&rbacv1.RoleBinding{
				ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "worker"},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: good, Name: "worker"}},
			},
		}
	}
	testkit.Create(t, admin, append(read(good), pod(good, "web", "yes"), pod(bad, "web", "yes"))...)
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{good}, RESTConfig: user.Config})
	w := &worker{namespaces: []string{good, bad}, seen: make(chan client.ObjectKey, 10)}
	if err == nil {
		err = mgr.AddExtension(w)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, mgr)
	expect := func(namespace string) {
		t.Helper()
		select {
		case key := <-w.seen:
			if key.Namespace != namespace {
				t.Errorf("reconciled %s", key)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nothing is reconciled in %s", namespace)
		}
	}
	expect(good)
	begin := time.Now()
	if err := w.own.GetCache().Get(t.Context(), client.ObjectKey{Namespace: bad, Name: "web"}, &corev1.Pod{}); err == nil {
		t.Error("it reads what it must not")
	} else if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("to read what cannot be read took %s", took)
	}
	testkit.Create(t, admin, read(bad)...)
	expect(bad) // as soon as it can
}

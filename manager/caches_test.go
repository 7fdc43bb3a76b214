package manager_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	extcluster "github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// keeper is a Reconciler of a kind.
type keeper struct {
	object client.Object
	// own says that it has a cache of its own.
	own     bool
	timeout time.Duration
	seen    chan string
}

func (k *keeper) Register(mgr extension.Manager) error {
	kube := mgr.GetKubeManager()
	build := ctrl.NewControllerManagedBy(kube).Named("keeper").WithOptions(controller.Options{CacheSyncTimeout: k.timeout})
	if !k.own {
		return build.For(k.object).Complete(k)
	}
	own, err := extcluster.New(mgr, extcluster.Options{Name: "keeper"})
	if err != nil {
		return err
	}
	return build.WatchesRawSource(source.Kind(own.GetCache(), k.object, &handler.EnqueueRequestForObject{})).Complete(k)
}

func (k *keeper) Reconcile(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
	k.seen <- req.Name
	return ctrl.Result{}, nil
}

// reconciling runs a Reconciler, with health checks at an address.
func reconciling(t *testing.T, config *rest.Config, name string, k *keeper) (r *running, health string) {
	t.Helper()
	k.seen = make(chan string, 10)
	health = fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	options := manager.Options{Namespaces: []string{newNamespace(t)}, OperatorFingerprint: name, RESTConfig: config, Serving: manager.ServingOptions{HealthAddress: health}}
	r = newManager(t, options, k)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r.done = ended
	go func() { ended <- r.Reconcile(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Log(err)
		}
	})
	return r, health
}

func TestAReconcilerIsNotReadyUntilItsKindCanBeCached(t *testing.T) {
	t.Parallel()
	gadget := func(group string) client.Object { return ofKind(group, "v1", "Gadget") }
	for name, test := range map[string]struct {
		keeper *keeper
		config *rest.Config
		why    string
		mend   func(t *testing.T)
	}{
		"no-kind": {
			&keeper{object: gadget("one.example.com")}, nil,
			"[-]caches failed: the cache of Gadget is not filled: the API server does not have this kind in one.example.com/v1: install its CustomResourceDefinition",
			func(t *testing.T) { install(t, "one.example.com", "Gadget", "gadgets") },
		},
		"no-kind-own": {
			&keeper{object: gadget("two.example.com"), own: true}, nil,
			"[-]caches of keeper failed: the cache of Gadget is not filled: the API server does not have this kind in two.example.com/v1: install its CustomResourceDefinition",
			func(t *testing.T) { install(t, "two.example.com", "Gadget", "gadgets") },
		},
		"no-right": {
			&keeper{object: &corev1.Secret{}}, userWith(t, "no-right"),
			`cannot list resource "secrets" in API group "" in the namespace`, nil,
		},
		"no-right-own": {
			&keeper{object: &corev1.Secret{}, own: true}, userWith(t, "no-right-own"),
			`cannot list resource "secrets" in API group "" in the namespace`, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, health := reconciling(t, test.config, name, test.keeper)
			testkit.Eventually(t, "/readyz says why", func(context.Context) bool {
				status, text := body(t, "http://"+health+"/readyz?verbose")
				return status == http.StatusInternalServerError && strings.Contains(text, test.why)
			})
			if told := r.logs.FilterMessage("a cache cannot be filled; trying again").All(); len(told) != 1 || !strings.Contains(test.why, "secrets") && told[0].ContextMap()["kind"] != "Gadget" {
				t.Errorf("the log has %v", told)
			}
			if test.mend == nil {
				userMay(t, name, mayRead([]string{"secrets"}, "list", "watch"))
			} else {
				test.mend(t)
			}
			testkit.Eventually(t, "it is ready", func(context.Context) bool {
				status, _ := body(t, "http://"+health+"/readyz")
				return status == http.StatusOK
			})
		})
	}
}

// userMay adds rules to those of a user that userWith made.
func userMay(t *testing.T, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role, err := clientset.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err == nil {
		role.Rules = append(role.Rules, rules...)
		_, err = clientset.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAReconcilerThatGivesUpSaysOfWhatKind(t *testing.T) {
	t.Parallel()
	r, _ := reconciling(t, nil, "gives-up", &keeper{object: ofKind("never.example.com", "v1", "Gadget"), timeout: time.Second})
	err := <-r.done
	r.done <- err
	if want := "the cache of Gadget is not filled: the API server does not have this kind in never.example.com/v1: install its CustomResourceDefinition"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestAWatchedNamespaceThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	good, bad := newNamespace(t), newNamespace(t)
	config := userWith(t, "one-of-two")
	grant := func(namespace string) {
		t.Helper()
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{mayRead([]string{"pods", "configmaps"}, "get", "list", "watch")}}
		if _, err := clientset.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := clientset.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "one-of-two"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	grant(good)
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	seen := newRecorder()
	l := &library{reads: []client.Object{&corev1.ConfigMap{}}, read: func(ctx context.Context, kube client.Client, namespace string) (string, error) {
		return "all", kube.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(namespace))
	}}
	createPod(t, good, newPod("existing"))
	createPod(t, bad, newPod("hidden"))
	r := start(t, manager.Options{Namespaces: []string{good, bad}, WebhookNamespace: good, RESTConfig: config, Serving: manager.ServingOptions{HealthAddress: health}},
		extension.Mutating(l, extension.Scope{Name: "library"}), seen)
	seen.expect(t, "ADDED existing")
	eventuallyCalled(t, good, "read")
	testkit.Eventually(t, "it is ready", func(context.Context) bool {
		status, _ := body(t, "http://"+health+"/readyz")
		return status == http.StatusOK
	})
	if told := r.logs.FilterMessageSnippet("a watched namespace cannot be read").FilterField(zap.String("namespace", bad)).Len(); told != 2 { // once for each kind
		t.Errorf("it is told %d times", told)
	}
	grant(bad)
	testkit.Within(t, 2*time.Minute, "the API server calls the webhook", func(ctx context.Context) bool { // informers try again after up to a minute
		pod, err := dryRunPod(ctx, bad)
		return err == nil && pod.Annotations["read"] != ""
	})
	seen.expect(t, "ADDED hidden")
}

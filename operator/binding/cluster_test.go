package binding_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/binding"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// The tests share one real control plane. Webhooks are for every namespace, so one
// installation at a time has them: the tests at the top do not run in parallel.
var (
	server *controlplane.ControlPlane
	scheme = testkit.Scheme(v1alpha1.AddToScheme)
	admin  client.WithWatch
)

func TestMain(m *testing.M) {
	options := controlplane.Options{CRDPaths: []string{"../config/crd"}, ControllerManager: true}
	os.Exit(testkit.Main(m, options, func(c *controlplane.ControlPlane) (err error) {
		server = c
		admin, err = testkit.NewClient(c.Admin(), scheme)
		return err
	}))
}

const (
	here, elsewhere = "team-a", "team-b"
	patience        = time.Minute
)

// installed is what the operator lets be bound, and who may bind it.
type installed struct {
	*managertest.Installation
	// alice may bind what the operator names in team-a, and wide. mallory may write the
	// same objects, and bind nothing.
	alice, mallory client.Client
}

var options = binding.Options{
	BindableRoles:        []string{here + "/deployer", here + "/later", here + "/lost", here + "/soon", elsewhere + "/deployer"},
	BindableClusterRoles: []string{"secret-reader", "aggregated"},
	Namespaces:           []string{here},
	BindableClusterWide:  []string{"wide", "wider"},
	MaxDuration:          time.Hour,
	Retention:            2 * time.Second,
}

// writeObjects is the right to make transient bindings.
var writeObjects = rbacv1.PolicyRule{
	APIGroups: []string{"admitkit.dev"}, Verbs: []string{"create", "get", "update", "patch", "delete"},
	Resources: []string{"transientrolebindings", "transientclusterrolebindings", "transientrolebindings/status"},
}

func install(t *testing.T) *installed {
	t.Helper()
	reads := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}}
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: here}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}},
		role(here, "deployer", reads("configmaps")...), role(here, "lost", reads("configmaps")...), role(here, "soon", reads("configmaps")...),
		role(here, "other", reads("secrets")...), role(elsewhere, "deployer", reads("configmaps")...),
	}
	for name, resource := range map[string]string{"secret-reader": "secrets", "wide": "nodes", "wider": "nodes"} {
		objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"into": "aggregated"}}, Rules: reads(resource)})
	}
	objects = append(objects, &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "aggregated"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "aggregated"}}}},
	})
	objects = append(objects, grant("", "writers", "alice", writeObjects)...)
	objects = append(objects, grant("", "writers-too", "mallory", writeObjects)...)
	objects = append(objects, grant("", "binders-wide", "alice", bind("clusterroles", "wide"))...)
	objects = append(objects, grant(here, "binders", "alice", bind("roles", "deployer", "later", "lost", "other"), bind("clusterroles", "secret-reader"))...)
	objects = append(objects, grant(here, "binders-soon", "alice", bind("roles", "soon"))...)
	run := managertest.Run(t, server, managertest.Options{Objects: objects}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(binding.New(options))
	})
	t.Cleanup(func() {
		for _, object := range objects {
			if _, ok := object.(*corev1.Namespace); !ok {
				_ = admin.Delete(context.Background(), object)
			}
		}
	})
	i := &installed{Installation: run, alice: user(t, "alice"), mallory: user(t, "mallory")}
	for _, may := range []authorizationv1.ResourceAttributes{
		{Namespace: here, Verb: "bind", Group: rbacv1.GroupName, Resource: "roles", Name: "soon"},
		{Verb: "bind", Group: rbacv1.GroupName, Resource: "clusterroles", Name: "wide"},
	} {
		awaitRight(t, "alice", may, true)
	}
	return i
}

func user(t *testing.T, name string) client.Client {
	t.Helper()
	added, err := server.AddUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Client(t, added, scheme)
}

func role(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: rules}
}

func bind(resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{"bind"}}
}

// grant returns a role of this name and its binding to a user.
func grant(namespace, name, to string, rules ...rbacv1.PolicyRule) []client.Object {
	named := metav1.ObjectMeta{Namespace: namespace, Name: name}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: to}}
	if namespace == "" {
		return []client.Object{
			&rbacv1.ClusterRole{ObjectMeta: named, Rules: rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: subjects},
		}
	}
	return []client.Object{
		&rbacv1.Role{ObjectMeta: named, Rules: rules},
		&rbacv1.RoleBinding{ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: subjects},
	}
}

func awaitRight(t *testing.T, name string, what authorizationv1.ResourceAttributes, want bool) {
	t.Helper()
	testkit.AwaitRight(t, admin, authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &what}, want)
}

var eve = []v1alpha1.BoundSubject{{Kind: rbacv1.UserKind, Name: "eve"}}

func second(ahead time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(ahead).Truncate(time.Second))
}

// transient is a TransientRoleBinding for eve, from now on.
func transient(namespace, name, kind, role string, lasts time.Duration) *v1alpha1.TransientRoleBinding {
	return &v1alpha1.TransientRoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.TransientBindingSpec{
		ValidUntil: second(lasts), RoleRef: v1alpha1.BoundRole{Kind: kind, Name: role}, Subjects: slices.Clone(eve), Reason: "ticket 7",
	}}
}

func wide(name, role string, lasts time.Duration) *v1alpha1.TransientClusterRoleBinding {
	return &v1alpha1.TransientClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: transient("", "", "ClusterRole", role, lasts).Spec}
}

// await polls until the condition of an object has a reason.
func await(t *testing.T, object v1alpha1.TransientBinding, reason string) *metav1.Condition {
	t.Helper()
	var condition *metav1.Condition
	testkit.Succeeds(t, patience, object.GetName()+" is "+reason, func(ctx context.Context) error {
		o := object.(client.Object)
		if err := admin.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		condition = meta.FindStatusCondition(object.GetBindingStatus().Conditions, v1alpha1.ConditionEffective)
		if condition == nil || condition.Reason != reason {
			return fmt.Errorf("it is %+v", condition)
		}
		return nil
	})
	return condition
}

func bindingOf(t *testing.T, object client.Object) (*rbacv1.RoleBinding, error) {
	t.Helper()
	var b rbacv1.RoleBinding
	return &b, admin.Get(t.Context(), client.ObjectKeyFromObject(object), &b)
}

// gone polls until a binding is gone.
func gone(t *testing.T, b client.Object) {
	t.Helper()
	uid := b.GetUID()
	testkit.Succeeds(t, patience, "the binding is gone", func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKeyFromObject(b), b)
		if client.IgnoreNotFound(err) != nil || err == nil && b.GetUID() == uid {
			return errors.Join(err, errors.New("it is there"))
		}
		return nil
	})
}

// refused expects an error with this text.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %q", err, text)
	}
}

func malloryUser(t *testing.T) *controlplane.User {
	t.Helper()
	added, err := server.AddUser("mallory")
	if err != nil {
		t.Fatal(err)
	}
	return added
}

package testkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// Main runs the tests of a package on one control plane, which setUp prepares,
// and returns the exit code for TestMain.
func Main(m *testing.M, options controlplane.Options, setUp func(*controlplane.ControlPlane) error) int {
	code, err := onCluster(m, options, setUp)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func onCluster(m *testing.M, options controlplane.Options, setUp func(*controlplane.ControlPlane) error) (code int, err error) {
	cluster, err := controlplane.Start(context.Background(), options)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := setUp(cluster); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// Scheme returns one with the built-in kinds and those that add adds.
func Scheme(add ...func(*runtime.Scheme) error) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range append(add, clientgoscheme.AddToScheme) {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// clients has a function for each user and scheme, since a new client asks the API
// server anew which kinds it has.
var clients sync.Map

type clientKey struct {
	user   *controlplane.User
	scheme *runtime.Scheme
}

// NewClient returns the client that acts as a user and has no rate limit of its own.
func NewClient(user *controlplane.User, scheme *runtime.Scheme) (client.WithWatch, error) {
	made, _ := clients.LoadOrStore(clientKey{user, scheme}, sync.OnceValues(func() (client.WithWatch, error) {
		config := rest.CopyConfig(user.Config)
		config.QPS = -1
		return client.NewWithWatch(config, client.Options{Scheme: scheme})
	}))
	return made.(func() (client.WithWatch, error))()
}

// Client is NewClient in a test.
func Client(t testing.TB, user *controlplane.User, scheme *runtime.Scheme) client.WithWatch {
	t.Helper()
	c, err := NewClient(user, scheme)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ServiceAccount returns a user with the name and the groups of a ServiceAccount.
func ServiceAccount(cluster *controlplane.ControlPlane, namespace, name string) (*controlplane.User, error) {
	return cluster.AddUser("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// Create creates objects in order and ends the test at the first error.
func Create(t testing.TB, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatalf("creating %T %s/%s: %v", object, object.GetNamespace(), object.GetName(), err)
		}
	}
}

// Apply does with a manifest what `kubectl apply -f` does, as an administrator.
func Apply(ctx context.Context, cluster *controlplane.ControlPlane, manifest string) error {
	apply := cluster.Kubectl(ctx, nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(manifest)
	if output, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, output)
	}
	return nil
}

// Namespace creates a namespace for one test and returns its name.
func Namespace(t testing.TB, c client.Client) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Create(t, c, namespace)
	return namespace.Name
}

// ManagerNamespace creates a namespace in which the ServiceAccount admitkit of
// admitkit-system may run a manager: it has the rights that every manager needs
// in its own namespace.
func ManagerNamespace(t testing.TB, c client.Client) string {
	t.Helper()
	namespace := Namespace(t, c)
	named := metav1.ObjectMeta{Name: "manager", Namespace: namespace}
	Create(t, c,
		&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"admitkit-setupcertificate", "admitkit-paths"}, Verbs: []string{"get"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}, // of leader election
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: named,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: named.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "admitkit-system", Name: "admitkit"}},
		})
	return namespace
}

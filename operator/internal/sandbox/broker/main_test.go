package broker_test

import (
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one real control plane.
var (
	server *controlplane.ControlPlane
	scheme = testkit.Scheme(v1alpha1.AddToScheme)
	admin  client.WithWatch
)

func TestMain(m *testing.M) {
	if text := os.Getenv(processVariable); text != "" {
		os.Exit(runProcess(text))
	}
	os.Exit(testkit.Main(m, controlplane.Options{CRDPaths: []string{"../../../config/crd"}}, func(c *controlplane.ControlPlane) (err error) {
		server = c
		admin, err = testkit.NewClient(c.Admin(), scheme)
		return err
	}))
}

func user(t testing.TB, name string) client.Client {
	t.Helper()
	added, err := server.AddUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Client(t, added, scheme)
}

// grant gives a user rights in a namespace.
func grant(t testing.TB, namespace, name, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	testkit.Grant(t, admin, namespace, name, rules, user)
}

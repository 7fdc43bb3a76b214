package sandbox_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox"
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
	options := controlplane.Options{CRDPaths: []string{"../config/crd"}, ControllerManager: true, Kwok: true}
	os.Exit(testkit.Main(m, options, func(c *controlplane.ControlPlane) (err error) {
		server = c
		if admin, err = testkit.NewClient(c.Admin(), scheme); err != nil {
			return err
		}
		return admin.Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: orphanNode}})
	}))
}

// image is one that no digest names.
const image = "example.com/agent:1"

// installed is a sandbox that runs in one namespace.
type installed struct {
	*managertest.Installation
	name string
	// here is where runs run, elsewhere where none do.
	here, elsewhere string
	// alice may write runs and templates, and read the ConfigMap that is hers.
	alice client.Client
}

func install(t *testing.T, options sandbox.Options, more ...func() any) *installed {
	t.Helper()
	i := &installed{name: strings.ToLower(t.Name()), here: testkit.Namespace(t, admin), elsewhere: testkit.Namespace(t, admin)}
	if len(options.Namespaces) > 0 {
		i.here = options.Namespaces[0]
	}
	options.Namespaces = []string{i.here}
	if options.Egress.Mode == egress.ModeNone {
		options.Egress.Mode = egress.ModeOn
	}
	write := []string{"create", "get", "list", "update", "patch", "delete"}
	i.Installation = managertest.Run(t, server, managertest.Options{Name: i.name, AllNamespaces: true}, func(mgr *manager.Manager) error {
		var errs []error
		for _, e := range more {
			errs = append(errs, mgr.AddExtension(e()))
		}
		return errors.Join(append(errs, mgr.AddExtension(sandbox.New(options)))...)
	})
	grant(t, "alice",
		rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"sandboxruns", "sandboxruntemplates", "sandboxruns/status"}, Verbs: write},
		rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: write},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: write},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"hers"}, Verbs: []string{"get"}})
	added, err := server.AddUser("alice")
	if err != nil {
		t.Fatal(err)
	}
	i.alice = testkit.Client(t, added, scheme)
	return i
}

// grant gives a user rights everywhere.
func grant(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	testkit.Grant(t, admin, "", user+"-"+rand.String(5), rules, user)
}

func template(namespace, name string) *v1alpha1.SandboxRunTemplate {
	return &v1alpha1.SandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.SandboxRunTemplateSpec{Image: image}}
}

func run(namespace, name, template string) *v1alpha1.SandboxRun {
	return &v1alpha1.SandboxRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.SandboxRunSpec{TemplateRef: v1alpha1.SandboxRunTemplateRef{Name: template}, Prompt: "Say hello."},
	}
}

// refused expects an error with this text.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %q", err, text)
	}
}

func amount(t *testing.T, text string) *v1alpha1.SandboxQuantity {
	t.Helper()
	q := &v1alpha1.SandboxQuantity{}
	if err := q.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return q
}

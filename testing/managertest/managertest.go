// Package managertest runs a program's extensions on a real API server, under exactly
// the rights that its command `manifests` gives them:
//
//	func TestAPodSaysWhomToContact(t *testing.T) {
//		cluster := controlplane.Run(t, controlplane.Options{})
//		installed := managertest.Run(t, cluster, managertest.Options{}, func(mgr *manager.Manager) error {
//			return mgr.AddExtension(newExtension())
//		})
//		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: installed.Namespace, Name: "web"}, ...}
//		if err := installed.Admin.Create(t.Context(), pod); err != nil {
//			...
//	}
//
// [Run] creates what `manifests` prints, except Deployments and Services. In their place
// it runs the registrar, the server and the reconciler in the process of the test, each
// with a token of its own ServiceAccount. The API server calls the webhooks at a free
// port of 127.0.0.1.
//
// A call that RBAC refuses fails the test with the API server's sentence, which names the
// verb and the resource, even if the extension hides the error; see [Options].Forbidden.
// So the end of a test waits until the extensions have made no call for 100 ms, and fails
// the test if they still make some 10 s later.
//
// Every Run has namespaces of its own, so the tests of a package can share an API server
// and run in parallel. To share one, start it in TestMain with [controlplane.Start].
package managertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// drainPeriod is short: the API server is on this machine.
const drainPeriod = 100 * time.Millisecond

// patience limits the start, and the stop. A machine may compile meanwhile.
const patience = 90 * time.Second

// Options say what to run. The zero value suits most tests.
type Options struct {
	// Name is the name of the program, as in command.New. The names of the
	// ServiceAccounts and the fingerprint come from it. Default: test.
	Name string
	// Manager has the options of the program. Run chooses namespaces, a name and a free
	// port if they are empty, and sets a DrainPeriod of 100 ms. As `manifests` does by
	// default, it elects a leader, and keeps the certificate in a Secret of its own.
	//
	// Run itself sets Host, ServiceName, KubeConfig, RESTConfig, RegisterWebHook,
	// SetupCertificate, Serving.AdvertiseHost, Serving.HealthAddress,
	// Serving.MetricsAddress, Registration.UnregisterOnStop and
	// Watching.ReconcilerUser, and refuses them.
	Manager manager.Options
	// AllNamespaces leaves Manager.Namespaces empty: the extensions receive the objects
	// of every namespace. Default: they receive those of Manager.Namespaces, which Run
	// creates, or if there are none of a new namespace.
	AllNamespaces bool

	// CRDPaths are files and folders with CustomResourceDefinitions to install. Those that
	// exist are replaced if they differ.
	CRDPaths []string
	// Objects are created, in this order, before the extensions run: namespaces,
	// CustomResourceDefinitions, and what the extensions find.
	Objects []client.Object

	// Forbidden is called for each call that RBAC refuses to one of the ServiceAccounts,
	// once for each sentence of the API server, possibly from several goroutines. Default:
	// the test fails with that sentence.
	Forbidden func(serviceAccount, sentence string)
}

// Installation is what [Run] runs.
type Installation struct {
	// Namespace is the watched namespace, the first of several; with AllNamespaces, a new
	// namespace for the objects of the test.
	Namespace string
	// WebhookNamespace is the manager's own namespace, with its ServiceAccounts.
	WebhookNamespace string
	// Admin is a client that may do everything. It has the Scheme of Options.Manager.
	Admin client.WithWatch

	t         testing.TB
	cluster   *controlplane.ControlPlane
	options   Options
	build     func(*manager.Manager) error
	kube      kubernetes.Interface // may do everything
	forbidden *forbidden
	// crds are the CustomResourceDefinitions of the options. The rights need their plurals.
	crds []client.Object
	// configurations are those that the registrar writes.
	configurations []client.Object
	processes      []*process
	stop           func()
}

// Run installs the extensions that build adds, and returns when they are ready. It stops
// and unregisters them at the end of the test, and fails the test if one of the processes
// ended with an error, or if a Remover left something behind.
//
// build is what command.New takes. It is called for each process, as in a cluster: it must
// make new extensions each time.
func Run(t testing.TB, cluster *controlplane.ControlPlane, options Options, build func(*manager.Manager) error) *Installation {
	t.Helper()
	if build == nil {
		t.Fatalf("managertest: build is nil: it adds the extensions, as in command.New")
	}
	if options.Manager.Logger == nil {
		options.Manager.Logger, _ = testkit.Logger(t) // before Cleanup, to have what the end logs
	}
	i := &Installation{t: t, cluster: cluster, options: options, build: build}
	i.stop = sync.OnceFunc(i.end)
	t.Cleanup(i.stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := i.start(ctx); errors.Is(err, errForbidden) {
		t.FailNow() // the sentence is told
	} else if err != nil {
		t.Fatalf("managertest: %v", err)
	}
	return i
}

// Stop stops and unregisters the extensions before the test ends. The rest of the cluster
// stays as it is.
func (i *Installation) Stop() {
	i.t.Helper()
	i.stop()
}

// As returns a client that acts as a user, who is a member of the groups and of
// system:authenticated. RBAC decides what the user may do: give rights with Admin, or all
// with the group system:masters.
func (i *Installation) As(user string, groups ...string) client.WithWatch {
	i.t.Helper()
	added, err := i.cluster.AddUser(user, groups...)
	if err != nil {
		i.t.Fatalf("managertest: %v", err)
	}
	return i.client(added.Config)
}

// AsServiceAccount returns a client that acts as a ServiceAccount, which need not exist.
func (i *Installation) AsServiceAccount(namespace, name string) client.WithWatch {
	i.t.Helper()
	return i.As("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// Metrics returns what /metrics serves, in the text format of Prometheus. All extensions
// that run in the process of the test share its metrics.
func (i *Installation) Metrics() string {
	i.t.Helper()
	page := httptest.NewRecorder()
	promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if page.Code != http.StatusOK {
		i.t.Fatalf("managertest: /metrics: %d: %s", page.Code, page.Body)
	}
	return page.Body.String()
}

// start does what an administrator does by hand, and what the kubelets do then.
func (i *Installation) start(ctx context.Context) error {
	if err := i.complete(); err != nil {
		return err
	}
	if err := i.createFirst(ctx); err != nil {
		return err
	}
	installation, err := i.manifests()
	if err != nil {
		return err
	}
	if err := i.install(ctx, installation.Objects); err != nil {
		return err
	}
	i.configurations = installation.Configurations
	if i.processes, err = i.newProcesses(ctx, installation.Objects); err != nil {
		return err
	}
	for _, p := range i.processes {
		p.start(context.WithoutCancel(ctx))
	}
	for _, p := range i.processes {
		if err := p.wait(ctx, i.forbidden.told); err != nil {
			return err
		}
	}
	return nil
}

// complete validates the options and fills in the defaults.
func (i *Installation) complete() error {
	o := &i.options.Manager
	for field, set := range map[string]bool{
		"Host": o.Host != "", "ServiceName": o.ServiceName != "", "KubeConfig": o.KubeConfig != "", "RESTConfig": o.RESTConfig != nil,
		"RegisterWebHook": o.RegisterWebHook != nil, "SetupCertificate": o.SetupCertificate != nil,
		"Serving.AdvertiseHost": o.Serving.AdvertiseHost != "", "Serving.HealthAddress": o.Serving.HealthAddress != "",
		"Serving.MetricsAddress": o.Serving.MetricsAddress != "", "Registration.UnregisterOnStop": o.Registration.UnregisterOnStop,
		"Watching.ReconcilerUser": o.Watching.ReconcilerUser != "",
	} {
		if set {
			return fmt.Errorf("options: Manager.%s: must be empty: Run sets it", field)
		}
	}
	if i.options.AllNamespaces && len(o.Namespaces) > 0 {
		return fmt.Errorf("options: AllNamespaces and Manager.Namespaces %q: set only one of them", o.Namespaces)
	}
	name := cmp.Or(i.options.Name, "test")
	i.options.Name = name
	o.OperatorFingerprint = cmp.Or(o.OperatorFingerprint, name)
	i.Namespace = name + "-" + utilrand.String(5)
	switch {
	case len(o.Namespaces) > 0:
		i.Namespace = o.Namespaces[0]
	case !i.options.AllNamespaces:
		o.Namespaces = []string{i.Namespace}
	}
	i.WebhookNamespace = cmp.Or(o.WebhookNamespace, name+"-system-"+utilrand.String(5))
	o.WebhookNamespace = i.WebhookNamespace
	o.Certificates.LeafSecretName = cmp.Or(o.Certificates.LeafSecretName, name+"-certificate")
	o.Watching.LeaderElection = true
	if o.Scheme == nil {
		o.Scheme = clientgoscheme.Scheme
	}
	if o.Serving.DrainPeriod == nil {
		period := drainPeriod
		o.Serving.DrainPeriod = &period
	}
	if o.Port == 0 || o.Port == manager.FreePort {
		port, err := freeport.Find()
		if err != nil {
			return err
		}
		o.Port = port
	}
	i.forbidden = newForbidden(i.t, i.options.Forbidden)
	i.Admin = i.client(i.cluster.Config())
	var err error
	i.kube, err = kubernetes.NewForConfig(i.cluster.Config())
	return err
}

// managerOptions returns those for one process. Only the registrar registers.
func (i *Installation) managerOptions(config *rest.Config, registers bool) manager.Options {
	o := i.options.Manager
	o.RESTConfig, o.RegisterWebHook = config, &registers
	o.Host, o.Serving.AdvertiseHost = loopback, loopback
	return o
}

// newManager makes a manager with the extensions.
func (i *Installation) newManager(o manager.Options) (*manager.Manager, error) {
	mgr, err := manager.New(o)
	if err != nil {
		return nil, err
	}
	return mgr, i.build(mgr)
}

// manifests returns what the command of that name prints, for an installation behind a
// Service.
func (i *Installation) manifests() (*manager.Installation, error) {
	o := i.managerOptions(i.cluster.Config(), true)
	o.Host, o.Serving.AdvertiseHost, o.ServiceName = "", "", i.options.Name
	mgr, err := i.newManager(o)
	if err != nil {
		return nil, err
	}
	installation, err := mgr.Manifests(manager.InstallOptions{Name: i.options.Name, Image: i.options.Name, CRDs: i.crds})
	if err != nil {
		return nil, err
	}
	for _, warning := range installation.Warnings {
		i.t.Logf("managertest: manifests warns: %s", warning)
	}
	return installation, nil
}

// end stops what runs, and removes what would call it. The server is the last to go: with
// failure policy Fail, nobody must meet a webhook that nobody serves.
func (i *Installation) end() {
	i.t.Helper()
	if i.Admin == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), patience)
	defer cancel()
	var restless error
	if !i.t.Failed() {
		restless = i.forbidden.rest(ctx)
	}
	err := errors.Join(restless, i.stopThose(ctx, false), i.deleteConfigurations(ctx), i.stopThose(ctx, true))
	i.forbidden.end()
	if len(i.processes) > 0 {
		mgr, made := i.newManager(i.managerOptions(i.cluster.Config(), true))
		if made == nil {
			made = mgr.UnregisterExtensions(ctx)
		}
		err = errors.Join(err, made)
	}
	if err != nil {
		i.t.Errorf("managertest: %v", err)
	}
}

// stopThose stops the processes that serve, or the others.
func (i *Installation) stopThose(ctx context.Context, serve bool) error {
	var errs []error
	for _, p := range i.processes {
		if p.serves == serve {
			errs = append(errs, p.stop(ctx))
		}
	}
	return errors.Join(errs...)
}

func (i *Installation) deleteConfigurations(ctx context.Context) error {
	var errs []error
	for _, configuration := range i.configurations {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(configuration.GetObjectKind().GroupVersionKind())
		object.SetName(configuration.GetName())
		errs = append(errs, client.IgnoreNotFound(i.Admin.Delete(ctx, object)))
	}
	return errors.Join(errs...)
}

// client returns one for the kinds of the program, without a rate limit of its own.
func (i *Installation) client(config *rest.Config) client.WithWatch {
	i.t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	c, err := client.NewWithWatch(config, client.Options{Scheme: i.options.Manager.Scheme})
	if err != nil {
		i.t.Fatalf("managertest: %v", err)
	}
	return c
}

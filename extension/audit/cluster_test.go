package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one real control plane, whose own audit log is on.
var (
	cluster  *controlplane.ControlPlane
	auditLog string
	scheme   = runtime.NewScheme()
	admin    client.WithWatch
	// managerUser has the rights that the README gives the manager.
	managerUser *controlplane.User
	// alice has every right in every namespace that has to do with Pods, and on
	// the proxies of nodes.
	alice *controlplane.User
)

func TestMain(m *testing.M) {
	if text := os.Getenv(managerVariable); text != "" {
		os.Exit(runProcess(text))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "audit-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		auditLog = filepath.Join(dir, "audit.log")
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		return m.Run()
	}())
}

func setUp() error {
	ctx := context.Background()
	var err error
	if cluster, err = controlplane.Start(ctx, controlplane.Options{
		CRDPaths: []string{"../../config/crd"}, Kwok: true,
		APIServerArgs: map[string][]string{"audit-policy-file": {"testdata/audit-policy.yaml"}, "audit-log-path": {auditLog}},
	}); err != nil {
		return err
	}
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if admin, err = clientFor(cluster.Admin()); err != nil {
		return err
	}
	apply := cluster.Kubectl(ctx, nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(readmeYAML() + rights)
	if output, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("applying the objects of the README: %w: %s", err, output)
	}
	if managerUser, err = cluster.AddUser("system:serviceaccount:admitkit-system:admitkit", "system:serviceaccounts", "system:serviceaccounts:admitkit-system"); err != nil {
		return err
	}
	alice, err = cluster.AddUser("alice", "developers")
	return err
}

// rights are what an operator grants alice.
const rights = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: developer}
rules:
- {apiGroups: [""], resources: [pods, services, nodes], verbs: [get, list, watch, create, delete]}
- {apiGroups: [""], resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, services/proxy, nodes/proxy], verbs: [get, create]}
- {apiGroups: [""], resources: [pods/ephemeralcontainers], verbs: [get, patch, update]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: developer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: developer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// readmeYAML returns the YAML blocks of the README.
func readmeYAML() string {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		panic(err)
	}
	var blocks []string
	for _, block := range strings.Split(string(readme), "```yaml\n")[1:] {
		yaml, _, _ := strings.Cut(block, "```")
		blocks = append(blocks, yaml)
	}
	return strings.Join(blocks, "---\n")
}

func clientFor(user *controlplane.User) (client.WithWatch, error) {
	config := rest.CopyConfig(user.Config)
	config.QPS = -1
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// as returns a client that acts as a user.
func as(t *testing.T, user *controlplane.User) client.Client {
	t.Helper()
	c, err := clientFor(user)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newNamespace makes a namespace for one test, in which a manager may live.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	create(t, namespace)
	name := namespace.Name
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "manager", Namespace: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"admitkit-setupcertificate"}, Verbs: []string{"get"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
		},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "manager", Namespace: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "manager"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "admitkit-system", Name: "admitkit"}},
	})
	return name
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	if err := admin.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s/%s: %v", object, object.GetNamespace(), object.GetName(), err)
	}
}

// runPod makes a Pod with two containers and waits until it runs.
func runPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "web", Image: "example.com/web:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}, {Name: "log", Image: "example.com/log:1"},
		}},
	}
	create(t, pod)
	eventually(t, "the Pod runs", func(ctx context.Context) bool {
		err := admin.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
	return pod
}

// running is a manager between start and stop.
type running struct {
	*manager.Manager
	logs *observer.ObservedLogs
	done chan error
	once sync.Once
}

// start runs a manager with the rights of the README in a namespace until the
// test ends, and returns when its webhook is called there.
func start(t *testing.T, namespace string, options audit.Options) *running {
	t.Helper()
	return startAs(t, managerUser, namespace, options)
}

func startAs(t *testing.T, user *controlplane.User, namespace string, options audit.Options) *running {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	managerOptions := manager.Options{
		Namespace: namespace, Host: "127.0.0.1", Port: freeport.For(t), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: zap.New(core).Sugar(), RESTConfig: user.Config, RegisterWebHook: new(bool),
	}
	register(t, managerOptions, options)
	mgr, err := manager.New(managerOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(audit.New(options)); err != nil {
		t.Fatal(err)
	}
	r := &running{Manager: mgr, logs: logs, done: make(chan error, 1)}
	go func() { r.done <- mgr.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		r.stop(t)
		if t.Failed() {
			for _, entry := range logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.WarnLevel }).All() {
				t.Log(entry.Message, entry.ContextMap())
			}
		}
	})
	select {
	case <-r.Ready():
	case err := <-r.done:
		t.Fatalf("the manager stopped at start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the manager is not ready after a minute")
	}
	awaitWebhook(t, namespace)
	return r
}

// register registers the webhooks of a manager, with the rights of an admin,
// until the test ends.
func register(t *testing.T, options manager.Options, auditOptions audit.Options) {
	t.Helper()
	options.RESTConfig, options.RegisterWebHook = cluster.Config(), nil
	registrar, err := manager.New(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := registrar.AddExtension(audit.New(auditOptions)); err != nil {
		t.Fatal(err)
	}
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registrar.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// awaitWebhook waits until the API server, which learns of webhooks by a watch
// of its own, calls them. The probe is an exec in a Pod that does not exist.
func awaitWebhook(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "the API server calls the webhook", func(ctx context.Context) bool {
		probe := fmt.Sprint("probe-", time.Now().UnixNano())
		_ = cluster.Kubectl(ctx, nil, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec?command=true", namespace, probe)).Run()
		for _, e := range serverEvents(t) {
			if e.ObjectRef.Name == probe {
				return e.record() != ""
			}
		}
		return false
	})
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.once.Do(func() {
		r.Stop()
		select {
		case err := <-r.done:
			if err != nil {
				t.Errorf("the manager stopped with an error: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the manager has not stopped after a minute")
		}
	})
}

// serverEvent is an event of the API server's own audit log (audit.k8s.io/v1).
type serverEvent struct {
	AuditID   string `json:"auditID"`
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	ObjectRef struct{ Resource, Namespace, Name, Subresource string }
	User      struct{ Username string }
	Status    struct{ Code int } `json:"responseStatus"`

	Annotations map[string]string `json:"annotations"`
}

// record returns the ID of our record, which the webhook put into the event.
func (e *serverEvent) record() string {
	for key, value := range e.Annotations {
		if strings.HasSuffix(key, ".record") {
			return value
		}
	}
	return ""
}

// serverEvents reads the API server's audit log: each request once, at its
// first stage that has an answer.
func serverEvents(t *testing.T) []serverEvent {
	t.Helper()
	file, err := os.Open(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := map[string]bool{}
	var events []serverEvent
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return events // the last line may be unfinished
		}
		var e serverEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if !seen[e.AuditID] {
			seen[e.AuditID] = true
			events = append(events, e)
		}
	}
}

// eventually polls where there is no event to wait for.
func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func figure(name string, value float64, unit string) {
	fmt.Printf("FIGURE %s=%s %s\n", name, strconv.FormatFloat(math.Round(value*100)/100, 'f', -1, 64), unit)
}

// count returns the number for the long form of a test, or for its short one.
func count(long, short int) int {
	if testing.Short() {
		return short
	}
	return long
}

package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one real control plane, whose own audit log is on.
var (
	cluster  *controlplane.ControlPlane
	auditLog string
	scheme   = testkit.Scheme(v1alpha1.AddToScheme)
	admin    client.WithWatch
	// prober sends requests of an admin that no client would make.
	prober rest.Interface
	// managerUser has the documented rights of the manager.
	managerUser *controlplane.User
	// alice has every right on Pods in every namespace, and on the proxies of
	// nodes.
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
		return testkit.Main(m, controlplane.Options{
			CRDPaths: []string{"../config/crd"}, Kwok: true,
			APIServerArgs: map[string][]string{"audit-policy-file": {"testdata/audit-policy.yaml"}, "audit-log-path": {auditLog}},
		}, setUp)
	}())
}

func setUp(c *controlplane.ControlPlane) (err error) {
	cluster = c
	if admin, err = testkit.NewClient(c.Admin(), scheme); err != nil {
		return err
	}
	config := rest.CopyConfig(c.Config())
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	prober = kube.CoreV1().RESTClient()
	documented, err := testkit.Manifest(rightsPage)
	if err != nil {
		return err
	}
	if err := testkit.Apply(context.Background(), c, documented+rights); err != nil {
		return err
	}
	if managerUser, err = testkit.ServiceAccount(c, "admitkit-system", "admitkit"); err != nil {
		return err
	}
	alice, err = c.AddUser("alice", "developers")
	return err
}

// rightsPage documents the rights that the manager needs.
const rightsPage = "../docs/audit/rights.md"

// rights are the rights of developers, alice among them.
const rights = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: developer}
rules:
- {apiGroups: [""], resources: [pods, services, nodes], verbs: [get, list, watch, create, patch, update, delete]}
- {apiGroups: [""], resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, services/proxy, nodes/proxy], verbs: [get, create]}
- {apiGroups: [""], resources: [pods/ephemeralcontainers], verbs: [get, patch, update]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: developer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: developer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: developers}]
`

// runPod makes a Pod with two containers and waits until it runs.
func runPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "web", Image: "example.com/web:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}, {Name: "log", Image: "example.com/log:1"},
		}},
	}
	return runThe(t, admin, pod)
}

// runThe makes a Pod, waits until it runs, and returns it. It makes it again if kwok deletes it
// by the name of the Pod before it.
func runThe(t *testing.T, c client.Client, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	running := &corev1.Pod{}
	testkit.Succeeds(t, time.Minute, "Pod "+pod.Name+" runs", func(ctx context.Context) error {
		err := c.Get(ctx, client.ObjectKeyFromObject(pod), running)
		if apierrors.IsNotFound(err) {
			running = pod.DeepCopy()
			err = c.Create(ctx, running)
		}
		if err == nil && running.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s", running.Status.Phase)
		}
		return err
	})
	return running
}

// start runs a manager with the documented rights in a namespace until the test
// ends, and returns its logs when the API server calls its webhook there.
func start(t *testing.T, namespace string, options audit.Options) *observer.ObservedLogs {
	t.Helper()
	return startAs(t, managerUser, namespace, options)
}

func startAs(t *testing.T, user *controlplane.User, namespace string, options audit.Options) *observer.ObservedLogs {
	t.Helper()
	logs, _ := startUntil(t, user, namespace, options)
	return logs
}

// startUntil is startAs, and returns how to stop the manager before the test ends. Its
// webhooks stay until then.
func startUntil(t *testing.T, user *controlplane.User, namespace string, options audit.Options) (logs *observer.ObservedLogs, stop func()) {
	t.Helper()
	logger, logs := testkit.Logger(t)
	managerOptions := manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", Port: freeport.For(t), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: logger, RESTConfig: user.Config, RegisterWebHook: new(bool),
	}
	return logs, startWith(t, managerOptions, options)
}

// startWith starts a manager that serves what another one has registered, until the test
// ends or calls stop.
func startWith(t *testing.T, managerOptions manager.Options, options audit.Options) (stop func()) {
	t.Helper()
	unregister := register(t, managerOptions, options)
	mgr, err := manager.New(managerOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(audit.New(options)); err != nil {
		t.Fatal(err)
	}
	stop = testkit.Start(t, mgr)
	// Webhooks that nobody serves would refuse what other tests do.
	t.Cleanup(unregister)
	testkit.Eventually(t, "the API server calls the webhook", func(ctx context.Context) bool { return isCalled(ctx, t, managerOptions.Namespaces[0]) })
	return stop
}

// register registers the webhooks of a manager, with the rights of an admin.
// unregister returns when the API server calls none of them any longer.
func register(t *testing.T, options manager.Options, auditOptions audit.Options) (unregister func()) {
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
	return func() {
		ctx := context.WithoutCancel(t.Context())
		err := registrar.UnregisterExtensions(ctx)
		if err == nil {
			err = testkit.Poll(ctx, time.Minute, "the API server calls the webhook no longer", func(ctx context.Context) error {
				if isCalled(ctx, t, options.Namespaces[0]) {
					return errors.New("it calls it")
				}
				return nil
			})
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// isCalled reports whether the API server, which learns of webhooks by a watch of its own,
// calls those of a namespace. The probe is an exec in a missing Pod.
func isCalled(ctx context.Context, t *testing.T, namespace string) bool {
	t.Helper()
	probe := "probe-" + utilrand.String(10)
	_ = prober.Get().Namespace(namespace).Resource("pods").Name(probe).SubResource("exec").Param("command", "true").Do(ctx)
	var answer *serverEvent
	_ = testkit.Poll(ctx, 10*time.Second, "the API server has logged the probe", func(context.Context) error {
		for _, e := range serverEvents(t) {
			if e.ObjectRef.Name == probe {
				answer = &e
				return nil
			}
		}
		return errors.New("it has not")
	})
	return answer != nil && answer.record() != ""
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

// record returns the ID of our record, from the webhook's annotation.
func (e *serverEvent) record() string {
	for key, value := range e.Annotations {
		if strings.HasSuffix(key, ".record") {
			return value
		}
	}
	return ""
}

// serverLog is what was read of the API server's audit log, which grows to many
// megabytes: each line is parsed once for all tests.
var serverLog struct {
	mu     sync.Mutex
	offset int64
	seen   map[string]bool
	events []serverEvent
}

// serverEvents returns the events of the API server's audit log: each request once, at
// its first stage that has an answer.
func serverEvents(t *testing.T) []serverEvent {
	t.Helper()
	serverLog.mu.Lock()
	defer serverLog.mu.Unlock()
	file, err := os.Open(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(serverLog.offset, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if serverLog.seen == nil {
		serverLog.seen = map[string]bool{}
	}
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return slices.Clone(serverLog.events) // the last line may be unfinished
		}
		serverLog.offset += int64(len(line))
		var e serverEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if !serverLog.seen[e.AuditID] {
			serverLog.seen[e.AuditID] = true
			serverLog.events = append(serverLog.events, e)
		}
	}
}

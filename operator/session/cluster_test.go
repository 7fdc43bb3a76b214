package session_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// cluster is an API server, and alice, who may do everything there.
type cluster struct {
	*controlplane.ControlPlane
	alice *controlplane.User
}

func newCluster(of *controlplane.ControlPlane) (*cluster, error) {
	alice, err := of.AddUser("alice", "system:masters")
	return &cluster{of, alice}, err
}

// The tests share a real control plane, except those of its aggregation layer. They run in parallel, except those
// of what has no namespace, and so meets the webhooks of all installations: paths of kubelets, and the status of
// AuditEvents.
var (
	server *cluster
	scheme = testkit.Scheme(v1alpha1.AddToScheme)
)

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, controlplane.Options{}, func(c *controlplane.ControlPlane) (err error) {
		server, err = newCluster(c)
		return err
	}))
}

const recorderImage = "example.com/session:1"

// memory is a sink that keeps records for a test.
type memory struct {
	mu      sync.Mutex
	records []*v1alpha1.AuditRecord
	failed  error
	failing v1alpha1.AuditWay // "" for all
}

// fail has it keep nothing from now on, unless err is nil.
func (m *memory) fail(err error) { m.failOn("", err) }

// failOn has it keep nothing of a way.
func (m *memory) failOn(way v1alpha1.AuditWay, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed, m.failing = err, way
}

func (*memory) Name() string { return "memory" }

func (m *memory) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil && (m.failing == "" || m.failing == r.Way) {
		return m.failed
	}
	m.records = append(m.records, r.DeepCopy())
	return nil
}

// last returns the last record, and forgets all.
func (m *memory) last() *v1alpha1.AuditRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.records) == 0 {
		return nil
	}
	record := m.records[len(m.records)-1]
	m.records = nil
	return record
}

// installation is the extension with audit beside it, on a real API server.
type installation struct {
	*managertest.Installation
	*cluster
	t    *testing.T
	key  protocol.Key
	sink *memory

	mu     sync.Mutex
	tamper func(*corev1.PodExecOptions)
	// ran is the command that validating webhooks got.
	ran []string
}

// theKey is that of all tickets.
var theKey = protocol.Key{Current: bytes.Repeat([]byte("k"), 32)}

// newOptions returns options with the files that they name.
func newOptions(t *testing.T) session.Options {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string][]byte{"key": theKey.Current, "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("DER")})} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return session.Options{Image: recorderImage, KeyFolder: folder, CAFile: filepath.Join(folder, "ca.crt"), Collectors: []string{"collector.test:8444"}}
}

func install(t *testing.T, change func(*session.Options), auditing audit.Options, before ...client.Object) *installation {
	t.Helper()
	return server.install(t, change, auditing, before...)
}

func (c *cluster) install(t *testing.T, change func(*session.Options), auditing audit.Options, before ...client.Object) *installation {
	t.Helper()
	i := &installation{cluster: c, t: t, key: theKey, sink: &memory{}}
	options := newOptions(t)
	if change != nil {
		change(&options)
	}
	running := managertest.Options{CRDPaths: []string{"../config/crd"}, Objects: before}
	if len(before) > 0 {
		running.Manager.Namespaces = []string{before[0].GetNamespace()}
	}
	for _, object := range before {
		if own, ok := object.(*corev1.Namespace); ok {
			running.Manager.WebhookNamespace = own.Name
		}
	}
	i.Installation = managertest.Run(t, c.ControlPlane, running, func(mgr *manager.Manager) error {
		fail := admissionregistrationv1.Fail
		if options.Unrecorded == session.Open {
			fail = admissionregistrationv1.Ignore
		}
		auditing := auditing // each process has sinks of its own
		auditing.Sinks = []audit.SinkOptions{{Sink: i.sink, FailurePolicy: audit.Closed}}
		if options.AuditObjects {
			auditing.Sinks = append(auditing.Sinks, audit.SinkOptions{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed})
		}
		// In the scope of the extension, so that it runs after it.
		scope := extension.Scope{Name: "sessions", Rules: extension.Connect("pods/exec"), NamespaceSelector: options.NamespaceSelector, FailurePolicy: &fail, ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy)}
		sessions := session.New(options)
		if len(options.AccessNamespaces) > 0 {
			granting := access.Options{Namespaces: options.AccessNamespaces}
			if options.Unrecorded != session.Open {
				granting.Sessions = sessions
			}
			if err := mgr.AddExtension(access.New(granting)); err != nil {
				return err
			}
		}
		return errors.Join(mgr.AddExtension(sessions), mgr.AddExtension(audit.New(auditing)), mgr.AddExtension(extension.MutatingFunc(i.after, scope)),
			mgr.AddExtension(extension.ValidatingFunc(i.observe, extension.Scope{Name: "observe", Rules: extension.Connect("pods/exec")})))
	})
	return i
}

// after is another webhook that changes commands.
func (i *installation) after(_ context.Context, options *corev1.PodExecOptions, _ *extension.Request) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.tamper != nil {
		i.tamper(options)
	}
	return nil
}

func (i *installation) observe(_ context.Context, options *corev1.PodExecOptions, _ *extension.Request) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ran = options.Command
	return nil
}

// pod makes a Pod.
func (i *installation) pod(name string) *corev1.Pod {
	i.t.Helper()
	pod := newPod(i.Namespace, name)
	testkit.Create(i.t, i.Admin, pod)
	return pod
}

func newPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}},
	}
}

// exec asks for an exec as kubectl does, but for the upgrade: admission comes first. It
// returns what the API server says, and the command that would have run.
func (i *installation) exec(pod string, tamper func(*corev1.PodExecOptions), command ...string) (answer testkit.Answer, ran []string) {
	i.t.Helper()
	i.mu.Lock()
	i.tamper, i.ran = tamper, nil
	i.mu.Unlock()
	query := url.Values{"command": command, "stdout": {"true"}}
	answer = testkit.Send(i.t, i.alice, http.MethodPost, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec?%s", i.Namespace, pod, query.Encode()), "", "")
	i.mu.Lock()
	defer i.mu.Unlock()
	return answer, i.ran
}

func TestACommandIsPutBehindTheRecorderAndAuditSeesTheUsers(t *testing.T) {
	t.Parallel()
	i := install(t, nil, audit.Options{})
	pod := i.pod("web")
	command := []string{"sh", "-c", "echo $SESSION", "--", ""}
	answer, ran := i.exec("web", nil, command...)
	text, given, ok := protocol.Split(ran)
	if !ok || !slices.Equal(given, command) {
		t.Fatalf("%s: runs %q", answer, ran)
	}
	ticket, err := i.key.Verify(text, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ticket.Covers(i.Namespace, "web", "web", "alice", command); err != nil || ticket.PodUID != string(pod.UID) || !ticket.Terms.Closed || ticket.Terms.Wait != 10 {
		t.Errorf("%+v, %v", ticket, err)
	}
	if left := time.Until(time.Unix(ticket.Expires, 0)); left > protocol.Life+time.Second || left < protocol.Life-20*time.Second {
		t.Errorf("it expires in %s", left)
	}
	record := i.sink.last()
	if record == nil || !slices.Equal(record.Command, command) || record.Session != ticket.ID || record.Container != "web" {
		t.Errorf("audit has %+v", record)
	}
	again, ran := i.exec("web", nil, command...)
	if other, _, ok := protocol.Split(ran); !ok || other == text {
		t.Errorf("%s: two sessions have one ticket", again)
	}
}

func TestNobodyElseStartsTheRecorder(t *testing.T) {
	t.Parallel()
	i := install(t, nil, audit.Options{})
	web := i.pod("web")
	command := []string{"id"}
	sign := func(change func(*protocol.Ticket)) string {
		ticket := &protocol.Ticket{
			ID: protocol.NewID(), Namespace: i.Namespace, Pod: "web", PodUID: string(web.UID), Container: "web", User: "alice", Command: protocol.Sum(command),
			Expires: time.Now().Add(time.Minute).Unix(), Terms: protocol.Terms{Collectors: []string{"mine:1"}},
		}
		change(ticket)
		text, err := i.key.Sign(ticket)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	set := func(command ...string) func(*corev1.PodExecOptions) {
		return func(o *corev1.PodExecOptions) { o.Command = command }
	}
	_, ran := i.exec("web", nil, command...)
	valid, _, ok := protocol.Split(ran)
	if !ok {
		t.Fatalf("runs %q", ran)
	}
	i.sink.last()
	for what, test := range map[string]struct {
		command []string
		tamper  func(*corev1.PodExecOptions)
		why     string
	}{
		"a user, with a valid ticket":    {protocol.Wrap(valid, command), nil, "started by a webhook, and by nobody else"},
		"a user, without a ticket":       {[]string{"/.admitkit/recorder", "version"}, nil, "started by a webhook, and by nobody else"},
		"a user, by another path":        {[]string{"/proc/self/root//.admitkit/./recorder"}, nil, "started by a webhook, and by nobody else"},
		"a user, by a relative path":     {[]string{"../../.admitkit/recorder"}, nil, "started by a webhook, and by nobody else"},
		"a forged ticket":                {command, func(o *corev1.PodExecOptions) { o.Command[1] = o.Command[1][:len(o.Command[1])-8] + "AAAAAAAA" }, "not signed with the key"},
		"a ticket that has expired":      {command, set(protocol.Wrap(sign(func(t *protocol.Ticket) { t.Expires -= 70 }), command)...), "has expired"},
		"a ticket for another Pod":       {command, set(protocol.Wrap(sign(func(t *protocol.Ticket) { t.Pod = "db" }), command)...), "another Pod"},
		"a ticket of another user":       {command, set(protocol.Wrap(sign(func(t *protocol.Ticket) { t.User = "bob" }), command)...), "another user"},
		"a ticket for another command":   {command, set(protocol.Wrap(valid, []string{"id", "-u"})...), "another command"},
		"a ticket for another container": {command, set(protocol.Wrap(sign(func(t *protocol.Ticket) { t.Container = "side" }), command)...), "another container"},
		"the prefix, and no ticket":      {command, set("/.admitkit/recorder", "--ticket=", "--", "id"), "malformed"},
		"no recorder in the end":         {command, set("id"), "another webhook has changed it"},
	} {
		t.Run(what, func(t *testing.T) {
			answer, _ := i.exec("web", test.tamper, test.command...)
			if answer.Code != http.StatusForbidden || !strings.Contains(answer.Body, test.why) {
				t.Errorf("got %s", answer)
			}
			// Audit takes no prefix off that it cannot trust.
			if record := i.sink.last(); record != nil && record.Session != "" {
				t.Errorf("audit has %+v", record)
			}
		})
	}
}

func TestWhereNothingRecordsThePolicyDecides(t *testing.T) {
	t.Parallel()
	for policy, refused := range map[session.Policy]bool{session.Closed: true, session.Open: false} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, testkit.Client(t, server.Admin(), scheme))
			i := install(t, func(o *session.Options) { o.Unrecorded = policy }, audit.Options{}, newPod(namespace, "old"))
			exec, ran := i.exec("old", nil, "id")
			attach := testkit.Send(t, i.alice, http.MethodPost, fmt.Sprintf("/api/v1/namespaces/%s/pods/old/attach?stdout=true", i.Namespace), "", "")
			debug := testkit.Send(t, i.alice, http.MethodPatch, fmt.Sprintf("/api/v1/namespaces/%s/pods/old/ephemeralcontainers", i.Namespace), testkit.AsMerge,
				`{"spec":{"ephemeralContainers":[{"name":"debug","image":"example.com/debug","command":["sh"]}]}}`)
			for _, each := range []struct {
				answer testkit.Answer
				why    string
			}{{exec, "kubectl rollout restart"}, {attach, "Use kubectl exec"}, {debug, "kubectl rollout restart"}} {
				if is := each.answer.Code == http.StatusForbidden && strings.Contains(each.answer.Body, each.why); is != refused {
					t.Errorf("got %s", each.answer)
				}
			}
			if !refused && !slices.Equal(ran, []string{"id"}) {
				t.Errorf("runs %q", ran)
			}
			var events eventsv1.EventList
			if err := i.Admin.List(t.Context(), &events, client.InNamespace(i.Namespace)); err != nil {
				t.Fatal(err)
			}
			said := 0
			for _, event := range events.Items {
				if event.Reason == "SessionUnrecorded" && event.Regarding.Name == "old" && strings.Contains(event.Note, "alice") {
					said++
				}
			}
			if want := map[bool]int{false: 3}[refused]; said != want {
				t.Errorf("%d Events say that a session is not recorded", said)
			}
			if answer, _ := i.exec("gone", nil, "id"); answer.Code != http.StatusNotFound {
				t.Errorf("a Pod that is not there: %s", answer)
			}
		})
	}
}

func noStorage(context.Context) (collector.Storage, error) { return nil, errors.New("there is none") }

// valid are options of an installation whose files nobody reads.
var valid = session.Options{Image: recorderImage, KeyFolder: "/key", CAFile: "/ca.crt", Collectors: []string{"c:1"}}

func TestInvalidOptionsNameTheField(t *testing.T) {
	for want, change := range map[string]func(*session.Options){
		"Image":     func(o *session.Options) { o.Image = "" },
		"KeyFolder": func(o *session.Options) { o.KeyFolder = "key" }, "CAFile": func(o *session.Options) { o.CAFile = "" },
		"Collectors": func(o *session.Options) { o.Collectors = nil }, "Wait": func(o *session.Options) { o.Wait = time.Millisecond },
		`Collectors: "c"`: func(o *session.Options) { o.Collectors = []string{"c:1", "c"} }, `Collectors: "c:0"`: func(o *session.Options) { o.Collectors = []string{"c:0"} },
		"AuditObjects": func(o *session.Options) { o.AuditObjects = true },
		"Folder":       func(o *session.Options) { o.Folder = "recordings" }, "CAFile has no effect": func(o *session.Options) { o.Folder = "/recordings" },
		"Service": func(o *session.Options) { o.Folder, o.CAFile, o.Collectors = "/recordings", "", nil },
		"Port":    func(o *session.Options) { o.Folder, o.CAFile, o.ServiceName, o.Port = "/recordings", "", "s", 70000 },
		"Max is":  func(o *session.Options) { o.Max = 1500 * time.Millisecond }, "Idle is": func(o *session.Options) { o.Idle = 9000 * time.Hour },
		"API has no effect":              func(o *session.Options) { o.API = true },
		"ServiceName is empty: with API": func(o *session.Options) { o.API, o.Folder, o.CAFile, o.ServerName = true, "/recordings", "", "c" },
		"AccessNamespaces has no effect": func(o *session.Options) { o.AccessNamespaces = []string{"a"} },
		"Evict has no effect":            func(o *session.Options) { o.Evict = true },
		"Redact has no effect":           func(o *session.Options) { o.Redact = &redact.Redactor{} },
		"Retention has no effect":        func(o *session.Options) { o.Retention = time.Hour },
		"Retention is": func(o *session.Options) {
			o.Folder, o.CAFile, o.ServiceName, o.Retention = "/recordings", "", "s", time.Minute
		},
		"Location is empty": func(o *session.Options) { o.Storage, o.CAFile, o.ServiceName = noStorage, "", "s" },
		"Folder, Storage": func(o *session.Options) {
			o.Storage, o.Folder, o.CAFile, o.ServiceName = noStorage, "/recordings", "", "s"
		},
		"Location, StorageEnv: have no effect": func(o *session.Options) { o.Location = "s3://recordings/" },
		"Unrecorded":                           func(o *session.Options) { o.Unrecorded = "open" }, "NoCollector": func(o *session.Options) { o.NoCollector = "fail" },
	} {
		options := valid
		change(&options)
		if _, err := session.New(options).Parts(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := session.New(valid).Parts(nil); err != nil {
		t.Error(err)
	}
}

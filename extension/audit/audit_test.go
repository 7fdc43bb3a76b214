package audit_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/fakes"
)

const namespace = "default"

// rights are what an operator grants: alice may exec and attach and no more,
// the auditor may look a Pod up and write Events.
const rights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: exec, namespace: default}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [""], resources: [pods/exec, pods/attach], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: exec, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: exec}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

func TestEverySessionIsRecordedOnce(t *testing.T) {
	cluster := controlplane.Run(t, controlplane.Options{Kwok: true})
	clientset := kubernetes.NewForConfigOrDie(cluster.Config())
	apply := cluster.Kubectl(t.Context(), nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(rights)
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	alice, err := cluster.AddUser("alice", "developers")
	if err != nil {
		t.Fatal(err)
	}
	logs := runManager(t, cluster.Config(), audit.Options{})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web:1"}, {Name: "log", Image: "example.com/log:1"}}},
	}
	if pod, err = clientset.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Pod runs", func(ctx context.Context) bool {
		pod, err := clientset.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
	// The first commands may come before the API server knows the webhook.
	eventually(t, "the API server calls the webhook", func(ctx context.Context) bool {
		return cluster.Kubectl(ctx, alice, "exec", "shop", "-c", "web", "--", "true").Run() == nil && logs.FilterMessage("session").Len() > 0
	})

	const secret = "typed into the session"
	exec := cluster.Kubectl(t.Context(), alice, "exec", "-i", "shop", "-c", "log", "--", "head", "-c", "22")
	exec.Stdin = strings.NewReader(secret)
	output, err := exec.CombinedOutput()
	if err != nil || !strings.Contains(string(output), secret) {
		t.Fatalf("kubectl exec: %v: %s", err, output)
	}
	sessions := logs.Filter(func(e observer.LoggedEntry) bool {
		return e.Message == "session" && e.ContextMap()["container"] == "log"
	}).All()
	if len(sessions) != 1 {
		t.Fatalf("got %d records of one exec", len(sessions))
	}
	record := sessions[0].ContextMap()
	for field, want := range map[string]any{
		"way": "pods/exec", "verb": "connect", "user": "alice", "namespace": namespace, "pod": "shop", "container": "log", "tty": false, "stdin": true,
	} {
		if record[field] != want {
			t.Errorf("%s is %v, want %v", field, record[field], want)
		}
	}
	if command := record["command"].([]any); len(command) != 3 || command[2] != "22" {
		t.Errorf("the command is %v", command)
	}
	var event eventsv1.Event
	eventually(t, "there is an Event", func(ctx context.Context) bool {
		events, err := clientset.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=PodExec"})
		if err != nil {
			return false
		}
		matching := 0
		for _, e := range events.Items {
			if strings.Contains(e.Note, `["head" "-c" "22"]`) {
				matching++
				event = e
			}
		}
		if matching > 1 {
			t.Fatalf("got %d Events of one exec", matching)
		}
		return matching == 1
	})
	if event.Regarding.UID != pod.UID || event.Regarding.FieldPath != "spec.containers{log}" || event.ReportingController != "admitkit.dev/audit" {
		t.Errorf("the Event does not tell which Pod and container: %+v", event.Regarding)
	}
	for _, entry := range logs.All() {
		for _, value := range entry.ContextMap() {
			if text, ok := value.(string); ok && strings.Contains(text, secret) {
				t.Errorf("what was typed is in the log: %v", entry)
			}
		}
	}
	describe, err := cluster.Kubectl(t.Context(), nil, "describe", "pod", "shop").CombinedOutput()
	if err != nil || !strings.Contains(string(describe), "alice: exec in container log") {
		t.Errorf("kubectl describe pod does not show the Event: %v: %s", err, describe)
	}
	// An attach lasts as long as its container.
	ctx, detach := context.WithCancel(t.Context())
	attach := cluster.Kubectl(ctx, alice, "attach", "shop", "-c", "web")
	if err := attach.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the attach is recorded", func(context.Context) bool {
		return logs.FilterField(zap.String("way", "pods/attach")).FilterMessage("session").Len() == 1
	})
	detach()
	_ = attach.Wait()
}

func TestAnExecThatMustBeRecordedIsDeniedWhenItCannotBe(t *testing.T) {
	// Nobody answers there, so no Event can be written.
	required, req := register(t, audit.Options{Required: true})
	err := required.Admit(t.Context(), &corev1.PodExecOptions{Command: []string{"sh"}}, req)
	if reason, denied := extension.DenialReason(err); !denied || !strings.Contains(reason, "pods/exec of Pod default/shop is only allowed when it is recorded") {
		t.Errorf("got %v, want a denial with the reason", err)
	}
}

func TestAnExecIsAllowedWhenItsEventCannotBeWritten(t *testing.T) {
	optional, req := register(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: audit.NewEventSink(), QueueLength: 1}}})
	for range 3 { // more than the queue holds
		if err := optional.Admit(t.Context(), &corev1.PodExecOptions{Command: []string{"sh"}}, req); err != nil {
			t.Errorf("got %v, want the session allowed", err)
		}
	}
}

// parts collects what an extension adds to a manager.
type parts []any

func (p *parts) AddExtension(e any) error {
	*p = append(*p, e)
	return nil
}

// register returns an auditor whose host has no API server, and a request.
func register(t *testing.T, options audit.Options) (*extension.Admission, *extension.Request) {
	t.Helper()
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mgr := &fakes.Manager{}
	mgr.GetKubeConnectionReturns(&rest.Config{Host: "https://127.0.0.1:1"}, nil)
	mgr.GetKubeClientReturns(kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://127.0.0.1:1"}).CoreV1(), nil)
	mgr.GetLoggerReturns(zap.NewNop().Sugar())
	mgr.GetKubeManagerReturns(kube)
	var added parts
	if err := audit.New(options).AddTo(&added); err != nil {
		t.Fatal(err)
	}
	sessions := added[0].(*extension.Admission)
	if err := sessions.Register(mgr); err != nil {
		t.Fatal(err)
	}
	return sessions, extension.NewRequest(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Connect, Namespace: namespace, Name: "shop",
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, SubResource: "exec",
	}})
}

func runManager(t *testing.T, config *rest.Config, options audit.Options) *observer.ObservedLogs {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	mgr, err := manager.New(manager.Options{
		Namespace: namespace, Host: "127.0.0.1", Port: port, RESTConfig: config,
		Logger: zap.New(core).Sugar(), DrainPeriod: new(time.Duration),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := audit.New(options).AddTo(mgr); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		mgr.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-mgr.Ready():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return logs
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	}); err != nil {
		t.Fatalf("not within 30 s: %s", what)
	}
}

package audit_test

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/testing/fakes"
)

const namespace = "default"

func TestAnExecThatMustBeRecordedIsDeniedWhenItCannotBe(t *testing.T) {
	// Nobody answers there, so no Event can be written.
	required, req := alone(t, audit.Options{Required: true})
	err := required.Admit(t.Context(), &corev1.PodExecOptions{Command: []string{"sh"}}, req)
	if reason, denied := extension.DenialReason(err); !denied || !strings.Contains(reason, "pods/exec of Pod default/shop is only allowed when it is recorded") {
		t.Errorf("got %v, want a denial with the reason", err)
	}
}

func TestAnExecIsAllowedWhenItsEventCannotBeWritten(t *testing.T) {
	optional, req := alone(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: audit.NewEventSink(), QueueLength: 1}}})
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

// alone returns an auditor whose host has no API server, and a request.
func alone(t *testing.T, options audit.Options) (*extension.Admission, *extension.Request) {
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

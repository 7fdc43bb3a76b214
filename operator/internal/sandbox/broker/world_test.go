package broker_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/testing/managertest"
)

// controllerUser is the ServiceAccount that may act for any run.
const controllerUser = "sandbox-controller"

// world is a broker on a real API server, with exactly the rights that `manifests` gives it.
type world struct {
	*managertest.Installation
	options broker.Options
	ca      string // file
	kube    kubernetes.Interface
	// unrecorded makes every record fail.
	unrecorded *atomic.Bool
}

// silent is a Recorder that fails when it is told to.
type silent struct{ fails *atomic.Bool }

func (s silent) Record(context.Context, extension.Record) error {
	if s.fails.Load() {
		return errors.New("the disk is full")
	}
	return nil
}

const sourceConnections = 256

func install(t *testing.T, change ...func(*broker.Options)) *world {
	t.Helper()
	serveSandboxRuns(t)
	w := &world{unrecorded: &atomic.Bool{}}
	w.options = broker.Options{
		Address:     fmt.Sprintf("127.0.0.1:%d", freeport.For(t)),
		Controllers: []string{"system:serviceaccount:default:" + controllerUser},
		// Each call of a test has a client of its own.
		SourceConnections: sourceConnections,
	}
	w.options.CertFile, w.options.KeyFile, w.ca = certificate(t)
	for _, c := range change {
		c(&w.options)
	}
	w.Installation = managertest.Run(t, server, managertest.Options{Name: "broker"}, func(mgr *manager.Manager) error {
		return errors.Join(
			mgr.AddExtension(audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{FoldAfter: -1}), FailurePolicy: audit.Closed}}})),
			mgr.AddExtension(silent{w.unrecorded}),
			mgr.AddExtension(broker.New(w.options)))
	})
	var err error
	if w.kube, err = kubernetes.NewForConfig(server.Config()); err != nil {
		t.Fatal(err)
	}
	_ = admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: controllerUser}})
	w.awaitServer(t)
	return w
}

// awaitServer returns when somebody listens.
func (w *world) awaitServer(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the broker listens", func(context.Context) bool {
		conn, err := net.Dial("tcp", w.options.Address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func certificate(t *testing.T) (cert, key, ca string) {
	t.Helper()
	dir, authority := t.TempDir(), testkit.NewClientCA(t)
	ca = filepath.Join(dir, "ca.crt")
	authority.Write(t, ca)
	issued := authority.Issue(t, "broker", x509.ExtKeyUsageServerAuth, "localhost")
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	private, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: issued.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, ca
}

// serveSandboxRuns installs a kind with the fields that the broker reads, unless the CRDs of
// this repository have it.
func serveSandboxRuns(t *testing.T) {
	t.Helper()
	preserve, scheme := true, apiextensionsv1.CustomResourceDefinition{}
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "sandboxruns.admitkit.dev"}, &scheme); err == nil {
		return
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sandboxruns.admitkit.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "admitkit.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sandboxruns", Singular: "sandboxrun", Kind: "SandboxRun", ListKind: "SandboxRunList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}},
			}},
		},
	}
	if _, err := envtest.InstallCRDs(server.Config(), envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		t.Fatal(err)
	}
}

// aRun is a SandboxRun with its Job and its Pod.
type aRun struct {
	object *unstructured.Unstructured
	job    *batchv1.Job
	pod    *corev1.Pod
}

// start makes a run of a template that runs.
func (w *world) start(t testing.TB, name, template string) *aRun {
	t.Helper()
	r, err := w.tryStart(t.Context(), name, template)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) tryStart(ctx context.Context, name, template string) (*aRun, error) {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"templateRef": map[string]any{"kind": "SandboxRunTemplate", "name": template}, "prompt": "work",
	}}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("SandboxRun"))
	object.SetNamespace(w.Namespace)
	object.SetName(name)
	if err := admin.Create(ctx, object); err != nil {
		return nil, err
	}
	r := &aRun{object: object}
	r.job = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}}}
	r.job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: "example.com/work:1"}}}
	err := admin.Create(ctx, r.job)
	if err == nil {
		r.pod, err = w.tryPodOf(ctx, name, r.job)
	}
	if err == nil {
		err = r.tryBecome(ctx, "Running")
	}
	return r, err
}

// podOf makes a Pod that names a Job as its controller, or nothing.
func (w *world) podOf(t testing.TB, name string, job *batchv1.Job) *corev1.Pod {
	t.Helper()
	pod, err := w.tryPodOf(t.Context(), name, job)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func (w *world) tryPodOf(ctx context.Context, name string, job *batchv1.Job) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name, Labels: map[string]string{"admitkit.dev/run": name}}}
	if job != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	}
	pod.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "work", Image: "example.com/work:1"}}, ServiceAccountName: "default"}
	_ = admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "default"}})
	return pod, admin.Create(ctx, pod)
}

// become sets the phase of a run.
func (r *aRun) become(t testing.TB, phase string) {
	t.Helper()
	if err := r.tryBecome(t.Context(), phase); err != nil {
		t.Fatal(err)
	}
}

func (r *aRun) tryBecome(ctx context.Context, phase string) error {
	patch := fmt.Sprintf(`{"status":{"phase":%q,"jobName":%q,"jobUID":%q}}`, phase, r.job.Name, r.job.UID)
	return admin.Status().Patch(ctx, r.object, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// tryToken returns the token of a run's Pod.
func (w *world) tryToken(r *aRun) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{protocol.Audience}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: r.pod.Name, UID: r.pod.UID},
	}}
	made, err := w.kube.CoreV1().ServiceAccounts(w.Namespace).CreateToken(context.Background(), "default", request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}

// token returns one of a ServiceAccount, for an audience and bound to a Pod.
func (w *world) token(t testing.TB, namespace, account, audience string, pod *corev1.Pod) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	made, err := w.kube.CoreV1().ServiceAccounts(namespace).CreateToken(context.Background(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// ask returns a client that shows a token.
func (w *world) ask(t testing.TB, token string) *protocol.Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := protocol.NewClient(protocol.ClientOptions{URL: "https://" + strings.Replace(w.options.Address, "127.0.0.1", "localhost", 1), CAFile: w.ca, TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) proxyOf(t testing.TB, r *aRun) *protocol.Client {
	t.Helper()
	return w.ask(t, w.token(t, w.Namespace, "default", protocol.Audience, r.pod))
}

func (w *world) controller(t testing.TB) *protocol.Client {
	t.Helper()
	return w.ask(t, w.token(t, "default", controllerUser, protocol.Audience, nil))
}

func (r *aRun) named() *protocol.Run {
	return &protocol.Run{Namespace: r.object.GetNamespace(), Name: r.object.GetName()}
}

// leases returns those of a run.
func (w *world) leases(t testing.TB, r *aRun) (found []v1alpha1.CredentialLease) {
	t.Helper()
	return w.leasesOf(t, r.object)
}

func (w *world) leasesOf(t testing.TB, of client.Object) (found []v1alpha1.CredentialLease) {
	t.Helper()
	var list v1alpha1.CredentialLeaseList
	if err := admin.List(context.Background(), &list, client.InNamespace(w.WebhookNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, lease := range list.Items {
		if lease.Spec.Run.UID == of.GetUID() {
			found = append(found, lease)
		}
	}
	return found
}

// records returns the actions on record of a run, and the text of all of these records.
func (w *world) records(t testing.TB, r *aRun) (actions []string, text string) {
	t.Helper()
	return w.recordsOf(t, r.object)
}

func (w *world) recordsOf(t testing.TB, of client.Object) (actions []string, text string) {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	for _, event := range list.Items {
		if event.Spec.Object != nil && event.Spec.Object.UID == of.GetUID() {
			actions = append(actions, event.Spec.Verb+" "+string(event.Spec.Decision))
			text += fmt.Sprintf("%+v\n", event.Spec)
		}
	}
	return actions, text
}

// refused checks the code of a refusal.
func refused(t testing.TB, err error, code protocol.Code) {
	t.Helper()
	refusal := (*protocol.Error)(nil)
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Errorf("the answer is %v, and not %s", err, code)
	}
}

func has(list []string, part string) bool {
	return strings.Contains(strings.Join(list, "\n"), part)
}

package manager_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// signingRequest is the request of a kubelet for its first certificate.
func signingRequest(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}}
}

func in(namespace string, o ctrlclient.Object) ctrlclient.Object {
	o.SetNamespace(namespace)
	return o
}

// A cluster that was stopped starts again, with a webhook for everything whose manager is
// one of its Pods.
func TestAClusterStartsBesideAWebhookThatIsDown(t *testing.T) { // alone: it refuses what other tests write
	home, plugin, apps := newNamespace(t), newNamespace(t), newNamespace(t)
	options := manager.Options{
		WebhookNamespace: home, Port: freeport.For(t),
		Registration: manager.RegistrationOptions{ExcludeNamespaces: []string{plugin}},
	}
	never := extension.Validating(extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil }),
		extension.Scope{Rules: extension.Resources("*", "*", []string{"*/*"}, "*")})
	defer func() {
		if err := newManager(t, options, never).UnregisterExtensions(t.Context()); err != nil {
			t.Error(err)
		}
		testkit.Eventually(t, "the webhook is no longer called", func(ctx context.Context) bool { _, err := dryRunPod(ctx, apps); return err == nil })
	}()
	if err := newManager(t, options, never).RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "failed calling webhook") }
	testkit.Eventually(t, "the webhook is called, and down", func(ctx context.Context) bool { _, err := dryRunPod(ctx, apps); return refused(err) })

	client, err := ctrlclient.New(cluster.Config(), ctrlclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "woken"}}
	csr := signingRequest(t, node.Name)
	pv := "pv"
	for _, o := range []ctrlclient.Object{
		csr, node,
		in(corev1.NamespaceNodeLease, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}),
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "driver.example.com", NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		}},
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}},
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "x", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"},
		}},
		in(metav1.NamespaceSystem, newPod("coredns")), in(plugin, newPod("calico-node")), in(home, newPod("manager")),
		// The API server makes an IPAddress for it, as a client of its own.
		in(metav1.NamespaceSystem, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "woken"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}}}),
	} {
		if err := client.Create(t.Context(), o); err != nil {
			t.Errorf("%T: %v", o, err)
			continue
		}
		if o.GetName() != "" {
			t.Cleanup(func() { _ = client.Delete(context.WithoutCancel(t.Context()), o) })
		}
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := client.Status().Update(t.Context(), node); err != nil {
		t.Errorf("the node cannot become ready: %v", err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if err := client.SubResource("approval").Update(t.Context(), csr); err != nil {
		t.Errorf("the CertificateSigningRequest cannot be approved: %v", err)
	}
	for _, o := range []ctrlclient.Object{
		in(apps, newPod("web")), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
	} {
		if err := client.Create(t.Context(), o, ctrlclient.DryRunAll); !refused(err) {
			t.Errorf("%T, which no cluster needs to start: %v", o, err)
		}
	}
}

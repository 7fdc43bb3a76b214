package manager_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// presenting makes the files by which a kube-apiserver presents a client certificate to
// webhooks, and returns the value of its flag.
func presenting(t *testing.T, ca *testkit.ClientCA, name string) string {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := ca.IssueFiles(t, dir, name)
	kubeconfig, config := filepath.Join(dir, "webhooks.kubeconfig"), filepath.Join(dir, "admission.yaml")
	for path, text := range map[string]string{
		kubeconfig: fmt.Sprintf("apiVersion: v1\nkind: Config\nusers:\n- name: '*'\n  user: {client-certificate: %s, client-key: %s}\n", certFile, keyFile),
		config: fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s}
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %[1]s}
`, kubeconfig),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

// ask connects without a certificate, and waits for an answer.
func ask(address string) error {
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestAnAPIServerIsVerifiedByItsClientCertificate(t *testing.T) {
	t.Parallel()
	ca := testkit.NewClientCA(t)
	file := filepath.Join(t.TempDir(), "client-ca.crt")
	ca.Write(t, file)
	trusted := controlplane.Run(t, controlplane.Options{APIServerArgs: map[string][]string{"admission-control-config-file": {presenting(t, ca, "kube-apiserver")}}})
	client := kubernetes.NewForConfigOrDie(trusted.Config())
	create := func() (string, error) {
		pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), newPod("probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		return pod.Annotations["marked"], nil
	}
	port := freeport.For(t)
	serve := func(names ...string) *running {
		return start(t, manager.Options{
			Namespaces: []string{metav1.NamespaceDefault}, Port: port, RESTConfig: trusted.Config(), Serving: manager.ServingOptions{ClientCAFile: file, ClientNames: names},
		}, mark("a", extension.Scope{}))
	}
	r := serve("kube-apiserver")
	testkit.Eventually(t, "the API server, which presents its certificate, is answered", func(context.Context) bool {
		marked, err := create()
		return err == nil && marked != ""
	})
	// Who has no certificate is refused.
	alerted(t, func(context.Context) error { return ask(r.address) })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	r = serve("another-api-server")
	testkit.Eventually(t, "an API server of another name is refused", func(context.Context) bool {
		_, err := create()
		return err != nil && strings.Contains(err.Error(), "bad certificate")
	})
	if r.logs.FilterMessage("a client was refused").Len() == 0 {
		t.Error("the log does not say who was refused")
	}
}

func TestAnAPIServerWithoutAClientCertificateMakesTheManagerNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	file := filepath.Join(t.TempDir(), "client-ca.crt")
	testkit.NewClientCA(t).Write(t, file)
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{ClientCAFile: file}}, mark("a", extension.Scope{}))
	testkit.Eventually(t, "the log says what the API server lacks", func(context.Context) bool {
		refused := r.logs.FilterMessage("a client was refused").All()
		return len(refused) > 0 && strings.Contains(fmt.Sprint(refused[0].ContextMap()["error"]), "--admission-control-config-file")
	})
	alerted(t, func(ctx context.Context) error {
		_, err := dryRunPod(ctx, namespace)
		return err
	})
}

// alerted wants that a call is refused, and sees the alert: a client that still writes when
// the server hangs up sees that the connection was reset instead.
func alerted(t *testing.T, call func(context.Context) error) {
	t.Helper()
	testkit.Eventually(t, "the client sees the alert", func(ctx context.Context) bool {
		err := call(ctx)
		if err == nil {
			t.Error("the call was not refused")
		}
		return err == nil || strings.Contains(err.Error(), "bad certificate")
	})
}

func TestAFileWithoutACAOfClientsEndsTheStartByItsFlag(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := newManager(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{ClientCAFile: "/does/not/exist"}}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Serving.ClientCAFile: ") || !strings.Contains(err.Error(), "name a file with the CA") {
		t.Errorf("got %v", err)
	}
}

package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// quickPaths lets a former path end after a second.
var quickPaths = manager.CertificateOptions{PropagationDelay: time.Second}

// registeredPath returns the path of the first webhook of an installation.
func registeredPath(t *testing.T, namespace string) string {
	t.Helper()
	live, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(*live.Webhooks[0].ClientConfig.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path
}

// forger sends reviews of its own making.
type forger struct {
	client *http.Client
	review []byte
}

func newForger(t *testing.T, namespace string) *forger {
	t.Helper()
	raw, err := json.Marshal(newPod("forged"))
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace: namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &forger{&http.Client{Transport: transport, Timeout: 10 * time.Second}, review}
}

// post returns the status, and whether the answer is one to the review.
func (f *forger) post(t *testing.T, address, path string) (status int, answered bool) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+path+"?timeout=10s", bytes.NewReader(f.review))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.Contains(string(text), "response")
}

// overdue has the period of an installation begin two hours earlier.
func overdue(t *testing.T, namespace string) {
	t.Helper()
	secrets := clientset.CoreV1().Secrets(namespace)
	testkit.Eventually(t, "the period is published, and over", func(ctx context.Context) bool {
		secret, err := secrets.Get(ctx, "admitkit-paths", metav1.GetOptions{})
		if err != nil {
			return false
		}
		var state map[string]any
		if err := json.Unmarshal(secret.Data["paths.json"], &state); err != nil {
			t.Fatal(err)
		}
		if state["published"] != state["period"] {
			return false
		}
		state["since"] = time.Now().Add(-2 * time.Hour)
		if secret.Data["paths.json"], err = json.Marshal(state); err != nil {
			t.Fatal(err)
		}
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		return err == nil
	})
}

func TestWhoDoesNotKnowThePathIsNotAnswered(t *testing.T) {
	t.Parallel()
	namespace, foreign := newNamespace(t), newNamespace(t)
	r := start(t, manager.Options{Namespaces: []string{namespace}, Certificates: quickPaths}, mark("a", extension.Scope{}))
	start(t, manager.Options{Namespaces: []string{foreign}}, mark("a", extension.Scope{}))
	f := newForger(t, namespace)
	first := registeredPath(t, namespace)
	if status, answered := f.post(t, r.address, first); status != http.StatusOK || !answered {
		t.Fatalf("who has read the configuration gets %d %v", status, answered)
	}
	eventuallyCalled(t, namespace, "marked")

	overdue(t, namespace)
	told := r.logs.FilterMessage("webhooks registered").Len()
	testkit.Eventually(t, "another path is registered", func(context.Context) bool { return registeredPath(t, namespace) != first })
	testkit.Eventually(t, "the former path ends", func(context.Context) bool {
		status, answered := f.post(t, r.address, first)
		return status == http.StatusNotFound && !answered
	})
	eventuallyCalled(t, namespace, "marked")

	if again := r.logs.FilterMessage("webhooks registered").Len(); again != told {
		t.Errorf("%d repairs are told of that nobody made necessary", again-told)
	}
	second := registeredPath(t, namespace)
	plain := second[strings.Index(second[1:], "/")+1:]
	element := strings.TrimSuffix(second, plain)
	paths := map[string]string{
		"a plain path":                       plain,
		"the path of another installation":   registeredPath(t, foreign),
		"a guess":                            "/2-" + strings.Repeat("0", 32) + plain,
		"that of a validating webhook":       element + strings.Replace(plain, "/mutate/", "/validate/", 1),
		"that of a conversion":               element + "/convert/alarms.example.com",
		"another number":                     strings.Replace(second, "/2-", "/3-", 1),
		"a path that climbs to it":           "/x/.." + second,
		"the path of the probe":              "/probe",
		"nothing":                            "/",
		"the former path, which is over now": first,
	}
	tried, refused := 0, 0
	for range 100 {
		for name, path := range paths {
			tried++
			if status, answered := f.post(t, r.address, path); answered || status == http.StatusOK {
				t.Errorf("%s is answered: %d", name, status)
			} else {
				refused++
			}
		}
	}
	testkit.Figure("door.refused", float64(refused), "requests")
	testkit.Figure("door.forged_answered", float64(tried-refused), "requests")
	if status, answered := f.post(t, r.address, second); status != http.StatusOK || !answered {
		t.Errorf("after that, who has read the configuration gets %d %v", status, answered)
	}
}

// An API server names the URL of a webhook that fails to those whose request fails.
func TestWhatAProcessTellsDoesNotShowThePath(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	element, _, _ := strings.Cut(registeredPath(t, namespace)[1:], "/")
	config, err := r.GetKubeConnection()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	errorOf := func(client kubernetes.Interface) string {
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), newPod("late"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "https://"+r.address) {
			t.Fatalf("nobody serves, and the error is %v", err)
		}
		return err.Error()
	}
	if text := errorOf(clientset); !strings.Contains(text, element) {
		t.Errorf("the API server does not name the path: %s", text)
	}
	if text := errorOf(theirs); strings.Contains(text, element) || !strings.Contains(text, strings.Repeat("x", 32)) {
		t.Errorf("an extension is told the path: %s", text)
	}
	for _, line := range r.logs.All() {
		if text := fmt.Sprint(line.Message, line.ContextMap()); strings.Contains(text, element) {
			t.Errorf("the log has the path: %s", text)
		}
	}
}

func TestPlainPathsNeedTheCertificatesOfClients(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := newManager(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{PlainPaths: true}}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Serving.PlainPaths: needs Serving.ClientCAFile") {
		t.Errorf("got %v", err)
	}
}

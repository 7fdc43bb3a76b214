package manager_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

// onFreePort are the options of a manager that takes one.
func onFreePort(namespace string) manager.Options {
	return manager.Options{Namespaces: []string{namespace}, Port: manager.FreePort, Registration: manager.RegistrationOptions{UnregisterOnStop: true}}
}

func TestManagersTakeFreePortsAndRegisterThem(t *testing.T) {
	t.Parallel()
	ports := map[int32]bool{}
	for range 2 {
		namespace := newNamespace(t)
		r := start(t, onFreePort(namespace), mark("a", extension.Scope{}))
		port := r.GetManagerOptions().Port
		ports[port] = true
		eventuallyCalled(t, namespace, "marked")
		configuration, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if url := *configuration.Webhooks[0].ClientConfig.URL; !strings.HasPrefix(url, fmt.Sprintf("https://127.0.0.1:%d/", port)) {
			t.Errorf("the API server calls %s, the port is %d", url, port)
		}
	}
	if len(ports) != 2 || ports[manager.FreePort] || ports[0] {
		t.Errorf("two managers have the ports %v", ports)
	}
}

func TestAStartWithAFreePortComesAfterAnother(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for range 2 {
		r := start(t, onFreePort(namespace), mark("a", extension.Scope{}))
		eventuallyCalled(t, namespace, "marked")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatNeedsThePortBeforeTheStartRefusesAFreeOne(t *testing.T) {
	t.Parallel()
	r := newManager(t, onFreePort("apps"), mark("a", extension.Scope{}))
	_, manifests := r.Manifests(manager.InstallOptions{Name: "my-ext", Image: "my-ext"})
	for what, err := range map[string]error{
		"RegisterExtensions":   r.RegisterExtensions(t.Context()),
		"UnregisterExtensions": r.UnregisterExtensions(t.Context()),
		"CheckOwner":           r.CheckOwner(t.Context()),
		"Manifests":            manifests,
		"KeepRegistered":       r.KeepRegistered(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), "Port: a free one is for Start") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

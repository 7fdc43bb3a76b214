package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
)

type idleWatcher struct{}

func (idleWatcher) Handle(context.Context, extension.Manager, watch.Event) {}

func TestTheShortFormsOfEiriniXAddAndListExtensions(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}})
	r.AddWatcher(idleWatcher{})
	r.AddReconciler(stubborn{})
	if err := r.AddExtension(scopedExtension{}); err != nil {
		t.Fatal(err)
	}
	if _, is := r.ListExtensions()[0].(scopedExtension); len(r.ListExtensions()) != 1 || !is {
		t.Errorf("got %v", r.ListExtensions())
	}
	if len(r.ListWatchers()) != 1 || len(r.ListReconcilers()) != 1 || r.GetManagerOptions().OperatorFingerprint != "admitkit" {
		t.Errorf("got %v, %v, %+v", r.ListWatchers(), r.ListReconcilers(), r.GetManagerOptions())
	}
}

func TestAConfigurationThatEiriniXHasLeftIsReportedAtTheStart(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	old := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "eirini-x-mutating-hook"}}
	configurations := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = configurations.Delete(context.WithoutCancel(t.Context()), old.Name, metav1.DeleteOptions{})
	})
	r := start(t, manager.Options{Namespaces: []string{namespace}, OperatorFingerprint: "eirini-x"}, mark("a", extension.Scope{}))
	if r.logs.FilterMessageSnippet("EiriniX has left a webhook configuration").Len() != 1 {
		t.Error("nobody is warned")
	}
}

// The tests below keep docs/from-eirinix.md to what it says.

// scopedExtension records the operations that it is asked about.
type scopedExtension struct{ markExtension }

func (scopedExtension) Scope() extension.Scope {
	return extension.Scope{Rules: extension.Pods("CREATE", "UPDATE")}
}

func TestAnExtensionOfEiriniXIsAskedOnUpdatesOnlyIfItsScopeSaysSo(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, markExtension{"a"}, scopedExtension{markExtension{"b"}})
	eventuallyCalled(t, namespace, "marked")
	pod := createPod(t, namespace, newPod("pod"))
	pod.Labels = map[string]string{"changed": "true"}
	updated, err := clientset.CoreV1().Pods(namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil || updated.Annotations["marked"] != pod.Annotations["marked"]+"b" {
		t.Errorf("after the creation %v, after the update %v, %v", pod.Annotations, updated.Annotations, err)
	}
}

func TestUnderIgnoreTheErrorsOfAnExtensionDenyBelow500AndAdmitFrom500On(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}, FailurePolicy: new(admissionregistrationv1.Ignore)}, markExtension{"a"},
		extensionFunc(func(pod *corev1.Pod, _ admission.Request) admission.Response {
			switch pod.Name {
			case "bad":
				return admission.Errored(http.StatusBadRequest, errors.New("no GUID"))
			case "broken":
				return admission.Errored(http.StatusInternalServerError, errors.New("no connection"))
			}
			return admission.Allowed("")
		}))
	eventuallyCalled(t, namespace, "marked")
	if _, err := clientset.CoreV1().Pods(namespace).Create(t.Context(), newPod("bad"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "denied the request: no GUID") {
		t.Errorf("a 400: %v", err)
	}
	if pod := createPod(t, namespace, newPod("broken")); len(pod.Annotations) > 0 {
		t.Errorf("a 500 under Ignore leaves %v, want the Pod as it was", pod.Annotations)
	}
}

func TestAPatchThatAnExtensionMakesItselfKeepsTheChangesOfTheOnesBefore(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, markExtension{"a"},
		extensionFunc(func(pod *corev1.Pod, req admission.Request) admission.Response {
			pod.Annotations["marked"] += "b"
			after, err := json.Marshal(pod)
			if err != nil {
				return admission.Errored(http.StatusInternalServerError, err)
			}
			return admission.PatchResponseFromRaw(req.Object.Raw, after)
		}), markExtension{"c"})
	eventuallyCalled(t, namespace, "marked")
	if pod := createPod(t, namespace, newPod("pod")); pod.Annotations["marked"] != "abc" {
		t.Errorf("got %v", pod.Annotations)
	}
}

func TestTheDefaultsOfARegistrationAreThoseOfTheMigrationPage(t *testing.T) {
	t.Parallel()
	apps, home := newNamespace(t), newNamespace(t)
	r := newManager(t, manager.Options{Namespaces: []string{apps}, WebhookNamespace: home, ServiceName: "my-ext", Port: freeport.For(t)}, markExtension{"a"})
	if err := r.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+home, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := config.Webhooks[0]
	if *w.TimeoutSeconds != 10 || *w.SideEffects != admissionregistrationv1.SideEffectClassNone || *w.FailurePolicy != admissionregistrationv1.Fail ||
		*w.ClientConfig.Service.Port != 443 || *w.ReinvocationPolicy != admissionregistrationv1.NeverReinvocationPolicy || len(w.Rules[0].Operations) != 1 {
		t.Errorf("got %+v", w)
	}
}

func TestBehindAServiceTheWatchedNamespaceIsNotTheManagersOwnUnlessAllowed(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, ServiceName: "my-ext"}
	err := newManager(t, options, markExtension{"a"}).RegisterExtensions(t.Context())
	if err == nil || !strings.Contains(err.Error(), "choose another WebhookNamespace, or name") || !strings.Contains(err.Error(), "Registration.AllowOwnPods") {
		t.Errorf("got %v", err)
	}
	options.Registration.AllowOwnPods = []string{"*"}
	r := newManager(t, options, markExtension{"a"})
	if err := errors.Join(r.RegisterExtensions(t.Context()), r.UnregisterExtensions(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestWatchBesideStartIsAnErrorSinceStartWatches(t *testing.T) {
	t.Parallel()
	r := start(t, manager.Options{Namespaces: []string{newNamespace(t)}}, idleWatcher{})
	if err := r.Watch(t.Context()); err == nil || !strings.Contains(err.Error(), "runs only once") {
		t.Errorf("got %v", err)
	}
}

// oldWatcher has the signature that EiriniX wants, but for the type of the manager.
type oldWatcher struct{}

func (oldWatcher) Handle(extension.Manager, watch.Event) {}

func TestAWatcherWithoutAContextIsRefusedWithTheSignatureThatIsWanted(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}})
	if err := r.AddExtension(oldWatcher{}); err == nil || !strings.Contains(err.Error(), "a Watcher has Handle(context.Context, extension.Manager, watch.Event)") {
		t.Errorf("got %v", err)
	}
}

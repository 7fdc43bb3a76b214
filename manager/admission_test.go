package manager_test

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// mark returns a Mutator that appends its name to an annotation, so that a test sees
// whether and in which order it ran.
func mark(name string, scope extension.Scope) *extension.Handler {
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marked", pod.Annotations["marked"]+name)
		return nil
	}), scope)
}

// markExtension does the same as an Extension.
type markExtension struct{ name string }

func (e markExtension) Handle(_ context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marked", pod.Annotations["marked"]+e.name)
	return mgr.PatchFromPod(req, pod)
}

// extensionFunc is an Extension made of a function.
type extensionFunc func(*corev1.Pod, admission.Request) admission.Response

func (f extensionFunc) Handle(_ context.Context, _ extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	return f(pod, req)
}

func TestAPodInTheNamespaceIsMutatedAndOneOutsideIsNot(t *testing.T) {
	t.Parallel()
	inside, outside := newNamespace(t), newNamespace(t)
	start(t, manager.Options{Namespaces: []string{inside}}, mark("a", extension.Scope{}))
	eventuallyCalled(t, inside, "marked")

	if pod := createPod(t, inside, newPod("pod")); pod.Annotations["marked"] != "a" {
		t.Errorf("a Pod in the namespace has annotations %v", pod.Annotations)
	}
	if pod := createPod(t, outside, newPod("pod")); pod.Annotations["marked"] != "" {
		t.Errorf("a Pod outside the namespace has annotations %v", pod.Annotations)
	}
}

func TestWithoutANamespaceEveryNamespaceIsInScopeButTheManagersOwn(t *testing.T) { // alone: it is called for the Pods of all tests
	home, other := newNamespace(t), newNamespace(t)
	start(t, manager.Options{WebhookNamespace: home}, mark("a", extension.Scope{}))
	eventuallyCalled(t, other, "marked")
	eventuallyCalled(t, metav1.NamespaceDefault, "marked")

	for _, protected := range []string{home, metav1.NamespaceSystem} {
		if pod, err := dryRunPod(t.Context(), protected); err != nil || pod.Annotations["marked"] != "" {
			t.Errorf("a webhook with failure policy Fail reaches namespace %s: %v, %v", protected, pod, err)
		}
	}
}

func TestExtensionsWithTheSameScopeShareOneWebhookAndRunInOrder(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}, Registration: manager.RegistrationOptions{Probe: new(bool)}},
		mark("a", extension.Scope{}), markExtension{"b"}, mark("c", extension.Scope{}), markExtension{"d"}, markExtension{"e"})
	eventuallyCalled(t, namespace, "marked")

	if pod := createPod(t, namespace, newPod("pod")); pod.Annotations["marked"] != "abcde" {
		t.Errorf("got %q, want every extension once, in the order added, each on what the one before left", pod.Annotations["marked"])
	}
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(config.Webhooks) != 1 {
		t.Errorf("got %d webhook entries, want one for one scope", len(config.Webhooks))
	}
}

func TestAnExtensionThatReturnsAnEmptyResponseAllowsThePod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}},
		extensionFunc(func(*corev1.Pod, admission.Request) admission.Response { return admission.Response{} }),
		mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	createPod(t, namespace, newPod("pod"))
}

func TestADenialReachesKubectlWithItsText(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}},
		mark("a", extension.Scope{}),
		extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
			req.Warnf("this is a warning")
			if pod.Annotations["marked"] == "" {
				return extension.Deny("the validator did not see the mutation")
			}
			if pod.Name == "bad" {
				return extension.Denyf("Pod %s is not welcome", pod.Name)
			}
			return nil
		}), extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	run := func(name string) string {
		kubectl := cluster.Kubectl(t.Context(), nil, "run", name, "-n", namespace, "--image=example.com/main:1")
		output, err := kubectl.CombinedOutput()
		if denied := name == "bad"; denied != (err != nil) {
			t.Errorf("kubectl run %s: %v: %s", name, err, output)
		}
		return string(output)
	}
	testkit.Eventually(t, "the validator is called", func(context.Context) bool {
		_, err := dryRunPod(t.Context(), namespace)
		return err == nil
	})
	if output := run("bad"); !strings.Contains(output, "denied the request: Pod bad is not welcome") || !strings.Contains(output, "Warning: this is a warning") {
		t.Errorf("kubectl says %q", output)
	}
	run("good")
}

func TestServerSideDryRunPasses(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	dryRuns := make(chan bool, 1000)
	start(t, manager.Options{Namespaces: []string{namespace}},
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marked", "yes")
			dryRuns <- req.DryRun()
			return nil
		}), extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	if !<-dryRuns {
		t.Error("the request of a dry run does not say so")
	}
}

func TestADeletedPodReachesTheExtension(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	deleted := make(chan string, 10)
	start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}),
		extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			deleted <- pod.Name
			return nil
		}), extension.Scope{Rules: extension.Pods(admissionregistrationv1.Delete)}))
	eventuallyCalled(t, namespace, "marked")
	createPod(t, namespace, newPod("pod"))
	testkit.Eventually(t, "the deletion of a Pod reaches the validator", func(context.Context) bool {
		zero := int64(0)
		err := clientset.CoreV1().Pods(namespace).Delete(t.Context(), "pod", metav1.DeleteOptions{GracePeriodSeconds: &zero})
		if apierrors.IsNotFound(err) {
			createPod(t, namespace, newPod("pod"))
		}
		return len(deleted) > 0
	})
	if name := <-deleted; name != "pod" {
		t.Errorf("the validator saw Pod %q", name)
	}
}

// As of kubectl delete --all: an API server sends no name then.
func TestADeletionOfACollectionHasTheNameOfEachObject(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	start(t, manager.Options{Namespaces: []string{namespace}}, extension.Validating(extension.ValidatorFunc[*corev1.ConfigMap](
		func(_ context.Context, _ *corev1.ConfigMap, req *extension.Request) error {
			if req.Name == "precious" {
				return extension.Deny("it stays")
			}
			return nil
		}), extension.Scope{Rules: extension.Resources("", "v1", []string{"configmaps"}, admissionregistrationv1.Delete)}))
	maps := clientset.CoreV1().ConfigMaps(namespace)
	for _, name := range []string{"precious", "other"} {
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "it is protected", func(ctx context.Context) bool {
		return apierrors.IsForbidden(maps.Delete(ctx, "precious", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	})
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the deletion of all says %v", err)
	}
	if _, err := maps.Get(t.Context(), "precious", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=other"}); err != nil {
		t.Error(err)
	}
}

func TestAPanickingExtensionFailsItsOwnRequestOnly(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := start(t, manager.Options{Namespaces: []string{namespace}}, mark("a", extension.Scope{}),
		extensionFunc(func(pod *corev1.Pod, _ admission.Request) admission.Response {
			if pod.Name == "panic" {
				panic("boom")
			}
			return admission.Allowed("")
		}))
	eventuallyCalled(t, namespace, "marked")

	_, err := clientset.CoreV1().Pods(namespace).Create(t.Context(), newPod("panic"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "panic: boom") {
		t.Errorf("got %v, want the failure policy Fail and the text of the panic", err)
	}
	if logs := r.logs.FilterMessage("extension panicked").All(); len(logs) == 0 || !strings.Contains(logs[0].ContextMap()["stack"].(string), "admission_test.go") {
		t.Error("the panic was not logged with its stack")
	}
	createPod(t, namespace, newPod("pod"))
}

func TestTheFailurePolicyDecidesWhenAnExtensionFails(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	ignore := admissionregistrationv1.Ignore
	start(t, manager.Options{Namespaces: []string{namespace}, FailurePolicy: &ignore}, mark("a", extension.Scope{Name: "mark"}),
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error {
			return context.DeadlineExceeded
		}), extension.Scope{Name: "fail"}))
	eventuallyCalled(t, namespace, "marked")
	createPod(t, namespace, newPod("pod"))
}

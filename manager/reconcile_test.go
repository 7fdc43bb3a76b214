package manager_test

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// stubborn is a Reconciler that cannot register.
type stubborn struct{ why error }

func (s stubborn) Register(extension.Manager) error {
	return cmp.Or(s.why, errors.New("the CRD is missing"))
}

func (stubborn) Reconcile(context.Context, ctrl.Request) (ctrl.Result, error) {
	return ctrl.Result{}, nil
}

func TestAReconcilerThatCannotRegisterEndsTheStartWithItsName(t *testing.T) {
	t.Parallel()
	unknown := runtime.NewNotRegisteredErrForType("here", reflect.TypeFor[corev1.Pod]())
	for name, test := range map[string]struct {
		election bool
		why      error
		want     string
	}{
		"alone":   {false, nil, "the CRD is missing"},
		"elected": {true, nil, "the CRD is missing"},
		"unknown": {false, unknown, unknown.Error() + ": add the type to Options.Scheme"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, Watching: manager.WatchingOptions{LeaderElection: test.election}, OperatorFingerprint: name}, stubborn{test.why}, mark("a", extension.Scope{}))
			err := r.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), "manager_test.stubborn: "+test.want) {
				t.Errorf("the start ends with %v", err)
			}
			for _, configuration := range configurationsOf(t) {
				if strings.HasPrefix(configuration, name+".") {
					t.Errorf("%s is registered", configuration)
				}
			}
		})
	}
}

// idle is a Reconciler that makes no controller.
type idle struct{ stubborn }

func (idle) Register(extension.Manager) error { return nil }

func TestAReconcilerWithoutAControllerIsWarnedOf(t *testing.T) {
	t.Parallel()
	options := manager.Options{Namespaces: []string{newNamespace(t)}}
	options.Watching.LeaderElection = true
	r := start(t, options, idle{}, &teller{scheme: clientgoscheme.Scheme, told: make(chan string, 100)}, mark("a", extension.Scope{}))
	warned := r.logs.FilterMessageSnippet("nobody calls Reconcile").All()
	if len(warned) != 1 || warned[0].ContextMap()["reconciler"] != "manager_test.idle" {
		t.Errorf("it warns %v", warned)
	}
}

func configurationsOf(t *testing.T) []string {
	t.Helper()
	list, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(list.Items))
	for i, item := range list.Items {
		names[i] = item.Name
	}
	return names
}

// teller is a Reconciler that writes an Event about each Pod, and uses everything that
// its manager offers.
type teller struct {
	scheme *runtime.Scheme
	kube   ctrl.Manager
	told   chan string
}

func (r *teller) Register(mgr extension.Manager) error {
	r.kube = mgr.GetKubeManager()
	if r.kube.GetScheme() != r.scheme {
		return errors.New("this is not the scheme of the options")
	}
	return ctrl.NewControllerManagedBy(r.kube).Named("teller").For(&corev1.Pod{}).Complete(r)
}

func (r *teller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cached, read, live corev1.Pod
	if err := errors.Join(
		r.kube.GetCache().Get(ctx, req.NamespacedName, &cached),
		r.kube.GetClient().Get(ctx, req.NamespacedName, &read),
		r.kube.GetAPIReader().Get(ctx, req.NamespacedName, &live),
	); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.kube.GetEventRecorder("teller").Eventf(&live, nil, corev1.EventTypeNormal, "Seen", "Look", "Pod %s", cached.Name)
	r.told <- read.Name
	return ctrl.Result{}, nil
}

func TestAReconcilerHasClientCacheRecorderAndSchemeAndIsElected(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	options := manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}, Scheme: scheme}
	first, second := &teller{scheme: scheme, told: make(chan string, 100)}, &teller{scheme: scheme, told: make(chan string, 100)}
	leader := start(t, options, first)
	pod := createPod(t, namespace, newPod("pod"))
	if name := <-first.told; name != "pod" {
		t.Errorf("Pod %s is reconciled", name)
	}
	start(t, options, second)
	testkit.Eventually(t, "there is an Event", func(context.Context) bool {
		events, err := clientset.EventsV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		for _, event := range events.Items {
			if event.Reason == "Seen" && event.Regarding.UID == pod.UID {
				return true
			}
		}
		return false
	})
	if n := len(second.told); n > 0 {
		t.Errorf("the replica that was not elected reconciles %d times", n)
	}
	if err := leader.stop(); err != nil {
		t.Error(err)
	}
	if name := <-second.told; name != "pod" {
		t.Errorf("Pod %s is reconciled", name)
	}
}

// kubebuilt is a Reconciler that registers a webhook, too, as kubebuilder's programs do.
type kubebuilt struct{ asking }

func (k kubebuilt) Register(mgr extension.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr.GetKubeManager(), &corev1.Pod{}).WithValidator(k).Complete()
}

func (kubebuilt) ValidateCreate(context.Context, *corev1.Pod) (admission.Warnings, error) {
	return nil, nil
}

func (kubebuilt) ValidateUpdate(context.Context, *corev1.Pod, *corev1.Pod) (admission.Warnings, error) {
	return nil, nil
}

func (kubebuilt) ValidateDelete(context.Context, *corev1.Pod) (admission.Warnings, error) {
	return nil, nil
}

func TestAWebhookOfControllerRuntimeIsRefusedBecauseNothingServesIt(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}}, kubebuilt{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Start(ctx); err == nil || !strings.Contains(err.Error(), "webhooks at /validate--v1-pod: nothing serves") {
		t.Errorf("it ends with %v", err)
	}
}

func TestAProcessThatReconcilesIsTheUserThatTheServersBelieve(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, Watching: manager.WatchingOptions{ReconcilerUser: "system:serviceaccount:other:reconciler"}}, stubborn{})
	err := r.Reconcile(t.Context())
	if err == nil || !strings.Contains(err.Error(), `Watching.ReconcilerUser: this process is the user`) {
		t.Errorf("it ends with %v", err)
	}
}

func TestAProcessWithoutAReconcilerDoesNotPretendToReconcile(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}}, mark("a", extension.Scope{}))
	if err := r.Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "there is nothing to reconcile") {
		t.Errorf("it ends with %v", err)
	}
}

func TestAServerWhoseReconcilersRunElsewhereRunsNone(t *testing.T) {
	t.Parallel()
	options := manager.Options{Namespaces: []string{newNamespace(t)}, Watching: manager.WatchingOptions{ReconcilerUser: "jane"}}
	start(t, options, stubborn{}, mark("a", extension.Scope{})) // the stubborn one would end the start
}

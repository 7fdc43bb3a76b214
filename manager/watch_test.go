package manager_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// recorder is a Watcher that keeps its events.
type recorder struct{ events chan string }

func (r *recorder) Handle(_ context.Context, _ extension.Manager, event watch.Event) {
	pod := event.Object.(*corev1.Pod)
	if pod.Name == "panic" {
		panic("boom")
	}
	r.events <- string(event.Type) + " " + pod.Name
}

func newRecorder() *recorder { return &recorder{events: make(chan string, 100)} }

func (r *recorder) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-r.events:
		if got != want {
			t.Fatalf("the watcher saw %q, want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the watcher did not see %q", want)
	}
}

// expectLast expects want, after any number of another event: the API server
// may first mark a Pod as being deleted and then delete it.
func (r *recorder) expectLast(t *testing.T, other, want string) {
	t.Helper()
	for {
		select {
		case got := <-r.events:
			if got == want {
				return
			}
			if got != other {
				t.Fatalf("the watcher saw %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the watcher did not see %q", want)
		}
	}
}

func TestAWatcherSeesThePodsThatExistAndThoseThatCome(t *testing.T) {
	t.Parallel()
	namespace, other := newNamespace(t), newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	createPod(t, other, newPod("elsewhere"))
	first, second := newRecorder(), newRecorder()
	start(t, manager.Options{Namespaces: []string{namespace}}, first, second)
	first.expect(t, "ADDED existing")

	createPod(t, namespace, newPod("panic"))
	createPod(t, namespace, newPod("new"))
	first.expect(t, "ADDED new")
	if _, err := clientset.CoreV1().Pods(namespace).Patch(t.Context(), "new", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	first.expect(t, "MODIFIED new")
	zero := int64(0)
	if err := clientset.CoreV1().Pods(namespace).Delete(t.Context(), "new", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	first.expectLast(t, "MODIFIED new", "DELETED new")
	for _, want := range []string{"ADDED existing", "ADDED new", "MODIFIED new"} {
		second.expect(t, want)
	}
	second.expectLast(t, "MODIFIED new", "DELETED new")
}

func TestAWatcherIsSparedThePodsBeforeItsStartAndThoseNotSelected(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	labelled := func(name string) *corev1.Pod {
		pod := newPod(name)
		pod.Labels = map[string]string{"watched": "yes"}
		return pod
	}
	old := createPod(t, namespace, labelled("old"))
	createPod(t, namespace, labelled("recent"))
	createPod(t, namespace, newPod("other"))
	watcher := newRecorder()
	r := newManager(t, manager.Options{
		Namespaces: []string{namespace}, WatcherStartRV: old.ResourceVersion,
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"watched": "yes"}},
	}, watcher)
	done := make(chan error, 1)
	go func() { done <- r.Watch(t.Context()) }()
	watcher.expect(t, "ADDED recent")
	createPod(t, namespace, labelled("new"))
	watcher.expect(t, "ADDED new")
	r.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// annotator is a Reconciler that annotates Pods.
type annotator struct{ client client.Client }

func (a *annotator) Register(mgr extension.Manager) error {
	a.client = mgr.GetKubeManager().GetClient()
	return ctrl.NewControllerManagedBy(mgr.GetKubeManager()).Named("annotator").For(&corev1.Pod{}).Complete(a)
}

func (a *annotator) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := a.client.Get(ctx, req.NamespacedName, &pod); err != nil || pod.Annotations["seen"] != "" {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := client.MergeFrom(pod.DeepCopy())
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "seen", "yes")
	return ctrl.Result{}, a.client.Patch(ctx, &pod, before)
}

func TestAReconcilerReconcilesInTheNamespaceOnly(t *testing.T) {
	t.Parallel()
	namespace, other := newNamespace(t), newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	createPod(t, other, newPod("elsewhere"))
	start(t, manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}}, &annotator{})
	createPod(t, namespace, newPod("new"))
	for _, name := range []string{"existing", "new"} {
		testkit.Eventually(t, "Pod "+name+" is reconciled", func(context.Context) bool {
			pod, err := clientset.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && pod.Annotations["seen"] == "yes"
		})
	}
	pod, err := clientset.CoreV1().Pods(other).Get(t.Context(), "elsewhere", metav1.GetOptions{})
	if err != nil || pod.Annotations["seen"] != "" {
		t.Errorf("a Pod of another namespace: %v, %v", pod.Annotations, err)
	}
}

package admit_test

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/admit"
)

// pinned denies Pods with an image that is not pinned by a digest.
var pinned = extension.Validating(extension.ValidatorFunc[*corev1.Pod](
	func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		for _, container := range pod.Spec.Containers {
			if !strings.Contains(container.Image, "@sha256:") {
				return extension.Denyf("container %s: image %s is not pinned by a digest", container.Name, path.Base(container.Image))
			}
		}
		return nil
	}), extension.Scope{Name: "pinned"})

// t stands in for the *testing.T of your test, which an example does not have.
var t = exampleT{}

type exampleT struct{ testing.TB }

func (exampleT) Helper()                  {}
func (exampleT) Context() context.Context { return context.Background() }
func (exampleT) Cleanup(func())           {}
func (exampleT) Logf(string, ...any)      {}
func (exampleT) Errorf(format string, args ...any) {
	fmt.Printf("FAIL: "+format+"\n", args...)
}
func (exampleT) Failed() bool { return false }
func (exampleT) Name() string { return "Example" }

func ExampleNew() {
	result := admit.New(t, pinned).As("alice", "developers").Create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web:1"}}},
	})
	fmt.Println(result.Allowed, result.Reason)
	// Output: false container main: image web:1 is not pinned by a digest
}

// The test fails if an extension adds something each time it is called.
func ExampleClient_Create() {
	grows := extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists})
		return nil
	}), extension.Scope{})
	admit.New(t, grows).Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	// Output:
	// FAIL: CREATE Pod web: extension extension.MutatorFunc is not idempotent; called again, it changes the object again:
	// @@ -6,6 +6,8 @@
	//  spec:
	//    containers: null
	//    tolerations:
	// +  - key: spot
	// +    operator: Exists
	//    - key: spot
	//      operator: Exists
	//  status: {}
}

func ExampleClient_Connect() {
	noRoot := extension.Validating(extension.ValidatorFunc[*corev1.PodExecOptions](
		func(_ context.Context, options *corev1.PodExecOptions, req *extension.Request) error {
			if options.Command[0] == "sudo" {
				return extension.Denyf("%s may not run sudo in %s", req.User().Username, req.Name)
			}
			return nil
		}), extension.Scope{Rules: extension.Connect("pods/exec")})
	result := admit.New(t, noRoot).As("mallory").Connect("web", &corev1.PodExecOptions{Command: []string{"sudo", "id"}})
	fmt.Println(result.Reason)
	// Output: mallory may not run sudo in web
}

// marker is a Reconciler that labels ConfigMaps.
type marker struct{ kube client.Client }

func (m *marker) Register(mgr extension.Manager) error {
	m.kube = mgr.GetKubeManager().GetClient()
	return ctrl.NewControllerManagedBy(mgr.GetKubeManager()).For(&corev1.ConfigMap{}).Complete(m)
}

func (m *marker) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var object corev1.ConfigMap
	if err := m.kube.Get(ctx, req.NamespacedName, &object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	metav1.SetMetaDataLabel(&object.ObjectMeta, "seen", "yes")
	return reconcile.Result{}, m.kube.Update(ctx, &object)
}

// A Reconciler is tested without the controller: the test says what to reconcile.
func ExampleClient_Manager() {
	cluster := admit.New(t).With(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}})
	mgr, r := cluster.Manager(), &marker{}
	if err := r.Register(mgr); err != nil {
		fmt.Println(err)
	}
	settings := types.NamespacedName{Namespace: "default", Name: "settings"}
	if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: settings}); err != nil {
		fmt.Println(err)
	}
	var object corev1.ConfigMap
	if err := mgr.GetKubeManager().GetClient().Get(context.Background(), settings, &object); err != nil {
		fmt.Println(err)
	}
	fmt.Println(object.Labels["seen"])
	// Output: yes
}

package manager_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// uninstaller returns a manager in a namespace with exactly the rights that
// docs/security.md and docs/operations.md list, and a record of refused calls.
func uninstaller(t *testing.T, namespace string, extensions ...any) (*running, *forbidden) {
	t.Helper()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, role, found := strings.Cut(string(page), "```yaml\n")
	if !found {
		t.Fatal("docs/operations.md has no role")
	}
	role, _, _ = strings.Cut(role, "```")
	apply := cluster.Kubectl(t.Context(), nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(strings.NewReplacer("my-system", namespace, "my-ext", namespace).Replace(readmeRoles(t) + "---\n" + role))
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	account := namespace + "-registrar"
	bind := cluster.Kubectl(t.Context(), nil, "create", "rolebinding", "unregister", "-n", namespace, "--role="+namespace+"-unregister", "--serviceaccount="+namespace+":"+account)
	if output, err := bind.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	seen := &forbidden{}
	return newManager(t, manager.Options{
		OperatorFingerprint: namespace, Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}, RESTConfig: seen.watch(serviceAccount(t, namespace, account)),
	}, extensions...), seen
}

// deployed creates a Deployment with Pods, in place of its controllers.
func deployed(t *testing.T, namespace, name string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: newPod("").Spec}
	_, err := clientset.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-a", "-b"}[:replicas] {
		labelledPod(t, namespace, name+suffix, labels, "apps/v1", "ReplicaSet")
	}
}

func labelledPod(t *testing.T, namespace, name string, labels map[string]string, version, owner string) {
	t.Helper()
	pod := newPod(name)
	pod.Labels = labels
	controls := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: owner, Name: "owner", UID: "1", Controller: &controls}}
	createPod(t, namespace, pod)
}

func deletePod(t *testing.T, namespace, name string) {
	t.Helper()
	if err := clientset.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestScalingDownWaitsForTheLastPodAndNeedsNoMoreRightsThanItSays(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	deployed(t, namespace, namespace, 2)
	deployed(t, namespace, namespace+"-registrar", 1)
	// The Pod of a Job, which may run `unregister` itself.
	labelledPod(t, namespace, "hook", map[string]string{"app": namespace}, "batch/v1", "Job")
	r, refused := uninstaller(t, namespace)
	done := make(chan error, 1)
	go func() { done <- r.ScaleDown(t.Context(), namespace, namespace+"-registrar") }()
	awaitLeft := func(names ...string) {
		t.Helper()
		testkit.Eventually(t, "it waits for "+strings.Join(names, " and "), func(context.Context) bool {
			entries := r.logs.FilterMessage("waiting for Pods to end").All()
			if len(entries) == 0 {
				return false
			}
			left, _ := entries[len(entries)-1].ContextMap()["left"].([]any)
			return slices.EqualFunc(left, names, func(have any, want string) bool { return have == want })
		})
		select {
		case err := <-done:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
	}
	awaitLeft("Pod "+namespace+"-a", "Pod "+namespace+"-b", "Pod "+namespace+"-registrar-a")
	scale, err := clientset.AppsV1().Deployments(namespace).GetScale(t.Context(), namespace, metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 0 {
		t.Fatalf("the scale is %+v: %v", scale, err)
	}
	deletePod(t, namespace, namespace+"-registrar-a")
	deletePod(t, namespace, namespace+"-a")
	awaitLeft("Pod " + namespace + "-b")
	// The controller may be about to create another one.
	deployment, err := clientset.AppsV1().Deployments(namespace).Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	setStatus := func(generation int64, replicas int32) {
		t.Helper()
		deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: replicas}
		if deployment, err = clientset.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), deployment, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	setStatus(deployment.Generation-1, 0)
	deletePod(t, namespace, namespace+"-b")
	awaitLeft("Deployment " + namespace)
	setStatus(deployment.Generation, 0)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := r.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
	refused.check(t, "uninstaller")
}

// timeIsOver is a context whose end is that of its time.
type timeIsOver struct{ context.Context }

func (c timeIsOver) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

func TestScalingDownThatTakesTooLongNamesThePodsThatAreLeft(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	deployed(t, namespace, namespace, 2)
	r, _ := uninstaller(t, namespace)
	ctx, end := context.WithCancel(t.Context())
	go func() {
		defer end()
		_ = testkit.Poll(ctx, time.Minute, "it waits", func(context.Context) error {
			if r.logs.FilterMessage("waiting for Pods to end").Len() == 0 {
				return errors.New("it does not")
			}
			return nil
		})
	}()
	err := r.ScaleDown(timeIsOver{ctx}, namespace, namespace+"-registrar")
	for _, want := range []string{"Pod " + namespace + "-a", "Pod " + namespace + "-b", "in namespace " + namespace} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v does not say that time was over", err)
	}
	if r.logs.FilterMessage("no such Deployment to scale down").Len() != 1 {
		t.Error("it does not say that the other Deployment does not exist")
	}
	// Without the right to list Pods, waiting would not help.
	if err := r.ScaleDown(t.Context(), "stranger"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), namespace+"/stranger") {
		t.Errorf("a Deployment that no right names: %v", err)
	}
}

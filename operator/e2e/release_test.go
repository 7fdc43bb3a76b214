//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/internal/testkit"
)

// release is a release of the chart, in a namespace with the same name.
type release struct {
	name   string
	values []string
	// before makes what the release needs.
	before func(context.Context, release) error
}

// The releases are the operator as it ships, with every feature, and a user's own
// operator in one process with one extension or five, and with a registrar that stays or runs once.
var (
	shipped  = release{"admitkit", append(append(imageValues(image), "access.enabled=true", "access.namespaces={*}", "audit.objects.enabled=true"), sessionValues()...), prepareSessions}
	one      = sample("sample-one", 1, "split.enabled=false")
	five     = sample("sample-five", 5, "split.enabled=false")
	stays    = sample("sample-stays", 1, "split.registrar=Deployment", "split.reconciler=None")
	runsOnce = sample("sample-once", 1, "split.registrar=Job", "split.reconciler=None")
	releases = []release{shipped, one, five, stays, runsOnce}
)

// sample returns a release of the sample operator that watches only the namespace
// e2e-NAME.
func sample(name string, extensions int, more ...string) release {
	values := append(imageValues(sampleImage), "audit.enabled=false", "watchNamespaces={"+prefix+name+"}",
		sampleArgs(extensions, "stamp"))
	return release{name: name, values: append(values, more...)}
}

// sampleArgs returns the chart value with the flags of a sample.
func sampleArgs(extensions int, scope string) string {
	return fmt.Sprintf("extraArgs={--extensions=%d,--scope=%s,--propagation-delay=2s}", extensions, scope)
}

func imageValues(image string) []string {
	colon := max(strings.LastIndex(image, ":"), 0)
	return []string{"image.repository=" + image[:colon], "image.tag=" + strings.TrimPrefix(image[colon:], ":")}
}

// watched returns the namespace that a sample watches.
func (r release) watched() string { return prefix + r.name }

func (r release) namespace() string { return r.name }

// install installs or upgrades the release and returns when it is ready.
func (r release) install(ctx context.Context, more ...string) error {
	if err := errors.Join(makeNamespace(ctx, r.namespace()), makeNamespace(ctx, r.watched())); err != nil {
		return err
	}
	if r.before != nil {
		if err := r.before(ctx, r); err != nil {
			return err
		}
	}
	args := []string{"helm", "upgrade", "--install", r.name, "../charts/admitkit", "--namespace", r.namespace(), "--wait", "--timeout", "5m"}
	for _, value := range append(r.values, more...) {
		args = append(args, "--set", value)
	}
	_, err := command(ctx, adminKubeconfig, args...)
	return err
}

// installAll installs all releases at once, and in the short form those that its tests use.
var installAll = sync.OnceValue(func() error {
	var group errgroup.Group
	for _, r := range releases[:testkit.Long(len(releases), 2)] {
		group.Go(func() error { return r.install(context.Background()) })
	}
	return group.Wait()
})

// installed installs all releases, unless an earlier test has. It returns when all
// replicas of this release run and the API server reaches them.
func (r release) installed(t *testing.T) {
	t.Helper()
	if err := installAll(); err != nil {
		t.Fatal(err)
	}
	if err := r.settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "the API server reaches "+r.name, r.reached)
}

// disturbing is held by tests that disturb a release, or that others may not disturb.
var disturbing sync.Mutex

// alone is installed for a test that has a sample for itself until it ends.
func (r release) alone(t *testing.T) {
	t.Helper()
	disturbing.Lock()
	t.Cleanup(disturbing.Unlock)
	r.installed(t)
}

// reached returns an error if the API server does not reach the webhooks: a Service
// leads to its Pods only a moment after they are ready.
func (r release) reached(ctx context.Context) error {
	configuration, err := configurationOf(ctx, r)
	if err != nil {
		return err
	}
	return (&registration.Registration{Name: configuration.Name}).Probe(ctx, clientset.CoreV1().ConfigMaps(r.namespace()))
}

// uninstall uninstalls the release if the tests created its namespace.
func (r release) uninstall(ctx context.Context) error {
	if made, err := isMade(ctx, r.namespace()); err != nil || !made {
		return err
	}
	_, err := command(ctx, adminKubeconfig, "helm", "uninstall", r.name, "--namespace", r.namespace(), "--wait", "--ignore-not-found", "--timeout", "2m")
	return err
}

// uninstallAll uninstalls all releases at once.
func uninstallAll(ctx context.Context) error {
	var group errgroup.Group
	for _, r := range releases {
		group.Go(func() error { return r.uninstall(ctx) })
	}
	return group.Wait()
}

// removeCRDs removes what an uninstall keeps: the CRDs, and with them the records, and the
// policies that guard them.
func removeCRDs(ctx context.Context) error {
	names := make([]string, len(releases))
	for i, r := range releases {
		names[i] = r.name
	}
	selector := fmt.Sprintf("app.kubernetes.io/part-of=admitkit,app.kubernetes.io/instance in (%s)", strings.Join(names, ","))
	_, err := command(ctx, adminKubeconfig, "kubectl", "delete", "crd,validatingadmissionpolicies,validatingadmissionpolicybindings", "--selector", selector, "--timeout", "1m")
	return err
}

// replicas returns the Pods that serve.
func (r release) replicas(ctx context.Context) ([]corev1.Pod, error) {
	deployment, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	err = admin.List(ctx, &pods, client.InNamespace(r.namespace()), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(deployment.Spec.Selector.MatchLabels)})
	return pods.Items, err
}

// server returns the Deployment that serves.
func (r release) server(ctx context.Context) (*appsv1.Deployment, error) {
	var deployments appsv1.DeploymentList
	if err := admin.List(ctx, &deployments, client.InNamespace(r.namespace())); err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		if name := deployments.Items[i].Name; !strings.HasSuffix(name, "-registrar") && !strings.HasSuffix(name, "-reconciler") {
			return &deployments.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no Deployment serves in %s", r.namespace())
}

// resize sets the number of replicas.
func (r release) resize(ctx context.Context, replicas int32) error {
	deployment, err := r.server(ctx)
	if err != nil {
		return err
	}
	_, err = command(ctx, adminKubeconfig, "kubectl", "scale", "deployment", deployment.Name, "--namespace", r.namespace(), fmt.Sprintf("--replicas=%d", replicas))
	return err
}

// settled waits until exactly the wanted replicas run.
func (r release) settled(ctx context.Context) error {
	return testkit.Poll(ctx, 2*time.Minute, "the replicas of "+r.name+" run", func(ctx context.Context) error {
		deployment, err := r.server(ctx)
		if err != nil {
			return err
		}
		status, wanted := deployment.Status, *deployment.Spec.Replicas
		pods, err := r.replicas(ctx)
		if err != nil {
			return err
		}
		if status.ObservedGeneration < deployment.Generation || status.AvailableReplicas != wanted || int(wanted) != len(pods) {
			return fmt.Errorf("%d Pods, %d available, %d wanted", len(pods), status.AvailableReplicas, wanted)
		}
		return nil
	})
}

// deletePods deletes Pods with a grace period in seconds: 0 kills them, and nil is
// each Pod's own.
func deletePods(ctx context.Context, pods []corev1.Pod, grace *int64) error {
	var errs []error
	for _, pod := range pods {
		err := clientset.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: grace})
		errs = append(errs, client.IgnoreNotFound(err))
	}
	return errors.Join(errs...)
}

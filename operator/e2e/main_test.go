//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The images and the cluster of the tests.
var (
	image       = os.Getenv("E2E_IMAGE")
	sampleImage = cmp.Or(os.Getenv("E2E_SAMPLE_IMAGE"), "admitkit.dev/sample:dev")
	podImage    = cmp.Or(os.Getenv("E2E_POD_IMAGE"), "admitkit.dev/busybox:dev")
	// clusterDir is the folder of a cluster of `make cluster-up`. Tests may restart its
	// kubelet and kill its processes.
	clusterDir = os.Getenv("E2E_CLUSTER")
)

// The clients of the administrator.
var (
	config    *rest.Config
	clientset *kubernetes.Clientset
	admin     client.Client
	// adminKubeconfig is the path of the kubeconfig file.
	adminKubeconfig string
)

// files is the folder for the files of all tests.
var files string

const (
	// prefix begins the names of the tests' namespaces.
	prefix = "e2e-"
	// label marks the namespaces that the tests have created and may delete.
	label = "e2e.admitkit.dev/made"
)

// bin is the folder that has kubectl, helm and the cluster tool.
const bin = "../../bin"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	flag.Parse() // the form says what is installed
	if err := connect(); err != nil {
		return 0, err
	}
	unlock, err := testkit.Lock(adminKubeconfig)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if files, err = os.MkdirTemp("", "e2e-"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(files)) }()
	// The intruder runs in Pods, which have no libraries.
	if err := errors.Join(os.Setenv("CGO_ENABLED", "0"), testkit.Build(ctx, files+"/", "-ldflags=-s -w", "../cmd/kubectl-access", "./intruder")); err != nil {
		return 0, err
	}
	path := files
	// If there is no bin/k8s, kubectl comes from the rest of the PATH.
	for _, dir := range []string{bin + "/tools", bin + "/k8s/current"} {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return 0, err
		}
		path += string(os.PathListSeparator) + absolute
	}
	if err := os.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	// Remove what an interrupted run has left.
	if err := cleanUp(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cleanUp(ctx)) }()
	return m.Run(), nil
}

// others are the tests that use what is installed, beside that which uninstalls it.
var others sync.WaitGroup

// parallel has the tests of the short form run together, since each of them waits for the
// node most of its time. Those of the long form measure, and run one by one.
func parallel(t *testing.T) {
	t.Helper()
	if testing.Short() {
		others.Add(1)
		t.Cleanup(others.Done)
		t.Parallel()
	}
}

func connect() error {
	if image == "" {
		return errors.New("E2E_IMAGE is not set: run `make e2e`, or see the package's comment")
	}
	if os.Getenv("KUBECONFIG") == "" {
		return errors.New("KUBECONFIG is not set: name the cluster on which these tests may install and uninstall admitkit")
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	adminKubeconfig = rules.GetDefaultFilename()
	var err error
	if config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig(); err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	if clientset, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	admin, err = client.New(config, client.Options{Scheme: testkit.Scheme(v1alpha1.AddToScheme)})
	return err
}

// cleanUp uninstalls the releases with their CRDs and deletes the namespaces that this run or an
// earlier one created.
func cleanUp(ctx context.Context) error {
	err := uninstallAll(ctx)
	namespaces, listErr := clientset.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: label})
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var deleting errgroup.Group
	for _, namespace := range namespaces.Items {
		deleting.Go(func() error { return deleteNamespace(ctx, namespace.Name) })
	}
	return errors.Join(err, deleting.Wait(), removeCRDs(ctx), forgetSessions(ctx))
}

// namespace creates a namespace with the restricted Pod Security Standard, unless an
// earlier test has, and returns its name. The end of all tests deletes it.
func namespace(t *testing.T, name string) string {
	t.Helper()
	if err := makeNamespace(t.Context(), prefix+name); err != nil {
		t.Fatal(err)
	}
	return prefix + name
}

func makeNamespace(ctx context.Context, name string) error {
	_, err := clientset.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", label: ""},
	}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	made, err := isMade(ctx, name)
	if err == nil && !made {
		err = fmt.Errorf("namespace %s exists, but these tests did not create it: delete it, or use another cluster", name)
	}
	return err
}

// isMade reports whether a namespace exists and the tests have created it.
func isMade(ctx context.Context, name string) (bool, error) {
	namespace, err := clientset.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	_, made := namespace.Labels[label]
	return made, nil
}

func deleteNamespace(ctx context.Context, name string) error {
	err := clientset.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	return testkit.Poll(ctx, time.Minute, "namespace "+name+" is gone", func(ctx context.Context) error {
		_, err := clientset.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it still exists"), err)
	})
}

// restricted returns the spec of a Pod that runs a command under the restricted Pod
// Security Standard, with a grace period of one second.
func restricted(command ...string) corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: "main", Image: podImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
}

// command runs a command and returns its standard output. Its error has all output.
func command(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

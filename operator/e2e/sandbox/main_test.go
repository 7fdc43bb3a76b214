//go:build e2e && linux

// Package sandbox_test runs work that tries to get out, on a real node: the image of
// operator/cmd/sandbox, by the manifests that it prints and by the chart, in a cluster of `make cluster-up`,
// whose network policies a real enforcer, kube-network-policies, holds.
//
// The enforcer gets the packets by iptables' NFQUEUE, because some kernels lack nftables'
// expression for that; its own rules are then not loaded, which it logs. It gets every packet
// of a Pod that is not an answer, so that a policy holds what is open, too.
//
// Around the cluster is a world: servers at addresses that the node has for the test, among
// them git's own over TLS and SSH. Each way out is tried in a plain Pod as well, which it must
// lead out of: a way that leads nowhere would show nothing.
package sandbox_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

var (
	// clusterDir is the folder of a cluster of `make cluster-up`.
	clusterDir = os.Getenv("E2E_CLUSTER")
	// program is operator/cmd/sandbox, a static binary, and untrusted operator/e2e/untrusted.
	program, untrusted = os.Getenv("E2E_SANDBOX"), os.Getenv("E2E_UNTRUSTED")
	// enforcer is kube-network-policies.
	enforcer = os.Getenv("E2E_ENFORCER")
	// image is that of the operator, and sessionImage that of its recorder. The node has both.
	image, sessionImage = os.Getenv("E2E_IMAGE"), os.Getenv("E2E_RECORDER_IMAGE")
)

var (
	config    *rest.Config
	clientset *kubernetes.Clientset
	admin     client.WithWatch
)

const bin = "../../../bin"

// release is the name of the chart's release, which is in the namespace controllers.
const release = "admitkit"

func TestMain(m *testing.M) {
	if text := os.Getenv(worldVariable); text != "" {
		fmt.Fprintln(os.Stderr, actAsWorld(text))
		os.Exit(1)
	}
	err := connect()
	if err == nil {
		_, err = testkit.Lock(os.Getenv("KUBECONFIG")) // until this process ends
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func connect() error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	var err error
	if config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig(); err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	if clientset, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	admin, err = client.NewWithWatch(config, client.Options{Scheme: testkit.Scheme(v1alpha1.AddToScheme)})
	return err
}

// command makes a command. kubectl and helm are those of the clone.
func command(ctx context.Context, args ...string) *exec.Cmd {
	switch args[0] {
	case "kubectl":
		args[0] = filepath.Join(bin, "k8s", cmp.Or(os.Getenv("K8S"), "current"), "kubectl")
	case "helm":
		args[0] = filepath.Join(bin, "tools", "helm")
	}
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// run runs a command with an input, and returns its standard output. Its error has all.
func run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// must runs a command that succeeds.
func must(t *testing.T, args ...string) string {
	t.Helper()
	text, err := run(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// inNode returns what begins a command in namespaces of the node, such as "--net".
func inNode(t *testing.T, namespaces ...string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(clusterDir, "supervisor"))
	if err != nil {
		t.Fatal(err)
	}
	pid, _, _ := strings.Cut(string(text), " ")
	return append(append([]string{"nsenter", "--target", pid}, namespaces...), "--")
}

func makeNamespace(t *testing.T, name string) {
	t.Helper()
	testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{madeHere: ""}}})
}

// isLeft reports whether there is something of an earlier run.
func isLeft(ctx context.Context) (bool, error) {
	list, err := clientset.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(n corev1.Namespace) bool {
		return slices.Contains([]string{agents, elsewhere, controllers, brokers}, n.Name)
	}), nil
}

// cleanUp removes what this run or an earlier one has made, and waits until it is gone: a
// connection of a Pod that ends with its cluster keeps that's network for minutes. The webhooks go first: they keep what
// holds Pods.
func cleanUp(ctx context.Context) error {
	var errs []error
	if _, err := run(ctx, nil, "helm", "uninstall", release, "--namespace", controllers, "--ignore-not-found", "--wait", "--timeout", "2m"); err != nil {
		errs = append(errs, err)
	}
	for _, args := range [][]string{
		{"delete", "sandboxruns,workspaces", "--all", "--namespace", agents, "--ignore-not-found", "--timeout=1m"},
		{"delete", "deployments", "--all", "--namespace", controllers, "--cascade=foreground", "--timeout=1m"}, // which would bring the webhooks back
		{"delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "--selector", "admitkit.dev/fingerprint in (sandbox,sandbox-broker," + release + ")"},
		{"delete", "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "--selector", "app.kubernetes.io/part-of in (sandbox,sandbox-broker,admitkit)"},
		{"delete", "namespaces", agents, elsewhere, controllers, brokers, "--ignore-not-found", "--timeout=2m"},
		{"delete", "persistentvolumes,clusterrolebindings", "--selector", madeHere},
		{"delete", "pods,services", "--namespace", "kube-system", "--selector", madeHere},
		{"delete", "--ignore-not-found", "--timeout=1m", "-f", "../../config/crd"},
	} {
		if _, err := run(ctx, nil, append([]string{"kubectl"}, args...)...); err != nil && !strings.Contains(err.Error(), "the server doesn't have a resource type") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

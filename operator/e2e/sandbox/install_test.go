//go:build e2e && linux

package sandbox_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

const (
	// agents is where runs run, elsewhere where nothing holds Pods, and the others are the manager's and the broker's own.
	agents, elsewhere    = "e2e-agents", "e2e-elsewhere"
	controllers, brokers = "e2e-sandbox", "e2e-broker"
	// madeHere marks what the tests have made.
	madeHere = "e2e.admitkit.dev/made"
	podRange = "10.244.0.0/16,fd00:244::/112"
	services = "10.96.0.0/16"
	dnsIP    = "10.96.0.10"
)

// installation is a sandbox on the node, and the world around it.
type installation struct {
	// folder has the keys and repositories of the world.
	folder string
	ca     *testkit.ClientCA
	// node is its address.
	node string
	// sandbox and untrusted are images by their digests.
	sandbox, untrusted string
}

// install makes it all, the sandbox in a way of its own, and has it removed in the end.
func install(t *testing.T, sandbox func(*installation, *testing.T)) *installation {
	t.Helper()
	if os.Geteuid() != 0 || clusterDir == "" || program == "" || untrusted == "" || enforcer == "" {
		t.Skip("it needs root, and what `make e2e` sets: E2E_CLUSTER, E2E_SANDBOX, E2E_UNTRUSTED and E2E_ENFORCER")
	}
	// What an interrupted run has left.
	if left, err := isLeft(t.Context()); err != nil || left {
		if err := errors.Join(err, cleanUp(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			explain(t)
		}
		if err := cleanUp(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	i := &installation{folder: t.TempDir(), ca: testkit.NewClientCA(t)}
	i.writeKeys(t)
	nodes, err := clientset.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i.node = nodes.Items[0].Status.Addresses[0].Address
	for _, name := range []string{agents, elsewhere} {
		makeNamespace(t, name)
	}
	i.loadImages(t)
	i.startWorld(t)
	sandbox(i, t)
	i.startNames(t)
	i.enforce(t, nodes.Items[0].Name)
	must(t, "kubectl", "wait", "--for=condition=Available", "deployments", "--all", "--namespace", controllers, "--timeout=3m")
	must(t, "kubectl", "wait", "--for=condition=Available", "deployments", "--all", "--namespace", brokers, "--timeout=3m")
	return i
}

// writeKeys writes the keys of the servers, and makes the repositories.
func (i *installation) writeKeys(t *testing.T) {
	t.Helper()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(i.folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	pair := i.ca.Issue(t, listed, x509.ExtKeyUsageServerAuth, listed, unlisted, inside, late, gitName, modelName)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.crt", block("CERTIFICATE", i.ca.Certificate.Raw))
	write("tls.crt", block("CERTIFICATE", pair.Certificate[0]))
	write("tls.key", block("PRIVATE KEY", key))
	for file, public := range map[string]string{"ssh_host_key": "known_hosts", "id": "authorized_keys"} {
		theirs, own, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		private, err := ssh.MarshalPrivateKey(own, "")
		if err != nil {
			t.Fatal(err)
		}
		shown, err := ssh.NewPublicKey(theirs)
		if err != nil {
			t.Fatal(err)
		}
		write(file, pem.EncodeToMemory(private))
		line := ssh.MarshalAuthorizedKey(shown)
		if public == "known_hosts" {
			line = append([]byte(gitName+" "), line...)
		}
		write(public, line)
	}
	work := t.TempDir()
	for _, name := range []string{"app", "lib", "private"} {
		if err := os.WriteFile(filepath.Join(work, "file"), []byte("this is "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		git := []string{"git", "-C", work, "-c", "user.name=a", "-c", "user.email=a@example.com"}
		must(t, append(git, "init", "-q", "-b", "main")...)
		must(t, append(git, "add", "file")...)
		must(t, append(git, "commit", "-qm", name)...)
		must(t, "git", "clone", "-q", "--bare", work, filepath.Join(i.folder, name+".git"))
	}
}

// loadImages builds the images, and brings them to the node. That of the sandbox trusts the
// authority of the world, as one does that is built for a company's own servers.
func (i *installation) loadImages(t *testing.T) {
	t.Helper()
	builder := i.builder()
	must(t, "go", "build", "-C", "../../../hack/image", "-buildvcs=false", "-o", builder, ".")
	var group errgroup.Group
	for into, args := range map[*string][]string{
		&i.sandbox:   {"-binary", program, "-roots", filepath.Join(i.folder, "ca.crt"), "-name", "admitkit.dev/e2e-sandbox:dev"},
		&i.untrusted: {"-binary", untrusted, "-name", "admitkit.dev/untrusted:dev"},
	} {
		group.Go(func() (err error) {
			*into, err = i.loadImage(t, builder, args...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// builder is the program that builds images.
func (i *installation) builder() string { return filepath.Join(i.folder, "image") }

// loadImage builds an image of a binary, and brings it to the node. It returns its name with its digest.
func (i *installation) loadImage(t *testing.T, builder string, args ...string) (named string, err error) {
	t.Helper()
	archive := filepath.Join(i.folder, filepath.Base(args[1])+".tar")
	text, err := run(t.Context(), nil, append([]string{builder, "-fast", "-out", archive}, args...)...)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(text, "\n") // NAME:dev@DIGEST
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	ctr := append(inNode(t, "--mount"), "ctr", "--namespace", "k8s.io", "images")
	name, digest, _ := strings.Cut(line, ":dev@")
	named = name + "@" + digest
	if _, err := run(t.Context(), file, append(ctr, "import", "-")...); err != nil {
		return "", err
	}
	_, err = run(t.Context(), nil, append(ctr, "tag", "--force", name+":dev", named)...)
	return named, err
}

// startWorld starts the servers outside of the cluster.
func (i *installation) startWorld(t *testing.T) {
	t.Helper()
	again := testkit.Again(t, worldVariable, i.folder+" "+i.node)
	args := append(inNode(t, "--net"), again.Path)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = again.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Run(t, cmd).Await(t, "serving")
}

// applyManifests applies what the program prints.
func (i *installation) applyManifests(t *testing.T) {
	t.Helper()
	must(t, "kubectl", "apply", "--server-side", "-f", "../../config/crd")
	common := []string{"--image", "admitkit.dev/e2e-sandbox:dev", "--sandbox-namespaces", agents, "--replicas", "1", "--propagation-delay", "2s", "--drain-period", "0s"}
	for _, args := range [][]string{
		append([]string{
			program, "broker", "manifests", "--webhook-namespace", brokers,
			"--broker-controller", "system:serviceaccount:" + controllers + ":sandbox-reconciler",
		}, common...),
		append([]string{
			program, "controller", "manifests", "--webhook-namespace", controllers, "--broker-namespace", brokers,
			"--sandbox-proxy-image", i.sandbox, "--sandbox-seed-image", i.sandbox, "--sandbox-network-policy", "on",
			"--cluster-pod-cidrs", podRange, "--cluster-service-cidrs", services,
		}, common...),
	} {
		text, err := run(t.Context(), nil, args...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), strings.NewReader(text), "kubectl", "apply", "--server-side", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
}

// plainPod is a Pod of the program untrusted.
func (i *installation) plainPod(namespace, name string, labels map[string]string, args ...string) *corev1.Pod {
	marked := map[string]string{madeHere: ""}
	maps.Copy(marked, labels)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: marked}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(0)),
		Containers: []corev1.Container{{
			Name: "main", Image: i.untrusted, Args: args, SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
		}},
	}}
}

// serviceOf is a Service for a Pod.
func serviceOf(pod *corev1.Pod, labels map[string]string, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: map[string]string{madeHere: ""}}, Spec: corev1.ServiceSpec{
		ClusterIP: ip, Selector: labels, Ports: ports,
	}}
}

// startNames has the cluster resolve names.
func (i *installation) startNames(t *testing.T) {
	t.Helper()
	broker := &corev1.Service{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: brokers, Name: "sandbox-broker"}, broker); err != nil {
		t.Fatal(err)
	}
	args := []string{"names", gitName + "=" + gitAt, modelName + "=" + modelAt, inside + "=" + i.node}
	for _, name := range []string{listed, unlisted, late} {
		args = append(args, name+"="+public)
	}
	for _, suffix := range []string{"", ".cluster.local"} {
		args = append(args, "sandbox-broker."+brokers+".svc"+suffix+"="+broker.Spec.ClusterIP)
	}
	labels := map[string]string{"k8s-app": "kube-dns"}
	pod := i.plainPod(metav1.NamespaceSystem, "kube-dns", labels, args...)
	testkit.Create(t, admin, pod, serviceOf(pod, labels, dnsIP, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53}))
	must(t, "kubectl", "wait", "--for=condition=Ready", "pod/kube-dns", "--namespace", "kube-system", "--timeout=1m")
}

// enforce has network policies hold Pods. The rules go before the enforcer does: nothing would answer for the packets.
func (i *installation) enforce(t *testing.T, node string) {
	t.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	args := append(inNode(t, "--net"), enforcer, "--kubeconfig="+kubeconfig, "--hostname-override="+node, "--disable-nri", "--fail-open=false", "--nfqueue-id=100", "--metrics-bind-address=127.0.0.1:0", "--v=2")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	process := testkit.Run(t, cmd)
	rules := func(ctx context.Context, operation string) error {
		var errs []error
		for _, table := range []string{"iptables", "ip6tables"} {
			for _, chain := range []string{"FORWARD", "INPUT"} {
				args := append(inNode(t, "--net"), table, operation, chain)
				if operation == "--insert" {
					args = append(args, "1")
				}
				_, err := run(ctx, nil, append(args, "-i", "pods", "-m", "conntrack", "--ctdir", "ORIGINAL", "-j", "NFQUEUE", "--queue-num", "100")...)
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	testkit.Within(t, 30*time.Second, "the enforcer has started", func(context.Context) bool { return process.Output.HasLine("Starting controller") })
	t.Cleanup(func() {
		if err := rules(context.WithoutCancel(t.Context()), "--delete"); err != nil {
			t.Error(err)
		}
	})
	if err := rules(t.Context(), "--insert"); err != nil {
		t.Fatal(err)
	}
}

// explain prints what there is when a test has failed.
func explain(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "-o", "wide"},
		{"get", "sandboxruns,workspaces", "--namespace", agents, "-o", "yaml"},
		{"get", "events", "--namespace", agents},
		{"logs", "--namespace", controllers, "deployment/sandbox-reconciler", "--tail=30"},
		{"logs", "--namespace", controllers, "deployment/" + release, "--tail=30"},
		{"logs", "--namespace", brokers, "deployment/sandbox-broker-reconciler", "--tail=30"},
	} {
		text, err := run(ctx, nil, append([]string{"kubectl"}, args...)...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// quoted is a value in YAML.
func quoted(text string) string {
	encoded, err := json.Marshal(text)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(encoded)
}

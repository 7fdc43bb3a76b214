//go:build e2e

// Package egress_test has a real enforcer, kube-network-policies, hold Pods to what
// operator/egress composes, in a network namespace of its own: the node, with a namespace
// for each Pod. It needs root, and nothing is left of it.
//
// The enforcer gets the packets by iptables' NFQUEUE, because some kernels lack nftables'
// expression for that; its own rules are then not loaded, which it logs. It knows Pods by their
// addresses. So it does not hold what a Pod sends from its link-local address, which reaches no
// further than the node.
package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// role says what a process of this binary is: the node, or a Pod. The first one is neither.
const role = "ADMITKIT_EGRESS_ROLE"

// enforcer is kube-network-policies, which `make e2e` builds.
var enforcer = os.Getenv("E2E_ENFORCER")

func TestMain(m *testing.M) {
	if os.Getenv(role) == "pod" {
		actAsPod()
		return
	}
	os.Exit(m.Run())
}

// actAsPod answers each line with what became of it.
func actAsPod() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, rest, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch command {
		case "run":
			err = run(strings.Fields(rest)...)
		case "listen":
			err = listen(rest)
		case "dial":
			fmt.Println("reached", strings.Join(dial(strings.Fields(rest)), " "))
			continue
		}
		fmt.Println("done", err)
	}
}

func run(args ...string) error {
	if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", args, err, output)
	}
	return nil
}

// dial returns those of the addresses that accept connections.
func dial(addresses []string) (reached []string) {
	var dialing sync.WaitGroup
	var mu sync.Mutex
	for _, address := range addresses {
		dialing.Go(func() {
			if c, err := net.DialTimeout("tcp", address, 3*time.Second); err == nil {
				_ = c.Close()
				mu.Lock()
				defer mu.Unlock()
				reached = append(reached, address)
			}
		})
	}
	dialing.Wait()
	return reached
}

// listen accepts connections until the process ends.
func listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return nil
}

// pod is a process with a network of its own, linked to the node.
type pod struct {
	name   string
	in     io.Writer
	out    *bufio.Scanner
	v4, v6 string
}

// ask has the Pod do something, and returns what became of it.
func (p *pod) ask(t *testing.T, line string) string {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() {
		t.Fatalf("Pod %s has ended", p.name)
	}
	return p.out.Text()
}

// does has the Pod do something, in which it must succeed.
func (p *pod) does(t *testing.T, line string) {
	t.Helper()
	if answer := p.ask(t, line); answer != "done <nil>" {
		t.Fatalf("%s: %s", line, answer)
	}
}

// reaches returns those of the addresses that the Pod reaches.
func (p *pod) reaches(t *testing.T, addresses ...string) []string {
	t.Helper()
	return strings.Fields(p.ask(t, "dial "+strings.Join(addresses, " ")))[1:]
}

// reachesAll waits until the Pod does. A packet may be late on a busy machine.
func (p *pod) reachesAll(t *testing.T, addresses ...string) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, "Pod "+p.name+" reaches all", func(context.Context) error {
		if reached := p.reaches(t, addresses...); len(reached) < len(addresses) {
			return fmt.Errorf("of %q it reaches %q", addresses, reached)
		}
		return nil
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// own starts this binary in a new network namespace.
func own(as string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), role+"="+as), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func startPod(t *testing.T, name string, number int) *pod {
	t.Helper()
	cmd := own("pod")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	p := &pod{name, in, bufio.NewScanner(out), fmt.Sprintf("10.244.0.%d", number), fmt.Sprintf("fd00:244::%d", number)}
	link := fmt.Sprintf("pod%d", number)
	must(t, run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(cmd.Process.Pid)))
	for _, command := range [][]string{
		{"ip", "link", "set", link, "up"},
		{"ip", "addr", "add", "169.254.1.1/32", "dev", link},
		{"ip", "-6", "addr", "add", "fe80::1/64", "dev", link, "nodad"},
		{"ip", "route", "add", p.v4 + "/32", "dev", link},
		{"ip", "-6", "route", "add", p.v6 + "/128", "dev", link},
	} {
		must(t, run(command...))
	}
	for _, command := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add " + p.v4 + "/32 dev eth0", "ip -6 addr add " + p.v6 + "/128 dev eth0 nodad",
		"ip route add 169.254.1.1 dev eth0", "ip route add default via 169.254.1.1 dev eth0", "ip -6 route add default via fe80::1 dev eth0",
	} {
		p.does(t, "run "+command)
	}
	return p
}

func TestARealEnforcerHoldsAPodToItsEgress(t *testing.T) {
	if os.Getenv(role) != "node" {
		if os.Geteuid() != 0 || enforcer == "" {
			t.Skip("it needs root, and E2E_ENFORCER, the path of kube-network-policies")
		}
		cmd := own("node", "-test.run=^TestARealEnforcerHoldsAPodToItsEgress$", "-test.v")
		cmd.Stdout = os.Stdout
		must(t, cmd.Run())
		return
	}
	addresses := map[string]string{"the API server": "192.0.2.1", "the node": "192.0.2.10", "the internet": "1.1.1.1", "the IPv6 internet": "2606:4700::1111", "metadata": "169.254.169.254", "a neighbour": "10.20.0.5", "another neighbour": "10.20.7.5"}
	must(t, run("ip", "link", "set", "lo", "up"))
	for _, address := range addresses {
		must(t, run("ip", "addr", "add", address, "dev", "lo"))
	}
	for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0o600))
	}
	for _, port := range []string{"443", "22", "6443", "10250", "80", "5432"} {
		must(t, listen(":"+port))
	}
	held, db, other, free := startPod(t, "held", 2), startPod(t, "db", 3), startPod(t, "other", 4), startPod(t, "free", 5)
	for _, p := range []*pod{db, other} {
		p.does(t, "listen :5432")
		p.does(t, "listen :443")
	}
	must(t, run("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.1", "-p", "tcp", "--dport", "443", "-j", "DNAT", "--to-destination", "192.0.2.1:6443"))
	for _, table := range []string{"iptables", "ip6tables"} {
		for _, chain := range []string{"FORWARD", "INPUT"} {
			must(t, run(table, "-A", chain, "-i", "pod+", "-p", "tcp", "--syn", "-j", "NFQUEUE", "--queue-num", "100"))
		}
	}
	enforce(t, held, db, other, free)

	may := []string{"192.0.2.1:6443", "10.96.0.1:443", "1.1.1.1:443", "[2606:4700::1111]:443", "10.20.0.5:5432", db.v4 + ":5432", "[" + db.v6 + "]:5432"}
	mayNot := []string{
		"1.1.1.1:22", "192.0.2.1:443", "192.0.2.1:22", "192.0.2.10:10250", "192.0.2.10:443", "169.254.169.254:80", "10.20.0.5:443", "10.20.7.5:5432",
		db.v4 + ":443", other.v4 + ":5432", other.v4 + ":443", "[" + other.v6 + "]:443", "[" + other.v6 + "]:5432", "[2606:4700::1111]:22",
	}
	testkit.Eventually(t, "the policy is enforced", func(context.Context) bool { return len(held.reaches(t, "192.0.2.10:10250")) == 0 })
	free.reachesAll(t, slices.Concat(may, mayNot)...) // or nothing was shown
	held.reachesAll(t, may...)
	escaped := held.reaches(t, mayNot...)
	if len(escaped) > 0 {
		t.Errorf("it reaches %q", escaped)
	}
	testkit.Figure("egress.escapes_tried", float64(len(mayNot)), "addresses")
	testkit.Figure("egress.escaped", float64(len(escaped)), "addresses")
}

// enforce starts an API server that knows the Pods and the policy, and the enforcer.
func enforce(t *testing.T, held *pod, others ...*pod) {
	t.Helper()
	cluster := controlplane.Run(t, controlplane.Options{})
	admin := testkit.Client(t, cluster.Admin(), testkit.Scheme())
	testkit.Create(t, admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	e := &v1alpha1.Egress{
		APIServer: true, Internet: true, CIDRs: []v1alpha1.EgressCIDR{{CIDR: "10.20.0.0/16", Except: []v1alpha1.CIDR{"10.20.7.0/24"}, Ports: []v1alpha1.EgressPort{{Port: 5432}}}},
		Pods: []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"app": "db"}, Ports: []v1alpha1.EgressPort{{Port: 5432}}}},
	}
	composed := egress.Policy{
		Kind: egress.NetworkPolicy, Label: "1", Egress: e, APIServer: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443"), netip.MustParseAddrPort("10.96.0.1:443")},
		Options: &egress.Options{PodCIDRs: []string{"10.244.0.0/16", "fd00:244::/64"}, ServiceCIDRs: []string{"10.96.0.0/12"}},
	}
	policy, err := composed.Compose()
	must(t, err)
	policy.SetName("held")
	policy.SetNamespace("default")
	testkit.Create(t, admin, policy)
	for _, p := range append(others, held) {
		labels := map[string]string{"app": p.name}
		if p == held {
			labels = map[string]string{v1alpha1.LabelEgress: "1"}
		}
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.name, Labels: labels}, Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}}}
		testkit.Create(t, admin, object)
		before := object.DeepCopy()
		object.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.v4, PodIPs: []corev1.PodIP{{IP: p.v4}, {IP: p.v6}}}
		must(t, admin.Status().Patch(t.Context(), object, client.MergeFrom(before)))
	}
	cmd := exec.Command(enforcer, "--kubeconfig="+cluster.Admin().KubeConfig, "--hostname-override=node", "--disable-nri", "--fail-open=false", "--nfqueue-id=100", "--metrics-bind-address=127.0.0.1:0", "--v=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Run(t, cmd)
}

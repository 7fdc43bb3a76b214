//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// sandboxImage is what holds the namespaces of a Pod.
const sandboxImage = "admitkit.dev/busybox:dev"

// programs are those of the machine that the node needs, with the Debian package
// that has them.
var programs = [][2]string{
	{"containerd", "containerd"},
	{"runc", "runc"},
	{"conntrack", "conntrack"},
	{"iptables", "iptables"},
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
}

// up starts the cluster and returns when a Pod can run on it. If it fails, nothing
// is left but the logs.
func (c *cluster) up(ctx context.Context, binaries, sandbox string) (err error) {
	if binaries == "" || sandbox == "" {
		return errors.New("up needs -binaries and -sandbox")
	}
	if os.Geteuid() != 0 {
		return errors.New("it must be run as root: it makes namespaces and mounts")
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	pid, err := c.supervisor()
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := c.ready(ctx); err != nil {
			return fmt.Errorf("it was started before and does not become ready; run `make cluster-down`: %w", err)
		}
		fmt.Printf("cluster: it is up\n\n    export KUBECONFIG=%s\n", c.kubeconfig())
		return nil
	}
	began := time.Now()
	for _, step := range []struct {
		text string
		run  func(context.Context) error
	}{
		{"installing what is missing", install},
		{"removing what another run left", c.remove},
		{"starting", func(ctx context.Context) error { return c.begin(ctx, binaries) }},
		{"loading " + sandboxImage, func(ctx context.Context) error { return c.loadSandbox(ctx, sandbox) }},
		{"waiting until the node is ready", c.ready},
	} {
		fmt.Printf("cluster: %s\n", step.text)
		if err := step.run(ctx); err != nil {
			err = fmt.Errorf("%s: %w", step.text, err)
			// The caller may have been interrupted; what was started ends nevertheless.
			return errors.Join(err, c.logs(), c.remove(context.WithoutCancel(ctx)))
		}
	}
	fmt.Printf("cluster: up in %s\n\n    export KUBECONFIG=%s\n", time.Since(began).Round(time.Second), c.kubeconfig())
	return nil
}

// install gets the packages that are missing, where there is apt-get.
func install(ctx context.Context) error {
	var missing []string
	for _, program := range programs {
		if _, err := exec.LookPath(program[0]); err != nil {
			missing = append(missing, program[1])
		}
	}
	if _, err := pluginDir(); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("not found, and there is no apt-get to install them: %s", strings.Join(missing, ", "))
	}
	fmt.Printf("cluster: apt-get install %s\n", strings.Join(missing, " "))
	if err := aptGet(ctx, "update"); err != nil {
		return err
	}
	// https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt: the
	// package would start a containerd of the machine's own.
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer func() { _ = os.Remove(policy) }()
	}
	return aptGet(ctx, append([]string{"install", "-y", "--no-install-recommends"}, missing...)...)
}

//go:embed apt-get.sh
var aptGetScript string

func aptGet(ctx context.Context, args ...string) error {
	return commandWith(ctx, strings.NewReader(aptGetScript), append([]string{"bash", "-s", "--"}, args...)...)
}

// begin takes a number and starts the processes.
func (c *cluster) begin(ctx context.Context, binaries string) error {
	return alone(ctx, func() error {
		if err := c.claim(); err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		return c.start(ctx, binaries)
	})
}

// prepare writes what the processes read: certificates and configuration.
func (c *cluster) prepare() error {
	if err := os.RemoveAll(c.path("logs")); err != nil {
		return err
	}
	for _, folder := range []string{"lib", "logs"} {
		if err := os.MkdirAll(c.path(folder), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(c.writePKI(), c.writeConfig())
}

// start starts the supervisor in namespaces of its own and gives it a link to
// the machine and cgroups.
func (c *cluster) start(ctx context.Context, binaries string) error {
	binaries, err := filepath.EvalSymlinks(binaries)
	if err != nil {
		return err
	}
	if binaries, err = filepath.Abs(binaries); err != nil {
		return err
	}
	log, err := os.OpenFile(c.path("logs", "supervisor.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	waits, linked, err := os.Pipe()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	supervisor := exec.Command("/proc/self/exe", "-dir", c.dir, "-binaries", binaries, superviseCommand)
	supervisor.Stdout, supervisor.Stderr, supervisor.ExtraFiles = log, log, []*os.File{waits}
	supervisor.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // it outlives this process and its terminal
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	err = supervisor.Start()
	err = errors.Join(err, log.Close(), waits.Close())
	if err == nil {
		go func() { _ = supervisor.Wait() }() // should it end before we do
		err = errors.Join(c.setSupervisor(supervisor.Process.Pid), c.link(ctx, supervisor.Process.Pid), c.addCgroups(ctx))
	}
	return errors.Join(err, linked.Close())
}

// link connects the machine with the network namespace of a process. It goes
// when the namespace does. Its alias says which folder's it is.
func (c *cluster) link(ctx context.Context, pid int) error {
	for _, args := range []string{
		"ip link add " + c.name() + " type veth peer name eth0 netns " + strconv.Itoa(pid),
		"ip address add " + c.machineIP() + "/30 dev " + c.name(),
	} {
		if err := command(ctx, strings.Fields(args)...); err != nil {
			return err
		}
	}
	return command(ctx, "ip", "link", "set", c.name(), "alias", c.alias(), "up")
}

func (c *cluster) loadSandbox(ctx context.Context, archive string) error {
	return poll(ctx, time.Minute, "containerd takes an image", func(ctx context.Context) error { return c.load(ctx, archive) })
}

// ready returns when a Pod can be made and has a node to run on.
func (c *cluster) ready(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return poll(ctx, 2*time.Minute, "the node is ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s: %s", nodeName, condition.Message)
			}
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s has taints: %v", nodeName, node.Spec.Taints)
		}
		_, err = client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// logs returns the ends of the logs as an error.
func (c *cluster) logs() error {
	files, err := filepath.Glob(c.path("logs", "*.log"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			errs = append(errs, fmt.Errorf("%s ends with:\n%s", file, strings.Join(lines[max(0, len(lines)-5):], "\n")))
		}
	}
	return errors.Join(errs...)
}

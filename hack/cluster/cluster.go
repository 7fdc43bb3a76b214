//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// cluster is one cluster, up or not. All that is known of it is in its folder.
type cluster struct {
	dir string
	// number tells the clusters of the machine apart, where its network and cgroups
	// show them: from 1 to 250, 0 before it is chosen.
	number int
}

// newCluster returns the cluster of a folder, which it need not have.
func newCluster(dir string) (*cluster, error) {
	c := &cluster{dir: dir}
	text, err := os.ReadFile(c.path(numberFile))
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		c.number, err = strconv.Atoi(string(text))
	}
	return c, err
}

// claim takes the folder, which must be new, empty or a cluster's, and a number
// that nobody has.
func (c *cluster) claim() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); name != lockFile && name != "logs" {
			return fmt.Errorf("%s holds %s and is no folder of a cluster: give an empty one, because all in it is removed", c.dir, name)
		}
	}
	for c.number = 1; c.number <= 250; c.number++ {
		if _, err := os.Stat(c.linkPath()); errors.Is(err, os.ErrNotExist) && len(c.cgroups()) == 0 {
			return write(c.path(numberFile), []byte(strconv.Itoa(c.number)))
		}
	}
	return errors.New("this machine has 250 clusters")
}

func (c *cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// name is that of the interface on the machine, and of the cgroup of the Pods.
func (c *cluster) name() string { return fmt.Sprintf("admitkit%d", c.number) }

// linkPath is where the kernel shows the interface.
func (c *cluster) linkPath() string { return filepath.Join("/sys/class/net", c.name()) }

// alias is that of the interface, which says whose it is: the folder, of which the
// kernel takes 255 bytes.
func (c *cluster) alias() string { return c.dir[max(0, len(c.dir)-255):] }

// machineIP and nodeIP are the two ends of the link into the network namespace.
func (c *cluster) machineIP() string { return fmt.Sprintf("10.213.%d.1", c.number) }
func (c *cluster) nodeIP() string    { return fmt.Sprintf("10.213.%d.2", c.number) }
func (c *cluster) address() string   { return fmt.Sprintf("https://%s:6443", c.nodeIP()) }

// kubeconfig is that of the administrator.
func (c *cluster) kubeconfig() string { return c.path("kubeconfig") }

// supervisor returns the process that everything else is a child of, 0 for none.
func (c *cluster) supervisor() (int, error) {
	text, err := os.ReadFile(c.path("supervisor"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	id, began, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(id)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.path("supervisor"), err)
	}
	// Another process may have got the number since.
	if now, err := startTime(pid); err != nil || now != began {
		return 0, nil //nolint:nilerr // there is no such process
	}
	return pid, nil
}

// running is supervisor, for what needs one.
func (c *cluster) running() (int, error) {
	pid, err := c.supervisor()
	if err == nil && pid == 0 {
		err = errNotUp
	}
	return pid, err
}

func (c *cluster) setSupervisor(pid int) error {
	began, err := startTime(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("supervisor"), fmt.Appendf(nil, "%d %s\n", pid, began), 0o600)
}

// startTime returns when a process began, in ticks since the machine did: field
// 22 of proc_pid_stat(5), the 20th after the name in parentheses.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

// down ends the cluster, whatever state it is in.
func (c *cluster) down(ctx context.Context) error {
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) {
		fmt.Println("cluster: there is none")
		return nil
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.remove(ctx); err != nil {
		return err
	}
	fmt.Printf("cluster: it is down; its logs are in %s\n", c.path("logs"))
	return nil
}

// remove kills the supervisor, which takes the rest with it, and removes what
// outlives processes.
func (c *cluster) remove(ctx context.Context) error {
	if c.number == 0 {
		return nil
	}
	pid, err := c.supervisor()
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("ending the supervisor, process %d: %w", pid, err)
		}
		// The first process of a namespace ends after all others in it have.
		if err := poll(ctx, time.Minute, "the processes have ended", func(context.Context) error {
			if _, err := startTime(pid); err == nil {
				return fmt.Errorf("process %d is there", pid)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := alone(ctx, func() error {
		if pid == 0 && c.isAnothers() {
			return nil
		}
		return errors.Join(c.linkIsGone(ctx), c.removeCgroups(ctx))
	}); err != nil {
		return err
	}
	// The number goes last: a removal that was interrupted goes on with it.
	for _, name := range []string{"cni", "config", "lib", "pki", "sysctl", "kubeconfig", restartFile, "supervisor", numberFile} {
		if err := os.RemoveAll(c.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// isAnothers reports whether the number of a cluster that has ended has gone to that
// of another folder, as it may when the machine was started anew.
func (c *cluster) isAnothers() bool {
	alias, err := os.ReadFile(filepath.Join(c.linkPath(), "ifalias"))
	owner := strings.TrimSpace(string(alias))
	return err == nil && owner != "" && owner != c.alias()
}

// linkIsGone waits for the kernel, which removes a network namespace a little
// after its last process.
func (c *cluster) linkIsGone(ctx context.Context) error {
	return poll(ctx, 30*time.Second, "interface "+c.name()+" is gone", func(context.Context) error {
		if _, err := os.Stat(c.linkPath()); !errors.Is(err, os.ErrNotExist) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
}

// load imports an image archive into the node's containerd.
func (c *cluster) load(ctx context.Context, archive string) error {
	// The file may be where the node's own mounts hide it.
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return c.inside(ctx, file, "ctr", "--namespace", "k8s.io", "images", "import", "-")
}

// inside runs a command that sees the mounts of the node.
func (c *cluster) inside(ctx context.Context, stdin io.Reader, args ...string) error {
	pid, err := c.running()
	if err != nil {
		return err
	}
	return commandWith(ctx, stdin, append([]string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--"}, args...)...)
}

// restart has the supervisor end a process, which starts again, and returns when
// it has.
func (c *cluster) restart(ctx context.Context, name string) error {
	pid, err := c.running()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path(restartFile), []byte(name), 0o600); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return err
	}
	return poll(ctx, 30*time.Second, name+" is started again", func(context.Context) error {
		if text, err := os.ReadFile(c.path(restartFile)); err == nil {
			return fmt.Errorf("the supervisor has not restarted %q", text)
		}
		return nil
	})
}

var errNotUp = errors.New("the cluster is not up: run `make cluster-up`")

const (
	lockFile   = ".lock"
	numberFile = "number"
)

// lock keeps a second run out of the folder until the first is done. The kernel
// releases it when the process ends, however it ends.
func (c *cluster) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, err
	}
	// It may be reached by several names, and is known by one.
	if c.dir, err = filepath.EvalSymlinks(c.dir); err != nil {
		return nil, err
	}
	if unlock, err = lockNow(c.path(lockFile)); err != nil {
		return nil, fmt.Errorf("another run is at work in %s: %w", c.dir, err)
	}
	return unlock, nil
}

// machineLock is where root alone may write.
const machineLock = "/run/admitkit-cluster.lock"

// alone runs something while no other cluster of the machine takes a number or
// gives one back.
func alone(ctx context.Context, run func() error) error {
	var unlock func()
	if err := poll(ctx, time.Minute, "no other cluster starts or ends", func(context.Context) (err error) {
		unlock, err = lockNow(machineLock)
		return err
	}); err != nil {
		return err
	}
	defer unlock()
	return run()
}

// lockNow fails where another process has the lock.
func lockNow(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// command runs one, and returns an error with what it said.
func command(ctx context.Context, args ...string) error { return commandWith(ctx, nil, args...) }

func commandWith(ctx context.Context, stdin io.Reader, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = stdin
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// poll waits for what the kernel or another process does on its own. There is
// nothing to wait for when the cluster is not up.
func poll(ctx context.Context, limit time.Duration, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		if errors.Is(last, errNotUp) {
			return false, last
		}
		return last == nil, nil
	})
	if err == nil || errors.Is(err, errNotUp) {
		return err
	}
	return fmt.Errorf("waiting until %s: %w", what, errors.Join(err, last))
}

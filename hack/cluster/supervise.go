//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	superviseCommand = "supervise"
	restartFile      = "restart"
	// restartPause is between the end of a process and its next start.
	restartPause = 500 * time.Millisecond
)

// Where the cluster's folder and the binaries are, for what runs in it.
const (
	clusterDir  = "/run/cluster"
	binariesDir = "/run/binaries"
)

// supervise is the first process of the namespaces. It mounts what the others
// need, starts them, and starts again what ends, until it is killed.
func (c *cluster) supervise(binaries string) error {
	// The other end of the link is there when the parent closes this.
	if _, err := os.NewFile(3, "link").Read(make([]byte, 1)); err == nil {
		return fmt.Errorf("%s is for `up` alone", superviseCommand)
	}
	if err := c.mount(binaries); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	if err := c.network(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	s := &supervisor{cluster: c, running: map[int]*service{}}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGCHLD)
	for _, next := range c.services() {
		if err := s.start(&next); err != nil {
			return err
		}
		for next.dial != nil && next.dial() != nil {
			s.reap()
			time.Sleep(20 * time.Millisecond)
		}
	}
	for received := range signals {
		if received == syscall.SIGHUP {
			s.restart()
		}
		s.reap()
	}
	return nil
}

// supervisor knows which process is which service.
type supervisor struct {
	*cluster
	running map[int]*service
}

func (s *supervisor) start(service *service) error {
	log, err := os.OpenFile(s.path("logs", service.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	process, err := os.StartProcess(service.args[0], service.args, &os.ProcAttr{
		Dir: clusterDir, Files: []*os.File{nil, log, log}, Env: os.Environ(),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", service.name, err)
	}
	s.running[process.Pid] = service
	return process.Release()
}

// reap waits for what has ended: services, which start again, and what was left
// by processes that ended before their children.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		service := s.running[pid]
		if service == nil {
			continue
		}
		delete(s.running, pid)
		fmt.Printf("%s %s ended: status %d, signal %v\n", time.Now().Format(time.RFC3339), service.name, status.ExitStatus(), status.Signal())
		time.Sleep(restartPause)
		for err := s.start(service); err != nil; err = s.start(service) {
			fmt.Println(err)
			time.Sleep(restartPause)
		}
		s.confirm(service.name)
	}
}

// restart ends the service that the file names.
func (s *supervisor) restart() {
	name, err := os.ReadFile(s.path(restartFile))
	if err != nil {
		return
	}
	for pid, service := range s.running {
		if service.name == string(name) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
}

// confirm removes the file, which says that the service was started again.
func (s *supervisor) confirm(name string) {
	if wanted, err := os.ReadFile(s.path(restartFile)); err == nil && string(wanted) == name {
		_ = os.Remove(s.path(restartFile))
	}
}

// mount makes the paths of the package comment. Nothing of it is seen outside.
func (c *cluster) mount(binaries string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// They may be in a folder that is about to be hidden.
	var open []int
	for _, path := range []string{c.dir, binaries} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		open = append(open, fd)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for i, target := range []string{clusterDir, binariesDir} {
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", open[i]), target); err != nil {
			return err
		}
	}
	c.dir = clusterDir
	for source, target := range map[string]string{"lib": "/var/lib", "logs": "/var/log"} {
		if err := bind(c.path(source), target); err != nil {
			return err
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := c.hideTunables(); err != nil {
		return err
	}
	// As on any node: what a Pod mounts is seen by kubelet.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// hideTunables puts files of ours in the place of those by which kubelet would
// tune the kernel, which is the machine's.
func (c *cluster) hideTunables() error {
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return err
		}
		file := c.path("sysctl", name)
		if err := write(file, text); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func bind(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("%s on %s: %w", source, target, err)
	}
	return nil
}

// network sets up this end of the link.
func (c *cluster) network() error {
	for _, args := range []string{
		"ip link set lo up",
		"ip address add " + c.nodeIP() + "/30 dev eth0",
		"ip link set eth0 up",
		"ip route add default via " + c.machineIP(),
	} {
		if err := command(context.Background(), strings.Fields(args)...); err != nil {
			return err
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)
}

// binary returns the path of one of Kubernetes' own.
func binary(name string) string { return filepath.Join(binariesDir, name) }

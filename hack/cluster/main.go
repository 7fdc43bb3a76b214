//go:build linux

// Command cluster runs a whole Kubernetes on this machine, for end-to-end tests:
// etcd, kube-apiserver with RBAC, kube-controller-manager, kube-scheduler, and
// one node with kubelet, kube-proxy and containerd, on which Pods run in real
// containers. It needs root and Linux, but no registry and no container engine.
//
//	cluster up            start it; nothing is done when it is up
//	cluster down          end it; the logs are kept
//	cluster load FILE     import an image archive
//	cluster restart NAME  end a process, kubelet for example, which starts again
//
// # How it leaves nothing behind
//
// All of it runs in namespaces of its own: of processes, mounts and network. The
// first process there, the supervisor, starts the others. When it is killed the
// kernel kills all that it started, containers included, and with the last of
// them go the mounts, the network interfaces and the packet filter rules. What
// is in cgroups and in the folder is removed by down.
//
// In these namespaces the folder is /run/cluster, and /run, /var/lib and /var/log
// are parts of it. Everything therefore has the paths and ports that it always
// has, and of it the machine sees one interface, over which the API server is
// reached, and the cgroups of the Pods. Debian packages that it installs stay, and
// in a container the cgroup "init", into which the processes of its root may go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	dir := flag.String("dir", "", "the folder of the cluster (required)")
	binaries := flag.String("binaries", "", "the folder of kube-apiserver, kubelet and the others (required by up)")
	sandbox := flag.String("sandbox", "", "an archive with the image admitkit.dev/busybox:dev (required by up)")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "cluster -dir DIR [flags] up | down | load FILE | restart NAME")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *binaries, *sandbox, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has just run
	}
}

func run(ctx context.Context, dir, binaries, sandbox string, args []string) error {
	if dir == "" || len(args) == 0 {
		flag.Usage()
		return errors.New("-dir and a command are required")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	c, err := newCluster(dir)
	if err != nil {
		return err
	}
	command, args := args[0], args[1:]
	switch {
	case command == "up" && len(args) == 0:
		return c.up(ctx, binaries, sandbox)
	case command == "down" && len(args) == 0:
		return c.down(ctx)
	case command == "load" && len(args) == 1:
		return c.load(ctx, args[0])
	case command == "restart" && len(args) == 1:
		return c.restart(ctx, args[0])
	case command == superviseCommand:
		return c.supervise(binaries)
	}
	flag.Usage()
	return fmt.Errorf("unknown command, or wrong number of arguments: %s", command)
}

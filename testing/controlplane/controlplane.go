// Package controlplane runs a real kube-apiserver and etcd for tests, demos and
// benchmarks, and optionally kube-controller-manager and kwok.
//
//	func TestMyExtension(t *testing.T) {
//		cluster := controlplane.Run(t, controlplane.Options{
//			CRDPaths:          []string{"../config/crd"},
//			ControllerManager: true, // Deployments become Pods
//			Kwok:              true, // Pods become Running and Ready
//		})
//		client, err := kubernetes.NewForConfig(cluster.Config())
//		...
//		alice, err := cluster.AddUser("alice", "developers")
//		out, err := cluster.Kubectl(t.Context(), alice, "auth", "whoami").CombinedOutput()
//	}
//
// # What runs
//
// etcd and kube-apiserver always run, under controller-runtime's envtest. RBAC is
// on. The ServiceAccount admission plugin is off, so that you can create a Pod
// before its namespace has a ServiceAccount. Everything listens on free ports of
// 127.0.0.1 and keeps its files in one temporary folder, so any number of control
// planes can run side by side.
//
// [Options].ControllerManager adds the built-in controllers: workloads,
// garbage collection, deletion of namespaces, disruption budgets, ServiceAccounts
// and their tokens. Each acts under its own ServiceAccount, so a webhook sees
// the user names that it would see in production.
//
// [Options].Kwok adds fake nodes with the names "node-0", "node-1" and so on. A
// Pod on a fake node becomes Running and Ready at once, although its containers do
// not exist. The Pod of a Job succeeds at once. A deleted Pod disappears at once,
// whatever its grace period.
//
// On a fake node, `kubectl exec` runs its command on this machine, in an empty
// folder, as the user who runs the test. Do not use it where others can reach
// 127.0.0.1. kwok v0.8.0 does not pass on the command's exit code: kubectl fails
// if the command does, but does not return its code. Nor does kwok pass on the end
// of standard input, so `kubectl exec -i` never returns if the command reads to the
// end. `kubectl logs` prints nothing, and `kubectl attach` waits until you
// interrupt it.
//
// A stand-in for kube-scheduler binds the Pods of the default scheduler to the
// nodes in turn. It keeps a DaemonSet's Pods on their nodes and respects scheduling
// gates, but ignores resources, selectors, taints and affinity.
//
// # Cleaning up
//
// [Run] stops its control plane when the test ends. After [Start], call
// [ControlPlane.Stop]. If the test panics, times out or is killed first, a watchdog
// process kills all processes and removes the folder, usually within a second.
//
// The binaries come from `make controlplane` or KUBEBUILDER_ASSETS: see
// [Options].BinaryDir. The package needs a Unix; it is tested on Linux.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// startTimeout is long because `go test ./...` may start several control
	// planes at once on a machine that is still compiling.
	startTimeout = 90 * time.Second
	pollInterval = 50 * time.Millisecond
)

// Options says what to run. The zero value runs kube-apiserver and etcd.
type Options struct {
	// BinaryDir is the folder of the binaries. If it is empty, each binary comes from
	// the first of these folders that has it: KUBEBUILDER_ASSETS, then
	// bin/k8s/current in the working directory and in each of its parents, where
	// `make controlplane` puts them. Start returns an error if KUBEBUILDER_ASSETS is set
	// to anything but the absolute path of a folder with at least one of the binaries.
	BinaryDir string
	// CRDPaths are files and folders of files with CustomResourceDefinitions to
	// install. The garbage collector of kube-controller-manager knows them from the
	// start. It takes up to half a minute to notice CRDs that you create later.
	CRDPaths []string
	// ControllerManager runs kube-controller-manager.
	ControllerManager bool
	// Kwok runs kwok, which plays the kubelets of fake nodes.
	Kwok bool
	// Nodes is the number of fake nodes, which need Kwok. Default: 1 with Kwok.
	Nodes int
	// APIServerArgs are flags of kube-apiserver, without the dashes. The values
	// replace those that envtest and this package would pass. A flag without values
	// is not passed. Paths may be relative to the working directory.
	APIServerArgs map[string][]string
	// Output receives the logs of all processes. If it is nil, the logs are
	// discarded. If a process does not start, the error has the end of its log.
	Output io.Writer
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	options  Options
	watchdog *watchdog
	plane    *envtest.ControlPlane
	kubectl  string
	admin    *User
	client   kubernetes.Interface
	output   output
	// certifying guards envtest's CA, which is not safe for concurrent use.
	certifying sync.Mutex
	// stopBinder stops the binder, the only part that runs in this process.
	stopBinder func()
}

// Run starts a control plane for a test and stops it when the test ends. If it
// does not start, Run ends the test; if it does not stop, the test fails.
func Run(t testing.TB, options Options) *ControlPlane {
	t.Helper()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Start starts a control plane and returns when everything in it is ready. If ctx
// ends before that, Start stops and returns an error; afterwards, ctx has no
// effect. If Start returns an error, it leaves nothing running.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	c, err := start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("controlplane: start: %w", err)
	}
	return c, nil
}

func start(ctx context.Context, options Options) (*ControlPlane, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	names := []string{"etcd", "kube-apiserver", "kubectl"}
	if options.ControllerManager {
		names = append(names, controllerManager)
	}
	if options.Kwok {
		names = append(names, kwok)
	}
	binaries, err := findBinaries(options.BinaryDir, names...)
	if err != nil {
		return nil, err
	}
	dog, err := startWatchdog()
	if err != nil {
		return nil, err
	}
	// envtest takes no context, but it returns when its process is gone.
	stopWatching := context.AfterFunc(ctx, func() { _ = dog.close() })
	c := &ControlPlane{
		options:    options,
		watchdog:   dog,
		kubectl:    binaries["kubectl"],
		output:     output{to: options.Output},
		stopBinder: func() {},
	}
	err = c.start(ctx, binaries)
	if !stopWatching() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (o *Options) setDefaults() error {
	switch {
	case o.Nodes < 0:
		return fmt.Errorf("options: Nodes is %d: must not be negative", o.Nodes)
	case o.Nodes > 0 && !o.Kwok:
		return errors.New("options: Nodes needs Kwok, which plays the nodes")
	case o.Nodes == 0 && o.Kwok:
		o.Nodes = 1
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	return nil
}

func (c *ControlPlane) start(ctx context.Context, binaries map[string]string) error {
	programs := make(map[string]string, len(binaries))
	for name, binary := range binaries {
		var err error
		if programs[name], err = c.watchdog.wrap(name, binary); err != nil {
			return err
		}
	}
	// Read the CRDs before anything runs, to report a mistake in them at once.
	crds := envtest.CRDInstallOptions{Paths: c.options.CRDPaths, ErrorIfPathMissing: true}
	if err := envtest.ReadCRDFiles(&crds); err != nil {
		return err
	}
	crds.Paths = nil
	if err := c.startAPI(ctx, programs); err != nil {
		return err
	}
	if len(crds.CRDs) > 0 {
		if _, err := envtest.InstallCRDs(c.admin.Config, crds); err != nil {
			return err
		}
	}
	// Start both before waiting for either, which saves seconds.
	var ready []func(context.Context) error
	if c.options.ControllerManager {
		wait, err := c.startControllerManager(programs[controllerManager])
		if err != nil {
			return err
		}
		ready = append(ready, wait)
	}
	if c.options.Kwok {
		wait, err := c.startKwok(ctx, programs[kwok])
		if err != nil {
			return err
		}
		ready = append(ready, wait)
	}
	for _, wait := range ready {
		if err := wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Config returns a client configuration that acts as the administrator. The caller
// may change it.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.admin.Config) }

// Admin returns the administrator, the user "admin" in the group system:masters.
func (c *ControlPlane) Admin() *User { return c.admin }

// Stop kills all processes and removes all files. After Stop returns, nothing
// writes to Options.Output. You may call Stop more than once and from several
// goroutines.
func (c *ControlPlane) Stop() error {
	c.stopBinder()
	err := c.watchdog.close()
	c.output.close()
	if err != nil {
		return fmt.Errorf("controlplane: stop: %w", err)
	}
	return nil
}

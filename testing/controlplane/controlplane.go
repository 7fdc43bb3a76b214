// Package controlplane runs a real kube-apiserver and etcd, and on request
// kube-controller-manager and kwok, for tests, demos and benchmarks.
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
// etcd and kube-apiserver always do, under controller-runtime's envtest: RBAC
// is on, and the ServiceAccount admission plugin is off, so that a Pod can be
// created before its namespace has a ServiceAccount. Everything listens on
// 127.0.0.1, on ports that are free, and all files are in one temporary folder,
// so any number of control planes run side by side.
//
// [Options].ControllerManager adds the built-in controllers: workloads,
// garbage collection, deletion of namespaces, disruption budgets, ServiceAccounts
// and their tokens. Each acts under its own ServiceAccount, so a webhook sees
// the user names that it would see in production.
//
// [Options].Kwok adds fake nodes, "node-0" and on. A Pod on one becomes Running
// and Ready at once, though none of its containers exist; a Job's Pod succeeds;
// a deleted Pod goes, whatever its grace period.
//
// `kubectl exec` then runs its command on this machine, as the user who runs the
// test, in an empty folder; do not use it where others can reach 127.0.0.1.
// kwok v0.8.0 passes on neither the command's exit code (an error is an error)
// nor the end of standard input, so `kubectl exec -i` of a command that reads
// to the end never returns. `kubectl logs` prints nothing, and `kubectl attach`
// waits until it is interrupted.
//
// There is no kube-scheduler: a stand-in binds each Pod that waits for the
// default scheduler to one node after the other. It keeps a DaemonSet's Pods on
// their nodes and leaves a Pod with scheduling gates alone; it looks at neither
// resources nor selectors, taints or affinity.
//
// # Who stops what
//
// [Run] stops its control plane when the test ends; after [Start], call
// [ControlPlane.Stop]. When neither comes to pass, because the test panics,
// times out or is killed, a watchdog process kills what runs and removes the
// folder within a second or so.
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

// Options says what to run. The zero value is a kube-apiserver and its etcd.
type Options struct {
	// BinaryDir is the folder of the binaries. By default each one is taken from
	// the first of these folders that holds it: KUBEBUILDER_ASSETS, then
	// bin/k8s/current in the working directory and in every folder above it,
	// which is where `make controlplane` puts them.
	BinaryDir string
	// CRDPaths are files, and folders of files, with the
	// CustomResourceDefinitions to install. The garbage collector of
	// kube-controller-manager knows them from the start; it takes up to half a
	// minute to notice others.
	CRDPaths []string
	// ControllerManager runs kube-controller-manager.
	ControllerManager bool
	// Kwok runs kwok, which plays the kubelets of fake nodes.
	Kwok bool
	// Nodes is the number of fake nodes: 1 by default with Kwok, 0 without.
	Nodes int
	// APIServerArgs are flags of kube-apiserver, without the dashes. The values
	// given here replace those that the flag would get otherwise; with none, the
	// flag is not passed at all. Paths may be relative to the working directory.
	APIServerArgs map[string][]string
	// Output receives the logs of all processes; nil discards them. The end of
	// the log of a process that does not start is in the error in any case.
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
	// certifying is held while a user is made: envtest's CA serves one at a time.
	certifying sync.Mutex
	// stopBinder ends the one part that runs in this process.
	stopBinder func()
}

// Run starts a control plane and stops it when the test ends. It fails the test
// if the control plane does not start or not stop.
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

// Start starts a control plane and returns when everything in it is ready. The
// end of ctx interrupts the start and has no meaning afterwards. If Start
// fails, nothing is left running.
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
	// envtest takes no context. It returns when its process is gone.
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
		return fmt.Errorf("options: Nodes is %d", o.Nodes)
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
	// They are read before anything runs, so that a mistake in them shows at once.
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
	// Both are started before either is waited for, which saves seconds.
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

// Config returns a copy of the configuration of the user Admin.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.admin.Config) }

// Admin returns the user that may do everything: "admin" in system:masters.
func (c *ControlPlane) Admin() *User { return c.admin }

// Stop kills all processes and removes all files. There is nothing that a
// graceful end could save. Nothing is written to Options.Output any more when
// Stop has returned. Stop may be called again, and from several goroutines.
func (c *ControlPlane) Stop() error {
	c.stopBinder()
	err := c.watchdog.close()
	c.output.close()
	if err != nil {
		return fmt.Errorf("controlplane: stop: %w", err)
	}
	return nil
}

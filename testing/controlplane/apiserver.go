package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/admitkit/admitkit/internal/freeport"
)

const loopback = "127.0.0.1"

// startAPI starts etcd and kube-apiserver and returns when they are ready. It uses
// envtest's ControlPlane, not its Environment, which environment variables can
// point at the cluster in the developer's kubeconfig, and which tries five times
// what fails once.
func (c *ControlPlane) startAPI(ctx context.Context, programs map[string]string) error {
	etcd, err := c.newEtcd(programs["etcd"])
	if err != nil {
		return err
	}
	api, err := c.newAPIServer(programs["kube-apiserver"], etcd.URL)
	if err != nil {
		return err
	}
	c.plane = &envtest.ControlPlane{Etcd: etcd, APIServer: api}
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startAPIServer(); err != nil {
		return err
	}
	if c.admin, err = c.addUser("admin", "system:masters"); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.admin.Config); err != nil {
		return err
	}
	return c.waitReady(ctx)
}

func (c *ControlPlane) newEtcd(program string) (*envtest.Etcd, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	etcd := &envtest.Etcd{
		Path:         program,
		URL:          &url.URL{Scheme: "http", Host: net.JoinHostPort(loopback, strconv.Itoa(int(port)))},
		DataDir:      filepath.Join(c.watchdog.dir, "etcd"),
		StartTimeout: startTimeout,
	}
	// envtest turns off fsync. etcd has no peers here and wins its election after
	// the election timeout, which is one second by default.
	etcd.Configure().Set("listen-peer-urls", "http://"+loopback+":0").
		Set("heartbeat-interval", "10").Set("election-timeout", "50")
	return etcd, nil
}

func (c *ControlPlane) newAPIServer(program string, etcd *url.URL) (*envtest.APIServer, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	api := &envtest.APIServer{
		Path:         program,
		EtcdURL:      etcd,
		CertDir:      c.apiServerDir(),
		StartTimeout: startTimeout,
	}
	api.ListenAddr = envtest.ListenAddr{Address: loopback, Port: strconv.Itoa(int(port))}
	// Without an advertise-address, kube-apiserver refuses to start on a machine
	// without a network. A loopback address must not be an endpoint of the Service
	// "kubernetes"; nothing could reach it there anyway.
	api.Configure().Set("advertise-address", loopback).Set("endpoint-reconciler-type", "none")
	for flag, values := range c.options.APIServerArgs {
		if len(values) == 0 {
			api.Configure().Disable(flag)
		} else {
			api.Configure().Set(flag, values...)
		}
	}
	return api, nil
}

func (c *ControlPlane) startEtcd() error {
	log := &processLog{output: &c.output}
	c.plane.Etcd.Out, c.plane.Etcd.Err = log, log
	return log.explain("etcd", c.plane.Etcd.Start())
}

func (c *ControlPlane) startAPIServer() error {
	log := &processLog{output: &c.output}
	c.plane.APIServer.Out, c.plane.APIServer.Err = log, log
	return log.explain("kube-apiserver", c.plane.APIServer.Start())
}

// apiServerDir has the keys and certificates that envtest creates.
func (c *ControlPlane) apiServerDir() string { return filepath.Join(c.watchdog.dir, "apiserver") }

// waitReady waits until kube-apiserver reports that it is ready and has created
// the namespace default, the last of those that every cluster has.
func (c *ControlPlane) waitReady(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		last = c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if last == nil {
			_, last = c.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("kube-apiserver is not ready: %w: %w", err, last)
	}
	return nil
}

// StopAPIServer kills kube-apiserver and nothing else, so that you can test what
// its clients do in an outage. [ControlPlane.StartAPIServer] ends the outage. A
// graceful stop would wait up to a minute for open watches. If kube-apiserver is
// already stopped, StopAPIServer does nothing.
func (c *ControlPlane) StopAPIServer() error {
	if err := c.watchdog.kill("kube-apiserver"); err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// StartAPIServer starts a stopped kube-apiserver again, with the same address,
// certificates and users, and returns when it is ready. ctx limits the wait. If
// kube-apiserver is not stopped, StartAPIServer returns an error.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	// envtest would mistake an answer of the running one for an answer of the new one.
	if c.watchdog.started("kube-apiserver") {
		return errors.New("controlplane: kube-apiserver is already started: stop it first")
	}
	err := c.startAPIServer()
	if err == nil {
		err = c.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// RestartAPIServer calls StopAPIServer, then StartAPIServer.
func (c *ControlPlane) RestartAPIServer(ctx context.Context) error {
	if err := c.StopAPIServer(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// StopEtcd kills etcd and nothing else: kube-apiserver stays up but can neither
// read nor write. [ControlPlane.StartEtcd] ends the outage. If etcd is already
// stopped, StopEtcd does nothing.
func (c *ControlPlane) StopEtcd() error {
	if err := c.watchdog.kill("etcd"); err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// StartEtcd starts a stopped etcd again, with the same address and data, and
// returns when kube-apiserver is ready. ctx limits the wait.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	err := c.startEtcd()
	if err == nil {
		err = c.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// RestartEtcd calls StopEtcd, then StartEtcd.
func (c *ControlPlane) RestartEtcd(ctx context.Context) error {
	if err := c.StopEtcd(); err != nil {
		return err
	}
	return c.StartEtcd(ctx)
}

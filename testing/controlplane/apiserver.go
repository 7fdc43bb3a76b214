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

// startAPI starts etcd and kube-apiserver. It uses envtest's control plane, not
// its Environment: the latter may be told by environment variables to use the
// cluster of the developer's kubeconfig, and tries five times what fails once.
func (c *ControlPlane) startAPI(ctx context.Context, programs map[string]string) error {
	etcdPort, err := freeport.Find()
	if err != nil {
		return err
	}
	apiPort, err := freeport.Find()
	if err != nil {
		return err
	}
	etcd := &envtest.Etcd{
		Path:         programs["etcd"],
		URL:          &url.URL{Scheme: "http", Host: net.JoinHostPort(loopback, strconv.Itoa(int(etcdPort)))},
		DataDir:      filepath.Join(c.watchdog.dir, "etcd"),
		StartTimeout: startTimeout,
	}
	// envtest turns off fsync. There are no peers either, so an election, for
	// which etcd waits a second by default, is won by waiting.
	etcd.Configure().Set("listen-peer-urls", "http://"+loopback+":0").
		Set("heartbeat-interval", "10").Set("election-timeout", "50")
	api := &envtest.APIServer{
		Path:         programs["kube-apiserver"],
		EtcdURL:      etcd.URL,
		CertDir:      c.apiServerDir(),
		StartTimeout: startTimeout,
	}
	api.ListenAddr = envtest.ListenAddr{Address: loopback, Port: strconv.Itoa(int(apiPort))}
	// Without the first, kube-apiserver refuses to start on a machine that has no
	// network. With it, it may not be an endpoint of the Service "kubernetes",
	// which is no loss: nobody could reach it there.
	api.Configure().Set("advertise-address", loopback).Set("endpoint-reconciler-type", "none")
	for flag, values := range c.options.APIServerArgs {
		if len(values) == 0 {
			api.Configure().Disable(flag)
		} else {
			api.Configure().Set(flag, values...)
		}
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

// apiServerDir holds the keys and certificates that envtest makes.
func (c *ControlPlane) apiServerDir() string { return filepath.Join(c.watchdog.dir, "apiserver") }

// waitReady returns when kube-apiserver says that it is ready and has made the
// last of the namespaces that every cluster has.
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

// StopAPIServer kills kube-apiserver and nothing else, to show what its clients
// do in an outage. StartAPIServer ends the outage. It is killed because a
// graceful stop waits for every open watch, for up to a minute.
func (c *ControlPlane) StopAPIServer() error {
	if err := c.watchdog.kill("kube-apiserver"); err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// StartAPIServer starts a stopped kube-apiserver on the address that it had,
// with the certificates and users that it had. ctx limits how long to wait
// until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	// envtest would take the answer of the one that runs for that of the new one.
	if c.watchdog.started("kube-apiserver") {
		return errors.New("controlplane: kube-apiserver was started; stop it first")
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

// RestartAPIServer is StopAPIServer and StartAPIServer.
func (c *ControlPlane) RestartAPIServer(ctx context.Context) error {
	if err := c.StopAPIServer(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// StopEtcd kills etcd and nothing else: kube-apiserver stays up and can neither
// read nor write. StartEtcd ends the outage.
func (c *ControlPlane) StopEtcd() error {
	if err := c.watchdog.kill("etcd"); err != nil {
		return fmt.Errorf("controlplane: %w", err)
	}
	return nil
}

// StartEtcd starts a stopped etcd on the same address with the same data. ctx
// limits how long to wait until kube-apiserver is ready again.
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

// RestartEtcd is StopEtcd and StartEtcd.
func (c *ControlPlane) RestartEtcd(ctx context.Context) error {
	if err := c.StopEtcd(); err != nil {
		return err
	}
	return c.StartEtcd(ctx)
}

//go:build linux

package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses within the cluster. They are seen nowhere else.
const (
	podRange     = "10.244.0.0/16"
	serviceRange = "10.96.0.0/16"
	serviceIP    = "10.96.0.1"  // of the Service "kubernetes"
	dnsIP        = "10.96.0.10" // of the Service "kube-dns", where somebody makes it
	nodeName     = "node-0"
)

// podRange6 is the range of the Pods' IPv6 addresses, "" where the kernel has no IPv6. The
// cluster itself, its node and its Services are of IPv4.
func podRange6() string {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return ""
	}
	return "fd00:244::/112"
}

// service is a process that runs for as long as the cluster does.
type service struct {
	name string
	args []string
	// dial says whether it listens; those that follow need that. May be nil.
	dial func() error
}

// services returns the processes in the order in which they start.
func (c *cluster) services() []service {
	pki := func(name string) string { return filepath.Join(clusterDir, "pki", name) }
	config := func(name string) string { return filepath.Join(clusterDir, "config", name) }
	return []service{
		{"etcd", []string{
			binary("etcd"), "--data-dir=/var/lib/etcd",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
			"--unsafe-no-fsync", // nothing of it outlives the machine's next start
		}, dial("tcp", "127.0.0.1:2379")},
		{"kube-apiserver", []string{
			binary("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379",
			"--bind-address=0.0.0.0", "--advertise-address=" + c.nodeIP(), "--secure-port=6443",
			"--service-cluster-ip-range=" + serviceRange,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
			"--client-ca-file=" + pki("ca.crt"),
			"--tls-cert-file=" + pki("kube-apiserver.crt"), "--tls-private-key-file=" + pki("kube-apiserver.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
			// The aggregation layer, by which kube-apiserver passes requests on to APIServices.
			"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + pki("service-account.key"), "--service-account-signing-key-file=" + pki("service-account.key"),
		}, dial("tcp", c.nodeIP()+":6443")},
		{
			"containerd",
			[]string{lookup("containerd"), "--config=" + config("containerd.toml")},
			dial("unix", "/run/containerd/containerd.sock"),
		},
		{"kube-controller-manager", []string{
			binary("kube-controller-manager"), "--kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
			"--leader-elect=false", "--use-service-account-credentials",
			"--service-account-private-key-file=" + pki("service-account.key"), "--root-ca-file=" + pki("ca.crt"),
			"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
			"--cluster-signing-cert-file=" + pki("ca.crt"), "--cluster-signing-key-file=" + pki("ca.key"),
		}, nil},
		{"kube-scheduler", []string{
			binary("kube-scheduler"), "--kubeconfig=" + pki("kube-scheduler.kubeconfig"), "--leader-elect=false",
		}, nil},
		{"kubelet", []string{
			binary("kubelet"), "--kubeconfig=" + pki("kubelet.kubeconfig"), "--config=" + config("kubelet.yaml"),
			"--hostname-override=" + nodeName, "--node-ip=" + c.nodeIP(), "--cert-dir=/var/lib/kubelet/pki",
		}, nil},
		{"kube-proxy", []string{
			binary("kube-proxy"), "--config=" + config("kube-proxy.yaml"), "--hostname-override=" + nodeName,
		}, nil},
	}
}

func dial(network, address string) func() error {
	return func() error {
		connection, err := net.DialTimeout(network, address, time.Second)
		if err == nil {
			err = connection.Close()
		}
		return err
	}
}

// lookup returns the path of a program of the machine.
func lookup(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return name // os.StartProcess says what is wrong with it
	}
	return path
}

//go:embed config
var configFiles embed.FS

// writeConfig writes the files of config, filled in.
func (c *cluster) writeConfig() error {
	plugins, err := pluginDir()
	if err != nil {
		return err
	}
	templates, err := template.ParseFS(configFiles, "config/*")
	if err != nil {
		return err
	}
	values := map[string]string{
		"Cgroup": c.name(), "PodRange": podRange, "PodRange6": podRange6(), "DNS": dnsIP, "PluginDir": plugins, "Snapshotter": c.snapshotter(), "Sandbox": sandboxImage,
	}
	for _, t := range templates.Templates() {
		var text bytes.Buffer
		if err := t.Execute(&text, values); err != nil {
			return err
		}
		folder := "config"
		if strings.HasSuffix(t.Name(), ".conflist") {
			folder = "cni" // where containerd wants nothing else
		}
		if err := write(c.path(folder, t.Name()), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// pluginDir returns where the network plugins are: distributions differ.
func pluginDir() (string, error) {
	places := []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}
	for _, dir := range places {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no network plugin \"bridge\" in %s", strings.Join(places, ", "))
}

// snapshotter returns how layers of images become one file system: overlays
// cannot be on an overlay, as in a container.
func (c *cluster) snapshotter() string {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dir, &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

func write(path string, text []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600))
}

package controlplane

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/internal/freeport"
)

const kwok = "kwok"

//go:embed kwok.yaml
var kwokConfiguration []byte

// startKwok creates the nodes and starts the binder and kwok, which plays the
// nodes' kubelets. The function that it returns waits until all nodes are Ready.
func (c *ControlPlane) startKwok(ctx context.Context, program string) (waitReady func(context.Context) error, err error) {
	nodes, err := c.createNodes(ctx)
	if err != nil {
		return nil, err
	}
	user, err := c.addUser("kwok", "system:masters")
	if err != nil {
		return nil, err
	}
	configuration := filepath.Join(c.watchdog.dir, "kwok.yaml")
	if err := os.WriteFile(configuration, kwokConfiguration, 0o600); err != nil {
		return nil, err
	}
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(loopback, strconv.Itoa(int(port)))
	process, err := startProcess(kwok, program, c.watchdog.home(), &processLog{output: &c.output},
		"--kubeconfig="+user.KubeConfig,
		"--config="+configuration,
		// kube-apiserver finds the nodes' kubelets here, for exec, logs and attach.
		"--server-address="+address,
		"--node-ip="+loopback,
		"--node-port="+strconv.Itoa(int(port)),
	)
	if err != nil {
		return nil, err
	}
	if err := c.startBinder(ctx, nodes); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return process.waitReady(ctx, func(ctx context.Context) error {
			if err := c.checkNodes(ctx, nodes); err != nil {
				return err
			}
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return connection.Close()
		})
	}, nil
}

func (c *ControlPlane) createNodes(ctx context.Context) (names []string, err error) {
	for i := range c.options.Nodes {
		name := fmt.Sprintf("node-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels:      map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
		}}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("creating %s: %w", name, err)
		}
		names = append(names, name)
	}
	return names, nil
}

func (c *ControlPlane) checkNodes(ctx context.Context, names []string) error {
	for _, name := range names {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !nodeReady(node) {
			return fmt.Errorf("node %s is not Ready", name)
		}
	}
	return nil
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *ControlPlane) startBinder(ctx context.Context, nodes []string) error {
	// Kubernetes has a role for this user.
	user, err := c.addUser("system:kube-scheduler")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(user.Config)
	if err != nil {
		return err
	}
	// ctx may end as soon as Start returns.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b := &binder{client: client, nodes: nodes, log: &processLog{output: &c.output}}
	var running sync.WaitGroup
	running.Go(func() { b.run(ctx) })
	c.stopBinder = func() {
		cancel()
		running.Wait()
	}
	return nil
}

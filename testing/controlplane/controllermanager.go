package controlplane

import (
	"context"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const controllerManager = "kube-controller-manager"

// startControllerManager starts kube-controller-manager. The function that it
// returns waits until it is ready.
func (c *ControlPlane) startControllerManager(program string) (waitReady func(context.Context) error, err error) {
	user, err := c.addUser("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	ca := filepath.Join(c.apiServerDir(), "ca.crt")
	if err := os.WriteFile(ca, c.plane.APIServer.CA, 0o600); err != nil {
		return nil, err
	}
	process, err := startProcess(controllerManager, program, c.watchdog.home(), &processLog{output: &c.output},
		"--kubeconfig="+user.KubeConfig,
		"--leader-elect=false",
		"--secure-port=0",
		// As in production, each controller acts under its own ServiceAccount. The user
		// above can do little more than get their tokens.
		"--use-service-account-credentials",
		"--service-account-private-key-file="+filepath.Join(c.apiServerDir(), "sa-signer.key"), // envtest's
		"--root-ca-file="+ca,
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		// It does not serve /readyz: --secure-port=0 saves a port. A ServiceAccount in
		// the namespace shows that its controllers work.
		return process.waitReady(ctx, func(ctx context.Context) error {
			_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}, nil
}

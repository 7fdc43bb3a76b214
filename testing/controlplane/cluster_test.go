package controlplane_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// TestCluster runs its parts in order on one control plane that has everything.
func TestCluster(t *testing.T) {
	ownTemp(t)
	c := startCluster(t)
	// kube-controller-manager takes ten seconds to delete a namespace, so the part
	// that checks this comes late.
	c.kubectl(t, nil, "create", "namespace", "brief")
	c.kubectl(t, nil, "run", "brief", "--namespace=brief", "--image=example.com/c")
	c.kubectl(t, nil, "delete", "namespace", "brief", "--wait=false")

	t.Run("a user is who its certificate says it is", c.identifiesUsers)
	t.Run("tests that run in parallel may each add a user", c.addsUsersInParallel)
	t.Run("a user may do what RBAC grants and nothing else", c.enforcesRBAC)
	t.Run("kubectl neither reads nor writes the developer's files", c.keepsKubectlToItself)

	t.Run("a CRD is installed", c.installsCRDs)
	t.Run("workloads come up", c.runsWorkloads)
	t.Run("a DaemonSet has a Pod on each node", c.bindsDaemonPodsToTheirNodes)
	t.Run("a controller acts under its own ServiceAccount", c.separatesControllers)
	t.Run("a Pod waits for its scheduling gate", c.respectsSchedulingGates)
	t.Run("kubectl exec runs a command for a user who may do only that", c.execs)
	t.Run("kubectl logs prints nothing", c.printsNoLogs)
	t.Run("a deleted Pod goes at once in spite of its grace period", c.deletesPodsAtOnce)
	t.Run("the Pods of a deleted Deployment are collected", c.collectsGarbage)

	t.Run("clients get no answer while kube-apiserver is stopped", c.stopsAPIServer)
	t.Run("a second kube-apiserver is refused", c.refusesASecondAPIServer)
	t.Run("objects, users and controllers outlive a restart of kube-apiserver", c.outlives("kube-apiserver", c.RestartAPIServer))
	t.Run("objects, users and controllers outlive a restart of etcd", c.outlives("etcd", c.RestartEtcd))
	t.Run("a deleted namespace goes with what is in it", c.deletesNamespaces)
	t.Run("Stop ends even what kubectl exec left running", c.stopsExecs)
}

// cluster is a control plane with every option. The parts of TestCluster are its
// methods: those about users, workloads and outages have a file each.
type cluster struct {
	*controlplane.ControlPlane
	client.Client // acts as the administrator
	auditLog      string
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	began := time.Now()
	plane := controlplane.Run(t, controlplane.Options{
		CRDPaths:          []string{"testdata/widgets.yaml"},
		ControllerManager: true,
		Kwok:              true,
		Nodes:             2,
		APIServerArgs: map[string][]string{
			"audit-policy-file": {"testdata/audit-policy.yaml"},
			"audit-log-path":    {auditLog},
		},
	})
	t.Logf("ready after %s", time.Since(began))
	return cluster{plane, testkit.Client(t, plane.Admin(), nil), auditLog}
}

// kubectl runs kubectl, which must succeed, and returns what it printed.
func (c cluster) kubectl(t *testing.T, user *controlplane.User, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl(t.Context(), user, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c cluster) tryKubectl(ctx context.Context, user *controlplane.User, args ...string) (string, error) {
	cmd := c.Kubectl(ctx, user, args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String(), nil
}

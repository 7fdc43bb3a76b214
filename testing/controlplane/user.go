package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// User is who a client certificate of the control plane says it is. RBAC
// decides what it may do; the group system:masters may do everything.
type User struct {
	Name   string
	Groups []string
	// Config connects as this user.
	Config *rest.Config
	// KubeConfig is the path of a kubeconfig file with which kubectl connects as
	// this user. Stop removes the file.
	KubeConfig string
}

// AddUser makes a user with a client certificate for name and groups. Tests that
// run in parallel may each add theirs.
func (c *ControlPlane) AddUser(name string, groups ...string) (*User, error) {
	user, err := c.addUser(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("controlplane: add user %q: %w", name, err)
	}
	return user, nil
}

func (c *ControlPlane) addUser(name string, groups ...string) (*User, error) {
	if name == "" {
		return nil, errors.New("a user needs a name")
	}
	// Tests are not to wait for the client's own rate limit.
	base := &rest.Config{QPS: 1000, Burst: 2000}
	c.certifying.Lock()
	added, err := c.plane.AddUser(envtest.User{Name: name, Groups: groups}, base)
	c.certifying.Unlock()
	if err != nil {
		return nil, err
	}
	text, err := added.KubeConfig()
	if err != nil {
		return nil, err
	}
	// The name may hold any character, so it is no part of the file's name.
	file, err := os.CreateTemp(c.watchdog.dir, "*.kubeconfig")
	if err != nil {
		return nil, err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return &User{Name: name, Groups: groups, Config: added.Config(), KubeConfig: file.Name()}, nil
}

// Kubectl returns a kubectl command that acts as user, or as Admin if user is
// nil. The caller sets its standard streams and runs it. It sees nothing of the
// developer's own kubectl: kubeconfig, kuberc and caches are the control plane's.
// Plugins are found on PATH as always.
func (c *ControlPlane) Kubectl(ctx context.Context, user *User, args ...string) *exec.Cmd {
	if user == nil {
		user = c.admin
	}
	cmd := exec.CommandContext(ctx, c.kubectl, args...) //nolint:gosec // the binary that Start found
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "KUBE") && !strings.HasPrefix(variable, "HOME=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+user.KubeConfig, "HOME="+filepath.Join(c.watchdog.dir, "kubectl"))
	cmd.WaitDelay = time.Second
	return cmd
}

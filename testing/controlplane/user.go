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

// User is a user of the control plane with a client certificate. RBAC decides what
// users can do. Members of the group system:masters can do everything.
type User struct {
	Name   string
	Groups []string
	// Config is a client configuration that acts as this user. Copy it before you
	// change it.
	Config *rest.Config
	// KubeConfig is the path of a kubeconfig file for kubectl to act as this user.
	// Stop removes the file.
	KubeConfig string
}

// AddUser adds a user with a client certificate for the name and the groups. The
// name must not be empty. AddUser is safe for concurrent use.
func (c *ControlPlane) AddUser(name string, groups ...string) (*User, error) {
	user, err := c.addUser(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("controlplane: add user %q: %w", name, err)
	}
	return user, nil
}

func (c *ControlPlane) addUser(name string, groups ...string) (*User, error) {
	if name == "" {
		return nil, errors.New("the user needs a name")
	}
	// The client's own rate limit must not slow tests down.
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
	// The user's name may have any character, so it is not part of the file's name.
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

// Kubectl returns a kubectl command that acts as the user, or as the administrator
// if user is nil. The caller sets its standard streams and runs it. Its kubeconfig,
// kuberc and caches are the control plane's, never the developer's. It finds
// plugins on PATH as usual.
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

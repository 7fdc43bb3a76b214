package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// rbacDelay bounds how long kube-apiserver takes to see new RBAC rules.
const rbacDelay = 10 * time.Second

func (c cluster) addUser(t *testing.T, name string, groups ...string) *controlplane.User {
	t.Helper()
	user, err := c.AddUser(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func (c cluster) identifiesUsers(t *testing.T) {
	groups := []string{"developers", "a group: with / any name"}
	user := c.addUser(t, "alice/../@example.com", groups...)
	var review authenticationv1.SelfSubjectReview
	testkit.Create(t, testkit.Client(t, user, nil), &review)
	info := review.Status.UserInfo
	if want := append(slices.Clone(groups), "system:authenticated"); info.Username != user.Name || !slices.Equal(info.Groups, want) {
		t.Errorf("got %s in %q, want %s in %q", info.Username, info.Groups, user.Name, want)
	}
	if name := c.kubectl(t, user, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != user.Name {
		t.Errorf("kubectl acts as %s, want %s", name, user.Name)
	}
	if name := c.kubectl(t, nil, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != c.Admin().Name {
		t.Errorf("kubectl without a user acts as %s, want %s", name, c.Admin().Name)
	}
}

func (c cluster) addsUsersInParallel(t *testing.T) {
	var tests sync.WaitGroup
	for i := range 8 {
		tests.Go(func() {
			if _, err := c.AddUser(fmt.Sprintf("parallel-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	tests.Wait()
}

func (c cluster) enforcesRBAC(t *testing.T) {
	bob := testkit.Client(t, c.addUser(t, "bob", "viewers"), nil)
	listPods := func(ctx context.Context, namespace string) error {
		return bob.List(ctx, &corev1.PodList{}, client.InNamespace(namespace))
	}
	if err := listPods(t.Context(), "default"); !apierrors.IsForbidden(err) {
		t.Errorf("bob lists Pods without a right: %v", err)
	}
	c.kubectl(t, nil, "create", "rolebinding", "viewers", "--clusterrole=view", "--group=viewers")
	testkit.Succeeds(t, rbacDelay, "bob may list Pods", func(ctx context.Context) error {
		return listPods(ctx, "default")
	})
	if err := listPods(t.Context(), "kube-system"); !apierrors.IsForbidden(err) {
		t.Errorf("bob lists Pods in another namespace: %v", err)
	}
}

func (c cluster) keepsKubectlToItself(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", filepath.Join(home, "no-such-file"))
	t.Setenv("KUBECACHEDIR", home)
	c.kubectl(t, nil, "get", "namespaces")
	if files, err := os.ReadDir(home); err != nil || len(files) > 0 {
		t.Errorf("HOME has the files %v (%v)", files, err)
	}
}

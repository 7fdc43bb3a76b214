package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func (w *whole) userIsWhoItsCertificateSays(t *testing.T) {
	groups := []string{"developers", "a group: with / any name"}
	user := w.addUser(t, "alice/../@example.com", groups...)
	review, err := clientFor(t, user.Config).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info := review.Status.UserInfo
	if want := append(slices.Clone(groups), "system:authenticated"); info.Username != user.Name || !slices.Equal(info.Groups, want) {
		t.Errorf("want %s in %q, got %s in %q", user.Name, want, info.Username, info.Groups)
	}
	if name := w.run(t, user, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != user.Name {
		t.Errorf("kubectl acts as %s", name)
	}
	if name := w.run(t, nil, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); name != w.Admin().Name {
		t.Errorf("kubectl of no user acts as %s", name)
	}
}

func (w *whole) parallelTestsAddUsers(t *testing.T) {
	var tests sync.WaitGroup
	for i := range 8 {
		tests.Go(func() {
			if _, err := w.AddUser(fmt.Sprintf("parallel-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	tests.Wait()
}

func (w *whole) rbacDecides(t *testing.T) {
	bob := clientFor(t, w.addUser(t, "bob", "viewers").Config)
	if _, err := bob.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("want bob to be forbidden to list Pods, got %v", err)
	}
	w.run(t, nil, "create", "rolebinding", "viewers", "--clusterrole=view", "--group=viewers")
	testkit.Succeeds(t, patience, "RBAC lets bob list Pods", func(ctx context.Context) error {
		_, err := bob.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := bob.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("want bob to be forbidden to list Pods elsewhere, got %v", err)
	}
}

func (w *whole) kubectlLeavesHomeAlone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", filepath.Join(home, "no-such-file"))
	t.Setenv("KUBECACHEDIR", home)
	w.run(t, nil, "get", "namespaces")
	if files, err := os.ReadDir(home); err != nil || len(files) > 0 {
		t.Errorf("in HOME there is %v (%v)", files, err)
	}
}

func (w *whole) execRunsACommand(t *testing.T) {
	user := w.addUser(t, "executor")
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "executor"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}, // kubectl looks first
			{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
		},
	}
	if _, err := w.client.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.run(t, nil, "create", "rolebinding", "executor", "--role=executor", "--user=executor")
	testkit.Succeeds(t, patience, "RBAC lets the user get Pods", func(ctx context.Context) error {
		_, err := clientFor(t, user.Config).CoreV1().Pods("default").Get(ctx, "later", metav1.GetOptions{})
		return err
	})
	if out := w.run(t, user, "exec", "later", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("it prints %q", out)
	}
	if _, err := tryKubectl(t.Context(), w.ControlPlane, user, "delete", "pod/later"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("want the user to be forbidden to delete Pods, got %v", err)
	}
}

func (w *whole) logsPrintNothing(t *testing.T) {
	if out := w.run(t, nil, "logs", "later"); out != "" {
		t.Errorf("it prints %q", out)
	}
}

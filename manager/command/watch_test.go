package command_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

// looks is a WatcherOf of any kind that needs a right of its own.
type looks[T client.Object] struct{}

func (looks[T]) Watch(context.Context, extension.Manager, watch.EventType, T) {}

func (looks[T]) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}
}

// everywhereLooks runs in every server.
type everywhereLooks[T client.Object] struct{ looks[T] }

func (everywhereLooks[T]) NeedLeaderElection() bool { return false }

func TestTheRightsToWatchAKindAreInTheProcessThatWatches(t *testing.T) {
	chassis := extension.WatchScope{Kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Chassis"}}
	build := func(mgr *manager.Manager) error {
		for _, e := range []any{
			extension.Watching(looks[*corev1.ConfigMap]{}, extension.WatchScope{}),
			extension.Watching(looks[*corev1.Node]{}, extension.WatchScope{}),
			extension.Watching(looks[*unstructured.Unstructured]{}, chassis),
			extension.Watching(everywhereLooks[*corev1.Service]{}, extension.WatchScope{}),
		} {
			if err := mgr.AddExtension(e); err != nil {
				return err
			}
		}
		return nil
	}
	args := []string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system", "--with=-"}
	stdout, stderr, code := runBuilt(t, build, chassisCRD, args...)
	if code != 0 {
		t.Fatal(stderr)
	}
	text := strings.ReplaceAll(stdout, "reviewed", "stamp")
	rules := func(of []rbacv1.PolicyRule) string {
		var all []string
		for _, r := range of {
			all = append(all, fmt.Sprintf("%s%s%s", r.APIGroups, r.Resources, r.Verbs))
		}
		return strings.Join(all, " ")
	}
	for name, test := range map[string]struct{ got, want string }{
		"the reconciler, in the watched namespace": {
			rules(object[rbacv1.Role](t, text, "Role", "stamp-reconciler-extensions").Rules),
			"[][secrets][get] [][configmaps][list watch] [example.com][chassis][list watch]",
		},
		"the reconciler, for what has no namespace": {
			rules(object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-extensions").Rules), "[][nodes][list watch]",
		},
		"the servers": {rules(object[rbacv1.Role](t, text, "Role", "stamp-extensions").Rules), "[][secrets][get] [][services][list watch]"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %s, want %s", name, test.got, test.want)
		}
	}
	if _, stderr, code := runBuilt(t, build, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}", args...); code != 2 || !strings.Contains(stderr, "give its CustomResourceDefinition (--with") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

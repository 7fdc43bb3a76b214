//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// It is uninstalled while it is in use: access is granted and a session is open.
func TestAnUninstallLeavesNothingAndNobodyInside(t *testing.T) {
	s := openShop(t)
	ctx := t.Context()
	execs, pods := s.access(t, "exec", "web", "1h"), s.access(t, "pod", "debug", "1h")
	session := s.enter(t, pods.PodName)
	if len(ours(t)) == 0 {
		t.Fatal("nothing is found while it is installed: this test would find nothing that is left, either")
	}
	began := time.Now()
	if err := uninstallAll(ctx); err != nil {
		t.Fatal(err)
	}
	// What belonged to something that is gone goes with it, a little later.
	var left []string
	_ = testkit.Poll(ctx, 30*time.Second, "nothing is left", func(context.Context) error { // what is, is told below
		if left = ours(t); len(left) > 0 {
			return errors.New("something is")
		}
		return nil
	})
	fmt.Printf("FIGURE uninstall.left=%d objects\n", len(left))
	for _, object := range left {
		t.Errorf("left behind: %s", object)
	}
	session.ended(t, began)
	s.mayNotExec(t, execs.PodName)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "after", Namespace: s.namespace}, Spec: restricted("sleep", "86400")}
	if err := admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, 30*time.Second, "a new Pod runs", running(client.ObjectKeyFromObject(pod)))
}

// ours lists all objects of the cluster that say they are admitkit's, by a label
// or by their group, and all in the namespaces of the releases that Kubernetes
// has not put there, whatever kind they are of.
func ours(t *testing.T) []string {
	t.Helper()
	lists, err := discovery.ServerPreferredResources(clientset)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if resource.Name == "events" { // what happened, happened
				continue
			}
			all, err := objects.Resource(version.WithResource(resource.Name)).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range all.Items {
				if isOurs(object.Labels) || strings.HasSuffix(object.Name, ".admitkit.dev") || version.Group == "admitkit.dev" || isInRelease(object.ObjectMeta) {
					found = append(found, strings.TrimPrefix(fmt.Sprintf("%s %s/%s", resource.Name, object.Namespace, object.Name), "/"))
				}
			}
		}
	}
	return found
}

// isInRelease reports whether an object is in the namespace of a release, and not
// one of the two that Kubernetes makes in each.
func isInRelease(object metav1.ObjectMeta) bool {
	return object.Name != "default" && object.Name != "kube-root-ca.crt" &&
		slices.ContainsFunc(releases, func(r release) bool { return r.namespace() == object.Namespace })
}

func isOurs(labels map[string]string) bool {
	for key, value := range labels {
		if strings.HasPrefix(key, "admitkit.dev/") || strings.HasPrefix(value, "admitkit") && strings.HasPrefix(key, "app.kubernetes.io/") {
			return true
		}
	}
	return false
}

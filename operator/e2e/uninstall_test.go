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

// admitkit is uninstalled while it is in use: access is granted and a session is
// open.
func TestAnUninstallLeavesRecordsAloneAndNobodyInside(t *testing.T) {
	if testing.Short() {
		t.Parallel()
		others.Wait()
	}
	s := openShop(t)
	ctx := t.Context()
	execs, pods := s.access(t, "exec", "web", "1h"), s.access(t, "pod", "debug", "1h")
	session := s.enter(t, pods.PodName)
	if len(ours(t)) == 0 {
		t.Fatal("no object is found while admitkit is installed: this test could not find leftovers")
	}
	began := time.Now()
	if err := uninstallAll(ctx); err != nil {
		t.Fatal(err)
	}
	// The chart keeps the CRDs, and with them who had access.
	if record := "execaccessrequests " + s.namespace; !slices.ContainsFunc(ours(t), func(object string) bool { return strings.HasPrefix(object, record) }) {
		t.Error("no record is left")
	}
	nothingIsLeft(t, "but CRDs and records", func(object string) bool {
		return strings.HasPrefix(object, "customresourcedefinitions ") || strings.HasPrefix(object, "validatingadmissionpolic") || strings.HasPrefix(object, "apiservices ") || strings.HasPrefix(object, "access") || strings.HasPrefix(object, "podaccess") ||
			strings.HasPrefix(object, "execaccess") || strings.HasPrefix(object, "roleaccess") || strings.HasPrefix(object, "auditevents ")
	})
	session.ended(t, began)
	if err := removeCRDs(ctx); err != nil {
		t.Fatal(err)
	}
	testkit.Figure("uninstall.left", float64(nothingIsLeft(t, "", func(string) bool { return false })), "objects")
	s.mayNotExec(t, execs.PodName)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "after", Namespace: s.namespace}, Spec: restricted("sleep", "86400")}
	if err := admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "a new Pod runs", running(client.ObjectKeyFromObject(pod)))
}

// operators reports whether an object is what the operator made for recorded sessions, and
// keeps: the key and the recordings.
func operators(name string) bool {
	return strings.HasPrefix(name, "secrets ") && strings.HasSuffix(name, "/admitkit-session-key") ||
		strings.HasPrefix(name, "persistentvolumeclaims ") && strings.HasSuffix(name, "/sessions")
}

// nothingIsLeft waits until nothing of ours is left but what is kept, since the garbage
// collector removes dependents a little later. It returns how much is.
func nothingIsLeft(t *testing.T, but string, kept func(string) bool) int {
	t.Helper()
	var left []string
	_ = testkit.Poll(t.Context(), time.Minute, "nothing is left "+but, func(context.Context) error {
		if left = slices.DeleteFunc(ours(t), func(name string) bool { return operators(name) || kept(name) }); len(left) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	for _, object := range left {
		t.Errorf("left behind: %s", object)
	}
	return len(left)
}

// ours lists the objects of every kind that are admitkit's by a label, a name or
// their API group, and those that Kubernetes did not create in the namespaces of the
// releases.
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
			if resource.Name == "events" { // events are history
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

// isInRelease reports whether an object is in the namespace of a release and is not
// one of the objects that Kubernetes creates in each namespace.
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

//go:build e2e && linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	metadataclient "k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// TestTheSandboxOfTheChart installs it as operator/docs/sandbox.md, operator/docs/sandbox-broker.md and operator/docs/sessions.md say, uses it, and
// uninstalls it while a run works.
func TestTheSandboxOfTheChart(t *testing.T) {
	testkit.OnlyLong(t)
	var before map[string]bool
	i := install(t, func(i *installation, t *testing.T) {
		before = everything(t)
		i.applyChart(t)
	})
	none := map[string]string{"FILES": ""}
	i.apply(t, chartPolicies)
	i.apply(t, i.template("work", "work", none)+i.template("stay", "stay", none)+i.shared()+runOf("stays", "stay", ""))
	t.Run("has runs", func(t *testing.T) {
		for sentence, test := range map[string]func(*testing.T){
			"work, with a credential":              i.completes,
			"go on while they are in recorded use": i.watched,
		} {
			t.Run(sentence, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	for line := range follow(t, i.podOf(t, "stays"), "sandbox") {
		if strings.Contains(line, "auth=open-sesame") {
			break
		}
	}
	i.uninstallChart(t, before)
}

// chartPolicies let runs of two templates use a credential. Of a third there is none: people enter its runs.
const chartPolicies = `
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: e2e-agents, labels: {e2e.admitkit.dev/made: ""}}
stringData: {api: open-sesame}
---
apiVersion: admitkit.dev/v1alpha1
kind: BrokerPolicy
metadata: {name: agents, namespace: e2e-agents}
spec:
  appliesToTemplates: [work, stay]
  egress: [{host: api.example.com}]
  grants:
    credentials:
    - {name: api, secret: {name: keys, key: api}, delivery: {proxyInjected: {hosts: [api.example.com]}}}
`

// applyChart installs the release.
func (i *installation) applyChart(t *testing.T) {
	t.Helper()
	makeNamespace(t, controllers)
	testkit.Create(t, admin, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllers, Name: "admitkit-session-key", Labels: map[string]string{madeHere: ""}},
		StringData: map[string]string{"key": strings.Repeat("0123456789abcdef", 2)},
	})
	of := func(image string) string {
		colon := max(strings.LastIndex(image, ":"), 0)
		return fmt.Sprintf("{repository: %s, tag: %s}", image[:colon], strings.TrimPrefix(image[colon:], ":"))
	}
	repository, digest, _ := strings.Cut(i.sandbox, "@")
	values := fmt.Sprintf(`
image: %s
replicas: 1
audit: {objects: {enabled: true}}
sessions:
  enabled: true
  namespaces: [%s]
  image: %s
  idle: %.0fs
sandbox:
  enabled: true
  image: {repository: %s, digest: %s}
  namespaces: [%s]
  interactive: true
  egress: {networkPolicy: "on", podCIDRs: [%s], serviceCIDRs: [%s]}
  broker: {enabled: true, namespace: %s}
`, of(image), agents, of(sessionImage), mayDoze.Seconds(), repository, digest, agents, strings.ReplaceAll(podRange, ",", ", "), services, brokers)
	if _, err := run(t.Context(), strings.NewReader(values), "helm", "install", release, "../../charts/admitkit", "--namespace", controllers, "--values", "-"); err != nil {
		t.Fatal(err)
	}
}

// completes has a run ask a server by its proxy, which has the credential on lease.
func (i *installation) completes(t *testing.T) {
	i.apply(t, runOf("first", "work", ""))
	first := ended(t, "first")
	want := greeting + " host=" + listed + " auth=open-sesame"
	c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionCompleted)
	if c == nil || c.Status != metav1.ConditionTrue || first.Status.Phase != v1alpha1.SandboxSucceeded || !strings.Contains(first.Status.Output, want) {
		t.Errorf("the run is %s, %+v, and its output %q, want %q", first.Status.Phase, c, first.Status.Output, want)
	}
	awaitRecord(t, "first", "succeeded", "")
}

// uninstallChart uninstalls the release, and removes what that keeps. Nothing is left then that was not there before.
func (i *installation) uninstallChart(t *testing.T, before map[string]bool) {
	t.Helper()
	if text := must(t, "kubectl", "get", "credentialleases", "--namespace", brokers, "--output", "name"); text == "" {
		t.Error("no run has a lease that could be left")
	}
	must(t, "helm", "uninstall", release, "--namespace", controllers, "--wait", "--timeout", "3m")
	left := leftOf(t, before, "an uninstall leaves records, what runs own, and the namespace of the broker", func(object string) bool {
		kind, name, _ := strings.Cut(object, " ")
		group := strings.HasSuffix(kind, "."+v1alpha1.GroupVersion.Group)
		return group || strings.HasPrefix(kind, "customresourcedefinitions.") || strings.HasPrefix(kind, "validatingadmissionpolic") || strings.HasPrefix(kind, "apiservices.") ||
			strings.HasPrefix(name, agents+"/") || object == "namespaces /"+brokers || strings.HasSuffix(name, brokers+"/sandbox-broker-ca") || object == "leases.coordination.k8s.io "+brokers+"/sandbox-broker."+brokers
	})
	var runs v1alpha1.SandboxRunList
	if err := admin.List(t.Context(), &runs, client.InNamespace(agents)); err != nil {
		t.Fatal(err)
	}
	for _, r := range runs.Items {
		if len(r.Finalizers) > 0 {
			t.Errorf("run %s cannot be deleted any more: %q", r.Name, r.Finalizers)
		}
	}
	if text := must(t, "kubectl", "get", "pods", "--namespace", agents, "--field-selector", "status.phase=Running", "--output", "name"); text != "" {
		t.Errorf("a run works on: %s", text)
	}
	if text := must(t, "kubectl", "get", "credentialleases", "--all-namespaces", "--output", "name"); text != "" {
		t.Errorf("leases are left: %s", text)
	}
	must(t, "kubectl", "delete", "namespace", brokers, "--timeout=1m")
	must(t, "kubectl", "delete", "crd,validatingadmissionpolicies,validatingadmissionpolicybindings", "--selector", "app.kubernetes.io/part-of=admitkit", "--timeout=1m")
	left += leftOf(t, before, "nothing of the chart is left", func(string) bool { return false })
	testkit.Figure("sandbox.uninstall_left", float64(left), "objects")
}

// leftOf waits until there is nothing that was not there before, but what is kept: the garbage collector takes a moment. It
// returns how much is left.
func leftOf(t *testing.T, before map[string]bool, what string, kept func(string) bool) int {
	t.Helper()
	var left []string
	err := testkit.Poll(t.Context(), time.Minute, what, func(context.Context) error {
		left = slices.DeleteFunc(slices.Sorted(maps.Keys(everything(t))), func(object string) bool { return before[object] || kept(object) })
		if len(left) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %q are left", what, left)
	}
	return len(left)
}

// everything lists the objects of all kinds that can be deleted, but those of the tests, those that each namespace and each
// Service has, and events, which are history.
func everything(t *testing.T) map[string]bool {
	t.Helper()
	lists, err := discovery.ServerPreferredResources(clientset)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := metadataclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			of := version.WithResource(resource.Name)
			if resource.Name == "events" || resource.Name == "ipaddresses" {
				continue
			}
			all, err := objects.Resource(of).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // its CRD has gone meanwhile
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range all.Items {
				item := &all.Items[i]
				if _, made := item.Labels[madeHere]; !made && item.Name != "kube-root-ca.crt" && (item.Name != "default" || resource.Name != "serviceaccounts") {
					found[fmt.Sprintf("%s %s/%s", of.GroupResource(), item.Namespace, item.Name)] = true
				}
			}
		}
	}
	return found
}

package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rights are what a ServiceAccount may do, each by itself: where, verb, what.
type rights map[string]bool

func (r rights) add(namespace string, rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range append(rule.ResourceNames, "*")[:max(1, len(rule.ResourceNames))] {
						r[fmt.Sprintf("%s: %s %s.%s %s", namespace, verb, resource, group, name)] = true
					}
				}
			}
		}
	}
}

func (r rights) without(other rights) []string {
	less := maps.Clone(r)
	maps.DeleteFunc(less, func(right string, _ bool) bool { return other[right] })
	return slices.Sorted(maps.Keys(less))
}

// rightsOf returns the rights of each ServiceAccount by its bindings.
func rightsOf(t *testing.T, objects []metav1.Object) map[string]rights {
	t.Helper()
	roles, clusterRoles := map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}
	for _, object := range objects {
		switch o := object.(type) {
		case *rbacv1.Role:
			roles[o.Namespace+"/"+o.Name] = o.Rules
		case *rbacv1.ClusterRole:
			clusterRoles[o.Name] = o.Rules
		}
	}
	all := map[string]rights{}
	bind := func(namespace string, rules []rbacv1.PolicyRule, subjects []rbacv1.Subject) {
		for _, subject := range subjects {
			if len(rules) == 0 || subject.Namespace != releaseNamespace {
				t.Errorf("%+v is given %v", subject, rules)
			}
			if all[subject.Name] == nil {
				all[subject.Name] = rights{}
			}
			all[subject.Name].add(namespace, rules)
		}
	}
	for _, object := range objects {
		switch o := object.(type) {
		case *rbacv1.RoleBinding:
			bind(o.Namespace, roles[o.Namespace+"/"+o.RoleRef.Name], o.Subjects)
		case *rbacv1.ClusterRoleBinding:
			bind("everywhere", clusterRoles[o.RoleRef.Name], o.Subjects)
		}
	}
	return all
}

// manifestsOf returns what `admitkit manifests` prints with the flags and the
// environment of a Pod.
func manifestsOf(t *testing.T, pod corev1.PodSpec) []metav1.Object {
	t.Helper()
	text, err := manifests(t, pod)
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(text, "---\n")
	return objectsOf(t, slices.DeleteFunc(documents, func(text string) bool { return strings.HasPrefix(text, "#") }))
}

func manifests(t *testing.T, pod corev1.PodSpec) (text string, err error) {
	t.Helper()
	container := pod.Containers[0]
	for _, variable := range container.Env {
		t.Setenv(variable.Name, strings.ReplaceAll(variable.Value, "/cloudevents/token", "/dev/null"))
	}
	args := append([]string{"manifests", "--image=x"}, container.Args[1:]...) // less the subcommand
	if !strings.Contains(strings.Join(args, " "), "--leaf-secret-name=") {
		args = append(args, "--leaf-secret-name=")
	}
	cmd := newOperator().cmd
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		return "", fmt.Errorf("%q: %w", args, err)
	}
	return out.String(), nil
}

// The chart is asked with the release in another namespace for the Pods, whose
// program is then told that it is in the watched one.
func TestTheChartRefusesToWatchItsOwnNamespaceWhereItsProgramWould(t *testing.T) {
	const allowed = "--allow-own-pods=access-pod,access-record,audit-pods"
	for values, refused := range map[string]bool{
		`{}`: false,
		`{failurePolicy: Ignore, access: {enabled: true}}`:                                                          true,
		`{access: {enabled: true}}`:                                                                                 true,
		`{access: {enabled: true}, extraArgs: ["` + allowed + `"]}`:                                                 false,
		`{access: {enabled: true}, extraEnv: [{name: ADMITKIT_ALLOW_OWN_PODS, value: "access-pod,access-record"}]}`: false,
		`{audit: {required: true}}`:                                                                                 true,
		`{audit: {required: true, allNamespaces: true}}`:                                                            false,
		`{audit: {required: true, allNamespaces: true}, access: {enabled: true}}`:                                   true,
		`{audit: {log: {failurePolicy: Closed}}}`:                                                                   true,
		`{audit: {log: {failurePolicy: Closed, enabled: false}}}`:                                                   false,
		`{audit: {cloudEvents: {failurePolicy: Closed}}}`:                                                           false,
		`{audit: {cloudEvents: {failurePolicy: Closed, url: "https://siem.example.com"}}}`:                          true,
		`{audit: {touchedPods: {evictAfter: 1h}, objects: {enabled: true}}}`:                                        false,
		`{image: {repository: example.com/stamp}, audit: {enabled: false, required: true}, failurePolicy: Fail}`:    false,
	} {
		t.Run(values, func(t *testing.T) {
			watched := "{watchNamespace: apps, " + strings.TrimPrefix(values, "{")
			pod := podOf(serverOf(objectsOf(t, render(t, watched)))).Spec
			pod.Containers[0].Args = append(pod.Containers[0].Args, "--webhook-namespace=apps")
			if _, err := manifests(t, pod); (err != nil) != refused && !strings.Contains(values, "stamp") {
				t.Errorf("the program: %v", err)
			}
			_, err := helm(t, watched, "template", release, chartDir, "--namespace", "apps", "--values", "-")
			if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "watchNamespace: apps is the release's own namespace") {
				t.Errorf("the chart: %v", err)
			}
		})
	}
}

func TestTheChartGivesTheRightsOfTheManifestsAndNoOther(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			chart := rightsOf(t, objects)
			want := rightsOf(t, manifestsOf(t, podOf(serverOf(objects)).Spec))
			extra := rights{}
			if name == "everything else" {
				extra.add("everywhere", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}})
			}
			maps.Copy(want["admitkit"], extra)
			registrar := chart[release+"-admitkit-registrar"]
			if registrar == nil { // one process does both
				maps.Copy(want["admitkit"], want["admitkit-registrar"])
				want["admitkit-registrar"] = nil
			}
			for account, pair := range map[string][2]rights{
				"the server":    {chart[release+"-admitkit"], want["admitkit"]},
				"the registrar": {registrar, want["admitkit-registrar"]},
			} {
				if more := pair[0].without(pair[1]); len(more) > 0 {
					t.Errorf("the chart gives %s more:\n%s", account, strings.Join(more, "\n"))
				}
				if less := pair[1].without(pair[0]); len(less) > 0 {
					t.Errorf("the chart does not give %s:\n%s", account, strings.Join(less, "\n"))
				}
			}
		})
	}
}

// Rights that stay wait for the one who makes the ServiceAccount that only a hook makes.
func TestWhatStaysForTheHookOfTheUninstallIsNothingThatTheServersMayNotDo(t *testing.T) {
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		servers := rightsOf(t, objects)[release+"-admitkit"]
		stays := slices.DeleteFunc(objects, func(o metav1.Object) bool { return o.GetAnnotations()["helm.sh/hook"] != "" })
		if more := rightsOf(t, stays)[release+"-admitkit-unregister"].without(servers); len(more) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(more, "\n"))
		}
	}
}

// shape is what the chart and `manifests` have in common besides rights: all but
// names, labels and what a user of a chart can choose.
type shape struct {
	Replicas   *int32
	Strategy   appsv1.DeploymentStrategy
	Grace      *int64
	Links      *bool
	Pod        *corev1.PodSecurityContext
	Spread     []corev1.TopologySpreadConstraint
	Container  *corev1.SecurityContext
	Ports      []corev1.ContainerPort
	Live       *corev1.Probe
	Ready      *corev1.Probe
	Disruption policyv1.PodDisruptionBudgetSpec
	Service    []corev1.ServicePort
}

// shapeOf returns the shape of a Deployment, and of what is about its Pods.
func shapeOf(objects []metav1.Object, name string) shape {
	var s shape
	for _, object := range objects {
		switch o := object.(type) {
		case *appsv1.Deployment:
			if o.Name != name {
				continue
			}
			pod := o.Spec.Template.Spec
			s.Replicas, s.Strategy = o.Spec.Replicas, o.Spec.Strategy
			s.Grace, s.Links, s.Pod, s.Spread = pod.TerminationGracePeriodSeconds, pod.EnableServiceLinks, pod.SecurityContext, pod.TopologySpreadConstraints
			c := pod.Containers[0]
			s.Container, s.Ports, s.Live, s.Ready = c.SecurityContext, c.Ports, c.LivenessProbe, c.ReadinessProbe
		case *policyv1.PodDisruptionBudget:
			s.Disruption = o.Spec
		case *corev1.Service:
			s.Service = o.Spec.Ports
		}
	}
	s.Disruption.Selector = nil
	for i := range s.Spread {
		s.Spread[i].LabelSelector = nil
	}
	return s
}

func TestTheChartsPodsAreThoseOfTheManifests(t *testing.T) {
	for name, values := range map[string]string{
		"the default":     "",
		"split":           `{split: {enabled: true}}`,
		"a longer drain":  `{drainPeriodSeconds: 45}`,
		"other ports":     `{port: 10443, service: {port: 8443}}`,
		"without metrics": `{metrics: {enabled: false}}`,
	} {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			manifests := manifestsOf(t, podOf(serverOf(objects)).Spec)
			for deployment, ofManifests := range map[string]string{release + "-admitkit": "admitkit", release + "-admitkit-registrar": "admitkit-registrar"} {
				chart := shapeOf(objects, deployment)
				if chart.Replicas == nil && !strings.Contains(values, "split") && ofManifests == "admitkit-registrar" {
					continue // it is in the server
				}
				if diff := cmp.Diff(shapeOf(manifests, ofManifests), chart); diff != "" {
					t.Errorf("%s: - manifests, + chart: %s", deployment, diff)
				}
			}
		})
	}
}

// serverOf returns the Deployment that serves.
func serverOf(objects []metav1.Object) metav1.Object {
	return objects[slices.IndexFunc(objects, func(o metav1.Object) bool { return podOf(o) != nil && o.GetName() == release+"-admitkit" })]
}

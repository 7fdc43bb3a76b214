package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		t.Fatalf("%q: %v", args, err)
	}
	documents := strings.Split(out.String(), "---\n")
	return objectsOf(t, slices.DeleteFunc(documents, func(text string) bool { return strings.HasPrefix(text, "#") }))
}

func TestTheChartGivesTheRightsOfTheManifestsAndNoOther(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			server := objects[slices.IndexFunc(objects, func(o metav1.Object) bool { return podOf(o) != nil && o.GetName() == release+"-admitkit" })]
			chart := rightsOf(t, objects)
			want := rightsOf(t, manifestsOf(t, podOf(server).Spec))
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

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// deployment requests 1 CPU for each replica.
func deployment(namespace, name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Replicas, d.Spec.Selector = &replicas, &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}
	return d
}

// admitted reports an object that is denied, and refused one that is not, or not in
// these words.
func admitted(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func refused(t *testing.T, what string, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: got %v, want %q", what, err, words)
	}
}

var small = guard{budget: 2, limit: 4}

// A table of costs, which needs no cluster.
func TestWhatCostsMoreThanTheLimitIsDenied(t *testing.T) {
	web, mine := deployment("shop", "web", 2), deployment("shop", "mine", 5)
	mine.Annotations = map[string]string{override: "for the sale"}
	scaled := func(d *appsv1.Deployment, replicas int32) *appsv1.Deployment {
		d = d.DeepCopy()
		d.Spec.Replicas = &replicas
		return d
	}
	labelled := mine.DeepCopy()
	labelled.Labels = map[string]string{"seen": "yes"}
	dev := admit.New(t, small.handler()).As("dev").With(web, mine)
	scale := dev.Subresource("scale")
	for what, c := range map[string]struct {
		result *admit.Result
		denied string
	}{
		"within the budget":               {dev.Create(web), ""},
		"a scale within the limit":        {scale.Update(web, scaled(web, 4)), ""},
		"a scale beyond the limit":        {scale.Update(web, scaled(web, 5)), "request 5 CPUs; the budget is 2, the limit 4; request less, or give a reason"},
		"a new workload beyond the limit": {dev.Create(deployment("shop", "big", 5)), "request 5 CPUs"},
		"a Job beyond the limit": {dev.Create(&batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "job"},
			Spec:       batchv1.JobSpec{Parallelism: new(int32(9)), Template: corev1.PodTemplateSpec{Spec: web.Spec.Template.Spec}},
		}), "request 9 CPUs"},
		"less than before":  {scale.Update(scaled(mine, 6), mine), ""},
		"as much as before": {dev.Update(mine, labelled), ""},
	} {
		if c.result.Allowed != (c.denied == "") || !strings.Contains(c.result.Reason, c.denied) {
			t.Errorf("%s: %t, %q", what, c.result.Allowed, c.result.Reason)
		}
	}
}

// Only an API server knows who may override, scales, and has an audit log.
func TestCostguard(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, omitStages: [RequestReceived]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := controlplane.Run(t, controlplane.Options{APIServerArgs: map[string][]string{
		"audit-policy-file": {policy}, "audit-log-path": {audit},
	}})
	installed := managertest.Run(t, cluster, managertest.Options{Name: "costguard"}, func(mgr *manager.Manager) error { return mgr.AddExtension(small.handler()) })
	admin, in := installed.Admin, installed.Namespace
	for user, rules := range map[string][]rbacv1.PolicyRule{
		"dev": {{APIGroups: []string{"apps", "batch"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
		"lead": {
			{APIGroups: []string{"apps", "batch"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{APIGroups: []string{group}, Resources: []string{"limits"}, Verbs: []string{"override"}},
		},
	} {
		meta := metav1.ObjectMeta{Namespace: in, Name: user}
		for _, object := range []client.Object{&rbacv1.Role{ObjectMeta: meta, Rules: rules}, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}} {
			if err := admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	dev, lead := installed.As("dev"), installed.As("lead")
	scale := func(c client.Client, d *appsv1.Deployment, replicas int32) error {
		return c.SubResource("scale").Update(t.Context(), d, client.WithSubResourceBody(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}))
	}

	web := deployment(in, "web", 2)
	admitted(t, "within the budget", dev.Create(t.Context(), web))
	refused(t, "a scale beyond the limit", scale(dev, web, 5), "request 5 CPUs; the budget is 2, the limit 4; request less, or give a reason")
	mine := deployment(in, "mine", 5)
	mine.Annotations = map[string]string{override: "for the sale"}
	refused(t, "an override without the right", dev.Create(t.Context(), mine), "dev may not override it")
	admitted(t, "an override with the right", lead.Create(t.Context(), mine))
	refused(t, "more, without the right", scale(dev, mine, 6), "dev may not override it")
	admitted(t, "more, with the right", scale(lead, mine, 6))
	if err := dev.Get(t.Context(), client.ObjectKeyFromObject(mine), mine); err != nil {
		t.Fatal(err)
	}
	mine.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1500m")
	refused(t, "an update that costs more, without the right", dev.Update(t.Context(), mine), "request 9 CPUs")

	log, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	overridden := slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return !strings.Contains(line, `.override":"for the sale"`)
	})
	if len(overridden) != 2 || !strings.Contains(overridden[0], `"username":"lead"`) {
		t.Errorf("%d audit events have the reason of an override, want 2: %q", len(overridden), overridden)
	}
}

func TestWhatAPodRequests(t *testing.T) {
	container := func(cpu string, always bool) corev1.Container {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
		if always {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		return c
	}
	limited := corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}}
	whole := container("9", false).Resources
	for name, c := range map[string]struct {
		pod  corev1.PodSpec
		want float64
	}{
		"all containers":                       {corev1.PodSpec{Containers: []corev1.Container{container("1", false), container("250m", false)}}, 1.25},
		"a large init container":               {corev1.PodSpec{InitContainers: []corev1.Container{container("4", false)}, Containers: []corev1.Container{container("1", false)}}, 4},
		"a sidecar, and what starts after it":  {corev1.PodSpec{InitContainers: []corev1.Container{container("2", true), container("4", false)}, Containers: []corev1.Container{container("1", false)}}, 6},
		"the limit, where there is no request": {corev1.PodSpec{Containers: []corev1.Container{limited}}, 3},
		"the request of the Pod":               {corev1.PodSpec{Resources: &whole, Containers: []corev1.Container{container("1", false)}}, 9},
	} {
		if got := coresOf(&c.pod); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

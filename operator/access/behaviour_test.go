package access_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestAnAccessPodTakesNoTrafficOfItsTarget(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	web := deployment(t, namespace, "web", 1)
	selector := web.Spec.Selector.MatchLabels
	testkit.Create(t, admin, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: web.Spec.Selector},
	}
	testkit.Create(t, admin, budget)
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	granted(t, alice, podRequest(namespace, "a", "web"))
	var pod corev1.Pod
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "podaccess-a"}, &pod); err != nil {
		t.Fatal(err)
	}
	if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("the Service's selector %v matches the access Pod's labels %v", selector, pod.Labels)
	}
	if owner := metav1.GetControllerOf(&pod); owner == nil || owner.Kind != "PodAccessRequest" {
		t.Errorf("the owner is %v", owner)
	}
	if pod.Spec.ActiveDeadlineSeconds == nil || *pod.Spec.ActiveDeadlineSeconds != 7200 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("the Pod may outlive its request: %+v", pod.Spec)
	}
	// The controllers agree: a second Pod of the Deployment is counted, the
	// access Pod is not.
	if output, err := cluster.Kubectl(t.Context(), nil, "scale", "-n", namespace, "deployment/web", "--replicas=2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	testkit.Eventually(t, "the Service has the Deployment's Pods", func(ctx context.Context) bool {
		var slices discoveryv1.EndpointSliceList
		if admin.List(ctx, &slices, client.InNamespace(namespace)) != nil {
			return false
		}
		endpoints := 0
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if strings.HasPrefix(endpoint.TargetRef.Name, "podaccess-") {
					t.Fatal("the access Pod is an endpoint of the Service")
				}
				endpoints++
			}
		}
		return endpoints == 2
	})
	testkit.Eventually(t, "the budget counts the Deployment's Pods", func(ctx context.Context) bool {
		if admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) != nil {
			return false
		}
		if budget.Status.CurrentHealthy > 2 {
			t.Fatal("the budget counts the access Pod")
		}
		return budget.Status.CurrentHealthy == 2
	})
}

func TestAPodThatNamesATemplateIsTreatedLikeAnAccessPod(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	template := podTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.MaxCPU = quantity("1")
	template.Spec.ControllerTargetMutationConfig = &v1alpha1.PodTemplateSpecMutationConfig{Command: &[]string{"sleep"}, PurgeAnnotations: true}
	testkit.Create(t, admin, template)
	byHand := func(name, template string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{access.AnnotationTemplate: template}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web"}}},
		}
	}
	pod := byHand("by-hand", "web")
	testkit.Create(t, admin, pod)
	if len(pod.Labels) > 0 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever || pod.Spec.Containers[0].Command[0] != "sleep" ||
		pod.Spec.Containers[0].Resources.Limits.Cpu().String() != "1" || pod.Spec.ActiveDeadlineSeconds == nil || pod.Annotations[access.AnnotationTemplate] != "web" {
		t.Errorf("the Pod is %+v", pod)
	}
	refused(t, admin.Create(t.Context(), byHand("nowhere", "none")), "PodAccessTemplate "+namespace+"/none does not exist")
	greedy := byHand("greedy", "web")
	greedy.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: *quantity("2")}
	refused(t, admin.Create(t.Context(), greedy), "spec.maxCpu", "2", "1")
}

// Every condition is reached, both ways.
func TestTheConditionsSayHowFarARequestHasCome(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	start(t, namespace, access.Options{})
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.AccessCommand = "run {{ .Metadata.Labels.app }} in {{ .Metadata.Name }}"
	testkit.Create(t, admin, template)
	is := func(condition string, want metav1.ConditionStatus) func(context.Context) bool {
		return func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(template), template) == nil &&
				meta.IsStatusConditionPresentAndEqual(template.Status.Conditions, condition, want)
		}
	}
	testkit.Eventually(t, "the template says that its target is missing", is("TargetRefExists", metav1.ConditionFalse))
	if template.Status.Ready {
		t.Error("a template without a target is ready")
	}
	req := execRequest(namespace, "a", "web")
	testkit.Create(t, as(t, alice), req)
	await(t, req, "says that the target is missing", func() bool {
		return fails(req, "AccessResourcesCreated", "TargetMissing") && fails(req, "AccessResourcesReady", "TargetMissing") &&
			holds(req, "TargetTemplateExists") && holds(req, "AccessDurationsValid") && holds(req, "AccessStillValid") && !req.Status.Ready
	})
	deployment(t, namespace, "web", 1)
	testkit.Eventually(t, "the template says that its target exists", is("TargetRefExists", metav1.ConditionTrue))
	testkit.Eventually(t, "the template's durations are in order", is("TemplateDurationsValid", metav1.ConditionTrue))
	await(t, req, "is granted when the target is there", func() bool {
		return req.Status.Ready && holds(req, "AccessResourcesCreated") && holds(req, "AccessResourcesReady") && holds(req, "AccessMessage") &&
			req.Status.AccessMessage == "run web in "+req.Status.PodName
	})
	aLostPodIsNotReplaced(t, req)
	whatNoWebhookSawIsNotGranted(t, namespace)
	breakTemplate(t, template)
	testkit.Eventually(t, "the template says that its durations are not in order", is("TemplateDurationsValid", metav1.ConditionFalse))
	aMendedTemplateGrants(t, template)
	if err := admin.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the template says that its target is gone", is("TargetRefExists", metav1.ConditionFalse))
}

// aLostPodIsNotReplaced deletes the Pod of a grant: another is not chosen, and its
// successor is not accessible.
func aLostPodIsNotReplaced(t *testing.T, req *v1alpha1.ExecAccessRequest) {
	t.Helper()
	namespace, pod := req.Namespace, req.Status.PodName
	if err := admin.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}); err != nil {
		t.Fatal(err)
	}
	await(t, req, "says that the Pod is gone", func() bool {
		return fails(req, "AccessResourcesReady", "PodGone") && !req.Status.Ready && req.Status.PodName == pod
	})
	if canExec(t, alice, namespace, pod) {
		t.Error("alice can exec into whatever gets the name of the Pod")
	}
}

// whatNoWebhookSawIsNotGranted makes requests that webhooks would have refused.
func whatNoWebhookSawIsNotGranted(t *testing.T, namespace string) {
	t.Helper()
	tests := []struct {
		condition, reason string
		change            func(*v1alpha1.ExecAccessRequest)
	}{
		{"TargetTemplateExists", "TemplateMissing", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName = "none" }},
		{"AccessDurationsValid", "DurationTooLong", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "99h" }},
		{"AccessDurationsValid", "DurationInvalid", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "" }},
		{"AccessResourcesCreated", "NotAllowed", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Requester = &v1alpha1.Requester{Username: "mallory"} }},
		{"AccessResourcesCreated", "RequesterUnknown", func(r *v1alpha1.ExecAccessRequest) { r.Spec.Requester = nil }},
		{"AccessResourcesCreated", "UnknownPod", func(r *v1alpha1.ExecAccessRequest) { r.Spec.TargetPod = "none" }},
	}
	withoutWebhooks(t, namespace, func() {
		for _, test := range tests {
			req := execRequest(namespace, strings.ToLower(test.reason), "web")
			req.Spec.Duration, req.Spec.Requester = "1h", &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}
			test.change(req)
			testkit.Create(t, admin, req)
		}
	})
	for _, test := range tests {
		req := execRequest(namespace, strings.ToLower(test.reason), "")
		await(t, req, "says "+test.reason, func() bool { return fails(req, test.condition, test.reason) && !req.Status.Ready })
		if !gone(t, roleOf(req)) {
			t.Errorf("%s: there is a Role", test.reason)
		}
	}
	testkit.Create(t, admin, execTemplate(namespace, "none", ref("Deployment", "web"), "devs"))
	missing := execRequest(namespace, "templatemissing", "none")
	await(t, missing, "is granted when the template is there", func() bool { return missing.Status.Ready && holds(missing, "TargetTemplateExists") })
}

// breakTemplate makes a template invalid, by a change that admission does not see.
func breakTemplate(t *testing.T, template *v1alpha1.ExecAccessTemplate) {
	t.Helper()
	withoutWebhooks(t, template.Namespace, func() {
		if err := patch(t, cluster.Admin(), template.DeepCopy(), `{"spec":{"accessConfig":{"accessCommand":"{{ .Metadata.Nonsense }}","defaultDuration":"0s"}}}`); err != nil {
			t.Fatal(err)
		}
	})
}

// aMendedTemplateGrants mends a broken template in two steps: the durations, and the
// command.
func aMendedTemplateGrants(t *testing.T, template *v1alpha1.ExecAccessTemplate) {
	t.Helper()
	namespace := template.Namespace
	withoutWebhooks(t, namespace, func() {
		if err := patch(t, cluster.Admin(), execTemplate(namespace, "web", ref("", "")), `{"spec":{"accessConfig":{"defaultDuration":"1h"}}}`); err != nil {
			t.Fatal(err)
		}
	})
	broken := execRequest(namespace, "broken", "web")
	testkit.Create(t, as(t, alice), broken)
	await(t, broken, "says that the command cannot be made", func() bool { return fails(broken, "AccessMessage", "TemplateInvalid") && !broken.Status.Ready })
	if err := patch(t, cluster.Admin(), execTemplate(namespace, "web", ref("", "")), `{"spec":{"accessConfig":{"accessCommand":"mended"}}}`); err != nil {
		t.Fatal(err)
	}
	await(t, broken, "is granted when the template is mended", func() bool { return broken.Status.Ready && broken.Status.AccessMessage == "mended" })
	if err := patch(t, alice, execRequest(namespace, "broken", ""), `{"spec":{"duration":"1s"}}`); err != nil {
		t.Fatal(err)
	}
	await(t, broken, "ends when it is shortened to what is over", func() bool { return fails(broken, "AccessStillValid", "Expired") })
}

// withoutWebhooks does something while no webhook of a namespace is registered.
func withoutWebhooks(t *testing.T, namespace string, do func()) {
	t.Helper()
	named := metav1.ObjectMeta{Name: "admitkit." + namespace}
	configurations := []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: named}, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: named}}
	for _, c := range configurations {
		err := admin.Get(t.Context(), client.ObjectKeyFromObject(c), c)
		if err == nil {
			err = admin.Delete(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the API server calls no webhook", func(ctx context.Context) bool {
		probe := podRequest(namespace, "probe", "none")
		probe.Spec.Duration = "0s"
		return admin.Create(ctx, probe, client.DryRunAll) == nil
	})
	do()
	for _, c := range configurations {
		c.SetResourceVersion("")
		testkit.Create(t, admin, c)
	}
	awaitWebhooks(t, namespace)
}

func TestAnyReplicaRefusesASessionPastItsEnd(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	// The replica that leads cannot end anything: it may not delete.
	lead := func(o *manager.Options) { o.Watching.LeaderElection = true }
	leader := startOn(t, namespace, freeport.For(t), access.Options{}, lead)
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	pod, exec := podRequest(namespace, "a", "web"), execRequest(namespace, "a", "web")
	pod.Spec.Duration, exec.Spec.Duration = "1h", "1h"
	granted(t, alice, pod)
	granted(t, alice, exec)
	// The next replica does not lead, and for it an hour has passed.
	<-leader.GetKubeManager().Elected()
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} { // they have the URL of the first
		if output, err := cluster.Kubectl(t.Context(), nil, "delete", kind, "admitkit."+namespace).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	startOn(t, namespace, freeport.For(t), access.Options{Clock: ahead(2 * time.Hour)}, lead)
	for _, name := range []string{pod.Status.PodName, exec.Status.PodName} {
		if !canExec(t, alice, namespace, name) {
			t.Fatalf("RBAC refuses already: this would prove nothing about %s", name)
		}
		for _, args := range [][]string{{"exec", name, "--", "true"}, {"attach", name}, {"port-forward", name, ":80"}} {
			if args[0] != "exec" && !can(t, alice, namespace, name, "create", strings.ReplaceAll(args[0], "-", "")) {
				continue
			}
			output, err := cluster.Kubectl(t.Context(), alice, append([]string{"-n", namespace}, args...)...).CombinedOutput()
			if err == nil || !strings.Contains(string(output), "ended at") || !strings.Contains(string(output), "make another request") {
				t.Errorf("kubectl %v: %v: %s", args, err, output)
			}
		}
	}
	// Nobody else's session in a Pod that is not ours is touched.
	if output, err := cluster.Kubectl(t.Context(), nil, "exec", "-n", namespace, exec.Status.PodName, "--", "true").CombinedOutput(); err != nil {
		t.Errorf("an administrator's exec: %v: %s", err, output)
	}
	if output, err := cluster.Kubectl(t.Context(), nil, "exec", "-n", namespace, pod.Status.PodName, "--", "true").CombinedOutput(); err == nil {
		t.Errorf("an access Pod is open past its end to who may exec everywhere: %s", output)
	}
}

// ahead is a clock that is ahead of time.
type ahead time.Duration

func (a ahead) Now() time.Time                  { return time.Now().Add(time.Duration(a)) }
func (a ahead) Since(t time.Time) time.Duration { return a.Now().Sub(t) }

func TestEvictionEndsSessionsAndKeepsTrying(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	web := deployment(t, namespace, "web", 1)
	all := intstr.FromString("100%")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: web.Spec.Selector},
	}
	testkit.Create(t, admin, budget)
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.OnExpiry = v1alpha1.ExpiryEndSession // which nothing does here
	if err := admin.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), "--sessions-unrecorded=Closed") {
		t.Errorf("a template without recorded sessions: %v", err)
	}
	template.Spec.AccessConfig.OnExpiry, template.Spec.AccessConfig.Session = v1alpha1.ExpiryEvict, &v1alpha1.SessionLimits{MaxLength: "1h"}
	if err := admin.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), "spec.accessConfig.session: session needs recorded sessions") {
		t.Errorf("a template with limits without recorded sessions: %v", err)
	}
	template.Spec.AccessConfig.Session = nil
	testkit.Create(t, admin, template)
	testkit.Eventually(t, "the budget is in force", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) == nil && budget.Status.ExpectedPods == 1
	})
	req := granted(t, alice, execRequest(namespace, "a", "web"))
	endsIn(t, alice, req, time.Second)
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: namespace, Name: req.Status.PodName}
	await(t, req, "has ended, though the budget puts the eviction off", func() bool { return fails(req, "AccessStillValid", "Expired") })
	if canExec(t, alice, namespace, key.Name) {
		t.Error("alice can still exec")
	}
	if err := admin.Get(t.Context(), key, pod); err != nil || !pod.DeletionTimestamp.IsZero() {
		t.Fatalf("the budget was not respected: %v", err)
	}
	// The template does not matter any more.
	if err := admin.Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the Pod is evicted", func(ctx context.Context) bool { return apierrors.IsNotFound(admin.Get(ctx, key, pod)) })
	testkit.Eventually(t, "the record is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(roleOf(req)), roleOf(req)))
	})
}

func TestGroupsGetAccessWhereTheTemplateSaysSo(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.Subjects = v1alpha1.SubjectsGroups
	template.Spec.AccessConfig.AllowedUsers = []string{"carol"}
	template.Spec.AccessConfig.Verbs = []v1alpha1.AccessVerb{"attach", "portforward", "ephemeralcontainers"}
	testkit.Create(t, admin, template)
	req := granted(t, alice, execRequest(namespace, "a", "web"))
	pod := req.Status.PodName
	for _, verb := range []struct {
		verb, subresource string
		want              bool
	}{
		{"create", "attach", true},
		{"create", "portforward", true},
		{"patch", "ephemeralcontainers", true},
		{"get", "", true},
		{"create", "exec", false},
		{"get", "log", false},
		{"delete", "", false},
		{"create", "proxy", false},
	} {
		testkit.Within(t, soon(), fmt.Sprintf("bob's right to %s %s is %t", verb.verb, verb.subresource, verb.want), func(context.Context) bool {
			return can(t, bob, namespace, pod, verb.verb, verb.subresource) == verb.want
		})
	}
	if can(t, mallory, namespace, pod, "create", "attach") {
		t.Error("mallory, of no allowed group, got access")
	}
}

func TestEveryKindOfTargetGivesAccess(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	labels := map[string]string{"app": "store"}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/store", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}}}
	plain := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/plain"}}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	one := int32(1)
	deployment(t, namespace, "web", 1)
	for _, object := range []client.Object{
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "store"}, Spec: appsv1.StatefulSetSpec{
			Replicas: &one, Selector: selector, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *quantity("1Gi")}},
			}}},
		}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agent"}}, Spec: plain},
		}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "set"}, Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "set"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "set"}}, Spec: plain},
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain", Labels: labels}, Spec: plain},
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "job"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: never(plain)}}},
		&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cron"}, Spec: batchv1.CronJobSpec{
			Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: never(plain)}}},
		}},
	} {
		testkit.Create(t, admin, object)
	}
	rollout(t, namespace, "canary", func(labels map[string]string) map[string]any {
		return map[string]any{
			"selector": map[string]any{"matchLabels": toAny(labels)},
			"template": map[string]any{"metadata": map[string]any{"labels": toAny(labels)}, "spec": map[string]any{
				"containers": []any{map[string]any{"name": "main", "image": "example.com/canary"}},
			}},
		}
	})
	rollout(t, namespace, "referring", func(map[string]string) map[string]any {
		return map[string]any{"workloadRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}
	})
	for _, target := range []v1alpha1.ControllerTargetRef{
		ref("Deployment", "web"), ref("StatefulSet", "store"), ref("DaemonSet", "agent"), ref("ReplicaSet", "set"), ref("Pod", "plain"), ref("Job", "job"), ref("CronJob", "cron"),
		ref("Rollout", "canary"), ref("Rollout", "referring"),
	} {
		t.Run("an access Pod of a "+target.String(), func(t *testing.T) {
			testkit.Create(t, admin, podTemplate(namespace, target.Name, target, "devs"))
			granted(t, alice, podRequest(namespace, target.Name, target.Name))
		})
		if target.Kind == "Job" || target.Kind == "CronJob" {
			continue // kwok ends a Job's Pod at once
		}
		t.Run("exec into a Pod of a "+target.String(), func(t *testing.T) {
			testkit.Create(t, admin, execTemplate(namespace, target.Name, target, "devs"))
			req := granted(t, alice, execRequest(namespace, target.Name, target.Name))
			testkit.Within(t, soon(), "alice can exec", func(context.Context) bool { return canExec(t, alice, namespace, req.Status.PodName) })
		})
	}
	t.Run("an access Pod of a template of its own", func(t *testing.T) {
		own := podTemplate(namespace, "own", v1alpha1.ControllerTargetRef{}, "devs")
		own.Spec.ControllerTargetRef, own.Spec.PodSpec = nil, &plain
		testkit.Create(t, admin, own)
		granted(t, alice, podRequest(namespace, "own", "own"))
	})
}

// rollout makes an Argo Rollout, and the ReplicaSet that Argo's controller would
// make of it.
func rollout(t *testing.T, namespace, name string, spec func(labels map[string]string) map[string]any) {
	t.Helper()
	labels := map[string]string{"app": name}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec(labels)}}
	object.SetAPIVersion("argoproj.io/v1alpha1")
	object.SetKind("Rollout")
	object.SetNamespace(namespace)
	object.SetName(name)
	testkit.Create(t, admin, object)
	if _, refers := object.Object["spec"].(map[string]any)["workloadRef"]; refers {
		labels["app"] = "web" // as the Pods of what it refers to
		labels["rollouts-pod-template-hash"] = "1"
	}
	one := int32(1)
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-1"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Image: "example.com/" + name}},
			}},
		},
	}
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}
	testkit.Create(t, admin, set)
}

func toAny(labels map[string]string) map[string]any {
	result := map[string]any{}
	for key, value := range labels {
		result[key] = value
	}
	return result
}

func never(spec corev1.PodSpec) corev1.PodSpec {
	spec.RestartPolicy = corev1.RestartPolicyNever
	return spec
}

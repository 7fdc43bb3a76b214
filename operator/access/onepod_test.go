package access_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// shop is a namespace in which alice may write Pods, and delete Roles, and so has
// more means than an engineer should have.
type shop struct {
	*testing.T
	namespace string
}

// kubectl runs a command of alice's.
func (s shop) kubectl(args ...string) error {
	s.Helper()
	output, err := cluster.Kubectl(s.Context(), alice, append([]string{"-n", s.namespace}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return nil
}

func (s shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// patch changes a Pod as alice.
func (s shop) patch(pod, change string) error {
	s.Helper()
	return patch(s.T, alice, plainPod(s.namespace, pod), change)
}

// delete deletes an object as alice.
func (s shop) delete(object client.Object, options ...client.DeleteOption) {
	s.Helper()
	s.must(client.IgnoreNotFound(as(s.T, alice).Delete(s.Context(), object, options...)))
}

// own patches the labels and owner of a Pod.
func (s shop) own(pod, labels string, owner metav1.OwnerReference) error {
	s.Helper()
	return s.patch(pod, fmt.Sprintf(`{"metadata":{"labels":%s,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]}}`,
		labels, owner.APIVersion, owner.Kind, owner.Name, owner.UID))
}

func plainPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
	}
}

// isGone waits until an object no longer exists.
func isGone(t *testing.T, object client.Object) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%T %s is gone", object, object.GetName()), func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
	})
}

func TestARequestGivesAccessToOnePodThatTheTemplateMeans(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	testkit.Grant(t, admin, namespace, "pods", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "create", "patch", "update", "delete"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}, Verbs: []string{"get", "delete", "patch"}},
	}, "alice")
	testkit.Create(t, admin, plainPod(namespace, "plain"), plainPod(namespace, "vault"), plainPod(namespace, "podaccess-early"))
	// Nobody can read it. It was made before the webhooks were registered.
	costly := &unstructured.Unstructured{Object: map[string]any{"spec": own("resources", map[string]any{"limits": map[string]any{"cpu": "1e-999999999"}})}}
	costly.SetAPIVersion("admitkit.dev/v1alpha1")
	costly.SetKind("PodAccessTemplate")
	costly.SetNamespace(namespace)
	costly.SetName("costly")
	costly.Object["spec"].(map[string]any)["accessConfig"].(map[string]any)["allowedGroups"] = []any{"devs"}
	testkit.Create(t, admin, costly)
	web := deployment(t, namespace, "web", 3)
	start(t, namespace, access.Options{})
	for name, target := range map[string]v1alpha1.ControllerTargetRef{"web": ref("Deployment", "web"), "plain": ref("Pod", "plain"), "store": ref("StatefulSet", "store")} {
		testkit.Create(t, admin, execTemplate(namespace, name, target, "devs"))
	}
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	t.Run("whatever other templates there are", func(t *testing.T) {
		testkit.Eventually(t, "the template says that it cannot be read", func(ctx context.Context) bool {
			var template v1alpha1.PodAccessTemplate
			c := &template.Status.Conditions
			return admin.Get(ctx, client.ObjectKeyFromObject(costly), &template) == nil && meta.IsStatusConditionFalse(*c, v1alpha1.ConditionTemplateDurationsValid) &&
				strings.Contains(meta.FindStatusCondition(*c, v1alpha1.ConditionTemplateDurationsValid).Message, "the exponent of")
		})
	})
	t.Run("not to a Pod whose owner is forged", func(t *testing.T) { forgedOwners(shop{t, namespace}, web) })
	t.Run("not to a Pod that somebody else made", func(t *testing.T) { foreignPods(shop{t, namespace}) })
	t.Run("not to a Pod that somebody changed", func(t *testing.T) { changedPods(shop{t, namespace}) })
	t.Run("not to another Pod when its Role is deleted", func(t *testing.T) { deletedRoles(shop{t, namespace}) })
	t.Run("not to the next Pod of its name", func(t *testing.T) { nextPods(shop{t, namespace}) })
	t.Run("and lets go of a Pod that is deleted with --cascade=orphan", func(t *testing.T) { orphans(shop{t, namespace}) })
}

func forgedOwners(s shop, web *appsv1.Deployment) {
	var sets appsv1.ReplicaSetList
	var plain corev1.Pod
	if err := admin.List(s.Context(), &sets, client.InNamespace(s.namespace)); err != nil || len(sets.Items) != 1 {
		s.Fatalf("%v: %d ReplicaSets", err, len(sets.Items))
	}
	if err := admin.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: "plain"}, &plain); err != nil {
		s.Fatal(err)
	}
	set := &sets.Items[0]
	for _, forged := range []struct {
		template, labels string
		owner            metav1.OwnerReference
	}{
		{"plain", `{}`, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "plain", UID: plain.UID}},
		{"web", `{"app":"web"}`, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: web.UID}},
		// The last, since its controller may delete a Pod that it has too many of.
		{"web", `{"app":"web","pod-template-hash":"` + set.Labels["pod-template-hash"] + `"}`, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID}},
	} {
		if err := s.own("vault", forged.labels, forged.owner); err != nil {
			s.Fatal(err)
		}
		req := execRequest(s.namespace, "forged", forged.template)
		req.Spec.TargetPod = "vault"
		if err := as(s.T, alice).Create(s.Context(), req); err == nil || !strings.Contains(err.Error(), "vault") {
			s.Errorf("a Pod that says that it is of %s/%s passes: %v", forged.owner.Kind, forged.owner.Name, err)
			_ = admin.Delete(s.Context(), req)
		}
	}
}

// foreignPods makes Pods for a request to adopt.
func foreignPods(s shop) {
	for _, metadata := range []metav1.ObjectMeta{{Name: "podaccess-mine"}, {GenerateName: "podaccess-"}} {
		pod := plainPod(s.namespace, "")
		metadata.Namespace = s.namespace
		pod.ObjectMeta = metadata
		refused(s.T, as(s.T, alice).Create(s.Context(), pod), "names that begin with podaccess-", "admitkit alone makes")
	}
	// It was made before the webhooks were registered.
	req := podRequest(s.namespace, "early", "web")
	testkit.Create(s.T, as(s.T, alice), req)
	await(s.T, req, "says that the name is taken", func() bool { return fails(req, "AccessResourcesCreated", "NameTaken") })
	refused(s.T, s.own("podaccess-early", "{}", metav1.OwnerReference{APIVersion: "admitkit.dev/v1alpha1", Kind: "PodAccessRequest", Name: "early", UID: req.UID}), "admitkit alone makes")
	// Another look at it, which its change of the duration causes, finds the same.
	if err := patch(s.T, alice, req, `{"spec":{"duration":"30m"}}`); err != nil {
		s.Fatal(err)
	}
	await(s.T, req, "was looked at again", func() bool { return req.Status.ObservedGeneration == req.Generation && !req.Status.Ready })
	if canExec(s.T, alice, s.namespace, "podaccess-early") {
		s.Error("alice can exec into a Pod of her own making")
	}
}

func changedPods(s shop) {
	granted(s.T, alice, podRequest(s.namespace, "b", "web"))
	image := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/containers/0/image","value":"example.com/other"}]`))
	refused(s.T, as(s.T, alice).Patch(s.Context(), plainPod(s.namespace, "podaccess-b"), image), "admitkit alone makes")
	for _, change := range []string{
		`{"metadata":{"labels":{"` + access.LabelManagedBy + `":null}}}`,
		`{"metadata":{"annotations":{"` + access.AnnotationRequestUID + `":"1"}}}`,
		`{"metadata":{"finalizers":["example.com/keep"]}}`,
	} {
		refused(s.T, s.patch("podaccess-b", change), "admitkit alone makes")
	}
	s.must(s.patch("podaccess-b", `{"metadata":{"annotations":{"example.com/ip":"10.0.0.1"}}}`))
	s.must(s.patch("podaccess-b", `{"metadata":{"ownerReferences":null}}`))
}

// deletedRoles deletes the record of a choice.
func deletedRoles(s shop) {
	exec := granted(s.T, alice, execRequest(s.namespace, "c", "web"))
	chosen := exec.Status.PodName
	for range 4 {
		role, again, binding := roleOf(exec), roleOf(exec), bindingOf(exec)
		if err := admin.Get(s.Context(), client.ObjectKeyFromObject(role), role); err != nil {
			s.Fatal(err)
		}
		s.delete(roleOf(exec))
		s.delete(bindingOf(exec))
		testkit.Eventually(s.T, "the grant is complete again", func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(role), again) == nil && again.UID != role.UID && admin.Get(ctx, client.ObjectKeyFromObject(role), binding) == nil
		})
		if is := again.Rules[0].ResourceNames[0]; is != chosen {
			s.Fatalf("the request was about %s, and now about %s", chosen, is)
		}
	}
	for _, field := range []string{"podName", "podUID"} {
		err := admin.Status().Patch(s.Context(), exec.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"`+field+`":"other"}}`)))
		refused(s.T, err, "status.podName and status.podUID cannot be changed")
	}
	own := granted(s.T, alice, podRequest(s.namespace, "c", "web"))
	for _, req := range []request{exec, own} {
		s.delete(plainPod(s.namespace, req.GetRequestStatus().PodName))
		await(s.T, req, "says that its Pod is gone", func() bool { return fails(req, "AccessResourcesReady", "PodGone") })
		s.delete(roleOf(req))
		if err := patch(s.T, alice, req, `{"spec":{"duration":"30m"}}`); err != nil {
			s.Fatal(err)
		}
		await(s.T, req, "was looked at again", func() bool {
			status := req.GetRequestStatus()
			return status.ObservedGeneration == req.GetGeneration() && fails(req, "AccessResourcesReady", "PodGone") && !status.Ready
		})
		if err := admin.Get(s.Context(), client.ObjectKeyFromObject(bindingOf(req)), bindingOf(req)); !apierrors.IsNotFound(err) {
			s.Errorf("%s leads to another Pod: %v", req.GetName(), err)
		}
	}
}

// nextPods keeps the RoleBinding for a Pod from being deleted with it, as a garbage
// collector that is slow would.
func nextPods(s shop) {
	labels, one := map[string]string{"app": "store"}, int32(1)
	testkit.Create(s.T, admin, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "store"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: plainPod("", "").Spec},
	}})
	req := granted(s.T, alice, execRequest(s.namespace, "d", "store"))
	exec := []string{"exec", "store-0", "--", "true"}
	testkit.Eventually(s.T, "alice can exec", func(context.Context) bool { return s.kubectl(exec...) == nil })
	s.must(pastTheWebhooks(s.T).Patch(s.Context(), bindingOf(req), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/keep"]}}`))))
	s.delete(plainPod(s.namespace, "store-0"))
	testkit.Eventually(s.T, "the next Pod runs", func(ctx context.Context) bool {
		var next corev1.Pod
		return admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "store-0"}, &next) == nil && string(next.UID) != req.Status.PodUID && next.Status.Phase == corev1.PodRunning
	})
	if !canExec(s.T, alice, s.namespace, "store-0") {
		s.Fatal("RBAC refuses already: this would prove nothing")
	}
	refused(s.T, s.kubectl(exec...), "an earlier Pod of this name", "make another request")
	s.must(patch(s.T, alice, bindingOf(req), `{"metadata":{"finalizers":null}}`))
	isGone(s.T, bindingOf(req))
}

func orphans(s shop) {
	for _, req := range []request{execRequest(s.namespace, "e", "web"), podRequest(s.namespace, "e", "web")} {
		testkit.Create(s.T, as(s.T, alice), req)
		await(s.T, req, "is ready", func() bool { return req.GetRequestStatus().Ready })
		pod := plainPod(s.namespace, req.GetRequestStatus().PodName)
		s.delete(plainPod(s.namespace, pod.Name), client.PropagationPolicy(metav1.DeletePropagationOrphan))
		isGone(s.T, pod)
		isGone(s.T, bindingOf(req))
		await(s.T, req, "says that its Pod is gone", func() bool { return fails(req, "AccessResourcesReady", "PodGone") })
	}
}

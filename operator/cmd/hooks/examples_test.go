package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

// TestTheManifestsAndAClusterRoleWithTheLabelAreEnoughForTheExamples runs the program as
// `hooks manifests` installs it, with the rights that these manifests give its ServiceAccount,
// and the examples as their READMEs say.
func TestTheManifestsAndAClusterRoleWithTheLabelAreEnoughForTheExamples(t *testing.T) {
	apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: hooks}}")
	manifests, err := execute(t, "", "manifests", "--image=x", "--webhook-namespace=hooks-operator", "--hooks-namespaces=hooks,transient-binding",
		"--hooks-kinds=websites.example.com,statefulsets.apps,deployments.apps,configmaps,services,"+
			"transientrolebindings.example.com,transientclusterrolebindings.example.com,rolebindings.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io", "--health-address=", "--metrics-address=", "--drain-period=0s")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, manifests)
	stop := installed(t, manifests)
	t.Run("without the ClusterRole the controller says what is missing, and begins when it is there", func(t *testing.T) { getsItsRights(t, manifests) })
	t.Run("without the Role where a controller refers to, the remedy is no ClusterRole", func(t *testing.T) { missesItsRole(t, manifests) })
	t.Run("hooks-go", func(t *testing.T) { t.Parallel(); makesWebsites(t) })
	t.Run("hooks-decorator-python", func(t *testing.T) { t.Parallel(); decoratesStatefulSets(t) })
	t.Run("hooks-transient-binding", func(t *testing.T) { t.Parallel(); bindsForAWhile(t) })
	t.Cleanup(stop) // after the parallel ones
}

// asProgram makes the test's binary the program.
const asProgram = "HOOKS_TEST_AS_PROGRAM"

func init() {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
}

// installed runs what the Deployment of the manifests does, as its ServiceAccount. The
// function that it returns stops it.
func installed(t *testing.T, manifests string) (stop func()) {
	t.Helper()
	var pod *corev1.PodSpec
	for document := range strings.SplitSeq(manifests, "---\n") {
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			t.Fatal(err)
		}
		if deployment.Kind == "Deployment" {
			pod = &deployment.Spec.Template.Spec
		}
	}
	user, err := testkit.ServiceAccount(cluster, "hooks-operator", pod.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	process := testkit.Run(t, testkit.Again(t, asProgram, "yes", append(pod.Containers[0].Args, "--kubeconfig="+user.KubeConfig)...))
	return func() { process.Stop(t) }
}

// exampleOf returns the manifests in a file of an example, with its hook at another URL.
func exampleOf(t *testing.T, name, file, url string) (documents []string) {
	t.Helper()
	text, err := os.ReadFile("../../examples/" + name + "/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		for _, hook := range []string{"sync", "finalize"} {
			webhook, has, _ := unstructured.NestedMap(object.Object, "spec", "hooks", hook, "webhook")
			if !has {
				continue
			}
			path := webhook["path"].(string)
			if err := unstructured.SetNestedMap(object.Object, map[string]any{"url": url + path}, "spec", "hooks", hook, "webhook"); err != nil {
				t.Fatal(err)
			}
		}
		if document, err = asYAML(object); err != nil {
			t.Fatal(err)
		}
		documents = append(documents, document)
	}
	return documents
}

func asYAML(object *unstructured.Unstructured) (string, error) {
	text, err := yaml.Marshal(object.Object)
	return string(text), err
}

// conditionOf returns a condition of a controller as STATUS REASON: MESSAGE.
func conditionOf(ctx context.Context, kind, name, condition string) string {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind}}
	if err := admin.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		return err.Error()
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == condition {
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"])
		}
	}
	return ""
}

func hasCondition(t *testing.T, kind, name, condition string, want ...string) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, name+" is "+condition+" "+strings.Join(want, " "), func(ctx context.Context) error {
		got := conditionOf(ctx, kind, name, condition)
		for _, part := range want {
			if !strings.Contains(got, part) {
				return errors.New(got)
			}
		}
		return nil
	})
}

// getsItsRights has kube-controller-manager aggregate a ClusterRole.
func getsItsRights(t *testing.T, manifests string) {
	apply(t, exampleOf(t, "hooks-go", "crd.yaml", "")[0])
	controller := exampleOf(t, "hooks-go", "controller.yaml", "http://127.0.0.1:1")
	testkit.Within(t, time.Minute, "the kind is served", func(ctx context.Context) bool {
		return cluster.Kubectl(ctx, nil, "get", "websites").Run() == nil
	})
	apply(t, controller[0])
	hasCondition(t, "CompositeController", "websites", "Ready", "False MissingRight", "cannot list", `"websites"`, "admitkit.dev/aggregate-to-hooks=true")
	apply(t, controller[1])
	hasCondition(t, "CompositeController", "websites", "Ready", "True")
	may := func(verb, resource string) string {
		answer, _ := cluster.Kubectl(t.Context(), nil, "auth", "can-i", verb, resource, "--as=system:serviceaccount:hooks-operator:hooks-reconciler", "-n", "default").Output()
		return strings.TrimSpace(string(answer))
	}
	if may("create", "deployments") != "yes" || may("get", "secrets") != "no" || may("create", "pods") != "no" {
		t.Errorf("deployments: %s, secrets: %s, pods: %s", may("create", "deployments"), may("get", "secrets"), may("create", "pods"))
	}
	again := cluster.Kubectl(t.Context(), nil, "apply", "--dry-run=server", "-f", "-")
	again.Stdin = strings.NewReader(manifests)
	if output, err := again.CombinedOutput(); err != nil || !strings.Contains(string(output), "hooks-operator-hooks-reconciler-aggregate unchanged") {
		t.Errorf("to apply the manifests again would change what is aggregated: %v: %s", err, output)
	}
}

func missesItsRole(t *testing.T, manifests string) {
	kubectl := func(args ...string) {
		t.Helper()
		if output, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	kubectl("delete", "role", "-n", "hooks", "hooks-reconciler-extensions")
	apply(t, `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: refers}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: websites}
  hooks: {sync: {webhook: {url: "http://127.0.0.1:1", authorization: {secretRef: {name: token, namespace: hooks}}}}}
---
{apiVersion: example.com/v1, kind: Website, metadata: {name: refers, namespace: default}, spec: {pages: {}}}
`)
	hasCondition(t, "CompositeController", "refers", "Converged", "False MissingRight", "secrets hooks/token", `cannot list resource "secrets"`, "each of --hooks-namespaces")
	if got := conditionOf(t.Context(), "CompositeController", "refers", "Converged"); strings.Contains(got, "aggregate-to-hooks") {
		t.Errorf("it advises to grant the right in all namespaces: %s", got)
	}
	apply(t, manifests)
	hasCondition(t, "CompositeController", "refers", "Converged", "False HookFailed", "secrets hooks/token does not exist")
	kubectl("delete", "compositecontroller/refers")
	kubectl("delete", "-n", "default", "website/refers")
}

func makesWebsites(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	binary := t.TempDir() + "/hooks-go"
	if err := testkit.Build(t.Context(), binary, "../../examples/hooks-go"); err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, exec.Command(binary, "-address="+address))
	apply(t, exampleOf(t, "hooks-go", "controller.yaml", "http://"+address)[0])
	site := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(exampleOf(t, "hooks-go", "website.yaml", "")[0]), &site.Object); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, site)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	pages := &corev1.ConfigMap{ObjectMeta: deployment.ObjectMeta}
	service := &corev1.Service{ObjectMeta: deployment.ObjectMeta}
	testkit.Succeeds(t, time.Minute, "its children are there", func(ctx context.Context) error {
		for _, child := range []client.Object{deployment, pages, service} {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(child), child); err != nil {
				return err
			}
		}
		return nil
	})
	if *deployment.Spec.Replicas != 2 || pages.Data["index.html"] != "<h1>Hello</h1>" || !metav1.IsControlledBy(service, site) {
		t.Errorf("%v, %v, %v", deployment.Spec.Replicas, pages.Data, service.OwnerReferences)
	}
	digest := deployment.Spec.Template.Annotations["example.com/pages"]
	site.SetManagedFields(nil)
	change := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"pages": {"about.html": "It is us"}}}`))
	if err := admin.Patch(t.Context(), site, change); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "other pages roll out", func(ctx context.Context) error {
		err := errors.Join(admin.Get(ctx, client.ObjectKeyFromObject(deployment), deployment), admin.Get(ctx, client.ObjectKeyFromObject(site), site))
		if now := deployment.Spec.Template.Annotations["example.com/pages"]; err == nil && now == digest {
			return fmt.Errorf("they are still %s", now)
		}
		if status, _, _ := unstructured.NestedStringSlice(site.Object, "status", "pages"); !slices.Equal(status, []string{"about.html", "index.html"}) {
			return fmt.Errorf("the status has %q", status)
		}
		return err
	})
	isReady := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	testkit.Succeeds(t, time.Minute, "it counts the Pods that are ready", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"website": "hello"}); err != nil {
			return err
		}
		for i := range pods.Items { // there is no kubelet
			if pods.Items[i].Status.Phase != corev1.PodRunning {
				pods.Items[i].Status = isReady
				if err := admin.Status().Update(ctx, &pods.Items[i]); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(site), site); err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedInt64(site.Object, "status", "readyReplicas"); ready != 2 {
			return fmt.Errorf("%v", site.Object["status"])
		}
		return nil
	})
	hasCondition(t, "CompositeController", "websites", "Converged", "True")
	hasCondition(t, "CompositeController", "websites", "Honored", "True")
}

func decoratesStatefulSets(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	hook := exec.Command(python, "-B", "../../examples/hooks-decorator-python/hook.py")
	hook.Env = append(os.Environ(), "ADDRESS="+address)
	testkit.Run(t, hook)
	for _, document := range exampleOf(t, "hooks-decorator-python", "controller.yaml", "http://"+address) {
		apply(t, document)
	}
	apply(t, exampleOf(t, "hooks-decorator-python", "statefulset.yaml", "")[0])
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}}
	has := func(annotation string, names ...string) {
		t.Helper()
		testkit.Succeeds(t, time.Minute, fmt.Sprintf("it has the Services %q", names), func(ctx context.Context) error {
			var services corev1.ServiceList
			if err := errors.Join(admin.List(ctx, &services, client.InNamespace("default")), admin.Get(ctx, client.ObjectKeyFromObject(set), set)); err != nil {
				return err
			}
			var got []string
			for i := range services.Items {
				if s := &services.Items[i]; metav1.IsControlledBy(s, set) && s.Spec.Selector["statefulset.kubernetes.io/pod-name"] == s.Name && s.Spec.Ports[0].Port == 5432 {
					got = append(got, s.Name)
				}
			}
			if count := set.Annotations["example.com/services"]; !slices.Equal(got, names) || count != annotation {
				return fmt.Errorf("%q, annotated %q: %s", got, count, conditionOf(ctx, "DecoratorController", "service-per-pod", "Converged"))
			}
			return nil
		})
	}
	change := func(patch string) {
		t.Helper()
		if err := admin.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	has("3", "db-0", "db-1", "db-2")
	change(`{"spec": {"replicas": 1}}`)
	has("1", "db-0")
	change(`{"metadata": {"annotations": {"example.com/service-per-pod": "none"}}}`)
	hasCondition(t, "DecoratorController", "service-per-pod", "Converged", "False HookFailed", "default/db", "500", "invalid literal")
	has("1", "db-0")
	change(`{"metadata": {"annotations": {"example.com/service-per-pod": null}}}`)
	has("")
	if len(set.Finalizers) > 0 {
		testkit.Succeeds(t, time.Minute, "its finalizer goes", func(ctx context.Context) error {
			err := admin.Get(ctx, client.ObjectKeyFromObject(set), set)
			if err == nil && len(set.Finalizers) > 0 {
				return fmt.Errorf("%q", set.Finalizers)
			}
			return err
		})
	}
}

// bindsForAWhile has what the seed's own test has not: the rights of the example's rbac.yaml.
func bindsForAWhile(t *testing.T) {
	policy := cluster.Kubectl(t.Context(), nil, "create", "configmap", "policy", "-n", "transient-binding", "--from-file", seed+"policy/controller.rego", "--dry-run=client", "-o", "yaml")
	manifest, err := policy.Output()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, string(manifest))
	for _, file := range []string{"controllers.yaml", "rbac.yaml"} {
		for _, document := range exampleOf(t, "hooks-transient-binding", file, "") {
			apply(t, document)
		}
	}
	object := parent("TransientRoleBinding", "apps", "installed", time.Now().Add(-time.Minute), time.Now().Add(time.Hour), user("eve"))
	testkit.Create(t, admin, object)
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "installed"}}
	testkit.Succeeds(t, time.Minute, "it is bound", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(binding), binding); err != nil {
			return fmt.Errorf("%w: %s", err, conditionOf(ctx, "CompositeController", "transient-rolebinding", "Converged"))
		}
		return nil
	})
	if err := admin.Delete(t.Context(), object); err != nil {
		t.Error(err)
	}
}

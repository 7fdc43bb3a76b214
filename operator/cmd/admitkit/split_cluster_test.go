package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// TestThreeProcessesWithRightsOfTheirOwnGrantAndEndAccess runs registrar, server and
// reconciler under just the rights that `admitkit manifests` gives them.
func TestThreeProcessesWithRightsOfTheirOwnGrantAndEndAccess(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{CRDPaths: []string{"../../config/crd"}, ControllerManager: true, Kwok: true})
	admin := testkit.Client(t, cluster.Admin(), testkit.Scheme(v1alpha1.AddToScheme))
	for _, name := range []string{"admitkit-system", "apps", "other"} {
		testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	flags := []string{
		"--webhook-namespace=admitkit-system", "--access", "--access-namespaces=apps", "--audit-objects", "--audit-log=false", "--audit-event=false",
		"--host=127.0.0.1", "--advertise-host=127.0.0.1", fmt.Sprintf("--port=%d", freeport.For(t)), "--leaf-secret-name=leaf", "--leader-election",
		"--drain-period=10ms", "--metrics-address=",
	}
	arguments := map[string][]string{} // by the ServiceAccount
	for _, object := range installationOf(t, flags) {
		switch object := object.(type) {
		case *appsv1.Deployment:
			pod := object.Spec.Template.Spec
			arguments[pod.ServiceAccountName] = pod.Containers[0].Args
		case *rbacv1.Role, *rbacv1.RoleBinding, *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding,
			*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			testkit.Create(t, admin, object)
		}
	}
	users := map[string]*controlplane.User{}
	for _, name := range []string{"admitkit", "admitkit-registrar", "admitkit-reconciler"} {
		user, err := testkit.ServiceAccount(cluster, "admitkit-system", name)
		if err != nil {
			t.Fatal(err)
		}
		users[name] = user
	}
	var healths []string
	for account, user := range users {
		health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
		args := append(slices.Clone(arguments[account]), "--kubeconfig="+user.KubeConfig, "--health-address="+health)
		running := testkit.Run(t, testkit.Again(t, asProgram, "yes", args...))
		t.Cleanup(func() { running.Stop(t) })
		healths = append(healths, health)
	}
	for _, health := range healths { // the webhooks are registered before their server has its certificate
		testkit.Eventually(t, "a process is ready", func(ctx context.Context) bool { return testkit.IsReady(ctx, health) })
	}

	template := &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}, Spec: v1alpha1.ExecAccessTemplateSpec{
		AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"alice"}, DefaultDuration: "1h", MaxDuration: "1h"},
		ControllerTargetRef: webIn(t, admin, "apps"),
	}}
	testkit.Create(t, admin, template)
	alice, err := cluster.AddUser("alice")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Grant(t, admin, "apps", "ask", []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"execaccessrequests"}, Verbs: []string{"create", "get", "delete"}},
	}, "alice")
	asAlice := testkit.Client(t, alice, testkit.Scheme(v1alpha1.AddToScheme))
	request := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "night", Namespace: "apps"}, Spec: v1alpha1.ExecAccessRequestSpec{
		RequestSpec: v1alpha1.RequestSpec{TemplateName: "web", Reason: "a page"},
	}}
	// Until the registrar has registered, nobody stamps the requester.
	testkit.Eventually(t, "the webhooks are registered", func(ctx context.Context) bool {
		return asAlice.Create(ctx, request.DeepCopy(), client.DryRunAll) == nil && stamped(ctx, asAlice, request)
	})
	testkit.Create(t, asAlice, request)
	testkit.Eventually(t, "access is granted", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(request), request) == nil && request.Status.Ready
	})
	grant := client.ObjectKey{Namespace: "apps", Name: v1alpha1.ExecAccessPrefix + "night"}
	for _, made := range []client.Object{&rbacv1.Role{}, &rbacv1.RoleBinding{}} {
		if err := admin.Get(t.Context(), grant, made); err != nil {
			t.Error(err)
		}
	}

	t.Run("a server that is taken over grants nothing", func(t *testing.T) {
		refusesAll(t, testkit.Client(t, users["admitkit"], admin.Scheme()), "apps", attemptsIn("apps"))
	})
	t.Run("a registrar that is taken over grants nothing", func(t *testing.T) {
		registrar := testkit.Client(t, users["admitkit-registrar"], admin.Scheme())
		refusesAll(t, registrar, "apps", attemptsIn("apps"))
		// It may create Secrets, and the token controller would write a token into this one.
		token := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken, ObjectMeta: metav1.ObjectMeta{
			Namespace: "admitkit-system", Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "admitkit-reconciler"},
		}}
		for _, name := range []string{"token", "admitkit-setupcertificate", "leaf"} {
			if name != token.Name { // RBAC lets it delete this one, and make it anew
				if err := registrar.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: token.Namespace, Name: name}}); err != nil {
					t.Error(err)
				}
			}
			token.Name = name
			if err := registrar.Create(t.Context(), token.DeepCopy()); err == nil || !strings.Contains(err.Error(), "admitkit-registrar creates no Secret but") {
				t.Errorf("creating Secret %s with a token of the reconciler: %v", name, err)
			}
		}
	})
	t.Run("a registrar that is taken over gets no token", func(t *testing.T) {
		const secrets = "/api/v1/namespaces/admitkit-system/secrets"
		secret := func(name, kind string) string {
			return `{"apiVersion":"v1","kind":"Secret","metadata":{` + name + `,"annotations":{"kubernetes.io/service-account.name":"admitkit-reconciler"}},"type":"` + kind + `"}`
		}
		const token, own = "kubernetes.io/service-account-token", `"name":"admitkit-setupcertificate"`
		const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/admitkit-registrar.admitkit-system"
		for name, a := range map[string]struct{ method, path, contentType, body string }{
			"by a name that is generated":              {"POST", secrets, testkit.AsJSON, secret(`"generateName":"admitkit-setupcertificate"`, token)},
			"by a name that is generated, with a name": {"POST", secrets, testkit.AsJSON, secret(`"name":"","generateName":"leaf"`, "Opaque")},
			"by a name that only begins like its own":  {"POST", secrets, testkit.AsJSON, secret(`"name":"leaf2"`, "Opaque")},
			"by a token that looks like its own":       {"POST", secrets, testkit.AsJSON, secret(`"name":"leaf"`, token)},
			"by another type":                          {"POST", secrets, testkit.AsJSON, secret(`"name":"leaf"`, "bootstrap.kubernetes.io/token")},
			"by a type in another case":                {"POST", secrets, testkit.AsJSON, secret(`"name":"leaf"`, "opaque")},
			"by a dry run":                             {"POST", secrets + "?dryRun=All", testkit.AsJSON, secret(`"name":"dry"`, token)},
			"by an update of what is not there":        {"PUT", secrets + "/token", testkit.AsJSON, secret(`"name":"token"`, token)},
			"by an update that changes the type":       {"PUT", secrets + "/admitkit-setupcertificate", testkit.AsJSON, secret(own, token)},
			"by server-side apply":                     {"PATCH", secrets + "/leaf?fieldManager=x&force=true", testkit.AsApply, secret(`"name":"leaf"`, token)},
			"by a Secret of another namespace":         {"POST", "/api/v1/namespaces/kube-system/secrets", testkit.AsJSON, secret(`"name":"leaf"`, token)},
			"by asking for it":                         {"POST", "/api/v1/namespaces/admitkit-system/serviceaccounts/admitkit-reconciler/token", testkit.AsJSON, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`},
			"by reading all":                           {"GET", secrets, testkit.AsJSON, ""},
			"by deleting the policy":                   {"DELETE", policies, testkit.AsJSON, ""},
			"by changing the policy":                   {"PATCH", policies, testkit.AsMerge, `{"spec":{"failurePolicy":"Ignore"}}`},
			"by deleting the binding":                  {"DELETE", strings.Replace(policies, "policies", "policybindings", 1), testkit.AsJSON, ""},
		} {
			if through := testkit.Send(t, users["admitkit-registrar"], a.method, a.path, a.contentType, a.body).Held(t); through != "" {
				t.Errorf("%s: this went through: %s", name, through)
			}
		}
	})
	t.Run("a reconciler that is taken over is kept to the namespaces that were named", func(t *testing.T) {
		reconciler := testkit.Client(t, users["admitkit-reconciler"], admin.Scheme())
		for _, namespace := range []string{"admitkit-system", metav1.NamespaceSystem, "other"} {
			refusesAll(t, reconciler, namespace, attemptsIn(namespace))
		}
		var secrets corev1.SecretList
		if err := reconciler.List(t.Context(), &secrets, client.InNamespace("admitkit-system")); !apierrors.IsForbidden(err) {
			t.Errorf("it reads the Secrets with the certificates: %v", err)
		}
	})
	t.Run("nobody but the reconciler writes what a grant consists of", func(t *testing.T) {
		err := admin.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ExecAccessPrefix + "forged", Namespace: "apps"}})
		if err == nil || !strings.Contains(err.Error(), users["admitkit-reconciler"].Name) {
			t.Errorf("got %v, want a refusal that names the reconciler", err)
		}
	})

	if err := asAlice.Delete(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "access has ended", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, grant, &rbacv1.RoleBinding{})) && apierrors.IsNotFound(admin.Get(ctx, grant, &rbacv1.Role{}))
	})
	t.Run("the story of the request outlives it", func(t *testing.T) {
		want := []string{"asked alice", "granted alice", "deleted alice", "ended alice"}
		var story []string
		testkit.Eventually(t, "the records are there", func(ctx context.Context) bool {
			story = storyOf(ctx, t, admin, request)
			return len(story) >= len(want)
		})
		// Who deletes is recorded by the server, and the end by the reconciler.
		slices.Sort(story[2:])
		if !slices.Equal(story, want) {
			t.Errorf("the records say %q, want %q", story, want)
		}
	})
}

// installationOf returns the objects that `admitkit manifests` prints.
func installationOf(t *testing.T, flags []string) []client.Object {
	t.Helper()
	// Not in this process: commands set loggers that parallel tests use.
	out, err := testkit.Again(t, asProgram, "yes", append([]string{"manifests", "--image=x"}, flags...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	documents := slices.DeleteFunc(strings.Split(string(out), "---\n"), func(text string) bool { return strings.HasPrefix(text, "#") })
	var objects []client.Object
	for _, object := range objectsOf(t, documents) {
		objects = append(objects, object.(client.Object))
	}
	return objects
}

// webIn makes a Deployment, and returns the reference to it.
func webIn(t *testing.T, admin client.Client, namespace string) v1alpha1.ControllerTargetRef {
	t.Helper()
	labels := map[string]string{"app": "web"}
	testkit.Create(t, admin, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		},
	}})
	return v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
}

// stamped reports whether the webhooks see a request.
func stamped(ctx context.Context, c client.Client, request *v1alpha1.ExecAccessRequest) bool {
	dry := request.DeepCopy()
	return c.Create(ctx, dry, client.DryRunAll) == nil && dry.Spec.Requester != nil
}

// attemptsIn are what somebody who has taken a process over would try.
func attemptsIn(namespace string) map[string]client.Object {
	meta := metav1.ObjectMeta{Name: "mine", Namespace: namespace}
	return map[string]client.Object{
		"a Role":        &rbacv1.Role{ObjectMeta: meta},
		"a RoleBinding": &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}},
		"a Pod":         &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		"a ClusterRole": &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine"}},
	}
}

// refusesAll has RBAC refuse what somebody tries, not the webhooks.
func refusesAll(t *testing.T, c client.Client, namespace string, attempts map[string]client.Object) {
	t.Helper()
	for what, object := range attempts {
		if err := c.Create(t.Context(), object); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "admission webhook") {
			t.Errorf("creating %s in %s: %v", what, namespace, err)
		}
	}
}

// storyOf returns what records say of a request, in their order.
func storyOf(ctx context.Context, t *testing.T, c client.Client, request *v1alpha1.ExecAccessRequest) []string {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := c.List(ctx, &list); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.AuditEvent) int { return a.Spec.Time.Compare(b.Spec.Time.Time) })
	var story []string
	for i := range list.Items {
		record := &list.Items[i].Spec
		if record.Object != nil && record.Object.UID == request.UID {
			story = append(story, record.Verb+" "+record.User.Username)
		}
	}
	return story
}

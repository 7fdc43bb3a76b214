package access_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// uninstaller returns a manager with only the rights that the pages give to the person who
// runs `unregister`: operator/docs/access.md those on access, docs/security.md the
// registrar's, docs/operations.md those to scale.
func uninstaller(t *testing.T, namespace string, port int32) (*manager.Manager, *observer.ObservedLogs) {
	t.Helper()
	user, err := cluster.AddUser("system:serviceaccount:admitkit-system:admitkit-unregister", "system:serviceaccounts", "system:serviceaccounts:admitkit-system")
	if err != nil {
		t.Fatal(err)
	}
	rule := func(group, resource, name string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: []string{name}, Verbs: verbs}
	}
	pods := rule("", "pods", "", "list")
	pods.ResourceNames = nil
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "admitkit-system", Name: "admitkit-unregister"}}
	named := metav1.ObjectMeta{Name: "unregister", Namespace: namespace}
	testkit.Create(t, admin, &rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
		rule("", "secrets", "admitkit-setupcertificate", "delete"), rule("", "secrets", "admitkit-paths", "delete"),
		rule("apps", "deployments", "manager", "get"), rule("apps", "deployments/scale", "manager", "patch"), pods,
	}})
	testkit.Create(t, admin, &rbacv1.RoleBinding{ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: named.Name}, Subjects: subjects})
	wide := metav1.ObjectMeta{Name: "unregister-" + namespace}
	testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: wide, Rules: []rbacv1.PolicyRule{
		rule("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "admitkit."+namespace, "get", "delete"),
		rule("admissionregistration.k8s.io", "validatingwebhookconfigurations", "admitkit."+namespace, "get", "delete"),
	}})
	testkit.Create(t, admin, &rbacv1.ClusterRoleBinding{ObjectMeta: wide, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: wide.Name}, Subjects: subjects})
	core, logs := observer.New(zapcore.DebugLevel)
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", Port: port, Logger: zap.New(core).Sugar(), RESTConfig: user.Config})
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(access.New(access.Options{})); err != nil {
		t.Fatal(err)
	}
	return mgr, logs
}

func gone(t *testing.T, object client.Object) bool {
	t.Helper()
	err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}

func TestUninstallingEndsAllAccessAndInstallingAgainGivesNoneBack(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	deployment(t, namespace, "api", 1)
	deployment(t, namespace, "manager", 2) // which runs in the test in truth
	port := freeport.For(t)
	r := startOn(t, namespace, port, access.Options{}, nil)
	evicting := execTemplate(namespace, "api", ref("Deployment", "api"), "devs")
	evicting.Spec.AccessConfig.OnExpiry = v1alpha1.ExpiryEvict
	for _, template := range []client.Object{
		podTemplate(namespace, "web", ref("Deployment", "web"), "devs"), execTemplate(namespace, "web", ref("Deployment", "web"), "devs"),
		evicting, execTemplate(namespace, "late", ref("Deployment", "late"), "devs"),
	} {
		testkit.Create(t, admin, template)
	}
	requests := []request{
		granted(t, alice, podRequest(namespace, "own", "web")), granted(t, alice, execRequest(namespace, "kept", "web")),
		granted(t, alice, execRequest(namespace, "evicted", "api")),
	}
	waiting := execRequest(namespace, "waiting", "late")
	testkit.Create(t, as(t, alice), waiting)
	await(t, waiting, "waits", func() bool { return fails(waiting, "AccessResourcesCreated", "TargetMissing") })
	pods := map[string]*corev1.Pod{}
	for _, req := range requests {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: req.GetRequestStatus().PodName}}
		if gone(t, pod) || !canExec(t, alice, namespace, pod.Name) {
			t.Fatalf("alice has no access by %s", req.GetName())
		}
		pods[req.GetName()] = pod
	}
	requests = append(requests, waiting)
	r.stop()

	// Nobody answers now, and so nobody forges what is about to be believed.
	forged := roleOf(execRequest(namespace, "forged", ""))
	if err := admin.Create(t.Context(), forged); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("an administrator can make a record of a grant: %v", err)
	}
	uninstall(t, namespace, port, pods)
	for _, req := range requests {
		staysRevoked(t, req)
	}
	startOn(t, namespace, port, access.Options{}, nil)
	deployment(t, namespace, "late", 1)
	granted(t, alice, execRequest(namespace, "another", "late"))
	for _, req := range requests {
		await(t, req, "was looked at again", func() bool { return req.GetRequestStatus().ObservedGeneration == req.GetGeneration() })
		if !isRevoked(req) || !gone(t, bindingOf(req)) || !gone(t, roleOf(req)) {
			t.Errorf("request %s gives access again: %+v", req.GetName(), req.GetRequestStatus())
		}
		refused(t, patch(t, alice, req, `{"spec":{"duration":"101h"}}`), "cannot be extended", "make another request")
	}
}

// uninstall scales the managers down and unregisters, twice, with which all access
// by requests to these Pods, by their names, ends.
func uninstall(t *testing.T, namespace string, port int32, pods map[string]*corev1.Pod) {
	t.Helper()
	mgr, logs := uninstaller(t, namespace, port)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := mgr.ScaleDown(ctx, "manager"); err != nil {
		t.Fatal(err)
	}
	var list corev1.PodList
	if err := admin.List(t.Context(), &list, client.InNamespace(namespace), client.MatchingLabels{"app": "manager"}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d Pods are left of the manager: %v", len(list.Items), err)
	}
	for range 2 {
		if err := mgr.UnregisterExtensions(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := logs.FilterMessage("RoleBinding deleted").Len(); n != 3 {
		t.Errorf("the log tells of %d RoleBindings", n)
	}
	if n, err := left(t.Context(), namespace); n > 0 || err != nil {
		t.Errorf("%d objects are left: %v", n, err)
	}
	for name, pod := range pods {
		if canExec(t, alice, namespace, pod.Name) {
			t.Errorf("alice still has access by %s", name)
		}
	}
	if !gone(t, pods["own"]) || gone(t, pods["kept"]) || !pods["kept"].DeletionTimestamp.IsZero() {
		t.Error("the access Pod is there, or the Pod whose sessions were to be kept is not")
	}
	testkit.Eventually(t, "the Pod is evicted", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(pods["evicted"]), pods["evicted"]))
	})
}

func isRevoked(req request) bool {
	status := req.GetRequestStatus()
	return status.RevokedAt != nil && status.ExpiresAt.Equal(status.RevokedAt) && fails(req, "AccessStillValid", "Revoked") && fails(req, "AccessResourcesCreated", "Revoked") && !status.Ready
}

// staysRevoked tries to bring a revoked request back, while no webhook stands.
func staysRevoked(t *testing.T, req request) {
	t.Helper()
	if gone(t, req) || !isRevoked(req) {
		t.Errorf("request %s says %+v", req.GetName(), req.GetRequestStatus())
	}
	// Not even an administrator brings it back.
	change := req.DeepCopyObject().(request)
	change.GetRequestStatus().RevokedAt = nil
	if err := admin.Status().Update(t.Context(), change); !apierrors.IsInvalid(err) {
		t.Errorf("request %s: the revocation can be taken back: %v", req.GetName(), err)
	}
	// No webhook refuses this now.
	if err := patch(t, alice, req, `{"spec":{"duration":"100h"}}`); err != nil {
		t.Fatal(err)
	}
}

func TestUnregisteringWhileNoWebhookStandsTakesNothingButGrants(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	label := map[string]string{access.LabelManagedBy: "admitkit-access"}
	meta := func(name string, labels map[string]string, annotations ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: map[string]string{}}
		for i := 0; i < len(annotations); i += 2 {
			m.Annotations[annotations[i]] = annotations[i+1]
		}
		return m
	}
	pod := func(name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta(name, labels), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web"}}}}
	}
	role := func(m metav1.ObjectMeta, pod *corev1.Pod) *rbacv1.Role {
		m.Annotations[access.AnnotationPodUID] = string(pod.UID)
		return &rbacv1.Role{ObjectMeta: m, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{pod.Name}, Verbs: []string{"get"}}}}
	}
	binding := func(m metav1.ObjectMeta) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: m, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: m.Name}}
	}
	const uid = access.AnnotationRequestUID
	victim, stripped := pod("victim", label), pod("podaccess-stripped", nil)
	testkit.Create(t, admin, victim)
	testkit.Create(t, admin, stripped)
	foreign := map[string]client.Object{
		"a RoleBinding with our label and annotation, but another name":   binding(meta("payroll", label, uid, "1")),
		"a Role with our label, but another name":                         role(meta("payroll", label), victim),
		"a Pod of an access Pod's name, with our label, that nobody made": pod("podaccess-nobodys", label),
		"a RoleBinding of a grant's name, without label and annotation":   binding(meta("execaccess-theirs", nil)),
	}
	ours := map[string]client.Object{
		"a Role that names somebody else's Pod as the access Pod": role(meta("podaccess-turned", label, uid, "1"), victim),
		"the record of an access Pod":                             role(meta("podaccess-stripped", nil, uid, "1"), stripped),
		"a RoleBinding without the label":                         binding(meta("execaccess-unlabelled", nil, uid, "1")),
		"a RoleBinding without the annotation":                    binding(meta("podaccess-unannotated", label)),
	}
	for _, objects := range []map[string]client.Object{foreign, ours} {
		for _, object := range objects {
			testkit.Create(t, admin, object)
		}
	}
	foreign["a Pod with our label"] = victim
	ours["an access Pod without labels"] = stripped
	mgr, logs := uninstaller(t, namespace, freeport.For(t))
	if err := mgr.UnregisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, object := range foreign {
		if gone(t, object) || !object.GetDeletionTimestamp().IsZero() {
			t.Errorf("it takes %s", name)
		}
	}
	for name, object := range ours {
		if name == "an access Pod without labels" {
			testkit.Eventually(t, "the Pod is gone", func(ctx context.Context) bool {
				return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
			})
		} else if !gone(t, object) {
			t.Errorf("it leaves %s", name)
		}
	}
	if n := logs.FilterMessageSnippet("left alone").Len(); n != 1 {
		t.Errorf("it warns of %d objects", n)
	}
}

// removers are what an uninstall calls.
type removers []extension.Remover

func removersOf(t *testing.T, mgr extension.Manager, options access.Options) removers {
	t.Helper()
	parts, err := host.PartsOf(access.New(options), mgr)
	if err != nil {
		t.Fatal(err)
	}
	return parts.Removers
}

func (r removers) remove(t *testing.T, limit time.Duration, mgr extension.Manager) (errs []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	// At the same time, as the manager does: what one waits for must not hold up the others.
	each := make([]error, len(r))
	var group sync.WaitGroup
	for i, remover := range r {
		group.Go(func() { each[i] = remover.Remove(ctx, mgr) })
	}
	group.Wait()
	return slices.DeleteFunc(each, func(err error) bool { return err == nil })
}

func TestWhatCannotBeEndedYetIsNamedAndGivesNoAccess(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	web := deployment(t, namespace, "web", 1)
	all := intstr.FromString("100%")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: web.Spec.Selector},
	}
	testkit.Create(t, admin, budget)
	testkit.Eventually(t, "the budget is in force", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) == nil && budget.Status.ExpectedPods == 1
	})
	r := start(t, namespace, access.Options{})
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.OnExpiry = v1alpha1.ExpiryEvict
	testkit.Create(t, admin, template)
	req := granted(t, alice, execRequest(namespace, "a", "web"))
	r.stop()
	mgr, _ := uninstaller(t, namespace, freeport.For(t))
	each := removersOf(t, mgr, access.Options{})
	errs := each.remove(t, 10*time.Second, mgr)
	if len(each) != 3 || len(errs) != 1 || !strings.Contains(errs[0].Error(), namespace+"/execaccess-a") || !strings.Contains(errs[0].Error(), "PodDisruptionBudget") {
		t.Errorf("%d removers: %v", len(each), errs)
	}
	if canExec(t, alice, namespace, req.Status.PodName) || !gone(t, bindingOf(req)) {
		t.Error("alice still has access")
	}
	if gone(t, roleOf(req)) {
		t.Fatal("nobody could know any more that the Pod is to be evicted")
	}
	if err := admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	if errs := each.remove(t, time.Minute, mgr); len(errs) > 0 {
		t.Error(errs)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: req.Status.PodName}}
	testkit.Eventually(t, "the Pod is evicted", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(pod), pod))
	})
}

func TestRemovingWithoutTheRightsFailsAtOnceAndSaysWhichAreMissing(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	for _, errs := range [][]error{removeAs(t, mallory, namespace), removeAs(t, mallory, "nobody-may-ask"), removeAs(t, mayAskFor(t, namespace), namespace)} {
		if len(errs) != 3 {
			t.Errorf("three kinds of access fail with %d errors", len(errs))
		}
		for _, err := range errs {
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "rolebindings") {
				t.Error(err)
			}
		}
	}
}

// The rights in a namespace go with it, so that nothing else can be asked.
func TestWhereTheNamespaceIsGoneThereIsNothingToRemove(t *testing.T) {
	t.Parallel()
	if errs := removeAs(t, mayAskFor(t, "gone"), "gone"); len(errs) > 0 {
		t.Error(errs)
	}
}

// mayAskFor returns a user who may see whether a namespace is there, and no more.
func mayAskFor(t *testing.T, namespace string) *controlplane.User {
	t.Helper()
	name := "asks-for-" + namespace
	user, err := cluster.AddUser(name)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{namespace}, Verbs: []string{"get"}},
	}})
	testkit.Create(t, admin, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	})
	return user
}

// removeAs removes the access in a namespace with the rights of a user.
func removeAs(t *testing.T, user *controlplane.User, namespace string) []error {
	t.Helper()
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", RESTConfig: user.Config})
	if err != nil {
		t.Fatal(err)
	}
	each := removersOf(t, mgr, access.Options{})
	return each.remove(t, time.Minute, mgr)
}

func TestWhereTheCRDsWereDeletedFirstWhatIsLeftOfGrantsStillGoes(t *testing.T) {
	t.Parallel()
	bare := controlplane.Run(t, controlplane.Options{})
	c, err := client.New(bare.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "execaccess-a", Labels: map[string]string{access.LabelManagedBy: "admitkit-access"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "execaccess-a"},
	}
	testkit.Create(t, c, binding)
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", WebhookNamespace: metav1.NamespaceDefault, Host: "127.0.0.1", RESTConfig: bare.Config()})
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(access.New(access.Options{Namespaces: []string{access.AllNamespaces}})); err != nil {
		t.Fatal(err)
	}
	if err := mgr.UnregisterExtensions(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(binding), binding); !apierrors.IsNotFound(err) {
		t.Errorf("the RoleBinding is left: %v", err)
	}
}

func TestOlderCRDsCannotHoldARevocationAndTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"podaccessrequests", "execaccessrequests"} {
		text, err := os.ReadFile("../config/crd/admitkit.dev_" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		schema.XValidations = nil // they name the field
		delete(schema.Properties["status"].Properties, "revokedAt")
		if text, err = yaml.Marshal(crd); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	older := controlplane.Run(t, controlplane.Options{CRDPaths: []string{folder}})
	c, err := client.New(older.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	req := execRequest(metav1.NamespaceDefault, "a", "web")
	req.Spec.Duration = "1h"
	testkit.Create(t, c, req)
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "admitkit", WebhookNamespace: metav1.NamespaceDefault, Host: "127.0.0.1", RESTConfig: older.Config()})
	if err != nil {
		t.Fatal(err)
	}
	each := removersOf(t, mgr, access.Options{Namespaces: []string{access.AllNamespaces}})
	errs := each.remove(t, 10*time.Second, mgr)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "default/a") || !strings.Contains(errs[0].Error(), "apply operator/config/crd") {
		t.Errorf("got %v", errs)
	}
}

func TestARequestThatIsLengthenedAfterTheUninstallStaysOver(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	req := execRequest(namespace, "a", "web")
	req.Spec.Duration = "1ms"
	testkit.Create(t, admin, req)
	mgr, _ := uninstaller(t, namespace, freeport.For(t))
	each := removersOf(t, mgr, access.Options{})
	if errs := each.remove(t, time.Minute, mgr); len(errs) > 0 {
		t.Fatal(errs)
	}
	if err := patch(t, cluster.Admin(), req, `{"spec":{"duration":"8h"}}`); err != nil {
		t.Fatal(err)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil {
		t.Fatal(err)
	}
	if end, err := v1alpha1.EndOf(req); err != nil || end.After(time.Now()) {
		t.Errorf("its access ends at %s, %v", end, err)
	}
}

// The manager that runs must not grant again what was revoked, though for it the
// revocation lies in the future: the removal would never end, nor the access.
func TestARevocationByAClockThatIsAheadCountsAtOnce(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	testkit.Create(t, admin, podTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	requests := []request{granted(t, alice, podRequest(namespace, "a", "web")), granted(t, alice, execRequest(namespace, "a", "web"))}
	mgr, _ := uninstaller(t, namespace, freeport.For(t))
	each := removersOf(t, mgr, access.Options{Clock: ahead(2 * time.Hour)})
	if errs := each.remove(t, time.Minute, mgr); len(errs) > 0 {
		t.Error(errs)
	}
	for _, req := range requests {
		await(t, req, "says that it was revoked", func() bool { return fails(req, "AccessStillValid", "Revoked") && !req.GetRequestStatus().Ready })
		if canExec(t, alice, namespace, req.GetRequestStatus().PodName) {
			t.Errorf("alice still has access by %s", req.GetName())
		}
		refused(t, patch(t, alice, req, `{"spec":{"duration":"90m"}}`), "cannot be extended", "make another request")
		refused(t, patch(t, alice, req, `{"spec":{"revoked":{}}}`), "access ended at", "already: there is nothing to revoke")
	}
	if n, err := left(t.Context(), namespace); n > 0 || err != nil {
		t.Errorf("%d objects are left: %v", n, err)
	}
}

package access_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one real control plane; each has a namespace of its own, and a manager that
// is confined to it, or to those of several tests.
var (
	cluster *controlplane.ControlPlane
	scheme  = testkit.Scheme(v1alpha1.AddToScheme)
	admin   client.WithWatch
	// managerUser has the rights that the README gives the manager.
	managerUser *controlplane.User
	// alice and bob are in the group devs, mallory is in none. None of them has
	// a right but to make requests.
	alice, bob, mallory *controlplane.User
)

func TestMain(m *testing.M) {
	if text := os.Getenv(managerVariable); text != "" {
		os.Exit(runProcess(text))
	}
	os.Exit(testkit.Main(m, controlplane.Options{
		CRDPaths: []string{"../config/crd", "testdata/rollouts.yaml", "testdata/cilium.yaml"}, ControllerManager: true, Kwok: true, Nodes: 4,
	}, setUp))
}

func setUp(c *controlplane.ControlPlane) error {
	cluster = c
	ctx := context.Background()
	var err error
	if admin, err = testkit.NewClient(cluster.Admin(), scheme); err != nil {
		return err
	}
	if err := testkit.Apply(ctx, cluster, readmeYAML()); err != nil {
		return err
	}
	for _, user := range []struct {
		into   **controlplane.User
		name   string
		groups []string
	}{
		{&alice, "alice", []string{"devs", "engineers"}},
		{&bob, "bob", []string{"devs", "engineers"}},
		{&mallory, "mallory", []string{"engineers"}},
	} {
		if *user.into, err = cluster.AddUser(user.name, user.groups...); err != nil {
			return err
		}
	}
	if managerUser, err = testkit.ServiceAccount(cluster, "admitkit-system", "admitkit"); err != nil {
		return err
	}
	return admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "engineers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "access-requester"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "engineers"}},
	})
}

// readmeYAML returns the YAML blocks of the README and of the pages on access: roles and
// examples, and the namespace that the example is in.
func readmeYAML() string {
	yaml := []string{"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n"}
	for _, page := range []string{"README.md", "../docs/access.md", "../docs/access-roles.md"} {
		blocks, err := testkit.Blocks(page, "yaml")
		if err != nil {
			panic(err)
		}
		yaml = append(yaml, blocks...)
	}
	return strings.Join(yaml, "---\n")
}

func as(t *testing.T, user *controlplane.User) client.Client {
	t.Helper()
	return testkit.Client(t, user, scheme)
}

// commons has the namespaces that managers with default options watch and no test has taken
// yet. Such a manager costs as much as the test that uses it.
var commons struct {
	sync.Mutex
	free []string
	logs []*observer.ObservedLogs
	told chronicle
}

// common returns a namespace for one test, in which a manager with default options grants
// access until the last test has ended. commons.told has its records. Tests that give
// options, stop the manager, or take its webhooks away start one of their own. Only parallel
// tests use it, so that those that are not have the process to themselves.
func common(t *testing.T) (namespace string) {
	t.Helper()
	commons.Lock()
	defer commons.Unlock()
	if len(commons.free) == 0 {
		commons.free = startCommon(t)
	}
	namespace, commons.free = commons.free[0], commons.free[1:]
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, logs := range commons.logs {
			for _, entry := range logs.FilterLevelExact(zapcore.WarnLevel).All() {
				if text := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(text, namespace) {
					t.Log(text)
				}
			}
		}
	})
	return namespace
}

func startCommon(t *testing.T) (namespaces []string) {
	t.Helper()
	for range 20 {
		namespaces = append(namespaces, testkit.Namespace(t, admin))
	}
	core, logs := observer.New(zapcore.WarnLevel)
	commons.logs = append(commons.logs, logs)
	options := manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{testkit.ManagerNamespace(t, admin)}, Host: "127.0.0.1", Port: freeport.For(t), Logger: zap.New(core).Sugar(),
	}
	mgr, _ := registered(t, options, access.Options{Namespaces: namespaces}, nil, &commons.told)
	failed := make(chan error, 1)
	go func() { failed <- mgr.Start(context.Background()) }() //nolint:usetesting // it outlives the test
	select {
	case <-mgr.Ready():
	case err := <-failed:
		t.Fatal(err)
	}
	awaitWebhooks(t, namespaces[0])
	return namespaces
}

// running is a manager between start and stop.
type running struct {
	*manager.Manager
	stop func()
}

// start runs a manager with the rights of the README in a namespace until the
// test ends, and returns when its webhooks are called.
func start(t *testing.T, namespace string, options access.Options) *running {
	t.Helper()
	return startOn(t, namespace, freeport.For(t), options, nil)
}

func startOn(t *testing.T, namespace string, port int32, options access.Options, tweak func(*manager.Options), more ...any) *running {
	t.Helper()
	logger, _ := testkit.Logger(t)
	managerOptions := manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", Port: port, Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: logger,
	}
	mgr, registrar := registered(t, managerOptions, options, tweak, more...)
	r := &running{Manager: mgr}
	t.Cleanup(func() {
		if err := registrar.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	r.stop = testkit.Start(t, r.Manager)
	awaitWebhooks(t, append(options.Namespaces, namespace)[0])
	return r
}

// registered returns a manager whose webhooks are registered, and who registered them: the
// registrar's rights are apart from the server's.
func registered(t *testing.T, managerOptions manager.Options, options access.Options, tweak func(*manager.Options), more ...any) (mgr, registrar *manager.Manager) {
	t.Helper()
	managerOptions.RESTConfig = cluster.Config()
	registrar = newManager(t, managerOptions, options)
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	managerOptions.RESTConfig, managerOptions.RegisterWebHook = managerUser.Config, new(bool)
	if tweak != nil {
		tweak(&managerOptions)
	}
	return newManager(t, managerOptions, options, more...), registrar
}

func newManager(t *testing.T, managerOptions manager.Options, options access.Options, more ...any) *manager.Manager {
	t.Helper()
	mgr, err := manager.New(managerOptions)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range append(more, access.New(options)) {
		if err := mgr.AddExtension(e); err != nil {
			t.Fatal(err)
		}
	}
	return mgr
}

// can asks the API server whether a user may do something with a Pod, as
// `kubectl auth can-i` does.
func can(t *testing.T, user *controlplane.User, namespace, pod, verb, subresource string) bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Name: pod, Verb: verb, Version: "v1", Resource: "pods", Subresource: subresource},
	}}
	if err := as(t, user).Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func canExec(t *testing.T, user *controlplane.User, namespace, pod string) bool {
	t.Helper()
	return can(t, user, namespace, pod, "create", "exec")
}

// soonCanExec waits until the API server's authorizer, which learns of a Role a moment after it
// is made, lets a user exec.
func soonCanExec(t *testing.T, user *controlplane.User, namespace, pod string) {
	t.Helper()
	testkit.Eventually(t, user.Name+" can exec into Pod "+pod, func(context.Context) bool { return canExec(t, user, namespace, pod) })
}

func podRequest(namespace, name, template string) *v1alpha1.PodAccessRequest {
	r := &v1alpha1.PodAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	r.Spec.TemplateName = template
	return r
}

func execRequest(namespace, name, template string) *v1alpha1.ExecAccessRequest {
	r := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	r.Spec.TemplateName = template
	return r
}

func config(groups ...string) v1alpha1.AccessConfig {
	return v1alpha1.AccessConfig{AllowedGroups: groups, DefaultDuration: "1h", MaxDuration: "2h", MaxConcurrent: 100}
}

func ref(kind, name string) v1alpha1.ControllerTargetRef {
	group := map[string]string{"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1", "Rollout": "argoproj.io/v1alpha1"}[kind]
	if group == "" {
		group = "apps/v1"
	}
	return v1alpha1.ControllerTargetRef{APIVersion: group, Kind: kind, Name: name}
}

func execTemplate(namespace, name string, target v1alpha1.ControllerTargetRef, groups ...string) *v1alpha1.ExecAccessTemplate {
	return &v1alpha1.ExecAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ExecAccessTemplateSpec{AccessConfig: config(groups...), ControllerTargetRef: target},
	}
}

func podTemplate(namespace, name string, target v1alpha1.ControllerTargetRef, groups ...string) *v1alpha1.PodAccessTemplate {
	return &v1alpha1.PodAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.PodAccessTemplateSpec{AccessConfig: config(groups...), ControllerTargetRef: &target},
	}
}

// deployment makes a Deployment and waits for its Pods.
func deployment(t *testing.T, namespace, name string, replicas int32) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": name}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"team": "shop"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "web", Image: "example.com/web:1", Env: []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "b"}},
					LivenessProbe: probe, ReadinessProbe: probe, StartupProbe: probe,
				}}},
			},
		},
	}
	testkit.Create(t, admin, d)
	testkit.Eventually(t, "the Deployment is available", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(d), d) == nil && d.Status.ReadyReplicas == replicas
	})
	return d
}

// request is any kind of request.
type request = v1alpha1.Request

// granted makes a request as a user and waits until it is ready.
func granted[R request](t *testing.T, user *controlplane.User, req R) R {
	t.Helper()
	testkit.Create(t, as(t, user), req)
	await(t, req, "is ready", func() bool { return req.GetRequestStatus().Ready })
	return req
}

// await waits until a request is as it is to be.
func await[R request](t *testing.T, req R, what string, condition func() bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%T %s: %+v", req, req.GetName(), *req.GetRequestStatus())
		}
	}()
	testkit.Eventually(t, req.GetName()+" "+what, func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && condition()
	})
}

// endsIn has a user shorten a request that is granted, so that access ends in so long, and
// returns when. A test that asks for a few seconds only fails where it takes longer to be
// granted.
func endsIn(t *testing.T, user *controlplane.User, req request, rest time.Duration) (end time.Time) {
	t.Helper()
	begin, _ := v1alpha1.BeginOf(req)
	duration := time.Since(begin).Truncate(time.Second) + rest
	err := patch(t, user, req, `{"spec":{"duration":"`+duration.String()+`"}}`)
	if err == nil {
		end, err = v1alpha1.EndOf(req) // later, if the machine is so busy that the end has passed
	}
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// soon is how long what ought to take a moment may take. The short form runs beside other
// tests; TestAccessEndsOnTime and TestARequestIsReadyWithinASecond measure.
func soon() time.Duration { return testkit.Long(5*time.Second, time.Minute) }

// notBefore wants that something has ended soon after its time, and not before.
func notBefore(t *testing.T, end time.Time, what string, ended func() bool) {
	t.Helper()
	testkit.Succeeds(t, max(time.Until(end), 0)+soon(), what, func(context.Context) error {
		if !ended() {
			return errors.New("not yet")
		}
		return nil
	})
	if early := time.Until(end); early > 0 {
		t.Errorf("%s, %s early", what, early)
	}
}

func holds(req request, condition string) bool {
	return meta.IsStatusConditionTrue(req.GetRequestStatus().Conditions, condition)
}

// fails reports whether a condition is there and does not hold, for a reason.
func fails(req request, condition, reason string) bool {
	c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, condition)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == reason
}

func roleOf(req request) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: resourceOf(req)}
}

func bindingOf(req request) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: resourceOf(req)}
}

// resourceOf names what a request gets.
func resourceOf(req request) metav1.ObjectMeta {
	prefix := "podaccess-"
	switch req.(type) {
	case *v1alpha1.ExecAccessRequest:
		prefix = "execaccess-"
	case *v1alpha1.RoleAccessRequest:
		prefix = "roleaccess-"
	}
	return metav1.ObjectMeta{Namespace: req.GetNamespace(), Name: prefix + req.GetName()}
}

func jsonValue(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

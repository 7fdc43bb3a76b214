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
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/access"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one real control plane; each has a namespace and a manager of
// its own, confined to it.
var (
	cluster *controlplane.ControlPlane
	scheme  = runtime.NewScheme()
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
	os.Exit(func() int {
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		return m.Run()
	}())
}

func setUp() error {
	ctx := context.Background()
	var err error
	if cluster, err = controlplane.Start(ctx, controlplane.Options{
		CRDPaths: []string{"../../config/crd", "testdata/rollouts.yaml"}, ControllerManager: true, Kwok: true, Nodes: 4,
	}); err != nil {
		return err
	}
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if admin, err = clientFor(cluster.Admin()); err != nil {
		return err
	}
	apply := cluster.Kubectl(ctx, nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(readmeYAML())
	if output, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("applying the objects of the README: %w: %s", err, output)
	}
	for _, user := range []struct {
		into   **controlplane.User
		name   string
		groups []string
	}{
		{&managerUser, "system:serviceaccount:admitkit-system:admitkit", []string{"system:serviceaccounts", "system:serviceaccounts:admitkit-system"}},
		{&alice, "alice", []string{"devs", "engineers"}},
		{&bob, "bob", []string{"devs", "engineers"}},
		{&mallory, "mallory", []string{"engineers"}},
	} {
		if *user.into, err = cluster.AddUser(user.name, user.groups...); err != nil {
			return err
		}
	}
	return admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "engineers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "access-requester"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "engineers"}},
	})
}

// readmeYAML returns the YAML blocks of the README: roles and an example, and the
// namespace that the example is in.
func readmeYAML() string {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		panic(err)
	}
	blocks := []string{"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n"}
	for _, block := range strings.Split(string(readme), "```yaml\n")[1:] {
		yaml, _, _ := strings.Cut(block, "```")
		blocks = append(blocks, yaml)
	}
	return strings.Join(blocks, "---\n")
}

func clientFor(user *controlplane.User) (client.WithWatch, error) {
	config := rest.CopyConfig(user.Config)
	config.QPS = -1
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

func as(t *testing.T, user *controlplane.User) client.Client {
	t.Helper()
	c, err := clientFor(user)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newNamespace makes a namespace for one test, in which a manager may live.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	create(t, admin, namespace)
	name := namespace.Name
	create(t, admin, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "manager", Namespace: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"admitkit-setupcertificate"}, Verbs: []string{"get"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}, // of leader election
		},
	})
	create(t, admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "manager", Namespace: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "manager"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "admitkit-system", Name: "admitkit"}},
	})
	return name
}

func create(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s/%s: %v", object, object.GetNamespace(), object.GetName(), err)
	}
}

// running is a manager between start and stop.
type running struct {
	*manager.Manager
	logs *observer.ObservedLogs
	done chan error
	once sync.Once
}

// start runs a manager with the rights of the README in a namespace until the
// test ends, and returns when its webhooks are called.
func start(t *testing.T, namespace string, options access.Options) *running {
	t.Helper()
	return startOn(t, namespace, freeport.For(t), options, nil)
}

func startOn(t *testing.T, namespace string, port int32, options access.Options, tweak func(*manager.Options)) *running {
	t.Helper()
	options.Namespace = namespace
	core, logs := observer.New(zapcore.DebugLevel)
	managerOptions := manager.Options{
		Namespace: namespace, Host: "127.0.0.1", Port: port, Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: zap.New(core).Sugar(), RESTConfig: cluster.Config(),
	}
	if tweak != nil {
		tweak(&managerOptions)
	}
	// The registrar's rights are apart from the server's.
	registrar, err := manager.New(managerOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := registrar.AddExtension(access.New(options)); err != nil {
		t.Fatal(err)
	}
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	managerOptions.RESTConfig = managerUser.Config
	managerOptions.RegisterWebHook = new(bool)
	mgr, err := manager.New(managerOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(access.New(options)); err != nil {
		t.Fatal(err)
	}
	r := &running{Manager: mgr, logs: logs, done: make(chan error, 1)}
	go func() { r.done <- mgr.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		r.stop(t)
		if err := registrar.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, entry := range logs.FilterLevelExact(zapcore.WarnLevel).All() {
				t.Log(entry.Message, entry.ContextMap())
			}
		}
	})
	select {
	case <-r.Ready():
	case err := <-r.done:
		t.Fatalf("the manager stopped at start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the manager is not ready after a minute")
	}
	awaitWebhooks(t, namespace)
	return r
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.once.Do(func() {
		r.Stop()
		select {
		case err := <-r.done:
			if err != nil {
				t.Errorf("the manager stopped with an error: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the manager has not stopped after a minute")
		}
	})
}

// eventually polls where there is no event to wait for.
func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	within(t, 30*time.Second, what, condition)
}

func within(t *testing.T, limit time.Duration, what string, condition func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
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
	return v1alpha1.AccessConfig{AllowedGroups: groups, DefaultDuration: "1h", MaxDuration: "2h"}
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
	create(t, admin, d)
	eventually(t, "the Deployment is available", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(d), d) == nil && d.Status.ReadyReplicas == replicas
	})
	return d
}

// request is either kind of request.
type request interface {
	client.Object
	GetRequestSpec() *v1alpha1.RequestSpec
	GetRequestStatus() *v1alpha1.RequestStatus
}

// granted makes a request as a user and waits until it is ready.
func granted[R request](t *testing.T, user *controlplane.User, req R) R {
	t.Helper()
	create(t, as(t, user), req)
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
	eventually(t, req.GetName()+" "+what, func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && condition()
	})
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
	if _, ok := req.(*v1alpha1.ExecAccessRequest); ok {
		prefix = "execaccess-"
	}
	return metav1.ObjectMeta{Namespace: req.GetNamespace(), Name: prefix + req.GetName()}
}

func jsonValue(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

package audit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// standing is what RBAC gives everybody here for good: all ways in, in every
// namespace, Roles and Pods to write, and requests to make. Enforcement is what
// is between them and a session.
const standing = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {admitkit.dev/enforce-access: "true"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: open}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: standing}
rules:
- apiGroups: [""]
  resources: [pods, pods/exec, pods/attach, pods/portforward, pods/proxy, pods/ephemeralcontainers, pods/log, services, services/proxy, nodes, nodes/proxy]
  verbs: [get, list, watch, create, update, patch, delete]
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list, create, update, patch, delete]}
- {apiGroups: [admitkit.dev], resources: [podaccessrequests, execaccessrequests], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: standing}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: standing}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: everybody}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: manager}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, watch]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: manager}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: manager}
subjects: [{kind: ServiceAccount, name: admitkit, namespace: admitkit-system}]
`

// stage is a control plane with enforcement on in the namespace shop and off in
// open, in which a Pod web-... runs each.
type stage struct {
	*controlplane.ControlPlane
	admin client.Client
	// manager is who the managers are: it has the rights of the READMEs.
	manager *controlplane.User
	// alice and mallory have the standing rights; alice may ask for more by
	// templates. oscar is in the group that is exempt.
	alice, mallory, oscar *controlplane.User
	records               *recordSink
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{
		ControlPlane: controlplane.Run(t, controlplane.Options{CRDPaths: []string{"../config/crd"}, ControllerManager: true, Kwok: true}),
		records:      &recordSink{},
	}
	s.admin = testkit.Client(t, s.Admin(), scheme)
	s.apply(t, standing)
	s.apply(t, manifest(t, rightsPage, "admitkit-audit-enforcement", "admitkit-audit-touched-pods"))
	s.apply(t, manifest(t, "../docs/access.md", "admitkit-access"))
	var err error
	for into, groups := range map[**controlplane.User][]string{
		&s.manager: {"system:serviceaccount:admitkit-system:admitkit", "system:serviceaccounts"},
		&s.alice:   {"alice", "everybody", "devs"},
		&s.mallory: {"mallory", "everybody"},
		&s.oscar:   {"oscar", "everybody", "oncall"},
	} {
		if *into, err = s.AddUser(groups[0], groups[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	for _, namespace := range []string{"shop", "open"} {
		s.deployment(t, namespace, "web")
	}
	return s
}

// manifest returns objects that a page documents.
func manifest(t *testing.T, page string, names ...string) string {
	t.Helper()
	objects, err := testkit.Manifest(page, names...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func (s *stage) apply(t *testing.T, yaml string) {
	t.Helper()
	if err := testkit.Apply(t.Context(), s.ControlPlane, yaml); err != nil {
		t.Fatal(err)
	}
}

func (s *stage) deployment(t *testing.T, namespace, name string) {
	t.Helper()
	set := map[string]string{"app": name}
	one := int32(1)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: set}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: set, Annotations: map[string]string{"kubectl.kubernetes.io/default-container": "main"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "first", Image: "example.com/first:1"}, {Name: "main", Image: "example.com/main:1"},
			}},
		}},
	}
	if err := s.admin.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the Deployment is available", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(d), d) == nil && d.Status.ReadyReplicas == one
	})
}

// pod returns a Pod of the Deployment web.
func (s *stage) pod(t *testing.T, namespace string) *corev1.Pod {
	t.Helper()
	return s.podOf(t, namespace, "web")
}

// podOf returns a Pod of a Deployment that is not going away.
func (s *stage) podOf(t *testing.T, namespace, deployment string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	testkit.Eventually(t, "a Pod is ready", func(ctx context.Context) bool {
		var list corev1.PodList
		if err := s.admin.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{"app": deployment}); err != nil {
			return false
		}
		i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp.IsZero() && p.Status.Phase == corev1.PodRunning })
		if i >= 0 {
			found = &list.Items[i]
		}
		return i >= 0
	})
	return found
}

// send sends a request as a user. A JSON text in its answer is as if it was not escaped.
func (*stage) send(t *testing.T, user *controlplane.User, method, path, contentType, body string, headers ...string) testkit.Answer {
	t.Helper()
	a := testkit.Send(t, user, method, path, contentType, body, headers...)
	a.Body = strings.ReplaceAll(a.Body, `\"`, `"`)
	return a
}

// exec asks for a session in a Pod, without an upgrade: admission comes first. The
// container is main unless the query names one.
func (s *stage) exec(t *testing.T, user *controlplane.User, namespace, pod, query string) testkit.Answer {
	t.Helper()
	if !strings.Contains(query, "container=") {
		query += "&container=main"
	}
	return s.send(t, user, "POST", "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/exec?stdout=true&"+query, testkit.AsJSON, "")
}

// passes wants a request to pass admission. What is not upgraded to a session ends there.
func passes(t *testing.T, what string, a testkit.Answer) {
	t.Helper()
	if a.Code >= 300 && !strings.Contains(a.Body, "Upgrade request required") {
		t.Errorf("%s is refused: %s", what, a)
	}
}

// refusedBy wants a refusal that names a rule and says all of the hints.
func refusedBy(t *testing.T, rule enforce.Rule, a testkit.Answer, hints ...string) {
	t.Helper()
	if through := a.Held(t, append(hints, "rule "+string(rule)+":")...); through != "" {
		t.Errorf("not refused by the rule %s: %s", rule, through)
	}
}

// start registers access and audit, runs replicas of a manager with them, and
// returns how to stop them.
func (s *stage) start(t *testing.T, options audit.Options, replicas int) (stop func()) {
	t.Helper()
	options.Sinks = []audit.SinkOptions{{Sink: s.records}}
	core, logs := observer.New(zapcore.WarnLevel)
	build := func(config *rest.Config, port int32, registers bool) *manager.Manager {
		mgr, err := manager.New(manager.Options{
			OperatorFingerprint: "admitkit", WebhookNamespace: "default", Host: "127.0.0.1", Port: port, RESTConfig: config, RegisterWebHook: &registers, Registration: manager.RegistrationOptions{Probe: new(bool)},
			Logger: zap.New(core).Sugar(), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, Watching: manager.WatchingOptions{LeaderElection: true},
		})
		if err == nil {
			err = mgr.AddExtension(access.New(access.Options{Namespaces: []string{access.AllNamespaces}, SingleUse: true}))
		}
		if err == nil {
			err = mgr.AddExtension(audit.New(options))
		}
		if err != nil {
			t.Fatal(err)
		}
		return mgr
	}
	ports := make([]int32, replicas)
	for i := range ports {
		ports[i] = freeport.For(t)
	}
	// What an earlier part has registered has another port, and so another owner.
	for _, earlier := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		earlier.SetName("admitkit.default")
		if err := s.admin.Delete(t.Context(), earlier); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	if err := build(s.Config(), balance(t, ports), true).RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	var managers []*manager.Manager
	done := make(chan error, replicas)
	for _, port := range ports {
		mgr := build(s.manager.Config, port, false)
		managers = append(managers, mgr)
		go func() { done <- mgr.Start(context.WithoutCancel(t.Context())) }()
	}
	stop = sync.OnceFunc(func() {
		for _, mgr := range managers {
			mgr.Stop()
		}
		for range managers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			for _, entry := range logs.All() {
				t.Log(entry.Message, entry.ContextMap())
			}
		}
	})
	for _, mgr := range managers {
		select {
		case <-mgr.Ready():
		case <-time.After(2 * time.Minute):
			t.Fatal("a manager is not ready after two minutes")
		}
	}
	// The API server sees new webhook configurations by a watch.
	testkit.Eventually(t, "the API server calls the webhooks", func(context.Context) bool {
		before := s.records.count()
		for _, namespace := range []string{"shop", "open"} {
			s.exec(t, s.mallory, namespace, "probe", "")
		}
		s.send(t, s.mallory, "GET", "/api/v1/nodes/none/proxy/run/shop/a/b", testkit.AsJSON, "")
		return s.records.count() >= before+3
	})
	return stop
}

// balance spreads connections over ports, as a Service does, and returns its own.
func balance(t *testing.T, ports []int32) int32 {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for i := 0; ; i++ {
			front, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer front.Close()
				back, err := new(net.Dialer).Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[i%len(ports)]))
				if err != nil {
					return
				}
				defer back.Close()
				go func() {
					_, _ = io.Copy(back, front)
					_ = back.Close()
				}()
				_, _ = io.Copy(front, back)
			}()
		}
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// recordSink keeps records in memory.
type recordSink struct {
	mu      sync.Mutex
	records []*v1alpha1.AuditRecord
}

func (*recordSink) Name() string { return "test" }

func (s *recordSink) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
	return nil
}

func (s *recordSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

// await returns the record that is like this, when it has come.
func (s *recordSink) await(t *testing.T, what string, like func(*v1alpha1.AuditRecord) bool) *v1alpha1.AuditRecord {
	t.Helper()
	var found *v1alpha1.AuditRecord
	testkit.Eventually(t, "there is a record of "+what, func(context.Context) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.records {
			if like(r) {
				found = r
			}
		}
		return found != nil
	})
	return found
}

func (s *stage) template(t *testing.T, name string, change func(*v1alpha1.ExecAccessTemplateSpec)) {
	t.Helper()
	template := &v1alpha1.ExecAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: v1alpha1.ExecAccessTemplateSpec{
			AccessConfig:        v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, DefaultDuration: "1h", MaxDuration: "2h", MaxConcurrent: 100},
			ControllerTargetRef: v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		},
	}
	if change != nil {
		change(&template.Spec)
	}
	if err := s.admin.Create(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.admin.Delete(context.WithoutCancel(t.Context()), template) })
}

// request asks as alice, waits for the grant, and takes it back at the end.
func (s *stage) request(t *testing.T, name, template string, change func(*v1alpha1.ExecAccessRequest)) *v1alpha1.ExecAccessRequest {
	t.Helper()
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	req.Spec.TemplateName = template
	if change != nil {
		change(req)
	}
	testkit.Create(t, testkit.Client(t, s.alice, scheme), req)
	t.Cleanup(func() { s.withdraw(t, req) })
	testkit.Eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	return req
}

// withdraw deletes a request, and returns when its grant is gone.
func (s *stage) withdraw(t *testing.T, req *v1alpha1.ExecAccessRequest) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	_ = s.admin.Delete(ctx, req)
	if err := testkit.Poll(ctx, time.Minute, "the grant is gone", func(ctx context.Context) error {
		err := s.admin.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "execaccess-" + req.Name}, &rbacv1.Role{})
		if err == nil {
			return errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	}); err != nil {
		t.Error(err)
	}
}

// running waits for a Pod of the namespace shop.
func (s *stage) running(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, "the Pod runs", func(ctx context.Context) bool {
		var p corev1.Pod
		return s.admin.Get(ctx, client.ObjectKey{Namespace: "shop", Name: name}, &p) == nil && p.Status.Phase == corev1.PodRunning
	})
}

func (s *stage) node(t *testing.T) string {
	t.Helper()
	var nodes corev1.NodeList
	if err := s.admin.List(t.Context(), &nodes); err != nil || len(nodes.Items) == 0 {
		t.Fatalf("no node: %v", err)
	}
	return "/api/v1/nodes/" + nodes.Items[0].Name
}

// create makes a Pod that nobody controls, and waits until it runs.
func (s *stage) create(t *testing.T, namespace, name string) {
	t.Helper()
	runThe(t, s.admin, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
	})
}

var asksWith = regexp.MustCompile(`echo '[^']*' \| kubectl create -f -`)

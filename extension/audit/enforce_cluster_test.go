package audit_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/access"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/internal/enforce"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
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
		ControlPlane: controlplane.Run(t, controlplane.Options{CRDPaths: []string{"../../config/crd"}, ControllerManager: true, Kwok: true}),
		records:      &recordSink{},
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.admin, err = client.New(s.Config(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	s.apply(t, standing)
	s.apply(t, readmeRoles(t, "README.md", "admitkit-audit-enforcement", "admitkit-audit-touched-pods")+readmeRoles(t, "../access/README.md", "admitkit-access"))
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

// readmeRoles returns the objects of a README's YAML blocks that have one of
// the names.
func readmeRoles(t *testing.T, path string, names ...string) string {
	t.Helper()
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var objects strings.Builder
	for _, block := range strings.Split(string(readme), "```yaml\n")[1:] {
		yaml, _, _ := strings.Cut(block, "```")
		for _, object := range strings.Split(yaml, "---\n") {
			for _, name := range names {
				if strings.Contains(object, "\n  name: "+name+"\n") {
					objects.WriteString("---\n" + object)
					break
				}
			}
		}
	}
	return objects.String()
}

func (s *stage) apply(t *testing.T, yaml string) {
	t.Helper()
	apply := s.Kubectl(t.Context(), nil, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(yaml)
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
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
	eventually(t, "the Deployment is available", func(ctx context.Context) bool {
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
	eventually(t, "a Pod is ready", func(ctx context.Context) bool {
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

// kubectl runs a command for a while at most, and returns what it prints.
func (s *stage) kubectl(t *testing.T, user *controlplane.User, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	output, err := s.Kubectl(ctx, user, args...).CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("not refused: kubectl %q still ran after 20 s", args)
	}
	return string(output), err
}

// start registers access and audit, runs replicas of a manager with them, and
// returns how to stop them.
func (s *stage) start(t *testing.T, options audit.Options, replicas int) (stop func()) {
	t.Helper()
	options.Sinks = []audit.SinkOptions{{Sink: s.records}}
	core, logs := observer.New(zapcore.WarnLevel)
	build := func(config *rest.Config, port int32, registers bool) *manager.Manager {
		mgr, err := manager.New(manager.Options{
			WebhookNamespace: "default", Host: "127.0.0.1", Port: port, RESTConfig: config, RegisterWebHook: &registers, Registration: manager.RegistrationOptions{Probe: new(bool)},
			Logger: zap.New(core).Sugar(), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, Watching: manager.WatchingOptions{LeaderElection: true},
		})
		if err == nil {
			err = mgr.AddExtension(access.New(access.Options{SingleUse: true}))
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
		case <-time.After(time.Minute):
			t.Fatal("a manager is not ready after a minute")
		}
	}
	// The API server learns of webhook configurations by a watch.
	eventually(t, "the API server calls the webhooks", func(ctx context.Context) bool {
		before := s.records.count()
		for _, namespace := range []string{"shop", "open"} {
			_ = s.Kubectl(ctx, s.mallory, "exec", "-n", namespace, s.pod(t, namespace).Name, "--", "true").Run()
		}
		_ = s.Kubectl(ctx, s.mallory, "get", "--raw", "/api/v1/nodes/none/proxy/run/shop/a/b").Run()
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
	eventually(t, "there is a record of "+what, func(context.Context) bool {
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
			AccessConfig:        v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, DefaultDuration: "1h", MaxDuration: "2h"},
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
	alice, err := client.New(s.alice.Config, client.Options{Scheme: s.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := alice.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.withdraw(t, req) })
	eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	return req
}

// withdraw deletes a request, and returns when its grant is gone.
func (s *stage) withdraw(t *testing.T, req *v1alpha1.ExecAccessRequest) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	_ = s.admin.Delete(ctx, req)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		role := &rbacv1.Role{}
		if apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "execaccess-" + req.Name}, role)) {
			return
		}
	}
	t.Error("the grant is still there")
}

// refusedBy fails the test unless a command failed and says by which rule.
func refusedBy(t *testing.T, rule enforce.Rule, output string, err error, hints ...string) {
	t.Helper()
	if err == nil || !strings.Contains(output, "rule "+string(rule)+":") {
		t.Errorf("not refused by the rule %s: %v: %s", rule, err, output)
	}
	for _, hint := range hints {
		if !strings.Contains(output, hint) {
			t.Errorf("the message does not say %q: %s", hint, output)
		}
	}
}

// One control plane serves them, one after the other.
func TestEnforcement(t *testing.T) {
	s := newStage(t)
	t.Run("a session needs a request", s.sessionsNeedRequests)
	t.Run("each rule has its message", s.eachRuleHasItsMessage)
	t.Run("a touched Pod is evicted at its time and no other", s.touchedPodsAreEvicted)
}

func (s *stage) sessionsNeedRequests(t *testing.T) {
	s.start(t, audit.Options{Enforcement: &audit.Enforcement{ExemptGroups: []string{"oncall"}}}, 2)
	pod := s.pod(t, "shop").Name
	s.template(t, "web", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.AccessConfig.AccessCommand = "kubectl exec -n shop {{ .Metadata.Name }} -- true"
	})

	t.Run("every way in needs a request", func(t *testing.T) { s.everyWayInNeedsARequest(t, pod) })
	t.Run("no request covers more than it says", func(t *testing.T) { s.noRequestCoversMore(t, pod) })
	t.Run("a grant to groups, and a Pod of one's own", func(t *testing.T) { s.grantsOfOtherKinds(t, pod) })
	t.Run("what the denial says to do helps", func(t *testing.T) { s.whatTheDenialSaysHelps(t, pod) })
	t.Run("a single use is one", func(t *testing.T) { s.aSingleUseIsOne(t, pod) })
	t.Run("break-glass works and is on record", func(t *testing.T) { s.breakGlass(t, pod) })
	t.Run("nobody passes by the way a request is written", func(t *testing.T) { s.nobodyPassesByHTTP(t, "single") })
	t.Run("nobody passes by what they create", func(t *testing.T) { s.nobodyPassesByCreating(t, pod) })
}

func (s *stage) eachRuleHasItsMessage(t *testing.T) {
	list := []audit.Command{{Argv: []string{"true"}}, {Argv: []string{"ls"}, Prefix: true}}
	stop := s.start(t, audit.Options{Enforcement: &audit.Enforcement{
		Namespaces: []string{"shop"}, ExemptUsers: []string{"oscar"}, Commands: list, ForbidTTY: true, ForbidStdin: true,
	}}, 1)
	pod := s.pod(t, "shop").Name
	s.template(t, "all", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.AccessConfig.Verbs = []v1alpha1.AccessVerb{"exec", "attach", "portforward", "log", "ephemeralcontainers"}
	})
	s.request(t, "all", "all", nil)

	exec := "POST /api/v1/namespaces/shop/pods/" + pod + "/exec?container=main&stdout=true&command="
	for name, test := range map[string]struct {
		rule  enforce.Rule // none: it passes
		hints []string
		args  []string // of kubectl
		raw   string   // instead of them
	}{
		"a command on the list":                   {args: []string{"exec", "-n", "shop", pod, "--", "true"}},
		"a prefix on the list":                    {args: []string{"exec", "-n", "shop", pod, "--", "ls", "-d", "/"}},
		"another command":                         {rule: enforce.RuleCommand, hints: []string{"true | ls ..."}, args: []string{"exec", "-n", "shop", pod, "--", "id"}},
		"a command with one word more":            {rule: enforce.RuleCommand, args: []string{"exec", "-n", "shop", pod, "--", "true", "x"}},
		"a shell with the command":                {rule: enforce.RuleCommand, args: []string{"exec", "-n", "shop", pod, "--", "sh", "-c", "true"}},
		"a copy":                                  {rule: enforce.RuleCommand, args: []string{"cp", "-n", "shop", pod + ":/etc/hostname", t.TempDir() + "/x"}},
		"a command more in the query":             {rule: enforce.RuleCommand, raw: exec + "true&command=x HTTP/1.1\n" + overSPDY},
		"an empty word more in the query":         {rule: enforce.RuleCommand, raw: exec + "true&command= HTTP/1.1\n" + overSPDY},
		"the command second in the query":         {rule: enforce.RuleCommand, raw: exec + "id&command=true HTTP/1.1\n" + overSPDY},
		"standard input":                          {rule: enforce.RuleStdin, hints: []string{"leave out -i"}, args: []string{"exec", "-i", "-n", "shop", pod, "--", "true"}},
		"a terminal":                              {rule: enforce.RuleTTY, hints: []string{"leave out -t"}, raw: exec + "true&tty=true HTTP/1.1\n" + overSPDY},
		"a terminal, first denied, then asked":    {rule: enforce.RuleTTY, raw: exec + "true&tty=1&tty=false HTTP/1.1\n" + overSPDY},
		"an attach that types":                    {rule: enforce.RuleStdin, args: []string{"attach", "-i", "-n", "shop", pod}},
		"an ephemeral container, on the list":     {args: []string{"debug", "-n", "shop", pod, "--image=example.com/debug", "--", "ls"}},
		"an ephemeral container, another command": {rule: enforce.RuleCommand, args: []string{"debug", "-n", "shop", pod, "--image=example.com/debug", "--", "sh"}},
		"an ephemeral container, with arguments":  {rule: enforce.RuleCommand, hints: []string{"must name its command"}, args: []string{"debug", "-n", "shop", pod, "--image=example.com/debug", "--arguments-only", "--", "ls"}},
		"an ephemeral container with a terminal":  {rule: enforce.RuleTTY, args: []string{"debug", "-it", "-n", "shop", pod, "--image=example.com/debug", "--", "ls"}},
		"a command elsewhere":                     {args: []string{"exec", "-n", "open", s.pod(t, "open").Name, "--", "hostname"}},
	} {
		if test.raw != "" {
			code, body := s.raw(t, s.alice, test.raw)
			t.Logf("%s: %d %s", name, code, body)
			refusedBy(t, test.rule, body, map[bool]error{true: fmt.Errorf("status %d", code)}[code >= 300], test.hints...)
			continue
		}
		output, err := s.kubectl(t, s.alice, test.args...)
		t.Logf("%s: %s", name, strings.TrimSpace(output))
		if test.rule != "" {
			refusedBy(t, test.rule, output, err, test.hints...)
		} else if err != nil {
			t.Errorf("%s is refused: %v: %s", name, err, output)
		}
	}
	// Who breaks which rule is on record; what they typed there is not in the
	// reason.
	s.records.await(t, "the command that was denied", func(r *v1alpha1.AuditRecord) bool {
		return r.Rule == string(enforce.RuleCommand) && len(r.Command) == 1 && r.Command[0] == "id" && r.Decision == v1alpha1.AuditDenied
	})

	// Without a manager nobody gets in but who is exempt; elsewhere and for
	// metrics nothing changes.
	stop()
	run := []string{"exec", "-n", "shop", pod, "--", "true"}
	if output, err := s.kubectl(t, s.alice, run...); err == nil || !strings.Contains(output, "failed calling webhook") {
		t.Errorf("exec while no manager runs: %v: %s", err, output)
	}
	if output, err := s.kubectl(t, s.oscar, run...); err != nil {
		t.Errorf("break-glass while no manager runs: %v: %s", err, output)
	}
	if output, err := s.kubectl(t, s.alice, "exec", "-n", "open", s.pod(t, "open").Name, "--", "true"); err != nil {
		t.Errorf("exec where enforcement is off while no manager runs: %v: %s", err, output)
	}
	if output, err := s.kubectl(t, s.alice, "create", "--raw", s.node(t)+"/proxy/run/shop/"+pod+"/main?cmd=id", "-f", os.DevNull); err == nil || !strings.Contains(output, "failed calling webhook") {
		t.Errorf("the kubelet's run while no manager runs: %v: %s", err, output)
	}
	if output, _ := s.kubectl(t, s.alice, "get", "--raw", s.node(t)+"/proxy/metrics"); strings.Contains(output, "webhook") {
		t.Errorf("a node's metrics while no manager runs: %s", output)
	}
}

func (s *stage) everyWayInNeedsARequest(t *testing.T, pod string) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := "kubectl create -f -"
	for name, test := range map[string]struct {
		args  []string
		rule  enforce.Rule
		hints []string
	}{
		"exec":                {[]string{"exec", "-n", "shop", pod, "--", "true"}, enforce.RuleRequest, []string{"alice needs a live access request", ask, `"templateName":"web"`}},
		"exec with a tty":     {[]string{"exec", "-it", "-n", "shop", pod, "--", "sh"}, enforce.RuleRequest, []string{ask}},
		"exec in a container": {[]string{"exec", "-n", "shop", pod, "-c", "first", "--", "true"}, enforce.RuleRequest, []string{ask}},
		"attach":              {[]string{"attach", "-n", "shop", pod}, enforce.RuleRequest, []string{"No ExecAccessTemplate of namespace shop lets you ask for attach"}},
		"port-forward":        {[]string{"port-forward", "-n", "shop", "pod/" + pod, ":80"}, enforce.RuleRequest, []string{"portforward"}},
		"cp":                  {[]string{"cp", "-n", "shop", file, pod + ":/tmp/x"}, enforce.RuleRequest, nil},
		"debug":               {[]string{"debug", "-n", "shop", pod, "--image=example.com/debug", "--", "sh"}, enforce.RuleRequest, []string{"ephemeralcontainers"}},
		"a Pod's proxy":       {[]string{"get", "--raw", "/api/v1/namespaces/shop/pods/http:" + pod + ":80/proxy/"}, enforce.RuleRequest, []string{"portforward"}},
		"a Service's proxy":   {[]string{"get", "--raw", "/api/v1/namespaces/shop/services/web/proxy/"}, enforce.RuleServiceProxy, []string{"kubectl port-forward"}},
		"the kubelet":         {[]string{"create", "--raw", s.node(t) + "/proxy/run/shop/" + pod + "/main?cmd=id", "-f", file}, enforce.RuleKubelet, []string{pod}},
	} {
		output, err := s.kubectl(t, s.alice, test.args...)
		t.Logf("%s: %s", name, strings.TrimSpace(output))
		refusedBy(t, test.rule, output, err, test.hints...)
	}
	denied := s.records.await(t, "the denial", func(r *v1alpha1.AuditRecord) bool {
		return r.User.Username == "alice" && r.Way == v1alpha1.WayAttach
	})
	if denied.Decision != v1alpha1.AuditDenied || denied.Rule != string(enforce.RuleRequest) || denied.Reason == "" {
		t.Errorf("the record of a denial is %+v", denied)
	}
	// Elsewhere nothing has changed, and metrics are scraped as ever.
	if output, err := s.kubectl(t, s.alice, "exec", "-n", "open", s.pod(t, "open").Name, "--", "true"); err != nil {
		t.Errorf("exec where enforcement is off: %v: %s", err, output)
	}
	if output, _ := s.kubectl(t, s.alice, "get", "--raw", s.node(t)+"/proxy/metrics"); strings.Contains(output, "denied") {
		t.Errorf("a node's metrics: %s", output)
	}
}

// running waits for a Pod of the namespace shop.
func (s *stage) running(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the Pod runs", func(ctx context.Context) bool {
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

func (s *stage) noRequestCoversMore(t *testing.T, pod string) {
	req := s.request(t, "covers", "web", nil)
	run := func(user *controlplane.User, args ...string) (string, error) { return s.kubectl(t, user, args...) }
	if output, err := run(s.alice, "exec", "-n", "shop", pod, "--", "true"); err != nil {
		t.Errorf("exec with a live request: %v: %s", err, output)
	}
	if output, err := run(s.alice, "exec", "-n", "shop", pod, "-c", "first", "--", "true"); err != nil {
		t.Errorf("exec in another container of the Pod: %v: %s", err, output)
	}
	covered := s.records.await(t, "the exec that is covered", func(r *v1alpha1.AuditRecord) bool {
		return r.User.Username == "alice" && r.Namespace == "shop" && r.Decision == v1alpha1.AuditAllowed
	})
	if ref := covered.AccessRequest; ref == nil || ref.Kind != "ExecAccessRequest" || ref.Name != "covers" || ref.UID != req.UID {
		t.Errorf("the record does not name the request: %+v", ref)
	}
	output, err := run(s.alice, "attach", "-n", "shop", pod)
	refusedBy(t, enforce.RuleRequest, output, err, "Request covers grants exec and log, not attach")
	output, err = run(s.mallory, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err, "mallory needs")
	output, err = run(nil, "exec", "--as=alice", "-n", "shop", pod, "--", "true")
	if err != nil {
		t.Errorf("an administrator as alice is alice: %v: %s", err, output)
	}

	// Another Pod of the same name is another Pod; here StatefulSets make them.
	s.apply(t, podNamed("shop", "again"))
	s.template(t, "again", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "again"}
	})
	s.running(t, "again")
	s.request(t, "again", "again", nil)
	if output, err := run(s.alice, "exec", "-n", "shop", "again", "--", "true"); err != nil {
		t.Errorf("exec in the Pod: %v: %s", err, output)
	}
	if output, err := run(nil, "delete", "pod", "-n", "shop", "again", "--now"); err != nil {
		t.Fatal(output)
	}
	s.apply(t, podNamed("shop", "again"))
	output, err = run(s.alice, "exec", "-n", "shop", "again", "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err, "gone")

	// It ends when it says, and at once when it is shortened.
	if output, err := run(s.alice, "patch", "ear", "-n", "shop", "covers", "--type=merge", "-p", `{"spec":{"duration":"1s"}}`); err != nil {
		t.Fatal(output)
	}
	output, err = run(s.alice, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err, "Request covers ended at")
	s.withdraw(t, req)
	output, err = run(s.alice, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)
}

func (s *stage) grantsOfOtherKinds(t *testing.T, pod string) {
	bob, err := s.AddUser("bob", "everybody", "devs")
	if err != nil {
		t.Fatal(err)
	}
	s.template(t, "groups", func(t *v1alpha1.ExecAccessTemplateSpec) { t.AccessConfig.Subjects = v1alpha1.SubjectsGroups })
	s.request(t, "groups", "groups", nil)
	if output, err := s.kubectl(t, bob, "exec", "-n", "shop", pod, "--", "true"); err != nil {
		t.Errorf("exec by another's request for the group: %v: %s", err, output)
	}
	output, err := s.kubectl(t, s.mallory, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)

	template := &v1alpha1.PodAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"},
		Spec: v1alpha1.PodAccessTemplateSpec{
			AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"bob"}, DefaultDuration: "1h", MaxDuration: "2h"},
			ControllerTargetRef: &v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		},
	}
	asBob, err := client.New(bob.Config, client.Options{Scheme: s.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	req := &v1alpha1.PodAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}}
	req.Spec.TemplateName = "own"
	if err := s.admin.Create(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	if err := asBob.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	if output, err := s.kubectl(t, bob, "exec", "-n", "shop", "podaccess-own", "-c", "main", "--", "true"); err != nil {
		t.Errorf("exec in a Pod of one's own: %v: %s", err, output)
	}
	output, err = s.kubectl(t, s.alice, "exec", "-n", "shop", "podaccess-own", "-c", "main", "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)
}

func podNamed(namespace, name string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s}, spec: {containers: [{name: main, image: example.com/main}]}}\n", namespace, name)
}

var asksWith = regexp.MustCompile(`echo '[^']*' \| kubectl create -f -`)

// Whoever copies the command out of the message gets in by it.
func (s *stage) whatTheDenialSaysHelps(t *testing.T, pod string) {
	output, err := s.kubectl(t, s.alice, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)
	command := asksWith.FindString(strings.ReplaceAll(output, `\"`, `"`))
	if command == "" {
		t.Fatalf("no command in the message: %s", output)
	}
	kubectl := s.Kubectl(t.Context(), s.alice)
	shell := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "| kubectl", "| "+kubectl.Path, 1))
	shell.Env = kubectl.Env
	made, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, made)
	}
	name := strings.Fields(strings.TrimPrefix(string(made), "execaccessrequest.admitkit.dev/"))[0]
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	defer s.withdraw(t, req)
	eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	if output, err := s.kubectl(t, s.alice, "exec", "-n", "shop", pod, "--", "true"); err != nil {
		t.Errorf("exec after asking: %v: %s", err, output)
	}
}

func (s *stage) aSingleUseIsOne(t *testing.T, pod string) {
	// Two replicas share the sessions.
	s.template(t, "once", func(t *v1alpha1.ExecAccessTemplateSpec) { t.AccessConfig.SingleUse = true })
	req := s.request(t, "once", "once", nil)
	if !req.Spec.SingleUse {
		t.Fatal("the template's single use did not become part of the request")
	}
	const sessions = 8
	outputs, errs := make([]string, sessions), make([]error, sessions)
	var wait sync.WaitGroup
	for i := range sessions {
		wait.Go(func() { outputs[i], errs[i] = s.kubectl(t, s.alice, "exec", "-n", "shop", pod, "--", "true") })
	}
	wait.Wait()
	passed := 0
	for i, err := range errs {
		if err == nil {
			passed++
			continue
		}
		if !strings.Contains(outputs[i], "rule single-use:") && !strings.Contains(outputs[i], "rule access-request:") {
			t.Errorf("refused otherwise: %s", outputs[i])
		}
	}
	if passed != 1 {
		t.Errorf("%d of %d sessions at once passed by a request for a single use", passed, sessions)
	}
	output, err := s.kubectl(t, s.alice, "exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err, "single use", "was used by alice for exec")
	eventually(t, "the request says that it was used, and the right is gone", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && !req.Status.Ready &&
			apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "execaccess-once"}, &rbacv1.RoleBinding{}))
	})
	used := req.Status.UsedBy
	if used == nil || used.Username != "alice" || used.Verb != "exec" {
		t.Fatalf("used by %+v", used)
	}
	s.records.await(t, "the session that used it", func(r *v1alpha1.AuditRecord) bool {
		return r.ID == used.UID && r.Decision == v1alpha1.AuditAllowed && r.AccessRequest != nil && r.AccessRequest.Name == "once"
	})
	// Nobody takes it back, not even who may write the status.
	for _, patch := range []string{`{"status":{"usedBy":null}}`, `{"status":null}`, `{"status":{"usedBy":{"username":"bob"}}}`} {
		if output, err := s.kubectl(t, nil, "patch", "ear", "-n", "shop", "once", "--subresource=status", "--type=merge", "-p", patch); err == nil {
			t.Errorf("%s was taken: %s", patch, output)
		}
	}
	if output, err := s.kubectl(t, s.alice, "patch", "ear", "-n", "shop", "once", "--type=merge", "-p", `{"spec":{"singleUse":false}}`); err == nil {
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil || !req.Spec.SingleUse {
			t.Errorf("the single use was taken back: %v: %s", err, output)
		}
	}
}

func (s *stage) breakGlass(t *testing.T, pod string) {
	if output, err := s.kubectl(t, s.oscar, "exec", "-n", "shop", pod, "--", "true"); err != nil {
		t.Fatalf("break-glass: %v: %s", err, output)
	}
	r := s.records.await(t, "break-glass", func(r *v1alpha1.AuditRecord) bool { return r.User.Username == "oscar" })
	if r.Decision != v1alpha1.AuditAllowed || !slices.Contains(r.Flags, v1alpha1.FlagBreakGlass) || r.Rule != string(enforce.RuleRequest) {
		t.Errorf("the record of break-glass is %+v", r)
	}
	if output, _ := s.kubectl(t, s.oscar, "create", "--raw", s.node(t)+"/proxy/run/shop/"+pod+"/main?cmd=id", "-f", "/dev/null"); strings.Contains(output, "denied") || !strings.Contains(output, "Warning: break-glass") {
		t.Errorf("break-glass by the kubelet: %s", output)
	}
}

// raw sends a request over a connection of its own, as it is written, and
// returns the answer's status and body.
func (s *stage) raw(t *testing.T, user *controlplane.User, request string) (int, string) {
	t.Helper()
	config, err := rest.TLSConfigFor(user.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	server, err := url.Parse(user.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", server.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(request, "\n\n")
	head = strings.ReplaceAll(head, "\n", "\r\n") + "\r\nHost: " + server.Host + "\r\n\r\n" + body
	if _, err := io.WriteString(connection, head); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response.StatusCode, ""
	}
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, string(answer)
}

const (
	overSPDY      = "Connection: Upgrade\nUpgrade: SPDY/3.1\nX-Stream-Protocol-Version: v4.channel.k8s.io"
	overWebSocket = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Protocol: v5.channel.k8s.io"
)

func (s *stage) nobodyPassesByHTTP(t *testing.T, pod string) {
	s.apply(t, podNamed("shop", pod))
	s.running(t, pod)
	exec := "/api/v1/namespaces/shop/pods/" + pod + "/exec?command=true&stdout=true"
	// The same requests pass for who is exempt: they are refused for no other
	// reason.
	for name, headers := range map[string]string{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		method := map[string]string{"SPDY": "POST ", "WebSocket": "GET "}[name]
		if code, body := s.raw(t, s.oscar, method+exec+" HTTP/1.1\n"+headers); code != http.StatusSwitchingProtocols {
			t.Errorf("%s is refused to who is exempt: %d %s", name, code, body)
		}
	}
	node := s.node(t)
	for name, request := range map[string]string{
		"SPDY":                              "POST " + exec + " HTTP/1.1\n" + overSPDY,
		"SPDY by GET":                       "GET " + exec + " HTTP/1.1\n" + overSPDY,
		"WebSocket":                         "GET " + exec + " HTTP/1.1\n" + overWebSocket,
		"WebSocket by POST":                 "POST " + exec + " HTTP/1.1\n" + overWebSocket,
		"no upgrade":                        "POST " + exec + " HTTP/1.1\nContent-Length: 0",
		"upgrade in another case":           "POST " + exec + " HTTP/1.1\nconnection: uPgRaDe\nupgrade: spdy/3.1",
		"several upgrades":                  "POST " + exec + " HTTP/1.1\nConnection: keep-alive, Upgrade\nUpgrade: websocket, SPDY/3.1\nUpgrade: SPDY/3.1",
		"an upgrade that is not announced":  "POST " + exec + " HTTP/1.1\nUpgrade: SPDY/3.1",
		"another method by a header":        "GET " + exec + " HTTP/1.1\nX-HTTP-Method-Override: POST\n" + overSPDY,
		"the path in a header":              "GET /version HTTP/1.1\nX-Original-URL: " + exec + "\nX-Rewrite-URL: " + exec + "\n" + overSPDY,
		"HTTP/1.0":                          "POST " + exec + " HTTP/1.0\n" + overSPDY,
		"a body and an upgrade":             "POST " + exec + " HTTP/1.1\nContent-Length: 4\n" + overSPDY + "\n\ntrue",
		"chunked":                           "POST " + exec + " HTTP/1.1\nTransfer-Encoding: chunked\n" + overSPDY + "\n\n0\r\n\r\n",
		"the subresource in capitals":       "POST /api/v1/namespaces/shop/pods/" + pod + "/EXEC?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"the subresource mixed":             "POST /api/v1/namespaces/shop/pods/" + pod + "/Exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"the resource in capitals":          "POST /api/v1/namespaces/shop/PODS/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"a slash at the end":                "POST /api/v1/namespaces/shop/pods/" + pod + "/exec/?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"two slashes":                       "POST /api/v1//namespaces/shop/pods/" + pod + "//exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"dots":                              "POST /api/v1/namespaces/open/../shop/pods/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"escaped":                           "POST /api/v1/namespaces/shop/pods/" + pod + "/%65xec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"escaped slashes":                   "POST /api/v1/namespaces/open%2F..%2Fshop/pods/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"two containers":                    "POST " + exec + "&container=main&container=first HTTP/1.1\n" + overSPDY,
		"an empty container":                "POST " + exec + "&container= HTTP/1.1\n" + overSPDY,
		"an empty container and another":    "POST " + exec + "&container=&container=main HTTP/1.1\n" + overSPDY,
		"two commands":                      "POST " + exec + "&command=-c&command=id HTTP/1.1\n" + overSPDY,
		"no command":                        "POST /api/v1/namespaces/shop/pods/" + pod + "/exec?stdout=true HTTP/1.1\n" + overSPDY,
		"a dry run":                         "POST " + exec + "&dryRun=All HTTP/1.1\n" + overSPDY,
		"an unknown parameter":              "POST " + exec + "&namespace=open&name=other HTTP/1.1\n" + overSPDY,
		"semicolons":                        "POST /api/v1/namespaces/shop/pods/" + pod + "/exec?stdout=true;command=true HTTP/1.1\n" + overSPDY,
		"attach":                            "POST /api/v1/namespaces/shop/pods/" + pod + "/attach?stdout=true HTTP/1.1\n" + overSPDY,
		"portforward":                       "POST /api/v1/namespaces/shop/pods/" + pod + "/portforward?ports=80 HTTP/1.1\nConnection: Upgrade\nUpgrade: SPDY/3.1",
		"the kubelet's exec":                "POST " + node + "/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec by WebSocket":   "GET " + node + "/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overWebSocket,
		"the kubelet's exec, with dots":     "POST " + node + "/proxy/metrics/../exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, escaped dots":  "POST " + node + "/proxy/metrics/%2e%2e/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, two slashes":   "POST " + node + "/proxy//exec//shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, escaped slash": "POST " + node + "/proxy/exec%2Fshop%2F" + pod + "%2Fmain?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, capitals":      "POST " + node + "/proxy/Exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, by its port":   "POST " + node + ":10250/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's run":                 "POST " + node + "/proxy/run/shop/" + pod + "/main?cmd=id HTTP/1.1\nContent-Length: 0",
		"the kubelet's attach":              "POST " + node + "/proxy/attach/shop/" + pod + "/main?output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's portForward":         "POST " + node + "/proxy/portForward/shop/" + pod + " HTTP/1.1\n" + overSPDY,
		"a Pod's proxy":                     "POST /api/v1/namespaces/shop/pods/https:" + pod + ":10250/proxy/exec/shop/" + pod + "/main?command=true HTTP/1.1\n" + overSPDY,
		"a Service's proxy":                 "POST /api/v1/namespaces/shop/services/https:web:10250/proxy/exec/shop/" + pod + "/main?command=true HTTP/1.1\n" + overSPDY,
	} {
		before := s.records.count()
		code, body := s.raw(t, s.mallory, request)
		t.Logf("%s: %d %.160s", name, code, body)
		// 200 is the answer of /version, of which the headers asked for more.
		if code < 300 && name != "the path in a header" {
			t.Errorf("%s passes: %d %s", name, code, body)
		}
		s.records.mu.Lock()
		for _, r := range s.records.records[min(before, len(s.records.records)):] {
			if r.User.Username == "mallory" && r.Decision == v1alpha1.AuditAllowed {
				t.Errorf("%s: allowed: %+v", name, r)
			}
		}
		s.records.mu.Unlock()
	}
}

func (s *stage) nobodyPassesByCreating(t *testing.T, pod string) {
	run := func(args ...string) (string, error) { return s.kubectl(t, s.mallory, args...) }
	create := func(manifest string) (string, error) {
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		return run("create", "-f", file)
	}
	// A Pod that looks like an access Pod.
	fake := `{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: podaccess-mine, labels: {app.kubernetes.io/managed-by: admitkit-access,
  admitkit.dev/access-request: mine}, annotations: {admitkit.dev/request-uid: "1"}}, spec: {containers: [{name: main, image: example.com/main}]}}`
	if output, err := create(fake); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	s.running(t, "podaccess-mine")
	if output, err := run("exec", "-n", "shop", "podaccess-mine", "--", "true"); err == nil {
		t.Errorf("exec in a Pod that looks like an access Pod: %s", output)
	}
	// A record of a grant.
	role := `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: shop, %s, labels: {app.kubernetes.io/managed-by: admitkit-access},
  annotations: {admitkit.dev/request-uid: "1", admitkit.dev/pod-uid: "2", admitkit.dev/subjects: '[{"kind":"User","name":"mallory"}]'}},
  rules: [{apiGroups: [""], resources: [pods/exec], resourceNames: [` + pod + `], verbs: [create, get]}]}`
	for _, name := range []string{"name: execaccess-mine", "name: podaccess-mine", "generateName: execaccess-"} {
		if output, err := create(fmt.Sprintf(role, name)); err == nil || !strings.Contains(output, "admitkit alone makes") {
			t.Errorf("a Role with %s: %v: %s", name, err, output)
		}
	}
	if output, err := create(fmt.Sprintf(role, "name: mine")); err != nil {
		t.Errorf("a Role of another name: %v: %s", err, output)
	}
	// The record of another's grant, turned to oneself.
	s.request(t, "theirs", "web", nil)
	patch := `{"metadata":{"annotations":{"admitkit.dev/subjects":"[{\"kind\":\"User\",\"name\":\"mallory\"}]"}}}`
	if output, err := run("patch", "role", "-n", "shop", "execaccess-theirs", "--type=merge", "-p", patch); err == nil {
		t.Errorf("the record of a grant was changed: %s", output)
	}
	// A request in another's name, and one whose status says that it is granted.
	request := `{apiVersion: admitkit.dev/v1alpha1, kind: ExecAccessRequest, metadata: {namespace: shop, name: mine},
  spec: {templateName: web, requester: {username: alice, groups: [devs]}}, status: {ready: true, podName: ` + pod + `}}`
	if output, err := create(request); err == nil {
		t.Errorf("a request that the template does not allow was made: %s", output)
	}
	output, err := run("exec", "-n", "shop", pod, "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)
}

package audit_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/internal/enforce"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

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
		"a new image":         {[]string{"set", "image", "-n", "shop", "pod/" + pod, "main=example.com/mine:1"}, enforce.RuleRequest, []string{"image update of Pod shop/" + pod, "ephemeralcontainers"}},
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
	image := []string{"set", "image", "-n", "shop", "pod/" + pod, "main=example.com/mine:1"}
	output, err = run(s.alice, image...)
	refusedBy(t, enforce.RuleRequest, output, err, "Request covers grants exec and log, not ephemeralcontainers")
	s.template(t, "images", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.AccessConfig.Verbs = []v1alpha1.AccessVerb{"ephemeralcontainers"}
	})
	images := s.request(t, "images", "images", nil)
	if output, err := run(s.alice, image...); err != nil {
		t.Errorf("a new image with a live request: %v: %s", err, output)
	}
	s.withdraw(t, images)
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
	refusedBy(t, enforce.RuleRequest, output, err, "Request again")

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
			AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"bob"}, DefaultDuration: "1h", MaxDuration: "2h", MaxConcurrent: 100},
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
	testkit.Eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	if output, err := s.kubectl(t, bob, "exec", "-n", "shop", "podaccess-own", "-c", "main", "--", "true"); err != nil {
		t.Errorf("exec in a Pod of one's own: %v: %s", err, output)
	}
	output, err = s.kubectl(t, s.alice, "exec", "-n", "shop", "podaccess-own", "-c", "main", "--", "true")
	refusedBy(t, enforce.RuleRequest, output, err)
}

// The command in the message gets its reader in.
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
	testkit.Eventually(t, "the request is granted", func(ctx context.Context) bool {
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
	testkit.Eventually(t, "the request says that it was used, and the right is gone", func(ctx context.Context) bool {
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

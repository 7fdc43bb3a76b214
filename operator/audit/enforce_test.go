package audit_test

import (
	"context"
	"net/http"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// One control plane serves them, one after the other.
func TestEnforcement(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	t.Run("in another mode nothing is refused", s.nothingIsRefusedInAnotherMode)
	t.Run("a session needs a request", s.sessionsNeedRequests)
	t.Run("each rule has its message", s.eachRuleHasItsMessage)
	t.Run("a touched Pod is evicted at its time and no other", s.touchedPodsAreEvicted)
}

func (s *stage) nothingIsRefusedInAnotherMode(t *testing.T) {
	for _, mode := range []extension.Mode{extension.Warn, extension.Observe} {
		stop := s.start(t, audit.Options{Enforcement: &audit.Enforcement{Mode: mode}}, 1)
		pod := s.pod(t, "shop").Name
		answer := s.exec(t, s.mallory, "shop", pod, "command=true")
		passes(t, "exec without a request", answer)
		record := s.records.await(t, "the exec that would be denied", func(r *v1alpha1.AuditRecord) bool {
			return r.Pod == pod && slices.Contains(r.Flags, v1alpha1.FlagWouldDeny)
		})
		if record.Decision != v1alpha1.AuditAllowed || record.Rule != string(enforce.RuleRequest) || !strings.Contains(record.Reason, "mallory needs a live access request") {
			t.Errorf("in %s the record is %+v", mode, record)
		}
		if warned := strings.Contains(answer.Warning, "this would be denied once enforcement is in force: pods/exec of Pod shop"); warned != (mode == extension.Warn) {
			t.Errorf("in %s the warning is %q", mode, answer.Warning)
		}
		stop()
	}
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
	const (
		asks = "kubectl create -f -"
		pods = "/api/v1/namespaces/shop/pods/"
	)
	for name, test := range map[string]struct {
		method, path, contentType, body string
		rule                            enforce.Rule
		hints                           []string
	}{
		"exec":         {"POST", pods + pod + "/exec?command=true", testkit.AsJSON, "", enforce.RuleRequest, []string{"alice needs a live access request", asks, `"templateName":"web"`}},
		"attach":       {"POST", pods + pod + "/attach?stdout=true", testkit.AsJSON, "", enforce.RuleRequest, []string{"No ExecAccessTemplate of namespace shop lets you ask for attach"}},
		"port-forward": {"POST", pods + pod + "/portforward?ports=80", testkit.AsJSON, "", enforce.RuleRequest, []string{"portforward"}},
		"debug": {
			"PATCH", pods + pod + "/ephemeralcontainers", testkit.AsDetails, `{"spec":{"ephemeralContainers":[{"name":"a","image":"example.com/debug"}]}}`,
			enforce.RuleRequest,
			[]string{"ephemeralcontainers"},
		},
		"a new image":       {"PATCH", pods + pod, testkit.AsDetails, newImage, enforce.RuleRequest, []string{"image update of Pod shop/" + pod, "ephemeralcontainers"}},
		"a Pod's proxy":     {"GET", pods + "http:" + pod + ":80/proxy/", testkit.AsJSON, "", enforce.RuleRequest, []string{"portforward"}},
		"a Service's proxy": {"GET", "/api/v1/namespaces/shop/services/web/proxy/", testkit.AsJSON, "", enforce.RuleServiceProxy, []string{"kubectl port-forward"}},
		"the kubelet":       {"POST", s.node(t) + "/proxy/run/shop/" + pod + "/main?cmd=id", testkit.AsJSON, "", enforce.RuleKubelet, []string{pod}},
	} {
		a := s.send(t, s.alice, test.method, test.path, test.contentType, test.body)
		t.Logf("%s: %s", name, a)
		refusedBy(t, test.rule, a, test.hints...)
	}
	denied := s.records.await(t, "the denial", func(r *v1alpha1.AuditRecord) bool {
		return r.User.Username == "alice" && r.Way == v1alpha1.WayAttach
	})
	if denied.Decision != v1alpha1.AuditDenied || denied.Rule != string(enforce.RuleRequest) || denied.Reason == "" {
		t.Errorf("the record of a denial is %+v", denied)
	}
	// Elsewhere nothing has changed, and metrics are scraped as ever.
	passes(t, "exec where enforcement is off", s.exec(t, s.alice, "open", s.pod(t, "open").Name, "command=true"))
	if a := s.send(t, s.alice, "GET", s.node(t)+"/proxy/metrics", testkit.AsJSON, ""); strings.Contains(a.Body, "denied") {
		t.Errorf("a node's metrics: %s", a)
	}
}

// newImage is a patch of a Pod of the stage.
const newImage = `{"spec":{"containers":[{"name":"main","image":"example.com/mine:1"}]}}`

func (s *stage) noRequestCoversMore(t *testing.T, pod string) {
	req := s.request(t, "covers", "web", nil)
	exec := func(user *controlplane.User, pod string) testkit.Answer {
		return s.exec(t, user, "shop", pod, "command=true")
	}
	path := "/api/v1/namespaces/shop/pods/" + pod
	passes(t, "exec with a live request", exec(s.alice, pod))
	passes(t, "exec in another container of the Pod", s.exec(t, s.alice, "shop", pod, "command=true&container=first"))
	covered := s.records.await(t, "the exec that is covered", func(r *v1alpha1.AuditRecord) bool {
		return r.User.Username == "alice" && r.Namespace == "shop" && r.Decision == v1alpha1.AuditAllowed
	})
	if ref := covered.AccessRequest; ref == nil || ref.Kind != "ExecAccessRequest" || ref.Name != "covers" || ref.UID != req.UID {
		t.Errorf("the record does not name the request: %+v", ref)
	}
	refusedBy(t, enforce.RuleRequest, s.send(t, s.alice, "POST", path+"/attach?stdout=true", testkit.AsJSON, ""), "Request covers grants exec and log, not attach")
	image := func() testkit.Answer { return s.send(t, s.alice, "PATCH", path, testkit.AsDetails, newImage) }
	refusedBy(t, enforce.RuleRequest, image(), "Request covers grants exec and log, not ephemeralcontainers")
	s.template(t, "images", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.AccessConfig.Verbs = []v1alpha1.AccessVerb{"ephemeralcontainers"}
	})
	images := s.request(t, "images", "images", nil)
	passes(t, "a new image with a live request", image())
	s.withdraw(t, images)
	refusedBy(t, enforce.RuleRequest, exec(s.mallory, pod), "mallory needs")
	passes(t, "an administrator as alice, who is alice,", s.send(t, s.Admin(), "POST", path+"/exec?stdout=true&command=true&container=main", testkit.AsJSON, "", "Impersonate-User", "alice"))

	// Another Pod of the same name is another Pod; here StatefulSets make them.
	s.create(t, "shop", "again")
	s.template(t, "again", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "again"}
	})
	s.request(t, "again", "again", nil)
	passes(t, "exec in the Pod", exec(s.alice, "again"))
	if err := s.admin.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "again"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.create(t, "shop", "again")
	// The webhook of access refuses it, too, and the API server says what the first one says.
	if a := exec(s.alice, "again"); a.Code != http.StatusForbidden || !strings.Contains(a.Body, "Request again") && !strings.Contains(a.Body, "an earlier Pod of this name") {
		t.Errorf("exec in another Pod of the name: %s", a)
	}
	s.records.await(t, "the session in another Pod of the name", func(r *v1alpha1.AuditRecord) bool {
		return r.Decision == v1alpha1.AuditDenied && r.Rule == string(enforce.RuleRequest) && strings.Contains(r.Reason, "Request again")
	})

	// It ends when it says, and at once when it is shortened.
	if a := s.send(t, s.alice, "PATCH", requestPath+"covers", testkit.AsMerge, `{"spec":{"duration":"1s"}}`); a.Code != http.StatusOK {
		t.Fatal(a)
	}
	if a := exec(s.alice, pod); a.Code != http.StatusForbidden || !strings.Contains(a.Body, "equest covers ended at") {
		t.Errorf("exec after its end: %s", a)
	}
	s.records.await(t, "the session after the end", func(r *v1alpha1.AuditRecord) bool {
		return r.Decision == v1alpha1.AuditDenied && r.Rule == string(enforce.RuleRequest) && strings.Contains(r.Reason, "Request covers ended at")
	})
	s.withdraw(t, req)
	refusedBy(t, enforce.RuleRequest, exec(s.alice, pod))
}

// requestPath is where requests are.
const requestPath = "/apis/admitkit.dev/v1alpha1/namespaces/shop/execaccessrequests/"

func (s *stage) grantsOfOtherKinds(t *testing.T, pod string) {
	bob, err := s.AddUser("bob", "everybody", "devs")
	if err != nil {
		t.Fatal(err)
	}
	s.template(t, "groups", func(t *v1alpha1.ExecAccessTemplateSpec) { t.AccessConfig.Subjects = v1alpha1.SubjectsGroups })
	s.request(t, "groups", "groups", nil)
	passes(t, "exec by another's request for the group", s.exec(t, bob, "shop", pod, "command=true"))
	refusedBy(t, enforce.RuleRequest, s.exec(t, s.mallory, "shop", pod, "command=true"))

	template := &v1alpha1.PodAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"},
		Spec: v1alpha1.PodAccessTemplateSpec{
			AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"bob"}, DefaultDuration: "1h", MaxDuration: "2h", MaxConcurrent: 100},
			ControllerTargetRef: &v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		},
	}
	testkit.Create(t, s.admin, template)
	req := &v1alpha1.PodAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}}
	req.Spec.TemplateName = "own"
	testkit.Create(t, testkit.Client(t, bob, scheme), req)
	testkit.Eventually(t, "the request is granted", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
	passes(t, "exec in a Pod of one's own", s.exec(t, bob, "shop", "podaccess-own", "command=true"))
	refusedBy(t, enforce.RuleRequest, s.exec(t, s.alice, "shop", "podaccess-own", "command=true"))
}

// The command in the message gets its reader in, who uses kubectl.
func (s *stage) whatTheDenialSaysHelps(t *testing.T, pod string) {
	exec := func() (string, error) {
		output, err := s.Kubectl(t.Context(), s.alice, "exec", "-n", "shop", pod, "--", "true").CombinedOutput()
		return strings.ReplaceAll(string(output), `\"`, `"`), err
	}
	output, err := exec()
	command := asksWith.FindString(output)
	if err == nil || command == "" {
		t.Fatalf("no command in the message: %v: %s", err, output)
	}
	kubectl := s.Kubectl(t.Context(), s.alice)
	shell := osexec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "| kubectl", "| "+kubectl.Path, 1))
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
	if output, err := exec(); err != nil {
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
	answers := make([]testkit.Answer, sessions)
	var wait sync.WaitGroup
	for i := range sessions {
		wait.Go(func() { answers[i] = s.exec(t, s.alice, "shop", pod, "command=true") })
	}
	wait.Wait()
	passed := 0
	for _, a := range answers {
		if strings.Contains(a.Body, "Upgrade request required") {
			passed++
			continue
		}
		if !strings.Contains(a.Body, "rule single-use:") && !strings.Contains(a.Body, "rule access-request:") {
			t.Errorf("refused otherwise: %s", a)
		}
	}
	if passed != 1 {
		t.Errorf("%d of %d sessions at once passed by a request for a single use", passed, sessions)
	}
	refusedBy(t, enforce.RuleRequest, s.exec(t, s.alice, "shop", pod, "command=true"), "single use", "was used by alice for exec")
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
		if a := s.send(t, s.Admin(), "PATCH", requestPath+"once/status", testkit.AsMerge, patch); a.Code < 300 {
			t.Errorf("%s was taken: %s", patch, a)
		}
	}
	if a := s.send(t, s.alice, "PATCH", requestPath+"once", testkit.AsMerge, `{"spec":{"singleUse":false}}`); a.Code < 300 {
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil || !req.Spec.SingleUse {
			t.Errorf("the single use was taken back: %v: %s", err, a)
		}
	}
}

func (s *stage) breakGlass(t *testing.T, pod string) {
	passes(t, "break-glass", s.exec(t, s.oscar, "shop", pod, "command=true"))
	r := s.records.await(t, "break-glass", func(r *v1alpha1.AuditRecord) bool { return r.User.Username == "oscar" })
	if r.Decision != v1alpha1.AuditAllowed || !slices.Contains(r.Flags, v1alpha1.FlagBreakGlass) || r.Rule != string(enforce.RuleRequest) {
		t.Errorf("the record of break-glass is %+v", r)
	}
	output, _ := s.Kubectl(t.Context(), s.oscar, "create", "--raw", s.node(t)+"/proxy/run/shop/"+pod+"/main?cmd=id", "-f", os.DevNull).CombinedOutput()
	if strings.Contains(string(output), "denied") || !strings.Contains(string(output), "Warning: break-glass") {
		t.Errorf("break-glass by the kubelet: %s", output)
	}
}

package audit_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/testing/admit"
)

// granted is a live request of alice in the Pod web, and its record.
func granted(verbs ...string) []runtime.Object {
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "all", UID: "1", CreationTimestamp: metav1.Now()}}
	req.Spec.Duration, req.Spec.Requester = "1h", &v1alpha1.Requester{Username: "alice"}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: v1alpha1.ExecAccessPrefix + req.Name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: "2"},
			Annotations: map[string]string{v1alpha1.AnnotationRequestUID: "1", v1alpha1.AnnotationPodUID: "2", v1alpha1.AnnotationSubjects: `[{"kind":"User","name":"alice"}]`},
		},
	}
	for _, verb := range verbs {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/" + verb}, ResourceNames: []string{"web"}, Verbs: []string{"create"}})
	}
	return []runtime.Object{req, role}
}

func TestEachRuleHasItsMessage(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "2"},
		Spec:       corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
	kept := &memory{}
	c := admit.New(t, audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: kept}}, Enforcement: &audit.Enforcement{
		Namespaces: []string{"shop"}, ExemptUsers: []string{"oscar"}, ForbidTTY: true, ForbidStdin: true,
		Commands: []audit.Command{{Argv: []string{"true"}}, {Argv: []string{"ls"}, Prefix: true}},
	}})).WithScheme(scheme).With(pod).With(granted("exec", "attach", "ephemeralcontainers")...).In("shop", nil).As("alice").Strict().
		MatchConditions(map[string]bool{"image-update": true, "not-exempt": true, "exempt": false})
	exec := func(change func(*corev1.PodExecOptions), command ...string) func() *admit.Result {
		options := &corev1.PodExecOptions{Container: "main", Command: command}
		if change != nil {
			change(options)
		}
		return func() *admit.Result { return c.Connect("web", options) }
	}
	debug := func(container corev1.EphemeralContainerCommon) func() *admit.Result {
		container.Name, container.Image = "debug", "example.com/debug"
		debugged := pod.DeepCopy()
		debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: container}}
		return func() *admit.Result { return c.Subresource("ephemeralcontainers").Update(pod, debugged) }
	}
	image := pod.DeepCopy()
	image.Spec.Containers[0].Image = "example.com/mine:2"
	for name, test := range map[string]struct {
		rule enforce.Rule // none: it passes
		do   func() *admit.Result
		hint string
	}{
		"a command on the list":        {"", exec(nil, "true"), ""},
		"a prefix on the list":         {"", exec(nil, "ls", "-d", "/"), ""},
		"another command":              {enforce.RuleCommand, exec(nil, "id"), "true | ls ..."},
		"a command with one word more": {enforce.RuleCommand, exec(nil, "true", "x"), ""},
		"an empty word more":           {enforce.RuleCommand, exec(nil, "true", ""), ""},
		"a shell with the command":     {enforce.RuleCommand, exec(nil, "sh", "-c", "true"), ""},
		"a copy":                       {enforce.RuleCommand, exec(nil, "tar", "cf", "-", "/etc/hostname"), ""},
		"standard input":               {enforce.RuleStdin, exec(func(o *corev1.PodExecOptions) { o.Stdin = true }, "true"), "leave out -i"},
		"a terminal":                   {enforce.RuleTTY, exec(func(o *corev1.PodExecOptions) { o.TTY = true }, "true"), "leave out -t"},
		"an attach that looks":         {"", func() *admit.Result { return c.Connect("web", &corev1.PodAttachOptions{Container: "main"}) }, ""},
		"an attach that types": {enforce.RuleStdin, func() *admit.Result {
			return c.Connect("web", &corev1.PodAttachOptions{Container: "main", Stdin: true})
		}, ""},
		"a verb that is not granted": {enforce.RuleRequest, func() *admit.Result { return c.Connect("web", &corev1.PodPortForwardOptions{}) }, "not portforward"},
		"another user": {enforce.RuleRequest, func() *admit.Result {
			return c.As("mallory").Connect("web", &corev1.PodExecOptions{Command: []string{"true"}})
		}, "mallory needs"},
		"an ephemeral container, on the list":     {"", debug(corev1.EphemeralContainerCommon{Command: []string{"ls"}}), ""},
		"an ephemeral container, another command": {enforce.RuleCommand, debug(corev1.EphemeralContainerCommon{Command: []string{"sh"}}), ""},
		"an ephemeral container, with arguments":  {enforce.RuleCommand, debug(corev1.EphemeralContainerCommon{Args: []string{"ls"}}), "must name its command"},
		"an ephemeral container with a terminal":  {enforce.RuleTTY, debug(corev1.EphemeralContainerCommon{Command: []string{"ls"}, TTY: true, Stdin: true}), ""},
		"a new image":                             {enforce.RuleCommand, func() *admit.Result { return c.Update(pod, image) }, "change the image in the workload"},
	} {
		t.Run(name, func(t *testing.T) {
			result := test.do()
			if result.Allowed != (test.rule == "") || test.rule != "" && !strings.Contains(result.Reason, "rule "+string(test.rule)+":") || !strings.Contains(result.Reason, test.hint) {
				t.Errorf("allowed %t: %s", result.Allowed, result.Reason)
			}
		})
	}
}

func (s *stage) eachRuleHasItsMessage(t *testing.T) {
	list := []audit.Command{{Argv: []string{"true"}}, {Argv: []string{"ls"}, Prefix: true}}
	stop := s.start(t, audit.Options{Enforcement: &audit.Enforcement{
		Namespaces: []string{"shop"}, ExemptUsers: []string{"oscar"}, Commands: list, ForbidTTY: true, ForbidStdin: true,
	}}, 1)
	pod, elsewhere := s.pod(t, "shop").Name, s.pod(t, "open").Name
	s.template(t, "all", func(t *v1alpha1.ExecAccessTemplateSpec) {
		t.AccessConfig.Verbs = []v1alpha1.AccessVerb{"exec", "attach", "portforward", "log", "ephemeralcontainers"}
	})
	s.request(t, "all", "all", nil)

	// TestEachRuleHasItsMessage has the rest. The API server reads the query.
	exec := func(query string) testkit.Answer { return s.exec(t, s.alice, "shop", pod, query) }
	passes(t, "a prefix on the list", exec("command=ls&command=-d&command=/"))
	for query, rule := range map[string]enforce.Rule{
		"command=id":                   enforce.RuleCommand,
		"command=true&command=x":       enforce.RuleCommand,
		"command=true&command=":        enforce.RuleCommand,
		"command=id&command=true":      enforce.RuleCommand,
		"command=true&stdin=true":      enforce.RuleStdin,
		"command=true&tty=1&tty=false": enforce.RuleTTY,
	} {
		refusedBy(t, rule, exec(query))
	}
	debug := func(name, command string) testkit.Answer {
		return s.send(t, s.alice, "PATCH", "/api/v1/namespaces/shop/pods/"+pod+"/ephemeralcontainers", testkit.AsDetails,
			`{"spec":{"ephemeralContainers":[{"name":"`+name+`","image":"example.com/debug","command":["`+command+`"]}]}}`)
	}
	passes(t, "an ephemeral container, on the list", debug("list", "ls"))
	refusedBy(t, enforce.RuleCommand, debug("shell", "sh"))
	passes(t, "a command elsewhere", s.exec(t, s.alice, "open", elsewhere, "command=hostname"))
	// Who breaks which rule is on record; what they typed there is not in the
	// reason.
	s.records.await(t, "the command that was denied", func(r *v1alpha1.AuditRecord) bool {
		return r.Rule == string(enforce.RuleCommand) && len(r.Command) == 1 && r.Command[0] == "id" && r.Decision == v1alpha1.AuditDenied
	})

	// Without a manager nobody gets in but who is exempt; elsewhere and for
	// metrics nothing changes.
	stop()
	if a := s.exec(t, s.alice, "shop", pod, "command=true"); !strings.Contains(a.Body, "failed calling webhook") {
		t.Errorf("exec while no manager runs: %s", a)
	}
	passes(t, "break-glass while no manager runs", s.exec(t, s.oscar, "shop", pod, "command=true"))
	passes(t, "exec where enforcement is off while no manager runs", s.exec(t, s.alice, "open", elsewhere, "command=true"))
	if a := s.send(t, s.alice, "POST", s.node(t)+"/proxy/run/shop/"+pod+"/main?cmd=id", testkit.AsJSON, ""); !strings.Contains(a.Body, "failed calling webhook") {
		t.Errorf("the kubelet's run while no manager runs: %s", a)
	}
	if a := s.send(t, s.alice, "GET", s.node(t)+"/proxy/metrics", testkit.AsJSON, ""); strings.Contains(a.Body, "webhook") {
		t.Errorf("a node's metrics while no manager runs: %s", a)
	}
}

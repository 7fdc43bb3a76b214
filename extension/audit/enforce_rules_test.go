package audit_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/internal/enforce"
)

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
		"a new image":                             {rule: enforce.RuleCommand, hints: []string{"change the image in the workload"}, args: []string{"set", "image", "-n", "shop", "pod/" + pod, "main=example.com/mine:2"}},
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

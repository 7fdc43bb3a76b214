package enforce

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

func TestTheRulesThatNeedNothingButTheAct(t *testing.T) {
	commands := &Options{Commands: []Command{{Argv: []string{"ls"}, Prefix: true}}}
	record := func(way v1alpha1.AuditWay, change func(*v1alpha1.AuditRecord)) *act.Act {
		a := &act.Act{Record: v1alpha1.AuditRecord{Way: way, Namespace: "shop", Pod: "web"}}
		change(&a.Record)
		return a
	}
	debugging := func(command, args []string) *act.Act {
		a := record(v1alpha1.WayDebug, func(r *v1alpha1.AuditRecord) {
			r.Containers = []v1alpha1.AuditContainer{{Name: "d", Command: append(append([]string{}, command...), args...), TTY: true, Stdin: true}}
		})
		pod := &corev1.Pod{}
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Command: command, Args: args}}}
		a.Object = pod
		return a
	}
	nothing := func(*v1alpha1.AuditRecord) {}
	for name, test := range map[string]struct {
		rules *Options
		act   *act.Act
		want  Rule
	}{
		"an exec, no rules":                             {&Options{}, record(v1alpha1.WayExec, nothing), ""},
		"a Service's proxy":                             {&Options{}, record(v1alpha1.WayServiceProxy, nothing), RuleServiceProxy},
		"a terminal":                                    {&Options{ForbidTTY: true}, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.TTY = true }), RuleTTY},
		"no terminal":                                   {&Options{ForbidTTY: true}, record(v1alpha1.WayExec, nothing), ""},
		"an ephemeral container with a terminal":        {&Options{ForbidTTY: true}, debugging([]string{"ls"}, nil), RuleTTY},
		"standard input":                                {&Options{ForbidStdin: true}, record(v1alpha1.WayAttach, func(r *v1alpha1.AuditRecord) { r.Stdin = true }), RuleStdin},
		"an ephemeral container that reads":             {&Options{ForbidStdin: true}, debugging([]string{"ls"}, nil), RuleStdin},
		"a command on the list":                         {commands, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.Command = []string{"ls", "/"} }), ""},
		"another command":                               {commands, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.Command = []string{"sh"} }), RuleCommand},
		"an attach that looks":                          {commands, record(v1alpha1.WayAttach, nothing), ""},
		"an attach that types":                          {commands, record(v1alpha1.WayAttach, func(r *v1alpha1.AuditRecord) { r.Stdin = true }), RuleCommand},
		"an ephemeral container with such a command":    {commands, debugging([]string{"ls"}, []string{"/"}), ""},
		"an ephemeral container with another":           {commands, debugging([]string{"sh"}, nil), RuleCommand},
		"an ephemeral container with the image's":       {commands, debugging(nil, nil), RuleCommand},
		"an ephemeral container that passes arguments ": {commands, debugging(nil, []string{"ls"}), RuleCommand},
		"a new image, no rules":                         {&Options{ForbidTTY: true}, record(v1alpha1.WayPod, func(r *v1alpha1.AuditRecord) { r.TTY = true }), ""},
		"a new image where commands are limited":        {commands, record(v1alpha1.WayPod, nothing), RuleCommand},
		"a port-forward runs no command":                {commands, record(v1alpha1.WayPortForward, nothing), ""},
	} {
		var got Rule
		if broken := test.rules.staticRules(test.act); broken != nil {
			got = broken.rule
			if text := broken.text(test.act); !strings.Contains(text, "shop") || !strings.Contains(text, "rule "+string(got)) {
				t.Errorf("%s: the message does not say what and by which rule: %s", name, text)
			}
		}
		if got != test.want {
			t.Errorf("%s: breaks %q, want %q", name, got, test.want)
		}
	}
	secret := record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.Command = []string{"mysql", "--password=hunter2"} })
	if text := commands.staticRules(secret).text(secret); strings.Contains(text, "hunter2") {
		t.Errorf("the reason, which is recorded as it is, has a secret: %s", text)
	}
}

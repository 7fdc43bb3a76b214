package audit

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

func TestACommandIsComparedWordByWord(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		argv []string
		want bool
	}{
		"the same words":                      {"ls -l", []string{"ls", "-l"}, true},
		"another word more":                   {"ls -l", []string{"ls", "-l", "/"}, false},
		"a word less":                         {"ls -l", []string{"ls"}, false},
		"an empty word more":                  {"ls -l", []string{"ls", "-l", ""}, false},
		"the line in one word":                {"ls -l", []string{"ls -l"}, false},
		"in a shell":                          {"ls -l", []string{"sh", "-c", "ls -l"}, false},
		"another case":                        {"ls -l", []string{"LS", "-l"}, false},
		"another path":                        {"ls -l", []string{"./ls", "-l"}, false},
		"a prefix, alone":                     {"tar cf - ...", []string{"tar", "cf", "-"}, true},
		"a prefix and more":                   {"tar cf - ...", []string{"tar", "cf", "-", "/etc"}, true},
		"a prefix within a word":              {"tar ...", []string{"tarantula"}, false},
		"less than the prefix":                {"tar cf - ...", []string{"tar", "cf"}, false},
		"words with spaces":                   {`["sh", "-c", "ls -l"]`, []string{"sh", "-c", "ls -l"}, true},
		"a prefix of words with spaces":       {`["sh", "-c", "ls -l", "..."]`, []string{"sh", "-c", "ls -l", "x"}, true},
		"no command":                          {"ls ...", nil, false},
		"dots that the client sends are dots": {"ls", []string{"ls", "..."}, false},
	} {
		c, err := ParseCommand(test.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.matches(test.argv) != test.want {
			t.Errorf("%s: %q allows %q: %t", name, test.text, test.argv, !test.want)
		}
		if again, err := ParseCommand(c.String()); err != nil || again.String() != c.String() || again.Prefix != c.Prefix {
			t.Errorf("%s: %q is written as %q, which is read as %q: %v", name, test.text, c, again, err)
		}
	}
	for _, text := range []string{"", "  ", "...", "[]", `["..."]`, `[""]`, `["ls"`} {
		if c, err := ParseCommand(text); err == nil {
			t.Errorf("%q is a command: %+v", text, c)
		}
	}
}

func TestTheRulesThatNeedNothingButTheAct(t *testing.T) {
	commands := &Enforcement{Commands: []Command{{Argv: []string{"ls"}, Prefix: true}}}
	record := func(way v1alpha1.AuditWay, change func(*v1alpha1.AuditRecord)) *act {
		a := &act{record: v1alpha1.AuditRecord{Way: way, Namespace: "shop", Pod: "web"}}
		change(&a.record)
		return a
	}
	debugging := func(command, args []string) *act {
		a := record(v1alpha1.WayDebug, func(r *v1alpha1.AuditRecord) {
			r.Containers = []v1alpha1.AuditContainer{{Name: "d", Command: append(append([]string{}, command...), args...), TTY: true, Stdin: true}}
		})
		pod := &corev1.Pod{}
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Command: command, Args: args}}}
		a.object = pod
		return a
	}
	nothing := func(*v1alpha1.AuditRecord) {}
	for name, test := range map[string]struct {
		rules *Enforcement
		act   *act
		want  Rule
	}{
		"an exec, no rules":                             {&Enforcement{}, record(v1alpha1.WayExec, nothing), ""},
		"a Service's proxy":                             {&Enforcement{}, record(v1alpha1.WayServiceProxy, nothing), RuleServiceProxy},
		"a terminal":                                    {&Enforcement{ForbidTTY: true}, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.TTY = true }), RuleTTY},
		"no terminal":                                   {&Enforcement{ForbidTTY: true}, record(v1alpha1.WayExec, nothing), ""},
		"an ephemeral container with a terminal":        {&Enforcement{ForbidTTY: true}, debugging([]string{"ls"}, nil), RuleTTY},
		"standard input":                                {&Enforcement{ForbidStdin: true}, record(v1alpha1.WayAttach, func(r *v1alpha1.AuditRecord) { r.Stdin = true }), RuleStdin},
		"an ephemeral container that reads":             {&Enforcement{ForbidStdin: true}, debugging([]string{"ls"}, nil), RuleStdin},
		"a command on the list":                         {commands, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.Command = []string{"ls", "/"} }), ""},
		"another command":                               {commands, record(v1alpha1.WayExec, func(r *v1alpha1.AuditRecord) { r.Command = []string{"sh"} }), RuleCommand},
		"an attach that looks":                          {commands, record(v1alpha1.WayAttach, nothing), ""},
		"an attach that types":                          {commands, record(v1alpha1.WayAttach, func(r *v1alpha1.AuditRecord) { r.Stdin = true }), RuleCommand},
		"an ephemeral container with such a command":    {commands, debugging([]string{"ls"}, []string{"/"}), ""},
		"an ephemeral container with another":           {commands, debugging([]string{"sh"}, nil), RuleCommand},
		"an ephemeral container with the image's":       {commands, debugging(nil, nil), RuleCommand},
		"an ephemeral container that passes arguments ": {commands, debugging(nil, []string{"ls"}), RuleCommand},
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

func TestWhatIsAskedOfAKubeletIsHarmlessOnlyIfItIsKnown(t *testing.T) {
	for path, want := range map[string]bool{
		"": true, "/": true, "metrics": true, "/metrics/cadvisor": true, "stats/summary": true, "pods/": true, "healthz": true, "logs/kubelet.log": true,
		"containerLogs/shop/web/main": true,
		"exec/shop/web/main":          false, "/exec/shop/web/main": false, "//exec/shop/web/main": false, "EXEC/shop/web/main": false,
		"run/shop/web/main": false, "attach/shop/web/main": false, "portForward/shop/web": false, "checkpoint/shop/web/main": false,
		"metrics/../exec/shop/web/main": false, "metrics/./../exec/shop/web/main": false, "metrics//..//exec/shop/web/main": false,
		"metrics/%2e%2e/exec/shop/web/main": false, "metrics\n/exec": false, "metricsexec": false, "cri/exec/token": false, "unheard-of": false,
		"metrics/..": false, "metrics?x=/exec": false, "exec/shop/web/main/metrics": false,
	} {
		if harmless.MatchString(path) != want {
			t.Errorf("%q is harmless: %t", path, !want)
		}
	}
}

func TestARequestCoversNoMoreThanWasGranted(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		change func(req *v1alpha1.ExecAccessRequest, grant *v1alpha1.Grant, a *act)
		after  time.Duration
		covers bool
	}{
		"as granted":               {nil, time.Minute, true},
		"a moment before the end":  {nil, time.Hour - time.Nanosecond, true},
		"at the end":               {nil, time.Hour, false},
		"another Pod of that name": {func(_ *v1alpha1.ExecAccessRequest, g *v1alpha1.Grant, _ *act) { g.PodUID = "old" }, 0, false},
		"another way in":           {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act) { a.record.Way = v1alpha1.WayAttach }, 0, false},
		"proxy by portforward":     {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act) { a.record.Way = v1alpha1.WayPodProxy }, 0, true},
		"proxy without it": {func(_ *v1alpha1.ExecAccessRequest, g *v1alpha1.Grant, a *act) {
			a.record.Way, g.Verbs = v1alpha1.WayPodProxy, g.Verbs[:1]
		}, 0, false},
		"used": {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act) { r.Status.UsedBy = &v1alpha1.Use{} }, 0, false},
		"being deleted": {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act) {
			r.DeletionTimestamp = &metav1.Time{Time: start}
		}, 0, false},
		"shortened":                        {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act) { r.Spec.Duration = "1s" }, time.Minute, false},
		"no duration":                      {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act) { r.Spec.Duration = "" }, 0, false},
		"nobody's":                         {func(r *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, _ *act) { r.Spec.Requester = nil }, 0, false},
		"another alice":                    {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act) { a.record.User.UID = "2" }, 0, false},
		"an authenticator that has no UID": {func(_ *v1alpha1.ExecAccessRequest, _ *v1alpha1.Grant, a *act) { a.record.User.UID = "" }, 0, true},
	} {
		req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.Time{Time: start}}}
		req.Spec.Duration, req.Spec.Requester = "1h", &v1alpha1.Requester{Username: "alice", UID: "1"}
		grant := &v1alpha1.Grant{PodUID: "pod", Verbs: []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbPortForward}}
		a := &act{record: v1alpha1.AuditRecord{Way: v1alpha1.WayExec, User: v1alpha1.AuditUser{Username: "alice", UID: "1"}}}
		if test.change != nil {
			test.change(req, grant, a)
		}
		if why := whyNotCovered(req, grant, a, "pod", start.Add(test.after)); (why == "") != test.covers {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestARoleIsARecordOnlyIfItSaysAllOfIt(t *testing.T) {
	role := func(change func(*rbacv1.Role)) *rbacv1.Role {
		r := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "execaccess-r", Namespace: "shop", Annotations: map[string]string{
				v1alpha1.AnnotationRequestUID: "1", v1alpha1.AnnotationPodUID: "2", v1alpha1.AnnotationSubjects: `[{"kind":"User","name":"alice"},{"kind":"Group","name":"devs"}]`,
			}},
			Rules: []rbacv1.PolicyRule{{Resources: []string{"pods"}, ResourceNames: []string{"web"}}, {Resources: []string{"pods/exec"}, ResourceNames: []string{"web"}}},
		}
		if change != nil {
			change(r)
		}
		return r
	}
	grant, err := v1alpha1.GrantOf(role(nil))
	if err != nil || grant.Kind != "ExecAccessRequest" || grant.Request.Name != "r" || grant.PodName != "web" || len(grant.Verbs) != 1 {
		t.Errorf("%+v, %v", grant, err)
	}
	if !grant.Concerns("alice", nil) || !grant.Concerns("bob", []string{"devs"}) || grant.Concerns("devs", []string{"alice"}) {
		t.Error("users and groups are not told apart")
	}
	for name, change := range map[string]func(*rbacv1.Role){
		"another name":    func(r *rbacv1.Role) { r.Name = "mine" },
		"only the prefix": func(r *rbacv1.Role) { r.Name = "execaccess-" },
		"no request":      func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationRequestUID) },
		"no Pod's UID":    func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationPodUID) },
		"no subjects":     func(r *rbacv1.Role) { delete(r.Annotations, v1alpha1.AnnotationSubjects) },
		"every Pod":       func(r *rbacv1.Role) { r.Rules[1].ResourceNames = nil },
		"two Pods":        func(r *rbacv1.Role) { r.Rules[1].ResourceNames = []string{"other"} },
		"no rules":        func(r *rbacv1.Role) { r.Rules = nil },
	} {
		if grant, err := v1alpha1.GrantOf(role(change)); err == nil {
			t.Errorf("%s: %+v", name, grant)
		}
	}
}

// Every namespace is in exactly one of the scopes of sessions.
func TestANamespaceHasEitherEnforcementOrNot(t *testing.T) {
	for name, enforcement := range map[string]*Enforcement{"by label": {}, "by name": {Namespaces: []string{"shop"}}} {
		for namespace, set := range map[string]labels.Set{
			"labelled": {corev1.LabelMetadataName: "a", LabelEnforce: "true"},
			"named":    {corev1.LabelMetadataName: "shop"},
			"neither":  {corev1.LabelMetadataName: "b"},
			"off":      {corev1.LabelMetadataName: "b", LabelEnforce: "false"},
		} {
			in := 0
			for _, on := range []bool{true, false} {
				selector, err := metav1.LabelSelectorAsSelector(enforcement.selector(nil, on))
				if err != nil {
					t.Fatal(err)
				}
				if !selector.Matches(set) {
					continue
				}
				in++
				if want := name == "by label" && namespace == "labelled" || name == "by name" && namespace == "named"; want != on {
					t.Errorf("%s: enforcement for a namespace that is %s: %t", name, namespace, on)
				}
			}
			if in != 1 {
				t.Errorf("%s: a namespace that is %s is in %d scopes", name, namespace, in)
			}
		}
	}
}

func TestWhenATouchedPodIsEvicted(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := created.Add(time.Hour)
	options := &TouchedPods{EvictAfter: 30 * time.Minute, MaxEvictAfter: 2 * time.Hour}
	for name, test := range map[string]struct {
		at, after string
		want      time.Time
		problem   bool
	}{
		"after the delay":         {now.Format(time.RFC3339Nano), "", now.Add(30 * time.Minute), false},
		"put off":                 {now.Format(time.RFC3339Nano), "1h", now.Add(time.Hour), false},
		"not brought forward":     {now.Format(time.RFC3339Nano), "1s", now.Add(30 * time.Minute), false},
		"put off beyond the most": {now.Format(time.RFC3339Nano), "100000h", now.Add(2 * time.Hour), true},
		"put off by nonsense":     {now.Format(time.RFC3339Nano), "long", now.Add(30 * time.Minute), true},
		"touched at no time":      {"", "", created.Add(30 * time.Minute), true},
		"touched at nonsense":     {"never", "1h", created.Add(time.Hour), true},
		"touched in the future":   {now.Add(time.Hour).Format(time.RFC3339Nano), "", created.Add(30 * time.Minute), true},
		"a clock that is ahead":   {now.Add(time.Second).Format(time.RFC3339Nano), "", now.Add(30*time.Minute + time.Second), false},
	} {
		meta := &metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: created}, Annotations: map[string]string{AnnotationTouchedAt: test.at}}
		if test.after != "" {
			meta.Annotations[AnnotationEvictAfter] = test.after
		}
		if due, problem := options.evictionDue(meta, now); !due.Equal(test.want) || (problem != "") != test.problem {
			t.Errorf("%s: %s, want %s; %q", name, due, test.want, problem)
		}
	}
}

func TestALabelSaysWhoAsFarAsItCan(t *testing.T) {
	for name, want := range map[string]string{
		"alice": "alice", "alice@example.com": "alice-example.com", "system:serviceaccount:a:b": "system-serviceaccount-a-b",
		"": "unknown", "//": "unknown", "-a-": "a", "Ünal": "nal", strings.Repeat("a", 62) + ":b": strings.Repeat("a", 62),
	} {
		if got := labelValue(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

func TestOptionsThatCannotBeMeantAreRefusedByName(t *testing.T) {
	for want, options := range map[string]Options{
		"Enforcement.Namespaces[0]":  {Enforcement: &Enforcement{Namespaces: []string{"Shop"}}},
		"Enforcement.Commands[0]":    {Enforcement: &Enforcement{Commands: []Command{{}}}},
		"Enforcement.ExemptUsers[0]": {Enforcement: &Enforcement{ExemptUsers: []string{""}}},
		"TouchedPods.EvictAfter":     {TouchedPods: &TouchedPods{EvictAfter: -1}},
		"TouchedPods.MaxEvictAfter":  {TouchedPods: &TouchedPods{EvictAfter: 2, MaxEvictAfter: 1}},
	} {
		if _, err := options.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that names %s, got %v", want, err)
		}
	}
}

func TestWhatIsAuditedInOneNamespaceNeedsNoRightsOnPodsOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		options    Options
		everywhere bool
	}{
		"recording":                     {Options{Namespace: "shop"}, false},
		"enforcement":                   {Options{Namespace: "shop", Enforcement: &Enforcement{}}, false},
		"recording everywhere":          {Options{Namespace: "shop", NamespaceSelector: EveryNamespace()}, true},
		"recording everywhere, no name": {Options{NamespaceSelector: EveryNamespace()}, true},
	} {
		a := New(test.options).auditor
		onPods := func(rules []rbacv1.PolicyRule) bool {
			return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
		}
		if onPods(a.ClusterRights()) != test.everywhere || onPods(a.Rights()) == test.everywhere {
			t.Errorf("%s: everywhere %v, in the namespace %v", name, a.ClusterRights(), a.Rights())
		}
	}
}

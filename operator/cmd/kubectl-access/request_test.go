package main

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// anotherTemplate makes a template of Deployment/web in a shop.
func anotherTemplate(t *testing.T, namespace, name string, change func(*v1alpha1.AccessConfig)) {
	t.Helper()
	made := &v1alpha1.ExecAccessTemplate{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, made); err != nil {
		t.Fatal(err)
	}
	made.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name}
	change(&made.Spec.AccessConfig)
	testkit.Create(t, admin, made)
}

func TestTheNameOfTheRequestIsSaidForOtherCommands(t *testing.T) {
	t.Parallel()
	for _, wait := range []string{"0", "1m"} {
		o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--timeout", wait).expect(t, 0)
		name := regexp.MustCompile(`execaccessrequests/web-\w+`).FindString(o.stderr)
		if name == "" {
			t.Fatalf("no name of a request in:\n%s", o.stderr)
		}
		kubectlAccess(t, alice, "extend", name, "1m", "-n", namespace).expect(t, 0)
		kubectlAccess(t, alice, "revoke", name, "-n", namespace).expect(t, 0)
	}
}

func TestATemplateOfAnyNameGivesARequestAValidName(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	for sentence, name := range map[string]string{
		"46 characters":                 "web-" + strings.Repeat("a", 42),
		"47 characters":                 "web-" + strings.Repeat("a", 43),
		"the longest":                   "web-" + strings.Repeat("a", 249),
		"a dot where the name is cut":   "web-" + strings.Repeat("a", 41) + ".test",
		"a hyphen where the name is it": "web-" + strings.Repeat("a", 41) + "-test",
	} {
		t.Run(sentence, func(t *testing.T) {
			anotherTemplate(t, namespace, name, func(*v1alpha1.AccessConfig) {})
			kubectlAccess(t, alice, "exec", name, "-n", namespace, "-o", "name").expect(t, 0, "execaccessrequest.admitkit.dev/web-aaaa")
		})
	}
}

func TestAWorkloadStandsForTheOneTemplateThatFits(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	for _, workload := range []string{"Deployment/asleep", "deploy/asleep", "deployments.apps/asleep"} {
		kubectlAccess(t, alice, "exec", workload, "-n", namespace, "--timeout", "0").expect(t, 0, "execaccessrequests/asleep-")
	}
	kubectlAccess(t, alice, "pod", "deploy/web", "-n", namespace, "--timeout", "0").expect(t, 0, "podaccessrequests/debug-")
	anotherTemplate(t, namespace, "web-for-sales", func(config *v1alpha1.AccessConfig) { config.AllowedGroups = []string{"sales"} })
	kubectlAccess(t, mallory, "exec", "deployment/web", "-n", namespace).expect(t, 0, "execaccessrequests/web-for-sales-")
}

func TestTemplatesOfMineAreThoseThatIMayUse(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	anotherTemplate(t, namespace, "web-for-pilots", func(config *v1alpha1.AccessConfig) { config.AllowedGroups = []string{"pilots"} })
	anotherTemplate(t, namespace, "web-for-ann", func(config *v1alpha1.AccessConfig) {
		config.AllowedGroups, config.AllowedUsers = nil, []string{"alice", "frank"}
	})
	mine := func(user string, groups ...string) []string {
		t.Helper()
		args := []string{"templates", "--mine", "-A", "-o", "name", "--as", user}
		for _, group := range append(groups, "system:authenticated") {
			args = append(args, "--as-group", group)
		}
		o := kubectlAccess(t, nil, args...)
		return strings.Fields(regexp.MustCompile(`(?m)^.*/`).ReplaceAllString(o.stdout, ""))
	}
	if got := mine("alice", "devs"); !slices.Contains(got, "web") || !slices.Contains(got, "debug") || !slices.Contains(got, "web-for-ann") || slices.Contains(got, "web-for-pilots") {
		t.Errorf("alice may use %q, want web, debug and web-for-ann, and not web-for-pilots", got)
	}
	if got := mine("nina", "pilots"); !slices.Equal(got, []string{"web-for-pilots"}) {
		t.Errorf("nina may use %q, want web-for-pilots alone", got)
	}
	// The template names frank, but RBAC does not let him make requests.
	if got := mine("frank"); len(got) > 0 {
		t.Errorf("frank may use %q, want nothing", got)
	}
	kubectlAccess(t, nil, "templates", "-n", namespace, "--as", "frank").expect(t, 0, "web-for-ann")
}

func TestAskingForAnotherUserSaysForWhom(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	anotherTemplate(t, namespace, "by-sales", func(config *v1alpha1.AccessConfig) {
		config.AllowedUsers, config.AskFor = []string{"alice"}, &v1alpha1.AskFor{Groups: []string{"sales"}}
	})
	o := kubectlAccess(t, mallory, "exec", "by-sales", "-n", namespace, "--for", "alice", "-o", "jsonpath={.metadata.name} {.spec.requester.username} {.spec.onBehalfOf}").expect(t, 0, " mallory alice")
	name, _, _ := strings.Cut(o.stdout, " ")
	for _, user := range []*controlplane.User{alice, mallory} {
		if line := regexp.MustCompile(name + `\s.*`).FindString(kubectlAccess(t, user, "list", "--mine", "-n", namespace).expect(t, 0).stdout); !strings.Contains(line, "mallory for alice") {
			t.Errorf("the list of %s says %q", user.Name, line)
		}
	}
	kubectlAccess(t, alice, "revoke", name, "-n", namespace).expect(t, 0)
	kubectlAccess(t, mallory, "exec", "deployment/web", "-n", namespace, "--for", "alice").expect(t, 0, "execaccessrequests/by-sales-")
	kubectlAccess(t, mallory, "exec", "by-sales", "-n", namespace, "--for", "carol").expect(t, 3, `refused: --for: user "carol" is not one of the allowedUsers "alice"`)
	kubectlAccess(t, mallory, "exec", "by-sales", "-n", namespace, "--for", "alice", "--shell").expect(t, 2, "shell")
	kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--for", "carol").expect(t, 3, "refused: --for: template", "lets nobody ask for others")
}

func TestAnEndOnAnotherDayHasItsDateAndZone(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	anotherTemplate(t, namespace, "web-for-days", func(config *v1alpha1.AccessConfig) { config.MaxDuration = "72h" })
	ends := func() time.Time {
		t.Helper()
		req := &v1alpha1.ExecAccessRequest{}
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "for-days"}, req); err != nil {
			t.Fatal(err)
		}
		end, _ := v1alpha1.EndOf(req)
		return end.Local()
	}
	const withZone = time.DateTime + " MST"
	kubectlAccess(t, alice, "exec", "web-for-days", "-n", namespace, "-d", "1d12h", "--name", "for-days").expect(t, 0, "for-days: access until "+ends().Format(withZone)+", for 35h")
	kubectlAccess(t, alice, "extend", "for-days", "1d", "-n", namespace).expect(t, 0, ends().Format(withZone))
}

func TestARefusalIsSaidOnceAndInPlainWords(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	anotherTemplate(t, namespace, "web-with-reason", func(config *v1alpha1.AccessConfig) { config.RequireReason, config.AllowedUsers = true, nil })
	for sentence, c := range map[string]struct {
		user       *controlplane.User
		args, want string
	}{
		"by the template":   {mallory, "exec web", `refused: user "mallory" is not allowed by template "web", which allows the groups "devs" and the users "carol", "dave", "erin"`},
		"without any users": {mallory, "exec web-with-reason -r x", `refused: user "mallory" is not allowed by template "web-with-reason", which allows the groups "devs" and the users (none)`},
		"without a reason":  {alice, "exec web-with-reason", `refused: template "web-with-reason" requires --reason`},
		"by the schema": {
			alice, "exec web --name " + strings.Repeat("a", 53),
			`refused: --name must have at most 52 characters, because the names of Role and RoleBinding are made of it; choose a shorter one`,
		},
		"by RBAC": {
			nil, "exec web --as nobody",
			`you have no right to do this: User "nobody" cannot create resource "execaccessrequests" in API group "admitkit.dev" in the namespace "` + namespace + `"`,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			o := kubectlAccess(t, c.user, append(strings.Fields(c.args), "-n", namespace)...).expect(t, cli.CodeRefused)
			if want := "error: " + c.want + "\n"; o.stderr != want {
				t.Errorf("standard error is\n%s, want\n%s", o.stderr, want)
			}
		})
	}
	o := kubectlAccess(t, alice, "pod", "privileged", "-n", namespace, "--name", "once-said").expect(t, cli.CodeRefused)
	if strings.Count(o.stderr, "PodRefused") != 1 {
		t.Errorf("the refusal is not said once:\n%s", o.stderr)
	}
}

func TestAQuotaRefusesAndIsNoMissingRight(t *testing.T) {
	t.Parallel()
	const full = "full"
	target := v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	testkit.Create(t, admin,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: full}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: full}, Spec: v1alpha1.ExecAccessTemplateSpec{
			AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}}, ControllerTargetRef: target,
		}},
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: full}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/execaccessrequests.admitkit.dev": resource.MustParse("0")},
		}},
	)
	var o outcome
	testkit.Eventually(t, "the quota counts", func(context.Context) bool {
		o = kubectlAccess(t, alice, "exec", "web", "-n", full, "--timeout", "0")
		return o.code != 0
	})
	o.expect(t, cli.CodeRefused, "error: refused: exceeded quota: none")
}

func TestResultsArePrintedInTheFormatsOfKubectl(t *testing.T) {
	t.Parallel()
	name := requested(t, "-d", "10m")
	for format, want := range map[string]string{
		`jsonpath={.items[?(@.metadata.name=="` + name + `")].spec.duration}`:                                    "10m",
		`jsonpath-as-json={.items[?(@.metadata.name=="` + name + `")].metadata.name}`:                            `"` + name + `"`,
		`go-template={{range .items}}{{.kind}}/{{.metadata.name}} {{end}}`:                                       "ExecAccessRequest/" + name + " ",
		`custom-columns=REQUEST:.metadata.name,WHO:.spec.requester.username,KIND:{.kind},NONE:.metadata.nothing`: name + `\s+alice\s+ExecAccessRequest\s+<none>\n`,
		"kyaml": `"` + name + `"`,
	} {
		t.Run(format, func(t *testing.T) {
			if o := kubectlAccess(t, alice, "list", "-n", namespace, "-o", format).expect(t, 0); !regexp.MustCompile(want).MatchString(o.stdout) {
				t.Errorf("nothing of %s in:\n%s", want, o.stdout)
			}
		})
	}
	kubectlAccess(t, alice, "list", "-n", namespace, "--template", "{{len .items}}").expect(t, 0)
	kubectlAccess(t, alice, "templates", "-n", namespace, "-o", "custom-columns=NAME:.metadata.name,MAX:.spec.accessConfig.maxDuration").expect(t, 0, "NAME", "MAX", "debug", "2h")
	if o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "-o", "jsonpath={.status.podName}").expect(t, 0); !strings.HasPrefix(o.stdout, "web-") {
		t.Errorf("the name of the Pod is %q", o.stdout)
	}
	for flag, want := range map[string]bool{"--show-managed-fields=false": false, "--show-managed-fields": true} {
		var list struct {
			Items []struct{ Metadata map[string]json.RawMessage }
		}
		if err := json.Unmarshal([]byte(kubectlAccess(t, alice, "list", "-n", namespace, "-o", "json", flag).stdout), &list); err != nil {
			t.Fatal(err)
		}
		if _, shown := list.Items[0].Metadata["managedFields"]; shown != want {
			t.Errorf("with %s managedFields are shown: %t, want %t", flag, shown, want)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/manager/command"
)

// execute runs the program, as a user does without a cluster.
func execute(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

var manifests = []string{"controller", "manifests", "--image=x", "--webhook-namespace=sandbox-system"}

// brokered are the flags of a controller with a broker.
var brokered = slices.Concat(manifests, []string{
	"--sandbox-namespaces=agents", "--broker-namespace=broker", "--sandbox-proxy-image=registry.example.com/sandbox:1", "--cluster-pod-cidrs=10.244.0.0/16", "--cluster-service-cidrs=10.96.0.0/12",
})

func TestWrongFlagsAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		"2 --sandbox-namespaces: name the namespaces":               manifests,
		"2 is a namespace of the control plane":                     append(slices.Clone(manifests), "--sandbox-namespaces=kube-system"),
		"2 is the manager's own namespace":                          append(slices.Clone(manifests), "--sandbox-namespaces=sandbox-system"),
		"2 must be on, off or auto":                                 append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--sandbox-network-policy="),
		"2 --sandbox-workers: -1":                                   append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--sandbox-workers=-1"),
		"2 --sandbox-start-timeout: 1ms":                            append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--sandbox-start-timeout=1ms"),
		"2 --cluster-pod-cidrs":                                     append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--cluster-pod-cidrs=10.0.0.1/8"),
		"2 --broker-namespace: required":                            append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--broker-url=https://x"),
		"2 --sandbox-proxy-image: required":                         append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--broker-namespace=broker"),
		"2 (--cluster-pod-cidrs":                                    append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--sandbox-proxy-image=x"),
		"2 is one in which runs run":                                append(slices.Clone(manifests), "--sandbox-namespaces=agents", "--broker-namespace=agents", "--sandbox-proxy-image=x"),
		"2 --broker-url: ":                                          append(slices.Clone(brokered), "--broker-url=http://x"),
		"2 --sandbox-proxy-upstream-ca: ":                           append(slices.Clone(brokered), "--sandbox-proxy-upstream-ca=A/b"),
		"2 unknown command":                                         {"typo"},
		"2 unknown command \"reconile\" for \"sandbox controller\"": {"controller", "reconile"},
		"2 unknown command \"serve\" for \"sandbox broker\"":        {"broker", "serve"},
	} {
		code, want, _ := strings.Cut(want, " ")
		if output, err := execute(t, args...); err == nil || !strings.Contains(err.Error()+output, want) || strconv.Itoa(command.ExitCode(err)) != code {
			t.Errorf("%q: %d %v, want %s %q", args, command.ExitCode(err), err, code, want)
		}
	}
}

// Each line of an example is a command of the program, as somebody would copy it.
func TestTheExamplesOfTheHelpAreCommandsOfTheProgram(t *testing.T) {
	for _, process := range newCommand().Commands() {
		for _, sub := range process.Commands() {
			for line := range strings.Lines(sub.Example) {
				if _, call, ok := strings.Cut(line, "sandbox"); ok && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(call)+" ", process.Name()+" "+sub.Name()+" ") {
					t.Errorf("%s: %s", sub.CommandPath(), line)
				}
			}
		}
	}
}

// What takes a reconciler over reads no Secret, and no right outside the namespaces of runs but to read.
func TestTheManifestsStartTheControllerWithJustItsRights(t *testing.T) {
	output, err := execute(t, append(slices.Clone(manifests), "--sandbox-namespaces=agents")...)
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for document := range strings.SplitSeq(output, "---\n") {
		var deployment appsv1.Deployment
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			t.Fatal(err)
		}
		if deployment.Kind == "Deployment" {
			started++
			args := deployment.Spec.Template.Spec.Containers[0].Args
			cmd, _, err := newCommand().Find(args)
			if !slices.Contains(args, "--leader-election=true") {
				t.Errorf("%s elects no leader: %q", deployment.Name, args)
			}
			if err != nil || args[0] != "controller" || cmd.Parent().Name() != "controller" || cmd.RunE == nil {
				t.Errorf("%s runs %q: %v", deployment.Name, args, err)
			}
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil || !strings.HasPrefix(role.Name, "sandbox") || !strings.HasSuffix(role.Kind, "Role") {
			continue
		}
		for _, rule := range role.Rules {
			text := strings.Join(slices.Concat(rule.Resources, rule.Verbs), " ")
			switch {
			case strings.Contains(text, "*"), strings.Contains(text, "escalate"), strings.Contains(text, "impersonate"), strings.Contains(text, "bind"):
				t.Errorf("%s %s: %s", role.Kind, role.Name, text)
			case slices.Contains(rule.Resources, "secrets") && role.Namespace != "sandbox-system" && !slices.Equal(rule.Verbs, []string{"create"}): // for prompts
				t.Errorf("%s %s/%s: %s", role.Kind, role.Namespace, role.Name, text)
			case role.Kind == "ClusterRole" && strings.Contains(role.Name, "reconciler") && !slices.Contains(rule.Resources, "auditevents") && !slices.Contains(rule.Resources, "auditevents/status") &&
				slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) }):
				t.Errorf("%s %s: %s", role.Kind, role.Name, text)
			}
		}
	}
	if started != 3 {
		t.Errorf("%d Deployments, want registrar, server and reconciler:\n%s", started, output)
	}
}

// With a broker the reconciler has rights on Secrets: on those of runs, and in its own namespace on the one
// with the root of the proxies alone, which it cannot make, since so it would get the tokens of others.
func TestTheManifestsGiveAControllerWithABrokerItsRightsByName(t *testing.T) {
	output, err := execute(t, brokered...)
	if err != nil {
		t.Fatal(err)
	}
	named, root := 0, false
	for document := range strings.SplitSeq(output, "---\n") {
		root = root || strings.Contains(document, "kind: Secret\n") && strings.Contains(document, "name: sandbox-proxy-root") && strings.Contains(document, "namespace: sandbox-system")
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(document), &role); err != nil || !strings.HasSuffix(role.Kind, "Role") || !strings.Contains(role.Name, "reconciler-extensions") {
			continue
		}
		for _, rule := range role.Rules {
			text := strings.Join(slices.Concat(rule.Resources, rule.Verbs), " ")
			switch {
			case role.Namespace == "agents" || !strings.Contains(text, "secrets") && !strings.Contains(text, "token") && !strings.Contains(text, "configmaps") && !strings.Contains(text, "namespaces"):
			case len(rule.ResourceNames) == 0 || slices.Contains(rule.Verbs, "create") && !strings.Contains(text, "serviceaccounts/token"):
				t.Errorf("%s/%s: %s of %q", role.Namespace, role.Name, text, rule.ResourceNames)
			default:
				named++
			}
		}
	}
	if named != 4 || !root {
		t.Errorf("%d rules by name, want those on the root, the token, the authority of the broker and the namespaces of runs; root: %v\n%s", named, root, output)
	}
}

// What nobody judged must not run, nor be a rule for what runs.
func TestAdmissionOfOurKindsFailsClosed(t *testing.T) {
	output, err := execute(t, append(slices.Clone(manifests), "--sandbox-namespaces=agents")...)
	if err != nil {
		t.Fatal(err)
	}
	webhooks, closed := strings.Count(output, "\n#   sideEffects: None\n"), strings.Count(output, "\n#   failurePolicy: Fail\n")
	if webhooks == 0 || closed != webhooks {
		t.Errorf("of %d webhooks %d fail closed", webhooks, closed)
	}
	for _, resource := range []string{"sandboxruns", "sandboxruntemplates", "clustersandboxruntemplates", "workspaces", "brokerpolicies"} {
		if !strings.Contains(output, "\n#     - "+resource+"\n") {
			t.Errorf("nobody judges %s", resource)
		}
	}
}

func TestTheGuardsOfRunsStayInForce(t *testing.T) {
	output, err := execute(t, append(slices.Clone(brokered), "--mode=*=observe")...)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(output, "path: /validate/"); n < 14 || strings.Contains(output, "path: /observe/") {
		t.Errorf("of %d validating webhooks some are not in force: %s", n, output)
	}
	if _, err := execute(t, append(slices.Clone(brokered), "--mode=admission.podGuard=warn")...); err == nil || !strings.Contains(err.Error(), "admission.podGuard: it cannot be in Warn: its Scope.Modes are [Enforce]") {
		t.Errorf("got %v", err)
	}
}

// The check of a release runs it.
func TestTheProgramSaysItsVersion(t *testing.T) {
	var said struct{ Version, Admitkit string }
	output, err := execute(t, "version", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(output), &said)
	}
	if err != nil || said.Version == "" || said.Version != said.Admitkit {
		t.Errorf("%v: %s", err, output)
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/manager/command"
)

// execute runs the program, as a user does without a cluster.
func execute(t *testing.T, stdin string, args ...string) (output string, err error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newProgram().cmd
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetIn(strings.NewReader(stdin))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestTheSeedsOwnTestsPass(t *testing.T) {
	output, err := execute(t, "", "test", "--rego-version=v0", seed+"policy")
	if err != nil || !strings.Contains(output, "12 passed, 0 failed") {
		t.Errorf("%v: %s", err, output)
	}
}

func TestWhatIsNotTestedIsNoSuccess(t *testing.T) {
	failing := t.TempDir()
	if err := os.WriteFile(filepath.Join(failing, "a_test.rego"), []byte("package a\n\ntest_it if 1 == 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"2 no tests":                {"test", t.TempDir()},
		"1 tests failed":            {"test", failing},
		"2 is not a folder":         {"test", seed + "README.md"},
		"2 no such file":            {"test", "/none"},
		"2 neither v0 nor v1":       {"test", "--rego-version=v2", seed + "policy"},
		"2 accepts at most 1 arg":   {"test", "a", "b"},
		"2 name at least one file":  {"review"},
		"2 unknown flag":            {"review", "--file=a"},
		"2 unknown command":         {"review", "a"},
		"2 no such file or":         {"review", "-f", "/none"},
		"2 is no time as":           {"review", "-f", "-", "--now=tonight"},
		"2 nothing to review":       {"review", "-f", "-"},
		"2 Workers: -1":             {"manifests", "--image=x", "--webhook-namespace=hooks", "--hooks-workers=-1"},
		"2 TargetLabelSelector: ":   {"manifests", "--image=x", "--webhook-namespace=hooks", "--hooks-target-label-selector=a=b=c"},
		"2 without wildcards":       {"manifests", "--image=x", "--webhook-namespace=hooks", "--hooks-kinds=*"},
		"2 unknown command \"start": {"start"},
	} {
		code, want, _ := strings.Cut(want, " ")
		if output, err := execute(t, "", args...); err == nil || !strings.Contains(err.Error()+output, want) || strconv.Itoa(command.ExitCode(err)) != code {
			t.Errorf("%q: %d %v, want %s %q", args, command.ExitCode(err), err, code, want)
		}
	}
}

func TestAReviewTellsWrongManifestsFromAWrongAnswer(t *testing.T) {
	const controller = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: c}
spec:
  parentResource: {apiVersion: v1, resource: configmaps}
  hooks: {sync: {%s}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: p, namespace: default}
`
	for want, hook := range map[string]string{
		"2 wrong manifests: CompositeController c: spec.hooks.sync.rego is not set": `webhook: {url: "http://a"}`,
		"2 wrong manifests: CompositeController c: inline:1":                        `rego: {inline: "package controller {"}`,
		"2 the manifests do not have the ConfigMap":                                 `rego: {configMap: {name: a, namespace: b, key: c}}`,
		"1 CompositeController c: ConfigMap default/p: children[0]":                 `rego: {inline: "package controller\n\nchildren := [{}]"}`,
	} {
		code, want, _ := strings.Cut(want, " ")
		_, err := execute(t, fmt.Sprintf(controller, hook), "review", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), want) || strconv.Itoa(command.ExitCode(err)) != code {
			t.Errorf("%s: %d %v, want %s %q", hook, command.ExitCode(err), err, code, want)
		}
	}
	if _, err := execute(t, "kind: Pod", "review", "-f", "-"); command.ExitCode(err) != 2 {
		t.Errorf("%v", err)
	}
}

func TestAReviewShowsWhatThePolicyWouldMakeOfTheManifests(t *testing.T) {
	policy, err := os.ReadFile(seed + "policy/controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: transient-binding, name: policy}\ndata:\n  controller.rego: |\n    " +
		strings.ReplaceAll(string(policy), "\n", "\n    ") + "\n"
	args := []string{"review", "-f", seed + "controllers.yaml", "-f", seed + "crd.yaml", "-f", seed + "binding.yaml", "-f", "-"}
	for at, creates := range map[string]bool{"2026-11-23T12:30:00Z": true, "2026-11-23T13:30:00Z": false} {
		output, err := execute(t, configMap, append(args, "--now="+at)...)
		if err != nil || strings.Contains(output, "create: RoleBinding apps/oncall") != creates {
			t.Errorf("at %s: %v: %s", at, err, output)
		}
	}
}

func TestThePolicyOfAHookMayNotReachTheNetwork(t *testing.T) {
	const inline = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: c}
spec:
  parentResource: {apiVersion: v1, resource: configmaps}
  hooks: {sync: {rego: {inline: "package controller\n\nchildren := http.send({})"}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: p, namespace: default}
`
	if output, err := execute(t, inline, "review", "-f", "-"); err == nil || !strings.Contains(err.Error(), "inline:3") {
		t.Errorf("%v: %s", err, output)
	}
}

func TestManifestsGiveTheRightsOfTheExtensionAndNoWildcard(t *testing.T) {
	output, err := execute(t, "", "manifests", "--image=x", "--webhook-namespace=hooks-system")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"compositecontrollers/status", "- reconcile"} {
		if !strings.Contains(output, want) {
			t.Errorf("there is no %q in:\n%s", want, output)
		}
	}
	for _, never := range []string{"'*'", `"*"`, "escalate"} {
		if strings.Contains(output, never) {
			t.Errorf("there is %q in:\n%s", never, output)
		}
	}
}

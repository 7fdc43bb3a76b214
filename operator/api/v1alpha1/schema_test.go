package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// ozTemplates are manifests as users of the Oz RBAC Controller have them, with
// another apiVersion.
const ozTemplates = `
apiVersion: admitkit.dev/v1alpha1
kind: PodAccessTemplate
metadata: {name: web, namespace: default}
spec:
  accessConfig:
    allowedGroups: [devs]
    defaultDuration: 1h
    maxDuration: 2h
    accessCommand: "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/bash"
  controllerTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  controllerTargetMutationConfig:
    defaultContainerName: web
    command: [/bin/sleep, "100000"]
    env: [{name: FOO, value: bar}]
    resources: {limits: {cpu: 100m}}
    podAnnotations: {a: b}
    podLabels: {c: d}
    nodeSelector: {disk: ssd}
    purgeAnnotations: true
    keepTerminationGracePeriod: true
    patchSpecOperations:
    - {op: replace, path: /spec/containers/0/name, value: oz}
    - {op: add, path: /spec/tolerations, value: [{key: a, operator: Exists}]}
    - {op: add, path: /spec/priority, value: 5}
    - {op: move, path: /spec/a, from: /spec/b}
  maxCpu: 1
  maxMemory: 1Gi
  maxStorage: 1Gi
---
apiVersion: admitkit.dev/v1alpha1
kind: ExecAccessTemplate
metadata: {name: web, namespace: default}
spec:
  accessConfig: {allowedGroups: [devs], defaultDuration: 30m, maxDuration: 2h}
  controllerTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}
---
apiVersion: admitkit.dev/v1alpha1
kind: ExecAccessRequest
metadata: {name: web, namespace: default}
spec: {templateName: web, duration: 1h30m, targetPod: web-0}
---
apiVersion: admitkit.dev/v1alpha1
kind: PodAccessRequest
metadata: {name: web, namespace: default}
spec: {templateName: web}
`

func TestTheSchemas(t *testing.T) {
	cluster := controlplane.Run(t, controlplane.Options{CRDPaths: []string{"../../config/crd"}})
	apply := func(manifest string, args ...string) (string, error) {
		cmd := cluster.Kubectl(t.Context(), nil, append(args, "-f", "-")...)
		cmd.Stdin = strings.NewReader(manifest)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	if output, err := apply(ozTemplates, "apply"); err != nil {
		t.Fatalf("manifests of Oz do not apply: %s", output)
	}
	template := func(kind, config, rest string) string {
		return "{apiVersion: admitkit.dev/v1alpha1, kind: " + kind + ", metadata: {name: bad, namespace: default}, spec: {accessConfig: {" + config + "}" + rest + "}}"
	}
	request := func(kind, name, spec string) string {
		return "{apiVersion: admitkit.dev/v1alpha1, kind: " + kind + ", metadata: {name: " + name + ", namespace: default}, spec: {" + spec + "}}"
	}
	const target = ", controllerTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"
	for sentence, test := range map[string]struct{ manifest, want string }{
		"a default over the maximum": {template("ExecAccessTemplate", "allowedGroups: [a], defaultDuration: 3h, maxDuration: 2h", target), "defaultDuration, which is 1h if you leave it out, must not exceed maxDuration"},
		"the default default over the maximum": {
			template("PodAccessTemplate", "allowedGroups: [a], maxDuration: 30m", target), "defaultDuration, which is 1h if you leave it out, must not exceed maxDuration",
		},
		"a duration without a unit": {template("ExecAccessTemplate", "allowedGroups: [a], maxDuration: \"3\"", target), "maxDuration"},
		"a maximum in days": {
			template("ExecAccessTemplate", "allowedGroups: [a], maxDuration: 2d", target), "spec.accessConfig.maxDuration: Invalid value: \"2d\": must be a duration such as 90m or 48h; hours are the largest unit",
		},
		"approvals awaited for days": {
			template("ExecAccessTemplate", "allowedGroups: [a], approval: {required: 1, groups: [b], timeout: 2d}", target), "must be a duration from 1s to 168h, such as 90m or 48h; hours are the largest unit",
		},
		"a duration in days":            {request("PodAccessRequest", "bad", "templateName: web, duration: 2d"), "hours are the largest unit"},
		"a template that allows nobody": {template("ExecAccessTemplate", "maxDuration: 2h", target), "allowedGroups or allowedUsers must name somebody"},
		"an empty group":                {template("ExecAccessTemplate", `allowedGroups: [a, ""]`, target), "must not be empty: an empty name allows nobody; leave it out"},
		"an empty user":                 {template("PodAccessTemplate", `allowedUsers: [""]`, target), "must not be empty"},
		"a group twice":                 {template("ExecAccessTemplate", "allowedGroups: [a, b, a]", target), `spec.accessConfig.allowedGroups[2]: Duplicate value: "a"`},
		"others asked for in groups": {
			template("ExecAccessTemplate", "allowedGroups: [a], askFor: {users: [bot]}", target), "askFor needs allowedUsers",
		},
		"others asked for by nobody": {
			template("ExecAccessTemplate", "allowedUsers: [a], askFor: {users: []}", target), "users or groups must name somebody; leave askFor out",
		},
		"others asked for, and all get in": {
			template("ExecAccessTemplate", "allowedUsers: [a], subjects: Groups, askFor: {groups: [bots]}", target), "askFor needs subjects Requester",
		},
		"somebody else afterwards": {request("PodAccessRequest", "web", "templateName: web, onBehalfOf: mallory"), "onBehalfOf cannot be changed"},
		"an unknown verb":          {template("ExecAccessTemplate", "allowedGroups: [a], verbs: [delete]", target), "verbs"},
		"no verbs at all":          {template("ExecAccessTemplate", "allowedGroups: [a], verbs: []", target), "verbs"},
		"a kind of another group": {
			template("ExecAccessTemplate", "allowedGroups: [a]", ", controllerTargetRef: {apiVersion: batch/v1, kind: Deployment, name: web}"), "apiVersion and kind must be",
		},
		"neither target nor podSpec": {template("PodAccessTemplate", "allowedGroups: [a]", ""), "one of controllerTargetRef and podSpec"},
		"target and podSpec":         {template("PodAccessTemplate", "allowedGroups: [a]", target+", podSpec: {containers: []}"), "one of controllerTargetRef and podSpec"},
		"a move from nowhere": {
			template("PodAccessTemplate", "allowedGroups: [a]", target+", controllerTargetMutationConfig: {patchSpecOperations: [{op: move, path: /spec/a}]}"), "move and copy need from",
		},
		"an operation that RFC 6902 does not know": {
			template("PodAccessTemplate", "allowedGroups: [a]", target+", controllerTargetMutationConfig: {patchSpecOperations: [{op: merge, path: /spec/a}]}"), "op",
		},
		"a request without a template":   {request("PodAccessRequest", "bad", "duration: 1h"), "templateName"},
		"an unparsable duration":         {request("PodAccessRequest", "bad", "templateName: web, duration: an hour"), "duration"},
		"a negative duration":            {request("PodAccessRequest", "bad", "templateName: web, duration: -1h"), "duration"},
		"a name too long for a Pod's":    {request("PodAccessRequest", strings.Repeat("a", 53), "templateName: web"), "metadata.name must have at most 52 characters, because the name of the access Pod is made of it; choose a shorter one"},
		"another template afterwards":    {request("PodAccessRequest", "web", "templateName: other"), "templateName cannot be changed"},
		"another Pod afterwards":         {request("ExecAccessRequest", "web", "templateName: web, duration: 1h30m, targetPod: web-1"), "targetPod cannot be changed"},
		"an exec request's name as long": {request("ExecAccessRequest", strings.Repeat("a", 53), "templateName: web"), "at most 52 characters"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if output, err := apply(test.manifest, "apply", "--dry-run=server"); err == nil || !strings.Contains(output, test.want) {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
	output, err := apply(template("ExecAccessTemplate", "allowedGroups: [a], defaultDuration: 1d, maxDuration: 2d", target), "apply", "--dry-run=server")
	if err == nil || strings.Contains(output, "evaluation") {
		t.Errorf("durations that cannot be compared: %v: %s", err, output)
	}
	role := request("RoleAccessTemplate", "reader", "accessConfig: {allowedGroups: [a]}, roleRef: {kind: Role, name: reader}")
	if output, err := apply(role, "apply", "-o=jsonpath={.spec.accessConfig.verbs}{.spec.accessConfig.onExpiry}{.spec.accessConfig.defaultDuration}"); err != nil || output != "1h" {
		t.Errorf("a template of a role has defaults that mean nothing: %v: %s", err, output)
	}
	// Nothing may be removed that could be set again to something else.
	patch := cluster.Kubectl(t.Context(), nil, "patch", "ear", "web", "--type=json", "-p", `[{"op":"remove","path":"/spec/targetPod"}]`)
	if output, err := patch.CombinedOutput(); err == nil || !strings.Contains(string(output), "targetPod cannot be changed") {
		t.Errorf("targetPod can be removed: %s", output)
	}
	// An empty name is none, as in Oz, and may come and go.
	for _, spec := range []string{`templateName: web, targetPod: ""`, "templateName: web", `templateName: web, targetPod: ""`} {
		if output, err := apply(request("ExecAccessRequest", "any-pod", spec), "apply"); err != nil {
			t.Errorf("%s: %s", spec, output)
		}
	}
	if output, err := apply(request("ExecAccessRequest", "any-pod", "templateName: web, targetPod: web-1"), "apply"); err == nil || !strings.Contains(output, "targetPod cannot be changed") {
		t.Errorf("targetPod can be set afterwards: %s", output)
	}
	for _, args := range [][]string{{"get", "access"}, {"get", "pat,eat,par,ear"}} {
		output, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %v: %v: %s", args, err, output)
		}
		for _, column := range []string{"TEMPLATE", "POD", "REQUESTER", "EXPIRES", "READY", "TARGET"} {
			if !strings.Contains(string(output), column) {
				t.Errorf("kubectl %v has no column %s:\n%s", args, column, output)
			}
		}
	}
}

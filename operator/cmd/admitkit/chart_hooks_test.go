package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

// hooksProgram is operator/cmd/hooks. Where it is, go build links it only if something has changed.
const hooksProgram = "../../../bin/hooks"

var buildHooks sync.Once

// builtHooks returns it when it is built.
func builtHooks(t testing.TB) string {
	t.Helper()
	buildHooks.Do(func() {
		if err := testkit.Build(t.Context(), hooksProgram, "-ldflags=-s -w", "../hooks"); err != nil {
			t.Fatal(err)
		}
	})
	return hooksProgram
}

// hooksManifests returns what `hooks manifests` prints.
func hooksManifests(t *testing.T, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), builtHooks(t), append([]string{"manifests", "--image=x"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("hooks manifests %q: %v: %s", args, err, problems.String())
	}
	return out.String()
}

// hooksVariants are values with hooks, for the tests that are about nothing else.
var hooksVariants = map[string]string{
	"alone":              `{audit: {enabled: false}, hooks: {enabled: true}}`,
	"with audit":         `{hooks: {enabled: true, kinds: [configmaps, deployments.apps], namespaces: [apps, other], workers: 9}}`,
	"its own namespace":  `{audit: {enabled: false}, hooks: {enabled: true, namespaces: [rel-system]}, metrics: {secure: true}}`,
	"selected":           `{audit: {enabled: false}, hooks: {enabled: true, targetLabelSelector: "installation in (a, b)"}}`,
	"three replicas":     `{audit: {enabled: false}, hooks: {enabled: true}, replicas: 3, drainPeriodSeconds: 45}`,
	"without election":   `{audit: {enabled: false}, hooks: {enabled: true}, leaderElection: false}`,
	"without metrics":    `{audit: {enabled: false}, hooks: {enabled: true}, metrics: {enabled: false}}`,
	"split, with access": `{access: {enabled: true, namespaces: [apps]}, split: {enabled: true}, hooks: {enabled: true}, healthPort: 8181}`,
}

// hooksOf returns the Deployment of hooks, and what `hooks manifests` prints with its flags.
func hooksOf(t *testing.T, objects []metav1.Object) (deployment *appsv1.Deployment, manifests []metav1.Object) {
	t.Helper()
	for _, object := range objects {
		if d, is := object.(*appsv1.Deployment); is && d.Name == release+"-admitkit-hooks" {
			deployment = d
		}
	}
	if deployment == nil {
		t.Fatal("there is no Deployment of hooks")
	}
	args := slices.DeleteFunc(slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args), func(arg string) bool {
		return arg == "reconcile" || strings.HasPrefix(arg, "--reconciler-user=")
	})
	return deployment, objectsOf(t, strings.Split(hooksManifests(t, args...), "---\n"))
}

func TestTheChartGivesHooksTheRightsOfTheirManifestsAndNoOther(t *testing.T) {
	t.Parallel()
	for name, values := range hooksVariants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			_, manifests := hooksOf(t, objects)
			got, want := rightsOf(t, objects)[release+"-admitkit-hooks"], rightsOf(t, manifests)["hooks-reconciler"]
			if more := got.without(want); len(more) > 0 {
				t.Errorf("the chart gives more:\n%s", strings.Join(more, "\n"))
			}
			if less := want.without(got); len(less) > 0 {
				t.Errorf("the chart does not give:\n%s", strings.Join(less, "\n"))
			}
			if !got["everywhere: what ClusterRoles have with the label admitkit.dev/aggregate-to-hooks=true"] {
				t.Errorf("authors of controllers cannot add rights: %v", got)
			}
			for right := range got {
				if strings.Contains(right, "*.") || strings.Contains(right, ": * ") || strings.HasPrefix(right, "everywhere: get secrets") {
					t.Errorf("they may %s", right)
				}
			}
		})
	}
}

func TestThePodsOfHooksAreThoseOfTheirManifests(t *testing.T) {
	t.Parallel()
	for name, values := range hooksVariants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			deployment, _ := hooksOf(t, objects)
			replicas := "2"
			if strings.Contains(values, "replicas: 3") {
				replicas = "3"
			}
			args := append(slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args[2:]), "--replicas="+replicas)
			want, _ := shapeOf(objectsOf(t, strings.Split(hooksManifests(t, args...), "---\n")), "hooks-reconciler")
			got, _ := shapeOf(objects, release+"-admitkit-hooks")
			got.Process, want.Process = nil, nil // the names of their accounts
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("- manifests, + chart: %s", diff)
			}
			process := processOf(deployment.Spec.Template.Spec)
			account := deployment.Spec.Template.Spec.ServiceAccountName
			if want := []string{"reconcile", "--reconciler-user=system:serviceaccount:" + releaseNamespace + ":" + account}; !slices.Equal(process, want) {
				t.Errorf("it runs %q, want %q", process, want)
			}
		})
	}
}

func TestHooksAreTheirOwnProgramAndHaveNothingOfTheOthers(t *testing.T) {
	t.Parallel()
	objects := objectsOf(t, render(t, `
hooks: {enabled: true, image: {repository: example.com/hooks, tag: "2"}, extraArgs: ["--zap-devel"], extraEnv: [{name: HTTPS_PROXY, value: "http://proxy"}]}
audit: {cloudEvents: {url: "https://siem.example.com", tokenSecret: {name: siem}}, file: {enabled: true}}
extraArgs: ["--max-in-flight=10"]
extraEnv: [{name: A, value: b}]
extraVolumes: [{name: tmp, emptyDir: {}}]
extraVolumeMounts: [{name: tmp, mountPath: /tmp}]
resources: {limits: {memory: 1Gi}}
`))
	deployment, _ := hooksOf(t, objects)
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	if container.Image != "example.com/hooks:2" || container.Resources.Limits.Memory().String() != "512Mi" || len(pod.Volumes)+len(container.VolumeMounts) > 0 {
		t.Errorf("the Pod is %+v", pod)
	}
	if env := container.Env; len(env) != 2 || env[1].Name != "HTTPS_PROXY" {
		t.Errorf("its environment is %+v", env)
	}
	if !slices.Contains(container.Args, "--zap-devel") || slices.Contains(container.Args, "--max-in-flight=10") || !slices.Contains(container.Args, "--fingerprint=rel-admitkit-hooks") {
		t.Errorf("it gets %q", container.Args)
	}
}

func TestWithHooksAloneNothingElseIsInstalled(t *testing.T) {
	t.Parallel()
	crds := 0
	for _, object := range objectsOf(t, render(t, hooksVariants["alone"])) {
		if crd, is := object.(*apiextensionsv1.CustomResourceDefinition); is {
			crds++
			if crd.Annotations["api-approved.kubernetes.io"] == "" || crd.Annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("%s has the annotations %v", crd.Name, crd.Annotations)
			}
			continue
		}
		if !strings.Contains(object.GetName(), "rel-admitkit-hooks") || object.GetAnnotations()["helm.sh/hook"] != "" {
			t.Errorf("there is %T %s", object, object.GetName())
		}
		if _, is := object.(*corev1.Service); is {
			t.Errorf("there is a Service %s", object.GetName())
		}
	}
	if crds != 3 {
		t.Errorf("%d CRDs", crds)
	}
	if notes := notesOf(t, hooksVariants["alone"]); strings.Contains(notes, "webhooks") || !strings.Contains(notes, "admitkit.dev/aggregate-to-hooks=true") {
		t.Errorf("the notes: %s", notes)
	}
}

func TestValuesOfHooksWithoutEffectAreRefused(t *testing.T) {
	t.Parallel()
	const alone = `audit: {enabled: false}, hooks: {enabled: true}`
	for values, want := range map[string]string{
		`{audit: {enabled: false}}`:                                                   "audit.enabled, access.enabled, sessions.enabled, hooks.enabled, sandbox.enabled: all are false",
		`{hooks: {kinds: [pods]}}`:                                                    "hooks.kinds: has no effect",
		`{hooks: {namespaces: [apps]}}`:                                               "hooks.namespaces: has no effect",
		`{hooks: {targetLabelSelector: a=b}}`:                                         "hooks.targetLabelSelector: has no effect",
		`{hooks: {extraArgs: [--zap-devel]}}`:                                         "hooks.extraArgs: has no effect",
		`{hooks: {extraEnv: [{name: A, value: b}]}}`:                                  "hooks.extraEnv: has no effect",
		`{serviceAccount: {hooksName: a}}`:                                            "serviceAccount.hooksName: has no effect",
		`{hooks: {enabled: true, kinds: ["*"]}}`:                                      "at '/hooks/kinds/0'",
		`{hooks: {enabled: true, kinds: [Pods]}}`:                                     "at '/hooks/kinds/0'",
		`{hooks: {enabled: true, namespaces: ["*"]}}`:                                 "at '/hooks/namespaces/0'",
		`{hooks: {enabled: true, workers: 1001}}`:                                     "at '/hooks/workers'",
		`{hooks: {enabled: true, extraArgs: ["--hooks-namespaces=a"]}}`:               "hooks.extraArgs: --hooks-namespaces=a: set hooks.namespaces instead",
		`{` + alone + `, watchNamespaces: [apps]}`:                                    "watchNamespaces: has no effect",
		`{` + alone + `, scan: {every: 1h}}`:                                          "scan.every: has no effect",
		`{` + alone + `, extraArgs: [a]}`:                                             "extraArgs: has no effect",
		`{` + alone + `, rbac: {extraRules: [{}]}}`:                                   "rbac.extraRules: has no effect",
		`{hooks: {enabled: true}, serviceAccount: {create: false, name: a}}`:          "serviceAccount.hooksName: required",
		`{hooks: {enabled: true}, serviceAccount: {name: a, hooksName: a}}`:           "each process needs a ServiceAccount of its own",
		`{` + alone + `, metrics: {enabled: false, prometheusRule: {enabled: true}}}`: "need metrics.enabled",
	} {
		if err := refusal(t, metav1.NamespaceDefault, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", values, err, want)
		}
	}
}

package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../../charts/admitkit"
	// The release of these tests.
	release, releaseNamespace = "rel", "rel-system"
)

// variants are the values that every test of the chart's objects renders.
var variants = map[string]string{
	"the default": "",
	"audit everywhere, with every sink": `
audit:
  allNamespaces: true
  objects: {enabled: true, failurePolicy: Closed, deletableBy: ['Doe, "Jane"']}
  file: {enabled: true, volume: {persistentVolumeClaim: {claimName: audit}}}
  cloudEvents: {url: "https://siem.example.com", tokenSecret: {name: siem}, queue: {enabled: true}, failurePolicy: Closed}
  redact: [password]
`,
	"access only":     `{audit: {enabled: false}, access: {enabled: true}}`,
	"both":            `{access: {enabled: true}}`,
	"both, split":     `{access: {enabled: true}, split: {enabled: true}}`,
	"both, and a Job": `{access: {enabled: true}, split: {enabled: true, registrar: Job}}`,
	"objects":         `{audit: {objects: {enabled: true}, event: {enabled: false}}, crds: {keep: true}}`,
	"enforcement": `
access: {enabled: true}
audit: {enforcement: {enabled: true, exemptUsers: ["Doe, Jane"], exemptGroups: [sre, oncall], commands: ["tar cf - ..."], forbidTTY: true}}
`,
	"marks":     `{audit: {touchedPods: {mark: true}}}`,
	"evictions": `{audit: {touchedPods: {evictAfter: 1h, maxEvictAfter: 4h}}, leaderElection: false}`,
	"a namespace": `
watchNamespace: apps
access: {enabled: true}
audit: {objects: {enabled: true}, touchedPods: {evictAfter: 1h}, enforcement: {enabled: true, namespaces: [apps]}}
`,
	"a namespace, audited everywhere, and split": `
watchNamespace: apps
split: {enabled: true}
audit: {allNamespaces: true}
`,
	"everything else": `
replicas: 1
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: registry}]
drainPeriodSeconds: 20
podSelector: app in (web, api)
ignoreUntilProbed: true
serviceAccount: {annotations: {a: b}}
service: {port: 8443, annotations: {a: b}}
metrics: {serviceMonitor: {enabled: true, interval: 30s}, podMonitor: {enabled: true, interval: 30s, labels: {team: a}}}
networkPolicy: {enabled: true, metricsFrom: [{podSelector: {}}], egress: [{}]}
commonLabels: {team: a}
podLabels: {b: c}
podAnnotations: {d: e}
podSecurityContext: {fsGroup: 1234}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{operator: Exists}]
affinity: {nodeAffinity: {}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
priorityClassName: system-cluster-critical
extraArgs: ["--max-in-flight=10"]
extraEnv: [{name: A, value: b}]
extraVolumes: [{name: tmp, emptyDir: {}}]
extraVolumeMounts: [{name: tmp, mountPath: /tmp}]
rbac: {extraRules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]}
`,
}

// helm runs Helm on the chart.
func helm(t *testing.T, stdin string, args ...string) (stdout string, err error) {
	t.Helper()
	path, err := filepath.Abs("../../bin/tools/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("Helm is not built: run `make bin/tools/helm`: %v", err)
	}
	seen(t)
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	home := t.TempDir() // no repositories, plugins or caches of who runs the test
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_CACHE_HOME="+home)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &problems
	if err := cmd.Run(); err != nil {
		return "", &helmError{err, out.String() + problems.String()}
	}
	return out.String(), nil
}

// helmError has what Helm said.
type helmError struct {
	error
	output string
}

func (e *helmError) Error() string { return e.error.Error() + ": " + e.output }

// seen opens every file of the chart, for go test to know that the result
// depends on them, which it would cache.
func seen(t *testing.T) {
	t.Helper()
	if err := filepath.WalkDir(chartDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// render returns the documents of the chart, hooks included.
func render(t *testing.T, values string) []string {
	t.Helper()
	text, err := helm(t, values, "template", release, chartDir, "--namespace", releaseNamespace, "--values", "-")
	if err != nil {
		t.Fatal(err)
	}
	var documents []string
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var content map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &content); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if len(content) > 0 {
			documents = append(documents, document)
		}
	}
	return documents
}

// typed are the kinds of objects that a chart or `manifests` makes.
var typed = map[string]func() metav1.Object{
	"ClusterRole":              func() metav1.Object { return &rbacv1.ClusterRole{} },
	"ClusterRoleBinding":       func() metav1.Object { return &rbacv1.ClusterRoleBinding{} },
	"CustomResourceDefinition": func() metav1.Object { return &apiextensionsv1.CustomResourceDefinition{} },
	"Deployment":               func() metav1.Object { return &appsv1.Deployment{} },
	"Job":                      func() metav1.Object { return &batchv1.Job{} },
	"Namespace":                func() metav1.Object { return &corev1.Namespace{} },
	"NetworkPolicy":            func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"PodDisruptionBudget":      func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"PodMonitor":               func() metav1.Object { return &podMonitor{} },
	"Role":                     func() metav1.Object { return &rbacv1.Role{} },
	"RoleBinding":              func() metav1.Object { return &rbacv1.RoleBinding{} },
	"Service":                  func() metav1.Object { return &corev1.Service{} },
	"ServiceAccount":           func() metav1.Object { return &corev1.ServiceAccount{} },
	"ServiceMonitor":           func() metav1.Object { return &serviceMonitor{} },
}

// The fields of the Prometheus Operator's kinds that the chart sets
// (https://prometheus-operator.dev/docs/api-reference/api/).
type (
	serviceMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []endpoint           `json:"endpoints"`
		} `json:"spec"`
	}
	podMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector `json:"selector"`
			PodMetricsEndpoints []endpoint           `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	endpoint struct {
		Port     string `json:"port"`
		Interval string `json:"interval"`
	}
)

// decode returns an object; fields that its type does not know are an error.
func decode(t *testing.T, document string) metav1.Object {
	t.Helper()
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
		t.Fatal(err)
	}
	newObject := typed[meta.Kind]
	if newObject == nil {
		t.Fatalf("no type for %s", meta.Kind)
	}
	object := newObject()
	if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	return object
}

// objectsOf returns the objects of a text with documents.
func objectsOf(t *testing.T, documents []string) []metav1.Object {
	t.Helper()
	objects := make([]metav1.Object, len(documents))
	for i, document := range documents {
		objects[i] = decode(t, document)
	}
	return objects
}

// podOf returns the Pod template of a workload; nil for other objects.
func podOf(object metav1.Object) *corev1.PodTemplateSpec {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	}
	return nil
}

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/testkit"
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
  otlp: {endpoint: "https://collector:4318", tokenSecret: {name: siem}, tlsSecret: {name: otlp}, caSecret: {name: ca}, queue: {enabled: true}, failurePolicy: Closed, resource: {k8s.cluster.name: "prod, 1"}}
  redact: [password]
tracing: {endpoint: "http://collector:4318", insecure: true, ratio: 0.5}
`,
	"every sink, split": `
audit:
  objects: {enabled: true}
  file: {enabled: true}
  cloudEvents: {url: "https://siem.example.com", tokenSecret: {name: siem}, queue: {enabled: true}}
  otlp: {endpoint: "https://collector:4318", tokenSecret: {name: siem}, queue: {enabled: true}}
tracing: {endpoint: "https://collector:4318", tokenSecret: {name: siem}, caSecret: {name: ca}, tlsSecret: {name: otlp}}
`,
	"access only":              `{audit: {enabled: false}, access: {enabled: true, namespaces: [apps]}, split: {enabled: false}}`,
	"access only, split":       `{audit: {enabled: false}, access: {enabled: true, namespaces: [apps]}}`,
	"both":                     `{access: {enabled: true, namespaces: [other, apps], checks: {secretName: checks}}, split: {enabled: false}}`,
	"both, everywhere":         `{access: {enabled: true, namespaces: ["*"]}, split: {enabled: false}}`,
	"both, split":              `{access: {enabled: true, namespaces: [other, apps], checks: {secretName: checks}, notify: {url: "https://chat.example.com", tokenSecret: {name: chat}, caSecret: {name: ca}, tlsSecret: {name: chat-tls}, queue: {enabled: true}}}}`,
	"bindings":                 `{binding: {roles: [apps/deployer, other/teller], clusterRoles: [view, edit], namespaces: [apps], clusterWide: [node-reader]}, split: {enabled: false}}`,
	"bindings, split":          `{audit: {enabled: false}, binding: {roles: [apps/deployer], clusterRoles: [view], namespaces: [apps, default], clusterWide: [node-reader]}}`,
	"bindings and access":      `{access: {enabled: true, namespaces: [apps]}, binding: {roles: [apps/deployer]}}`,
	"both, split, everywhere":  `{access: {enabled: true, namespaces: ["*"]}}`,
	"sessions":                 `{replicas: 1, audit: {enabled: false}, sessions: {enabled: true, namespaces: [apps, other], evict: true}, split: {enabled: false}}`,
	"sessions, of a label":     `{replicas: 1, audit: {objects: {enabled: true}}, sessions: {enabled: true, selector: "a=b,c", unrecorded: Open, policy: Open, wait: 1m, input: true, max: 8h, idle: 15m, retention: 48h}, split: {enabled: false}}`,
	"sessions, in a bucket":    `{sessions: {enabled: true, namespaces: [apps], s3: {endpoint: "s3.example.com:9000", insecure: true, bucket: bbb, region: eu-1, prefix: a/, secret: s}}}`,
	"sessions, read":           `{replicas: 1, sessions: {enabled: true, namespaces: [apps, kube-system], api: {enabled: true}}, split: {enabled: false}}`,
	"sessions, read, split":    `{replicas: 1, watchNamespaces: [apps], sessions: {enabled: true, api: {enabled: true}}}`,
	"sessions, split":          `{watchNamespaces: [apps], audit: {objects: {enabled: true}}, sessions: {enabled: true, volume: {persistentVolumeClaim: {claimName: s}}}}`,
	"roles":                    `{access: {enabled: true, namespaces: [other, apps], roles: [apps/deployer, other/reader, apps/reader], clusterRoles: [view, "system:monitor"]}}`,
	"roles, everywhere":        `{access: {enabled: true, namespaces: ["*"], roles: [apps/deployer], clusterRoles: [view]}, split: {enabled: false}}`,
	"roles of a namespace":     `{watchNamespaces: [apps], access: {enabled: true, roles: [apps/deployer], clusterRoles: [view]}, split: {enabled: false}}`,
	"roles of two namespaces":  `{watchNamespaces: [apps, default], access: {enabled: true, roles: [apps/deployer], clusterRoles: [view]}}`,
	"egress, split":            `{access: {enabled: true, namespaces: [other, default], egress: {networkPolicy: auto, cilium: true, podCIDRs: [10.244.0.0/16, "fd00::/48"], serviceCIDRs: [10.96.0.0/12]}}}`,
	"egress, everywhere":       `{access: {enabled: true, namespaces: ["*"], egress: {networkPolicy: "on", cilium: true}}, split: {enabled: false}}`,
	"egress, off":              `{access: {enabled: true, namespaces: [apps], egress: {networkPolicy: "off"}}, split: {enabled: false}}`,
	"both, and a Job":          `{access: {enabled: true, namespaces: [apps]}, split: {registrar: Job}}`,
	"both, split, not elected": `{access: {enabled: true, namespaces: [apps]}, leaderElection: false}`,
	"objects":                  `{audit: {objects: {enabled: true}, event: {enabled: false}}, crds: {keep: false}, split: {enabled: false}}`,
	"enforcement": `
access: {enabled: true, namespaces: ["*"]}
audit: {enforcement: {enabled: true, exemptUsers: ["Doe, Jane"], exemptGroups: [sre, oncall], commands: ["tar cf - ..."], forbidTTY: true}}
`,
	"TLS of its own": `
excludeNamespaces: [calico-system, tigera-operator]
tolerateSelectorTerms: [control-plane=true, kubernetes.azure.com/managedby=aks]
tls: {minVersion: "1.2", cipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256], clientCA: {configMap: clients, names: ["Doe, Jane", kube-apiserver]}}
`,
	"hooks, and everything audited": `
hooks: {enabled: true, kinds: [configmaps, deployments.apps], namespaces: [apps, other], workers: 9}
networkPolicy: {enabled: true}
metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}}
`,
	"hooks, split": `{hooks: {enabled: true}, access: {enabled: true, namespaces: [apps]}, crds: {keep: false}}`,
	"marks":        `{audit: {touchedPods: {mark: true}}, split: {enabled: false}}`,
	"evictions":    `{audit: {touchedPods: {evictAfter: 1h, maxEvictAfter: 4h}}, leaderElection: false, split: {enabled: false}}`,
	"a namespace": `
watchNamespaces: [apps]
access: {enabled: true}
audit: {objects: {enabled: true}, touchedPods: {evictAfter: 1h}, enforcement: {enabled: true, namespaces: [apps]}}
`,
	"a namespace, split": `
watchNamespaces: [apps]
access: {enabled: true}
audit: {objects: {enabled: true}, touchedPods: {evictAfter: 1h}, enforcement: {enabled: true, namespaces: [apps]}}
`,
	"a namespace, and access in others": `
watchNamespaces: [apps]
access: {enabled: true, namespaces: [default, other]}
audit: {touchedPods: {evictAfter: 1h}, enforcement: {enabled: true}}
`,
	"a namespace, and access in it and another": `
watchNamespaces: [apps]
access: {enabled: true, namespaces: [other, apps]}
audit: {touchedPods: {evictAfter: 1h}}
rbac: {extraRules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]}
`,
	"a namespace, and access everywhere": `
watchNamespaces: [apps]
access: {enabled: true, namespaces: ["*"]}
`,
	"a namespace, audited everywhere, and split": `
watchNamespaces: [apps]
audit: {allNamespaces: true}
`,
	"monitors, and split": `
scan: {every: 1h, reports: true}
access: {enabled: true, namespaces: [apps]}
metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}, secure: true, authorization: {credentials: {name: t, key: k}}}
`,
	"the nodes' network": `
hostNetwork: true
port: 30443
healthPort: 30081
access: {enabled: true, namespaces: [apps]}
metrics: {port: 30080, serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}
`,
	"everything else": `
replicas: 1
webhookAnnotations: {admissions.enforcer/disabled: "true", "example.com/a": "b=c, d"}
healthPort: 8181
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: registry}]
drainPeriodSeconds: 20
podSelector: app in (web, api)
ignoreUntilProbed: true
serviceAccount: {annotations: {a: b}}
service: {port: 8443, annotations: {a: b}, ipFamilies: [IPv4], ipFamilyPolicy: PreferDualStack}
dnsPolicy: Default
metrics: {port: 8180, serviceMonitor: {enabled: true, interval: 30s}, podMonitor: {enabled: true, interval: 30s, labels: {team: a}}}
networkPolicy: {enabled: true, apiServers: [10.0.0.10/32, {podSelector: {}}], metricsFrom: [{podSelector: {}}], egress: [{}]}
clusterName: arn:aws:eks:eu-west-1:123456789012:cluster/blue
audit: {imageUpdaters: ["system:serviceaccount:kruise:manager", "Doe, Jane"]}
commonLabels: {team: a}
podLabels: {b: c}
podAnnotations: {d: e}
podSecurityContext: {fsGroup: 1234}
securityContext: {runAsUser: 1234}
nodeSelector: {kubernetes.io/arch: amd64}
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

// rendering is what Helm makes of the chart with values in a namespace.
func rendering(t *testing.T, namespace, values string) (testkit.Rendered, error) {
	t.Helper()
	return testkit.Chart{Dir: chartDir, Release: release, Namespace: namespace, Values: values}.Render(t)
}

// refusal returns why the chart does not take values.
func refusal(t *testing.T, namespace, values string) error {
	t.Helper()
	_, err := rendering(t, namespace, values)
	return err
}

// render returns the documents of the chart, hooks included.
func render(t *testing.T, values string) []string {
	t.Helper()
	return documentsOf(t, rendered(t, values).Documents())
}

// notesOf returns what the chart tells who has installed it.
func notesOf(t *testing.T, values string) string {
	t.Helper()
	return rendered(t, values).Notes
}

func rendered(t *testing.T, values string) testkit.Rendered {
	t.Helper()
	made, err := rendering(t, releaseNamespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// inJSON has what jsonOf has returned: most documents of one rendering are those of
// the one before, and under the race detector to parse them takes most of the time.
var inJSON sync.Map

// jsonOf returns a YAML document in JSON.
func jsonOf(t *testing.T, document string) []byte {
	t.Helper()
	if content, ok := inJSON.Load(document); ok {
		return content.([]byte)
	}
	content, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	inJSON.Store(document, content)
	return content
}

// documentsOf returns the documents of what Helm prints.
func documentsOf(t *testing.T, text string) []string {
	t.Helper()
	var documents []string
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if string(jsonOf(t, document)) != "null" {
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
	"PrometheusRule":           func() metav1.Object { return &prometheusRule{} },
	"ConfigMap":                func() metav1.Object { return &corev1.ConfigMap{} },
	"Role":                     func() metav1.Object { return &rbacv1.Role{} },
	"RoleBinding":              func() metav1.Object { return &rbacv1.RoleBinding{} },
	"Secret":                   func() metav1.Object { return &corev1.Secret{} },
	"Service":                  func() metav1.Object { return &corev1.Service{} },
	"ServiceAccount":           func() metav1.Object { return &corev1.ServiceAccount{} },
	"ServiceMonitor":           func() metav1.Object { return &serviceMonitor{} },

	"APIService":                       func() metav1.Object { return &apiService{} },
	"ValidatingAdmissionPolicy":        func() metav1.Object { return &admissionregistrationv1.ValidatingAdmissionPolicy{} },
	"ValidatingAdmissionPolicyBinding": func() metav1.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{} },
}

// apiService has the fields of an APIService that the chart sets.
type apiService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group                string `json:"group"`
		Version              string `json:"version"`
		GroupPriorityMinimum int32  `json:"groupPriorityMinimum"`
		VersionPriority      int32  `json:"versionPriority"`
		Service              struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      int32  `json:"port"`
		} `json:"service"`
	} `json:"spec"`
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
			NamespaceSelector   namespaceSelector    `json:"namespaceSelector"`
			Selector            metav1.LabelSelector `json:"selector"`
			PodMetricsEndpoints []endpoint           `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	namespaceSelector struct {
		MatchNames []string `json:"matchNames"`
	}
	endpoint struct {
		Port            string         `json:"port"`
		Interval        string         `json:"interval"`
		Scheme          string         `json:"scheme"`
		TLSConfig       map[string]any `json:"tlsConfig"`
		Authorization   map[string]any `json:"authorization"`
		BearerTokenFile string         `json:"bearerTokenFile"`
	}
	prometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              map[string]any `json:"spec"`
	}
)

// decode returns an object. As at an API server, fields that its type does not
// know are an error, and so is a number or a truth value in place of a text.
func decode(t *testing.T, document string) metav1.Object {
	t.Helper()
	content := jsonOf(t, document)
	var meta metav1.TypeMeta
	if err := json.Unmarshal(content, &meta); err != nil {
		t.Fatal(err)
	}
	newObject := typed[meta.Kind]
	if newObject == nil {
		t.Fatalf("no type for %s", meta.Kind)
	}
	object := newObject()
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(object); err != nil {
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

func TestTheChartIsLintedStrictly(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		if err := (testkit.Chart{Dir: chartDir, Namespace: releaseNamespace, Values: values}).Lint(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheChartRefusesWrongValuesAndNamesThem(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		`{audti: {enabled: false}}`:                                         "'audti' not allowed",
		`{audit: {enabeld: false}}`:                                         "at '/audit': additional properties 'enabeld' not allowed",
		`{audit: {log: {failurePolicy: open}}}`:                             "at '/audit/log/failurePolicy': value must be one of 'Open', 'Closed'",
		`{audit: {cloudEvents: {url: "http://siem"}}}`:                      "at '/audit/cloudEvents/url'",
		`{audit: {otlp: {endpoint: "collector:4318"}}}`:                     "at '/audit/otlp/endpoint'",
		`{tracing: {ratio: 2}}`:                                             "at '/tracing/ratio'",
		`{access: {retention: 1d}}`:                                         "at '/access/retention'",
		`{replicas: 0}`:                                                     "at '/replicas': minimum: got 0, want 1",
		`{image: {digest: latest}}`:                                         "at '/image/digest'",
		`{watchNamespaces: ["a,b"]}`:                                        "at '/watchNamespaces/0'",
		`{split: {enabled: true, registrar: CronJob}}`:                      "at '/split/registrar'",
		`{audit: {enforcement: {enabled: true}}}`:                           "audit.enforcement.enabled: needs access.enabled",
		`{audit: {log: {enabled: false}, event: {enabled: false}}}`:         "audit: every sink is off",
		`{ignoreUntilProbed: true, split: {enabled: true, registrar: Job}}`: "ignoreUntilProbed: needs a registrar that stays",
		`{metrics: {enabled: false, podMonitor: {enabled: true}}}`:          "need metrics.enabled",
		`{fullnameOverride: 1st}`:                                           `"1st" is no name for a Service`,
		`{nameOverride: "a b", fullnameOverride: c}`:                        "at '/nameOverride'",
		`{logLevel: error, audit: {required: true}}`:                        "logLevel: error leaves out what audit.log records",
		`{logLevel: error, audit: {log: {failurePolicy: Closed}}}`:          "logLevel: error leaves out what audit.log records",
		`{port: 8081}`: "port: 8081 is the port of the probes, healthPort",
		`{port: 8080}`: "port: 8080 is the port of the metrics, metrics.port",
		`{healthPort: 9090, metrics: {port: 9090}}`:                             "healthPort: 9090 is the port of the metrics",
		`{metrics: {secure: true, podMonitor: {enabled: true}}}`:                "metrics.podMonitor.enabled: with metrics.secure it needs metrics.authorization",
		`{metrics: {enabled: false, dashboards: {enabled: true}}}`:              "dashboards: need metrics.enabled",
		`{binding: {roles: [deployer]}}`:                                        "at '/binding/roles/0'",
		`{binding: {roles: ["shop/*"]}}`:                                        "at '/binding/roles/0'",
		`{binding: {clusterWide: [""]}}`:                                        "at '/binding/clusterWide/0'",
		`{binding: {clusterRoles: [view]}}`:                                     "binding.namespaces: required with binding.clusterRoles",
		`{binding: {namespaces: [shop]}}`:                                       "binding.namespaces: they are those in which",
		`{healthPort: 80}`:                                                      "at '/healthPort': minimum: got 80, want 1,024",
		`{hostNetwork: true, port: 10250}`:                                      "hostNetwork: port 10250 of a node is its kubelet's",
		`{dnsPolicy: None}`:                                                     "at '/dnsPolicy'",
		`{service: {ipFamilies: [IPv5]}}`:                                       "at '/service/ipFamilies/0'",
		`{service: {ipFamilyPolicy: Dual}}`:                                     "at '/service/ipFamilyPolicy'",
		`{webhookAnnotations: {a: 'say "b"'}}`:                                  "at '/webhookAnnotations/a'",
		`{webhookAnnotations: {"a=b": c}}`:                                      "'a=b' does not match pattern",
		`{webhookAnnotations: {a: true}}`:                                       "at '/webhookAnnotations/a'",
		`{serviceAccount: {name: default}}`:                                     "at '/serviceAccount/name'",
		`{serviceAccount: {create: false}}`:                                     "serviceAccount.name: required, because serviceAccount.create is false",
		`{serviceAccount: {create: false, name: a}, split: {enabled: true}}`:    "serviceAccount.registrarName: required",
		`{serviceAccount: {name: a, registrarName: a}, split: {enabled: true}}`: "each process needs a ServiceAccount of its own",
		`{serviceAccount: {create: false, name: a, registrarName: b}, split: {enabled: true}, audit: {objects: {enabled: true}}}`:     "serviceAccount.reconcilerName: required",
		`{serviceAccount: {name: a, registrarName: b, reconcilerName: b}, split: {enabled: true}, audit: {objects: {enabled: true}}}`: "a, b, b: each process needs",
		`{scan: {every: 1h}, serviceAccount: {name: a, scannerName: a}}`:                                                              "each process needs a ServiceAccount of its own",
		`{scan: {every: 1h}, serviceAccount: {create: false, name: a, registrarName: b}}`:                                             "serviceAccount.scannerName: required",
		`{serviceAccount: {scannerName: a}}`: "serviceAccount.scannerName: has no effect",
		`{scan: {reports: true}}`:            "scan.reports: has no effect without scan.every",
		`{scan: {every: 59s}}`:               "scan.every: 59s: must be at least 1m",
		`{scan: {every: often}}`:             "at '/scan/every'",

		`{tls: {minVersion: "1.1"}}`:                        "at '/tls/minVersion'",
		`{tls: {minVersion: 1.1}}`:                          "at '/tls/minVersion'",
		`{tls: {cipherSuites: [TLS_RSA_WITH_RC4_128_SHA]}}`: "at '/tls/cipherSuites/0': value must be one of",

		`{tls: {minVersion: 1.3, cipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]}}`:                     "tls.cipherSuites: TLS 1.3 has no choice of cipher suites",
		`{tls: {cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}}`:                                        "tls.cipherSuites: none fits the manager's own certificate",
		`{tls: {clientCA: {names: [kube-apiserver]}}}`:                                                          "tls.clientCA.names: has no effect without tls.clientCA.configMap",
		`{tls: {clientCA: {key: bundle.crt}}}`:                                                                  "tls.clientCA.key: has no effect without tls.clientCA.configMap",
		`{tolerateSelectorTerms: [kubernetes.io/metadata.name]}`:                                                "tolerateSelectorTerms: kubernetes.io/metadata.name would let others exclude any namespace",
		`{excludeNamespaces: ["a,b"]}`:                                                                          "at '/excludeNamespaces/0'",
		`{excludeNamespaces: [apps], watchNamespaces: [apps]}`:                                                  "excludeNamespaces: apps is in watchNamespaces: remove it from one of them",
		`{excludeNamespaces: [apps], access: {enabled: true, namespaces: [shop, apps]}}`:                        "excludeNamespaces: apps is in access.namespaces",
		`{tolerateSelectorTerms: ["/a"]}`:                                                                       "at '/tolerateSelectorTerms/0'",
		`{audit: {otlp: {endpoint: "http://collector:4318"}}}`:                                                  "audit.otlp.endpoint: http://collector:4318 must be https, or http on this machine; set audit.otlp.insecure",
		`{audit: {otlp: {endpoint: "http://c:4318", insecure: true, tokenSecret: {name: t}}}}`:                  "audit.otlp.endpoint: it must be https: by http anybody in between could read the credentials",
		`{audit: {otlp: {endpoint: "http://localhost:4318", caSecret: {name: t}}}}`:                             "audit.otlp.caSecret and tlsSecret have no effect by http",
		`{tracing: {endpoint: "https://c:4318/?key=x"}}`:                                                        "tracing.endpoint: it must have no query",
		`{tracing: {endpoint: "http://c:4318"}}`:                                                                "tracing.endpoint: http://c:4318 must be https",
		`{audit: {otlp: {queue: {enabled: true}}}}`:                                                             "audit.otlp.queue: has no effect without audit.otlp.endpoint",
		`{audit: {otlp: {resource: {a: b}}}}`:                                                                   "audit.otlp.resource: has no effect without audit.otlp.endpoint",
		`{audit: {otlp: {failurePolicy: Closed}}}`:                                                              "audit.otlp.failurePolicy: has no effect without audit.otlp.endpoint",
		`{audit: {cloudEvents: {tokenSecret: {name: t}}}}`:                                                      "audit.cloudEvents.tokenSecret: has no effect without audit.cloudEvents.url",
		`{access: {notify: {source: a}}}`:                                                                       "access.notify.source: has no effect without access.notify.url",
		`{access: {checks: {key: a}}}`:                                                                          "access.checks.key: has no effect without access.checks.secretName",
		`{sessions: {api: {enabled: true}}}`:                                                                    "sessions.api: has no effect without sessions.enabled",
		`{audit: {enabled: false}, sessions: {enabled: true, namespaces: [apps], api: {enabled: true}}}`:        "sessions.api.enabled: needs audit.enabled",
		`{sessions: {retention: 24h}}`:                                                                          "sessions.retention: has no effect without sessions.enabled",
		`{replicas: 1, sessions: {enabled: true, namespaces: [apps], s3: {bucket: bbb}}}`:                       "sessions.s3.bucket: has no effect without sessions.s3.endpoint",
		`{sessions: {enabled: true, namespaces: [apps]}}`:                                                       "sessions.volume: required with replicas above 1",
		`{sessions: {enabled: true, namespaces: [apps], volume: {emptyDir: {}}}}`:                               "sessions.volume: required with replicas above 1",
		`{sessions: {s3: {endpoint: s, bucket: bbb}}}`:                                                          "sessions.s3.endpoint: has no effect without sessions.enabled",
		`{sessions: {enabled: true, namespaces: [apps], s3: {endpoint: s}}}`:                                    "sessions.s3.bucket: required",
		`{sessions: {enabled: true, namespaces: [ab], s3: {endpoint: s, bucket: bbb}, volume: {emptyDir: {}}}}`: "sessions.s3.endpoint, sessions.volume: both keep the recordings",
		`{replicas: 1, sessions: {enabled: true, namespaces: [apps], wait: 1500ms}}`:                            "at '/sessions/wait'",
		`{replicas: 1, sessions: {enabled: true, namespaces: [apps], idle: 0.5s}}`:                              "at '/sessions/idle'",
		`{sessions: {enabled: true, namespaces: [apps], s3: {endpoint: s, bucket: B_}}}`:                        "at '/sessions/s3/bucket'",
		`{sessions: {enabled: true, namespaces: [apps], s3: {endpoint: "https://s", bucket: bbb}}}`:             "at '/sessions/s3/endpoint'",
		`{tracing: {ratio: 0.5}}`:                                                                               "tracing.ratio: has no effect without tracing.endpoint",
		`{metrics: {authorization: {credentials: {name: a, key: b}}}}`:                                          "metrics.authorization: has no effect without metrics.secure",
		`{metrics: {enabled: false, secure: true}}`:                                                             "metrics.secure: has no effect without metrics.enabled",
		`{binding: {workers: 2}}`:                                                                               "binding.workers: has no effect without binding.roles",
		`{podSelector: "a b c"}`:                                                                                `podSelector: "a b c" is no label selector: it has terms such as`,
		`{podSelector: "a!=b"}`:                                                                                 "and no !=",
		`{audit: {retention: 9999999h}}`:                                                                        "at '/audit/retention'",
		`{audit: {redact: ["["]}}`:                                                                              `executing "audit.redact" at <mustRegexMatch . "">: error calling mustRegexMatch: error parsing regexp`,
		`{audit: {redact: [""]}}`:                                                                               "at '/audit/redact/0'",
		`{audit: {enforcement: {commands: [""]}}}`:                                                              "at '/audit/enforcement/commands/0'",
		`{audit: {enforcement: {namespaces: ["A b"]}}}`:                                                         "at '/audit/enforcement/namespaces/0'",
		`{audit: {enforcement: {exemptUsers: [""]}}}`:                                                           "at '/audit/enforcement/exemptUsers/0'",
		`{audit: {cloudEvents: {url: "https://a b"}}}`:                                                          "at '/audit/cloudEvents/url'",
		`{audit: {otlp: {endpoint: "https://a:b"}}}`:                                                            "at '/audit/otlp/endpoint'",
		`{audit: {touchedPods: {evictUnmanaged: true}}}`:                                                        "audit.touchedPods.evictUnmanaged, maxEvictAfter: have no effect",
		`{binding: {roles: [kube-system/b]}}`:                                                                   "binding.roles, namespaces: kube-system is the manager's own namespace, or one of the control plane",
		`{binding: {clusterRoles: [view], namespaces: [default]}}`:                                              "binding.roles, namespaces: default is the manager's own namespace",
		`{webhookAnnotations: {"a b": c}}`:                                                                      "'a b' does not match pattern",
		`{rbac: {conversions: [alarms]}}`:                                                                       "at '/rbac/conversions/0'",
		`{tolerateSelectorTerms: ["a=b,c"]}`:                                                                    "at '/tolerateSelectorTerms/0'",
		`{extraObjects: [1]}`:                                                                                   "at '/extraObjects/0'",
		`{networkPolicy: {apiServers: [10.0.0.10]}}`:                                                            "at '/networkPolicy/apiServers/0'",
		`{networkPolicy: {apiServers: [10.0.0.256/32]}}`:                                                        "at '/networkPolicy/apiServers/0'",
		`{networkPolicy: {apiServers: ["fd00::1/129"]}}`:                                                        "at '/networkPolicy/apiServers/0'",
		`{networkPolicy: {apiServers: [{cidr: 10.0.0.10/32}]}}`:                                                 "at '/networkPolicy/apiServers/0'",
		`{audit: {imageUpdaters: [""]}}`:                                                                        "at '/audit/imageUpdaters/0'",
		`{audit: {touchedPods: {evictAfter: 1h30m, maxEvictAfter: 89m}}}`:                                       "audit.touchedPods.maxEvictAfter: 89m is less than evictAfter, 1h30m",
		`{audit: {objects: {foldUserAfter: 0}}}`:                                                                "at '/audit/objects/foldUserAfter'",
		`{audit: {objects: {foldAllAfter: -1}}}`:                                                                "at '/audit/objects/foldAllAfter'",
		`{access: {namespaces: [Apps]}}`:                                                                        "at '/access/namespaces/0'",
		`{access: {namespaces: [apps, apps]}}`:                                                                  "at '/access/namespaces'",
		`{split: {reconciler: Job}}`:                                                                            "at '/split/reconciler'",
		`{audit: {objects: {enabled: true}}, split: {reconciler: None}}`:                                        "split.reconciler: None is for a program of your own",
	} {
		if err := refusal(t, metav1.NamespaceDefault, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", values, err, want)
		}
	}
}

// The program's tests say what it refuses. What it would refuse must not become a Pod that crashes.
func TestTheChartKnowsTheCipherSuitesOfTheProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			TLS struct {
				Properties struct {
					CipherSuites struct{ Items struct{ Enum []string } }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, suite := range tls.CipherSuites() {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) {
			want = append(want, suite.Name)
		}
	}
	got := schema.Properties.TLS.Properties.CipherSuites.Items.Enum
	if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("the chart takes %q, the program %q", got, want)
	}
}

func TestTheChartTakesWhatOnlyLooksLikeAClashOfValues(t *testing.T) {
	for _, values := range []string{
		`{port: 8080, metrics: {enabled: false}}`,
		`{port: 8081, healthPort: 8080, metrics: {port: 9443}}`,
		`{port: 10250}`,
		`{serviceAccount: {name: a, registrarName: a}, split: {enabled: false}}`,
		`{audit: {touchedPods: {evictAfter: 90m, maxEvictAfter: 1h30m}}}`,
		`{audit: {touchedPods: {evictAfter: 48h}}}`, // the maximum is then no less by default
		`{audit: {touchedPods: {mark: true, maxEvictAfter: 1h}}}`,
		`{logLevel: error}`,
		`{tls: {minVersion: 1.3}}`,
		`{podSelector: "app in (web, api), !x, y, z=a, w==b, v notin (c)"}`,
		`{audit: {otlp: {endpoint: "https://u:p@[fd00::1]:4318/base"}, redact: ["(?i)pass"]}}`,
		`{tls: {minVersion: 1.2, cipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]}}`,
		`{audit: {otlp: {endpoint: "http://localhost:4318", tokenSecret: {name: ""}}}}`,
		`{tracing: {endpoint: "http://127.0.0.1:4318"}}`,
		`{audit: {otlp: {resource: null}}}`,
		`{logLevel: error, audit: {required: true, log: {enabled: false}}}`,
	} {
		t.Run(values, func(t *testing.T) { manifestsOf(t, podOf(serverOf(objectsOf(t, render(t, values)))).Spec) })
	}
}

func TestNamesThatYAMLHasAnotherMeaningForStayNames(t *testing.T) {
	t.Parallel()
	const everything = `
split: {enabled: true}
access: {enabled: true, namespaces: ["off", "2e3"]}
priorityClassName: "on"
networkPolicy: {enabled: true}
metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}
audit: {cloudEvents: {url: "https://siem.example.com", tokenSecret: {name: "1e3", key: "off"}}}
`
	// A Service's name begins with a letter; names of releases and namespaces need not.
	for name, fullname := range map[string]string{"on": "on", "no": "no", "true": "true", "null": "null", "123": "n", "1e3": "n", "0x10": "n"} {
		named := fmt.Sprintf("%snameOverride: %q\nwatchNamespaces: [%q]\nfullnameOverride: %q\n", everything, name, name, fullname)
		made, err := testkit.Chart{Dir: chartDir, Release: name, Namespace: name, Values: named}.Render(t)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objectsOf(t, documentsOf(t, made.Documents())) {
			if instance := object.GetLabels()["app.kubernetes.io/instance"]; instance != name {
				t.Errorf("%T %s is of the release %q, not %q", object, object.GetName(), instance, name)
			}
		}
	}
}

func TestAProgramOfOnesOwnRunsByTheChart(t *testing.T) {
	t.Parallel()
	const program = `
image: {repository: example.com/stamp}
audit: {enabled: false}
watchNamespaces: [apps]
rbac:
  extraRules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
  extraClusterRules: [{apiGroups: [""], resources: [nodes], verbs: [get]}, {apiGroups: [""], resources: [configmaps], verbs: [list, patch, "*"]}]
`
	for values, want := range map[string][]string{
		"split: {enabled: false}":                     {"start as rel-admitkit"},
		"split: {enabled: false}\nscan: {every: 90m}": {"start as rel-admitkit", "scan --every=90m as rel-admitkit-scanner"},
		"": {
			"serve --reconciler-user=system:serviceaccount:rel-system:rel-admitkit-reconciler as rel-admitkit",
			"register --stay as rel-admitkit-registrar", "reconcile --reconciler-user=system:serviceaccount:rel-system:rel-admitkit-reconciler as rel-admitkit-reconciler",
		},
		"split: {reconciler: None}": {"serve as rel-admitkit", "register --stay as rel-admitkit-registrar"},
	} {
		t.Run(values, func(t *testing.T) {
			objects := objectsOf(t, render(t, program+values))
			of := rightsOf(t, objects)
			var got []string
			for _, object := range objects {
				pod := podOf(object)
				if pod == nil {
					continue
				}
				for _, variable := range pod.Spec.Containers[0].Env {
					if strings.HasPrefix(variable.Name, "ADMITKIT_") && variable.Value != "false" {
						t.Errorf("%s: %s=%s", object.GetName(), variable.Name, variable.Value)
					}
				}
				if _, is := object.(*appsv1.Deployment); !is {
					continue
				}
				account := pod.Spec.ServiceAccountName
				got = append(got, strings.Join(processOf(pod.Spec), " ")+" as "+account)
				extensions := !strings.HasSuffix(account, "-registrar")
				if may := of[account]["everywhere: patch configmaps. *"]; may != (extensions && !strings.HasSuffix(account, "-scanner")) {
					t.Errorf("%s may patch: %t", account, may)
				}
				if of[account]["everywhere: get nodes. *"] != extensions || of[account]["apps: list pods. *"] != extensions || of[account]["apps: get pods. *"] {
					t.Errorf("%s may %v", account, of[account])
				}
			}
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// processOf returns what only one of the Pods' processes is told: its subcommand.
func processOf(pod corev1.PodSpec) []string {
	args := slices.Clone(pod.Containers[0].Args)
	return slices.DeleteFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--") && arg != "--stay" && arg != "--reports" && !strings.HasPrefix(arg, "--reconciler-user=") && !strings.HasPrefix(arg, "--every=")
	})
}

func TestTheSchemaKnowsEveryValueAndNoOther(t *testing.T) {
	t.Parallel()
	read := func(name string) map[string]any {
		text, err := os.ReadFile(filepath.Join(chartDir, name))
		if err != nil {
			t.Fatal(err)
		}
		var content map[string]any
		if err := yaml.UnmarshalStrict(text, &content); err != nil {
			t.Fatal(err)
		}
		return content
	}
	schema := read("values.schema.json")
	definitions := schema["$defs"].(map[string]any)
	var compare func(path string, values, schema map[string]any)
	compare = func(path string, values, schema map[string]any) {
		if name, ok := schema["$ref"].(string); ok {
			schema = definitions[strings.TrimPrefix(name, "#/$defs/")].(map[string]any)
		}
		properties, ok := schema["properties"].(map[string]any)
		if !ok {
			return // free
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s: additional properties are allowed", path)
		}
		for key := range properties {
			if _, ok := values[key]; !ok && path+key != "enabled" && path+key != "global" { // of charts around this one
				t.Errorf("%s%s is not in values.yaml", path, key)
			}
		}
		for key, value := range values {
			property, ok := properties[key].(map[string]any)
			if !ok {
				t.Errorf("%s%s is not in the schema", path, key)
				continue
			}
			if group, ok := value.(map[string]any); ok {
				compare(path+key+".", group, property)
			}
		}
	}
	compare("", read("values.yaml"), schema)
}

func TestOnlyTheAPIServersReachTheWebhooks(t *testing.T) {
	t.Parallel()
	const warning = "every Pod of the cluster can reach the webhooks"
	const servers = `apiServers: [10.0.0.10/32, "fd00::10/128", {podSelector: {matchLabels: {app: konnectivity-agent}}}]`
	named := []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.10/32"}},
		{IPBlock: &networkingv1.IPBlock{CIDR: "fd00::10/128"}},
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "konnectivity-agent"}}},
	}
	for values, want := range map[string][]networkingv1.NetworkPolicyPeer{
		`{networkPolicy: {enabled: true, ` + servers + `}}`:  named,
		`{networkPolicy: {` + servers + `}}`:                 named,
		`{networkPolicy: {enabled: false, ` + servers + `}}`: nil,
		`{networkPolicy: {enabled: true}}`:                   nil,
		`{}`:                                                 nil,
	} {
		from := map[string][]networkingv1.NetworkPolicyPeer{}
		for _, object := range objectsOf(t, render(t, values)) {
			policy, ok := object.(*networkingv1.NetworkPolicy)
			if !ok {
				continue
			}
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					from[port.Port.StrVal] = append(from[port.Port.StrVal], rule.From...)
				}
			}
		}
		if !reflect.DeepEqual(from["webhook"], want) || from["health"] != nil || from["metrics"] != nil {
			t.Errorf("%s: the ports admit %v", values, from)
		}
		if notes := notesOf(t, values); strings.Contains(notes, warning) == (want != nil) {
			t.Errorf("%s: the notes: %s", values, notes)
		}
	}
}

func TestOnlyServersAdmitCallsOfTheirWebhooks(t *testing.T) {
	t.Parallel()
	objects := objectsOf(t, render(t, `{split: {enabled: true}, access: {enabled: true, namespaces: [apps]}, scan: {every: 1h}, networkPolicy: {enabled: true}}`))
	admitted := map[string][]string{}
	for _, object := range objects {
		policy, ok := object.(*networkingv1.NetworkPolicy)
		if !ok {
			continue
		}
		for _, other := range objects {
			pod := podOf(other)
			if pod == nil || !labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(labels.Set(pod.Labels)) {
				continue
			}
			admitted[other.GetName()] = []string{}
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					if hasPort(pod, port.Port.StrVal) {
						admitted[other.GetName()] = append(admitted[other.GetName()], port.Port.StrVal)
					}
				}
			}
		}
	}
	want := map[string][]string{
		"rel-admitkit":            {"webhook", "health", "metrics"},
		"rel-admitkit-registrar":  {"health", "metrics"},
		"rel-admitkit-reconciler": {"health", "metrics"},
		"rel-admitkit-scanner":    {"health", "metrics"},
		"rel-admitkit-unregister": {},
		"rel-admitkit-test":       {},
	}
	if !reflect.DeepEqual(admitted, want) {
		t.Errorf("got %v, want %v", admitted, want)
	}
}

func TestWhatRecordsHasTheVolumesAndTheTokenOfTheSinksAndNothingElseHas(t *testing.T) {
	t.Parallel()
	for _, object := range objectsOf(t, render(t, variants["every sink, split"])) {
		pod := podOf(object)
		if pod == nil {
			continue
		}
		var got []string
		for _, volume := range pod.Spec.Volumes {
			got = append(got, volume.Name)
		}
		container := &pod.Spec.Containers[0]
		for _, mount := range container.VolumeMounts {
			got = append(got, mount.MountPath)
		}
		for _, variable := range container.Env {
			if variable.Name == "ADMITKIT_AUDIT_CLOUDEVENTS_TOKEN_FILE" {
				got = append(got, variable.Value)
			}
		}
		var want []string
		if name := object.GetName(); name == "rel-admitkit" || name == "rel-admitkit-reconciler" {
			want = []string{"audit", "queue", "cloudevents", "otlp-queue", "otlp", "/audit", "/queue", "/cloudevents", "/otlp-queue", "/otlp", "/cloudevents/token"}
			if name == "rel-admitkit" { // only servers have spans
				want = []string{"audit", "queue", "cloudevents", "otlp-queue", "otlp", "traces", "/audit", "/queue", "/cloudevents", "/otlp-queue", "/otlp", "/traces", "/cloudevents/token"}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", object.GetName(), got, want)
		}
	}
}

func TestOnlyWhatGrantsNotifies(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, object := range objectsOf(t, render(t, variants["both, split"])) {
		pod := podOf(object)
		if pod == nil {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.Name != "access-checks" {
				got[object.GetName()] += volume.Name + " "
			}
		}
		for _, variable := range pod.Spec.Containers[0].Env {
			if strings.Contains(variable.Name, "NOTIFY") && strings.HasSuffix(variable.Name, "_FILE") {
				got[object.GetName()] += variable.Value + " "
			}
		}
	}
	if want := map[string]string{"rel-admitkit-reconciler": "access-queue access-notify /access-notify/token /access-notify/ca.crt /access-notify/tls.crt /access-notify/tls.key "}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestOnlyWhatGrantsHasTheCredentialsOfTheChecks(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, split := range []string{"true", "false"} {
		for _, object := range objectsOf(t, render(t, `{access: {enabled: true, namespaces: [apps], checks: {secretName: checks, key: all.yaml}}, scan: {every: 1h}, split: {enabled: `+split+`}}`)) {
			pod := podOf(object)
			if pod == nil {
				continue
			}
			for _, volume := range pod.Spec.Volumes {
				got[object.GetName()+" "+split] += fmt.Sprintf("%s %d ", volume.Secret.SecretName, len(volume.Secret.Items))
			}
			for _, variable := range pod.Spec.Containers[0].Env {
				if variable.Name == "ADMITKIT_ACCESS_CHECKS" {
					got[object.GetName()+" "+split] += variable.Value
				}
			}
		}
	}
	// The one item is the file of the checks.
	want := map[string]string{
		"rel-admitkit false": "checks 0 /access-checks/all.yaml", "rel-admitkit true": "checks 1 /access-checks/all.yaml", "rel-admitkit-reconciler true": "checks 0 /access-checks/all.yaml",
		"rel-admitkit-scanner false": "checks 1 /access-checks/all.yaml", "rel-admitkit-scanner true": "checks 1 /access-checks/all.yaml",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheNotesSayWhatToDoAboutAccess(t *testing.T) {
	t.Parallel()
	for values, want := range map[string][]string{
		"": nil,
		"{access: {enabled: true, namespaces: [other, apps]}, split: {enabled: false}}": {"rollout status deployment rel-admitkit ", "set split.enabled"},
		`{access: {enabled: true, namespaces: ["*"]}}`: {
			"rollout status deployment rel-admitkit rel-admitkit-registrar rel-admitkit-reconciler", "can take over the cluster. Name the namespaces",
		},
		"{watchNamespaces: [apps], access: {enabled: true}}": nil,
	} {
		notes := notesOf(t, values)
		for _, text := range want {
			if !strings.Contains(strings.Join(strings.Fields(notes), " "), text) {
				t.Errorf("%s: the notes do not say %q: %s", values, text, notes)
			}
		}
		if len(want) == 0 && (strings.Contains(notes, "grant access") || strings.Contains(notes, "take over")) {
			t.Errorf("%s: the notes warn: %s", values, notes)
		}
	}
}

func TestTwoReleasesDoNotMeet(t *testing.T) {
	t.Parallel()
	const values = `{audit: {touchedPods: {evictAfter: 1h}}, split: {enabled: true}, networkPolicy: {enabled: true}}`
	seen := map[string]string{}
	selectors := map[string]map[string]string{}
	for _, where := range [][2]string{{"one", "a"}, {"two", "a"}, {"one", "b"}} {
		made, err := testkit.Chart{Dir: chartDir, Release: where[0], Namespace: where[1], Values: values}.Render(t)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objectsOf(t, documentsOf(t, made.Documents())) {
			id := fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
			if before := seen[id]; before != "" {
				t.Errorf("%s is in %s and %v", id, before, where)
			}
			seen[id] = fmt.Sprint(where)
			if service, ok := object.(*corev1.Service); ok {
				selectors[fmt.Sprint(where)] = service.Spec.Selector
			}
		}
	}
	if labels.SelectorFromSet(selectors["[one a]"]).Matches(labels.Set(selectors["[two a]"])) {
		t.Errorf("one Service has the Pods of both: %v", selectors)
	}
}

func TestTheServiceReachesServersAloneAndMetricsOfEveryDeploymentAreScraped(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		var stay []string
		for _, object := range objects {
			if _, ok := object.(*appsv1.Deployment); ok {
				stay = append(stay, object.GetName())
			}
		}
		for _, object := range objects {
			selector, port := selectorOf(object)
			if selector == nil {
				continue
			}
			want := []string{release + "-admitkit"}
			if port == "metrics" {
				want = stay
			} else if _, is := object.(*policyv1.PodDisruptionBudget); is {
				want = []string{object.GetName()} // it has the name of its Deployment
			}
			var matched []string
			for _, other := range objects {
				if pod := podOf(other); pod != nil && selector.Matches(labels.Set(pod.Labels)) && (port == "" || hasPort(pod, port)) {
					matched = append(matched, other.GetName())
				}
			}
			if !slices.Equal(matched, want) {
				t.Errorf("%s: %T %s selects the Pods of %v, want %v", name, object, object.GetName(), matched, want)
			}
		}
	}
}

// selectorOf returns the selector of what is about the Pods, and the name of the
// port without which it does not mean them.
func selectorOf(object metav1.Object) (selector labels.Selector, port string) {
	switch o := object.(type) {
	case *corev1.Service:
		return labels.SelectorFromSet(o.Spec.Selector), o.Spec.Ports[0].TargetPort.String()
	case *policyv1.PodDisruptionBudget:
		return labels.SelectorFromSet(o.Spec.Selector.MatchLabels), ""
	case *podMonitor:
		return labels.SelectorFromSet(o.Spec.Selector.MatchLabels), o.Spec.PodMetricsEndpoints[0].Port
	}
	return nil, ""
}

func hasPort(pod *corev1.PodTemplateSpec, name string) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

func TestEveryObjectOfTheChartSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		for _, object := range objectsOf(t, render(t, values)) {
			for _, key := range []string{"name", "instance", "version", "part-of", "managed-by"} {
				if object.GetLabels()["app.kubernetes.io/"+key] == "" {
					t.Errorf("%s: %T %s has no label %s", name, object, object.GetName(), key)
				}
			}
			if object.GetLabels()["helm.sh/chart"] == "" {
				t.Errorf("%s: %T %s has no label helm.sh/chart", name, object, object.GetName())
			}
		}
	}
}

func TestEveryServiceAccountHasTheAnnotationsOfTheValues(t *testing.T) {
	t.Parallel()
	for _, registrar := range []string{"Deployment", "Job"} {
		count := 0
		for _, object := range objectsOf(t, render(t, `
serviceAccount: {annotations: {a: b}}
access: {enabled: true, namespaces: [apps]}
split: {enabled: true, registrar: `+registrar+`}
`)) {
			if account, ok := object.(*corev1.ServiceAccount); ok {
				count++
				if account.Annotations["a"] != "b" {
					t.Errorf("%s: %v", account.Name, account.Annotations)
				}
			}
		}
		if count != 5 {
			t.Errorf("%s: %d ServiceAccounts", registrar, count)
		}
	}
}

func TestTheCRDsComeWithWhatNeedsThem(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]struct{ crds, policies int }{
		"":                                  {0, 0},
		"binding: {roles: [shop/deployer]}": {2, 4},
		"hooks: {enabled: true}":            {3, 0},
		"audit: {objects: {enabled: true}}": {1, 0},
		"access: {enabled: true, namespaces: [apps]}":                                                              {7, 10},
		"{access: {enabled: true, namespaces: [apps]}, audit: {objects: {enabled: true}}}":                         {8, 10},
		"{access: {enabled: true, namespaces: [apps]}, binding: {roles: [shop/deployer]}}":                         {9, 14},
		"{access: {enabled: true, namespaces: [apps]}, audit: {objects: {enabled: true}}, crds: {enabled: false}}": {0, 0},
		"{access: {enabled: true, namespaces: [apps]}, audit: {enabled: false, objects: {enabled: true}}}":         {7, 10},
	} {
		count, policies := 0, 0
		for _, object := range objectsOf(t, render(t, values)) {
			if isPolicy(object) {
				policies++
			}
			if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
				count++
				if crd.Annotations["controller-gen.kubebuilder.io/version"] == "" {
					t.Errorf("%s lost its annotations: %v", crd.Name, crd.Annotations)
				}
			}
		}
		if count != want.crds || policies != want.policies {
			t.Errorf("%s: %d CRDs and %d policies and bindings, want %v", values, count, policies, want)
		}
	}
}

func TestTheHooksOfTheChartComeInOrderAndGo(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		for _, object := range objects {
			job, ok := object.(*batchv1.Job)
			if !ok {
				continue
			}
			if job.Spec.BackoffLimit == nil || job.Spec.ActiveDeadlineSeconds == nil {
				t.Errorf("%s: %s has no end", name, job.Name)
			}
			account := 0
			for _, other := range objects {
				of := other.GetAnnotations()
				if !strings.Contains(other.GetName(), job.Name) || of["helm.sh/hook"] == "" {
					continue
				}
				if in := other.GetNamespace(); in != "" && in != releaseNamespace {
					t.Errorf("%s: %T %s cannot be made where namespace %s is gone", name, other, other.GetName(), in)
				}
				if of["helm.sh/hook"] != job.Annotations["helm.sh/hook"] || weight(t, other) > weight(t, job) {
					t.Errorf("%s: %T %s is there at %v, the Job at %v", name, other, other.GetName(), of, job.Annotations)
				}
				if of["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded,hook-failed" {
					t.Errorf("%s: %T %s stays: %v", name, other, other.GetName(), of)
				}
				if weight(t, other) < weight(t, job) && other.GetName() == job.Spec.Template.Spec.ServiceAccountName {
					account++
				}
			}
			if account == 0 {
				t.Errorf("%s: %s has no ServiceAccount before it", name, job.Name)
			}
		}
	}
}

func weight(t *testing.T, object metav1.Object) int {
	t.Helper()
	weight, err := strconv.Atoi(object.GetAnnotations()["helm.sh/hook-weight"])
	if err != nil {
		t.Errorf("%T %s: %v", object, object.GetName(), err)
	}
	return weight
}

// The others listen for nobody whose certificate these settings are about.
func TestOnlyServersHaveTheTLSSettingsOfTheValues(t *testing.T) {
	t.Parallel()
	for name, pod := range podsOf(t, variants["TLS of its own"]) {
		container := &pod.Spec.Containers[0]
		var got []string
		for _, argument := range container.Args {
			if flag, _, _ := strings.Cut(argument, "="); slices.Contains([]string{"--tls-min-version", "--tls-cipher-suites", "--client-ca", "--client-names", "--exclude-namespaces", "--tolerate-selector-terms"}, flag) {
				got = append(got, argument)
			}
		}
		for _, mount := range container.VolumeMounts {
			got = append(got, mount.MountPath)
		}
		for _, volume := range pod.Spec.Volumes {
			got = append(got, volume.ConfigMap.Name)
		}
		want := []string{"--exclude-namespaces=calico-system,tigera-operator", "--tolerate-selector-terms=control-plane=true,kubernetes.azure.com/managedby=aks"}
		if name == "rel-admitkit" {
			want = append(want, "--tls-min-version=1.2", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "--client-ca=/clients/ca.crt",
				`--client-names="Doe, Jane","kube-apiserver"`, "/clients", "clients")
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/testkit"
)

// update writes the files of the chart anew: make generate sets it.
var update = flag.Bool("update", false, "write operator/charts/admitkit/files/sandbox")

const (
	chartDir = "../../charts/admitkit"
	// The names in the files of the chart, in whose place its templates put those of the values.
	placeholders = "--image=placeholder-image --webhook-namespace=placeholder-own --sandbox-namespaces=placeholder-runs "
	plain        = "controller manifests " + placeholders + "--audit-objects=false --sandbox-network-policy="
	withProxy    = " --sandbox-proxy-image=placeholder-image --cluster-pod-cidrs=10.0.0.0/16 --cluster-service-cidrs=10.1.0.0/16"
	withBroker   = withProxy + " --broker-namespace=placeholder-broker"
	brokersOwn   = "broker manifests --image=placeholder-image --webhook-namespace=placeholder-broker --sandbox-namespaces=placeholder-runs"
)

// chartParts are the parts of an installation: each has a file with the objects, and the rules of roles, that its command prints
// beyond those of another. The chart's templates choose among them.
var chartParts = []struct{ name, command, without string }{
	{"controller", plain + "off", ""},
	{"objects", "controller manifests " + placeholders + "--sandbox-network-policy=off", plain + "off"},
	{"interactive", plain + "off --sandbox-interactive", plain + "off"},
	{"egress", plain + "on", plain + "off"},
	{"egress-auto", plain + "auto", plain + "on"},
	{"egress-cilium", plain + "on --sandbox-cilium", plain + "on"},
	{"proxy", plain + "off" + withProxy, plain + "off"},
	{"proxy-upstream", plain + "off" + withProxy + " --sandbox-proxy-upstream-ca=placeholder-upstream", plain + "off" + withProxy},
	{"leases", plain + "off" + withBroker, plain + "off" + withProxy},
	{"network", plain + "off --network-policy", plain + "off"},
	{"broker", brokersOwn, ""},
	{"broker-network", brokersOwn + " --network-policy", brokersOwn},
}

type object = map[string]any

// nested returns a field of an object, nil if it has none.
func nested(of object, path ...string) any {
	var at any = of
	for _, key := range path {
		fields, ok := at.(object)
		if !ok {
			return nil
		}
		at = fields[key]
	}
	return at
}

func identity(of object) string {
	return fmt.Sprint(of["kind"], " ", nested(of, "metadata", "namespace"), "/", nested(of, "metadata", "name"))
}

// objectsOf parses manifests.
func objectsOf(t *testing.T, text string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var of object
		if err := yaml.Unmarshal([]byte(document), &of); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if len(of) > 0 {
			if objects[identity(of)] != nil {
				t.Errorf("%s is there twice", identity(of))
			}
			objects[identity(of)] = of
		}
	}
	return objects
}

// printed returns what a command of the program prints.
func printed(t *testing.T, command string) map[string]object {
	t.Helper()
	output, err := execute(t, strings.Fields(command)...)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return objectsOf(t, output)
}

// containerOf is the one container of a Deployment, nil for another object.
func containerOf(of object) object {
	containers, _ := nested(of, "spec", "template", "spec", "containers").([]any)
	if of["kind"] != "Deployment" || len(containers) == 0 {
		return nil
	}
	return containers[0].(object)
}

// withoutFlags takes the flags of the installation from a Deployment: the templates write them.
func withoutFlags(of object) {
	if c := containerOf(of); c != nil {
		c["args"] = slices.DeleteFunc(c["args"].([]any), func(arg any) bool {
			text := arg.(string)
			return strings.HasPrefix(text, "--") && text != "--stay" && !strings.HasPrefix(text, "--reconciler-user=")
		})
	}
}

// beyond returns what a part prints that another does not.
func beyond(t *testing.T, name string, is, other map[string]object) (parts []object) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(is)) {
		of, before := is[key], other[key]
		withoutFlags(of)
		if before == nil {
			parts = append(parts, of)
			continue
		}
		withoutFlags(before)
		if rules, ok := of["rules"].([]any); ok {
			known := before["rules"].([]any)
			added := slices.DeleteFunc(slices.Clone(rules), func(rule any) bool {
				return slices.ContainsFunc(known, func(k any) bool { return reflect.DeepEqual(k, rule) })
			})
			if len(added)+len(known) != len(rules) {
				t.Errorf("%s takes rules away from %s", name, key)
			}
			if len(added) > 0 {
				of["rules"] = added
				parts = append(parts, of)
			}
			continue
		}
		if !reflect.DeepEqual(of, before) {
			t.Errorf("%s changes %s, which the chart cannot", name, key)
		}
	}
	for key := range other {
		if is[key] == nil {
			t.Errorf("%s lacks %s", name, key)
		}
	}
	return parts
}

// What the chart installs is what the program prints: nobody writes its roles and Pods a second time.
func TestTheFilesOfTheChartAreTheManifests(t *testing.T) {
	files := map[string]bool{}
	for _, part := range chartParts {
		var other map[string]object
		if part.without != "" {
			other = printed(t, part.without)
		}
		want := []byte("# Written by make generate from what `sandbox " + strings.Fields(part.command)[0] + " manifests` prints.\n")
		for i, of := range beyond(t, part.name, printed(t, part.command), other) {
			text, err := yaml.Marshal(of)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				want = append(want, "---\n"...)
			}
			want = append(want, text...)
		}
		path := filepath.Join(chartDir, "files/sandbox", part.name+".yaml")
		files[filepath.Base(path)] = true
		if *update {
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the program prints other manifests now; run make generate: %v", path, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(chartDir, "files/sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !files[entry.Name()] {
			t.Errorf("files/sandbox/%s: no part of the program; remove it", entry.Name())
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.EndRenderer()
	os.Exit(code)
}

// rendered is what Helm makes of the chart in the namespace sandbox-system.
func rendered(t *testing.T, values string) (testkit.Rendered, error) {
	t.Helper()
	return testkit.Chart{Dir: chartDir, Release: "rel", Namespace: "sandbox-system", Values: values}.Render(t)
}

// ofSandbox are the documents that a template of the chart makes for the sandbox.
func ofSandbox(text string) string {
	const source = "---\n# Source: "
	var own strings.Builder
	for document := range strings.SplitSeq(text, source) {
		if strings.HasPrefix(document, "admitkit/templates/sandbox.yaml\n") {
			own.WriteString(source + document)
		}
	}
	return own.String()
}

// chartVariants are values, and the commands that print the same.
var chartVariants = map[string]struct{ values, controller, broker string }{
	"the least": {`{sandbox: {enabled: true, namespaces: [agents]}}`, "--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-network-policy=auto", ""},
	"nothing enforces policies": {
		`{sandbox: {enabled: true, namespaces: [agents, default], egress: {networkPolicy: "off"}, auditObjects: false, startTimeout: 1h, workers: 3}, replicas: 1}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents,default --sandbox-network-policy=off --audit-objects=false --sandbox-start-timeout=1h --sandbox-workers=3 --replicas=1", "",
	},
	"people, seeds and Cilium, in the namespace default": {
		`{sandbox: {enabled: true, namespaces: [default, agents], interactive: true, seed: {enabled: true}, egress: {networkPolicy: "on", cilium: true, podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}}, imagePullSecrets: [{name: registry}], networkPolicy: {enabled: true, apiServers: [192.0.2.1/32]}}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=default,agents --sandbox-interactive --sandbox-seed-image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-network-policy=on --sandbox-cilium --cluster-pod-cidrs=10.0.0.0/16 --cluster-service-cidrs=10.1.0.0/16 --image-pull-secrets=registry --network-policy --api-servers=192.0.2.1/32", "",
	},
	"proxies without a broker": {
		`{sandbox: {enabled: true, namespaces: [agents], proxy: {enabled: true}, egress: {podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}}}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-network-policy=auto --cluster-pod-cidrs=10.0.0.0/16 --cluster-service-cidrs=10.1.0.0/16 --sandbox-proxy-image=ghcr.io/admitkit/sandbox:0.1.0", "",
	},
	"recorded sessions of this release": {
		`{sessions: {enabled: true, namespaces: [shop, agents], port: 9444}, sandbox: {enabled: true, namespaces: [agents]}, replicas: 1}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-network-policy=auto --sandbox-collector-namespace=sandbox-system --sandbox-collector-port=9444 --replicas=1", "",
	},
	"recorded sessions elsewhere in this release": {
		`{sessions: {enabled: true, namespaces: [shop]}, sandbox: {enabled: true, namespaces: [agents]}, replicas: 1}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-network-policy=auto --replicas=1", "",
	},
	"recorded sessions of another release": {
		`{sandbox: {enabled: true, namespaces: [agents], collector: {namespace: admitkit-system}}}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-network-policy=auto --sandbox-collector-namespace=admitkit-system --sandbox-collector-port=8444", "",
	},
	"a broker": {
		`{sandbox: {enabled: true, namespaces: [agents, others], image: {repository: r.example.com/sandbox, tag: "2"}, seed: {enabled: true, image: "r.example.com/git:1"}, egress: {podCIDRs: [10.0.0.0/16, "fd00::/48"], serviceCIDRs: [10.1.0.0/16]}, proxy: {upstreamCA: private}, broker: {enabled: true, namespace: leases}}, clusterName: blue, logLevel: debug, drainPeriodSeconds: 20, networkPolicy: {enabled: true}}`,
		"--image=r.example.com/sandbox:2 --sandbox-namespaces=agents,others --sandbox-seed-image=r.example.com/git:1 --sandbox-network-policy=auto --cluster-pod-cidrs=10.0.0.0/16,fd00::/48 --cluster-service-cidrs=10.1.0.0/16 --broker-namespace=leases --sandbox-proxy-image=r.example.com/sandbox:2 --sandbox-proxy-upstream-ca=private --cluster-name=blue --zap-log-level=debug --drain-period=20s --network-policy",
		"--image=r.example.com/sandbox:2 --webhook-namespace=leases --sandbox-namespaces=agents,others --broker-controller=system:serviceaccount:sandbox-system:sandbox-reconciler --cluster-name=blue --zap-log-level=debug --drain-period=20s --network-policy",
	},
	"a broker, and flags of one's own": {
		`{sandbox: {enabled: true, namespaces: [agents], interactive: true, extraArgs: [--tolerate-selector-terms=a=b], egress: {networkPolicy: "on", podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}, broker: {enabled: true, leaseDuration: 1m, sourceConnections: 64, extraArgs: [--github-url=https://github.example.com]}, resources: {requests: {cpu: 100m}, limits: {memory: 1Gi}}}}`,
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --sandbox-namespaces=agents --sandbox-interactive --sandbox-network-policy=on --cluster-pod-cidrs=10.0.0.0/16 --cluster-service-cidrs=10.1.0.0/16 --broker-namespace=sandbox-broker --sandbox-proxy-image=ghcr.io/admitkit/sandbox:0.1.0 --tolerate-selector-terms=a=b --requests=cpu=100m,memory=64Mi --limits=memory=1Gi",
		"--image=ghcr.io/admitkit/sandbox:0.1.0 --webhook-namespace=sandbox-broker --sandbox-namespaces=agents --broker-controller=system:serviceaccount:sandbox-system:sandbox-reconciler --lease-duration=1m --broker-source-connections=64 --github-url=https://github.example.com --requests=cpu=100m,memory=64Mi --limits=memory=1Gi",
	},
}

func TestTheChartInstallsWhatTheManifestsDo(t *testing.T) {
	for sentence, test := range chartVariants {
		t.Run(sentence, func(t *testing.T) {
			made, err := rendered(t, test.values)
			if err != nil {
				t.Fatal(err)
			}
			want := printed(t, "controller manifests --webhook-namespace=sandbox-system "+test.controller)
			delete(want, "Namespace <nil>/sandbox-system") // that of the release
			if test.broker != "" {
				maps.Copy(want, printed(t, "broker manifests "+test.broker))
			}
			got := objectsOf(t, ofSandbox(made.Manifest))
			for key := range got {
				if strings.HasSuffix(key, "sandbox-unregister") {
					delete(got, key) // the manifests leave the uninstall to their user
				}
			}
			for key, of := range want {
				compareObjects(t, key, got[key], of)
				delete(got, key)
			}
			for key := range got {
				t.Errorf("the chart has %s, and the manifests do not", key)
			}
		})
	}
}

// compareObjects reports where an object of the chart is not that of the manifests: it has more labels.
func compareObjects(t *testing.T, key string, got, want object) {
	t.Helper()
	if got == nil {
		t.Errorf("the chart lacks %s", key)
		return
	}
	labels, _ := nested(want, "metadata", "labels").(object)
	has, _ := nested(got, "metadata", "labels").(object)
	for label, value := range labels {
		if has[label] != value {
			t.Errorf("%s: label %s is %v, want %v", key, label, has[label], value)
		}
	}
	for _, of := range []object{got, want} {
		delete(of["metadata"].(object), "labels")
		if of["kind"] == "Namespace" {
			delete(of["metadata"].(object), "annotations") // it is kept
		}
		if rules, ok := of["rules"].([]any); ok {
			of["rules"] = grants(rules)
		}
		if c := containerOf(of); c != nil {
			c["args"] = argsOf(c["args"].([]any))
		}
	}
	if !reflect.DeepEqual(got, want) {
		is, _ := yaml.Marshal(got)
		should, _ := yaml.Marshal(want)
		t.Errorf("%s is\n%s, and the manifests have\n%s", key, is, should)
	}
}

// grants are what rules allow, one by one, sorted.
func grants(rules []any) (all []string) {
	for _, rule := range rules {
		of := rule.(object)
		names, _ := of["resourceNames"].([]any)
		if len(names) == 0 {
			names = []any{"*"}
		}
		for _, group := range of["apiGroups"].([]any) {
			for _, resource := range of["resources"].([]any) {
				for _, name := range names {
					for _, verb := range of["verbs"].([]any) {
						all = append(all, fmt.Sprint(group, "/", resource, "/", name, " ", verb))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// argsOf are arguments, those that are flags sorted, and durations in one form.
func argsOf(args []any) (texts []string) {
	for _, arg := range args {
		name, value, found := strings.Cut(arg.(string), "=")
		if d, err := time.ParseDuration(value); found && err == nil {
			value = d.String()
		}
		texts = append(texts, name+"="+value)
	}
	slices.Sort(texts[2:])
	return texts
}

func TestTheChartRefusesAWrongSandboxAndNamesTheValue(t *testing.T) {
	enabled := func(rest string) string { return "{sandbox: {enabled: true, namespaces: [agents]" + rest + "}}" }
	for values, want := range map[string]string{
		`{sandbox: {enabled: true}}`:                                                  "sandbox.namespaces: required",
		`{sandbox: {enabled: true, namespaces: [sandbox-system]}}`:                    "sandbox.namespaces: sandbox-system",
		`{sandbox: {enabled: true, namespaces: [kube-system]}}`:                       "sandbox.namespaces: kube-system",
		`{sandbox: {enabled: true, namespaces: [Agents]}}`:                            "namespaces",
		`{sandbox: {namespaces: [agents]}}`:                                           "sandbox.namespaces: has no effect without sandbox.enabled",
		`{sandbox: {broker: {enabled: true}}}`:                                        "sandbox.broker.enabled: has no effect without sandbox.enabled",
		enabled(`, proxy: {upstreamCA: a}`):                                           "sandbox.proxy.upstreamCA: has no effect without sandbox.proxy.enabled or sandbox.broker.enabled",
		`{sandbox: {proxy: {enabled: true}}}`:                                         "sandbox.proxy.enabled: has no effect without sandbox.enabled",
		enabled(`, proxy: {enabled: true}`):                                           "sandbox.egress.podCIDRs, serviceCIDRs: required with sandbox.proxy.enabled",
		enabled(`, broker: {enabled: true}`):                                          "sandbox.egress.podCIDRs, serviceCIDRs: required with sandbox.proxy.enabled and sandbox.broker.enabled",
		enabled(`, seed: {image: a}`):                                                 "sandbox.seed.image: has no effect without sandbox.seed.enabled",
		enabled(`, egress: {networkPolicy: maybe}`):                                   "networkPolicy",
		enabled(`, egress: {networkPolicy: "off", cilium: true}`):                     "sandbox.egress.cilium: has no effect",
		enabled(`, collector: {port: 9444}`):                                          "sandbox.collector.port: has no effect without sandbox.collector.namespace",
		`{sandbox: {collector: {namespace: a}}}`:                                      "sandbox.collector.namespace: has no effect without sandbox.enabled",
		enabled(`, startTimeout: soon`):                                               "startTimeout",
		enabled(`, unknown: 1`):                                                       "unknown",
		enabled(`, extraArgs: [--sandbox-interactive]`):                               "sandbox.extraArgs: --sandbox-interactive",
		enabled(`, extraArgs: [--audit-objects=false]`):                               "sandbox.extraArgs: --audit-objects",
		"{fullnameOverride: sandbox, sandbox: {enabled: true, namespaces: [agents]}}": "fullnameOverride: sandbox",
		`{sandbox: {enabled: true, namespaces: [agents], egress: {podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}, broker: {enabled: true, namespace: agents}}}`:         "sandbox.broker.namespace: agents",
		`{sandbox: {enabled: true, namespaces: [agents], egress: {podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}, broker: {enabled: true, namespace: sandbox-system}}}`: "sandbox.broker.namespace: sandbox-system",
	} {
		if _, err := rendered(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", values, err, want)
		}
	}
}

// Without it the webhooks would refuse every Pod and every exec where runs ran, and runs keep their finalizers.
func TestTheUninstallRemovesTheWebhooksOfTheSandboxFirst(t *testing.T) {
	made, err := rendered(t, chartVariants["a broker"].values)
	if err != nil {
		t.Fatal(err)
	}
	objects := objectsOf(t, ofSandbox(made.Documents()))
	job := objects["Job sandbox-system/sandbox-unregister"]
	containers, _ := nested(job, "spec", "template", "spec", "containers").([]any)
	if len(containers) != 1 || nested(job, "metadata", "annotations", "helm.sh/hook") != "pre-delete" {
		t.Fatalf("%v", job)
	}
	args := containers[0].(object)["args"].([]any)
	for _, want := range []string{"controller", "unregister", "--ignore-not-found", "--scale-down=sandbox,sandbox-registrar,sandbox-reconciler", "--sandbox-namespaces=agents,others", "--webhook-namespace=sandbox-system"} {
		if !slices.Contains(args, any(want)) {
			t.Errorf("%q lacks %s", args, want)
		}
	}
	texts := make([]string, 0, len(args))
	for _, arg := range args {
		texts = append(texts, arg.(string))
	}
	if cmd, _, err := newCommand().Find(texts); err != nil || cmd.Name() != "unregister" || cmd.ParseFlags(texts[2:]) != nil {
		t.Errorf("the program does not take %q: %v", texts, err)
	}
	for _, key := range []string{"ServiceAccount sandbox-system/sandbox-unregister", "Role sandbox-system/sandbox-unregister", "ClusterRole <nil>/sandbox-system-sandbox-unregister", "RoleBinding agents/sandbox-unregister", "RoleBinding others/sandbox-unregister", "RoleBinding leases/sandbox-unregister"} {
		if objects[key] == nil {
			t.Errorf("there is no %s", key)
		}
	}
	if ref := nested(objects["RoleBinding agents/sandbox-unregister"], "roleRef", "name"); ref != "sandbox-reconciler-extensions" || objects["Role agents/sandbox-reconciler-extensions"] == nil {
		t.Errorf("what ends runs has the rights of %v", ref)
	}
}

func TestTheCRDsOfTheSandboxComeWithIt(t *testing.T) {
	for values, want := range map[string]bool{"{}": false, `{sandbox: {enabled: true, namespaces: [agents]}}`: true, `{sandbox: {enabled: true, namespaces: [agents]}, crds: {enabled: false}}`: false} {
		made, err := rendered(t, values)
		if err != nil {
			t.Fatal(err)
		}
		objects := objectsOf(t, made.Documents())
		for _, name := range []string{"sandboxruns", "sandboxruntemplates", "clustersandboxruntemplates", "workspaces", "brokerpolicies", "credentialleases", "auditevents"} {
			if got := objects["CustomResourceDefinition <nil>/"+name+".admitkit.dev"] != nil; got != want {
				t.Errorf("%s: %s is there: %t", values, name, got)
			}
		}
	}
}

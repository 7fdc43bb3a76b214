//go:build e2e && linux

package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
)

// patience is how long something may take on a loaded machine.
const patience = 2 * time.Minute

func TestRunsOnARealNode(t *testing.T) {
	i := install(t, (*installation).applyManifests)
	i.apply(t, policies)
	for sentence, test := range map[string]func(*testing.T){
		"they work in what real git servers gave":                   i.work,
		"they work in what was fetched with a credential on lease":  i.lends,
		"they do what a model says, with a key that they never see": i.asksModel,
		"they do not get out, whatever they try":                    i.escapes,
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// policies are what runs may reach: the names of the world, and one that is withdrawn.
const policies = `
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: e2e-agents}
stringData: {api: open-sesame, git: ` + lentToken + `}
---
apiVersion: admitkit.dev/v1alpha1
kind: BrokerPolicy
metadata: {name: agents, namespace: e2e-agents}
spec:
  appliesToTemplates: ["*"]
  egress: [{host: api.example.com}, {host: inside.example.com}]
  grants:
    credentials:
    - {name: api, secret: {name: keys, key: api}, delivery: {proxyInjected: {hosts: [api.example.com]}}}
---
apiVersion: admitkit.dev/v1alpha1
kind: BrokerPolicy
metadata: {name: late, namespace: e2e-agents}
spec:
  appliesToTemplates: [escape]
  egress: [{host: late.example.com}]
`

// apply applies manifests. The webhooks may not answer yet.
func (i *installation) apply(t *testing.T, manifests string) {
	t.Helper()
	testkit.Succeeds(t, patience, "the manifests are applied", func(ctx context.Context) error {
		_, err := run(ctx, strings.NewReader(manifests), "kubectl", "apply", "-f", "-")
		return err
	})
}

// template returns a SandboxRunTemplate, whose image is the program untrusted, and whose command is one of that.
func (i *installation) template(name, command string, env map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, `
---
apiVersion: admitkit.dev/v1alpha1
kind: SandboxRunTemplate
metadata: {name: %s, namespace: %s}
spec:
  image: %s
  command: [/untrusted, %s]
  timeoutSeconds: 900
  terminationGracePeriodSeconds: 1
  resources: {cpu: 100m, memory: 128Mi}
  requires: {credentials: [api]}
  env:
`, name, agents, i.untrusted, command)
	for key, value := range env {
		fmt.Fprintf(&text, "  - {name: %s, value: %s}\n", key, quoted(value))
	}
	return text.String()
}

// runOf returns a SandboxRun.
func runOf(name, template, workspace string) string {
	spec := fmt.Sprintf("templateRef: {name: %s}, prompt: Do it.", template)
	if workspace != "" {
		spec += ", workspaceRef: {name: " + workspace + "}"
	}
	return fmt.Sprintf("\n---\napiVersion: admitkit.dev/v1alpha1\nkind: SandboxRun\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", name, agents, spec)
}

// ended waits for the end of a run.
func ended(t *testing.T, name string) *v1alpha1.SandboxRun {
	t.Helper()
	run := &v1alpha1.SandboxRun{}
	testkit.Succeeds(t, patience, "run "+name+" has ended", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKey{Namespace: agents, Name: name}, run); err != nil {
			return err
		}
		if !slices.Contains([]v1alpha1.SandboxPhase{v1alpha1.SandboxSucceeded, v1alpha1.SandboxFailed, v1alpha1.SandboxCancelled}, run.Status.Phase) {
			return fmt.Errorf("it is %q: %v", run.Status.Phase, run.Status.Conditions)
		}
		return nil
	})
	return run
}

// work has two runs in a Workspace that is seeded from git's own servers.
func (i *installation) work(t *testing.T) {
	began := time.Now()
	i.makeVolume(t, "app")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(i.folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return quoted(string(text))
	}
	i.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: git-https, namespace: %[1]s}
stringData: {username: alice, password: %[2]s}
---
apiVersion: v1
kind: Secret
metadata: {name: git-ssh, namespace: %[1]s}
stringData: {ssh-privatekey: %[3]s, known_hosts: %[4]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: authorities, namespace: %[1]s}
data: {ca.crt: %[5]s}
---
apiVersion: admitkit.dev/v1alpha1
kind: Workspace
metadata: {name: app, namespace: %[1]s}
spec:
  storage: {size: 100Mi}
  seed:
    repos:
    - {url: "https://%[6]s/app.git", path: app, ref: main, credentialsFrom: {name: git-https}}
    - {url: "ssh://git@%[6]s/lib.git", path: lib, credentialsFrom: {name: git-ssh}}
    caFrom: {name: authorities, key: ca.crt}
    egress: {dns: true, cidrs: [{cidr: %[7]s/32, ports: [{port: 443}, {port: 22}]}]}
`, agents, quoted(password), read("id"), read("known_hosts"), read("ca.crt"), gitName, gitAt)+
		i.template("work", "work", map[string]string{"FILES": "app/file lib/file"})+runOf("one", "work", "app"))
	i.apply(t, runOf("two", "work", "app")) // which is behind the first one
	lines := "one"
	for _, name := range []string{"one", "two"} {
		run := ended(t, name)
		want := []string{"app/file=this is app", "lib/file=this is lib", "lines=" + lines, greeting + " host=" + listed + " auth=open-sesame"}
		if run.Status.Phase != v1alpha1.SandboxSucceeded || slices.ContainsFunc(want, func(text string) bool { return !strings.Contains(run.Status.Output, text) }) {
			t.Errorf("run %s is %s, and its output %q, want %q", name, run.Status.Phase, run.Status.Output, want)
		}
		awaitRecord(t, name, "succeeded", "")
		lines += ",two"
	}
	testkit.Figure("sandbox.seed_work_s", time.Since(began).Seconds(), "s")
}

// makeVolume makes the volume of a Workspace, and returns its folder on the node.
func (i *installation) makeVolume(t *testing.T, workspace string) (folder string) {
	t.Helper()
	name := "e2e-workspace-" + workspace
	folder = filepath.Join(clusterDir, "lib", name) // which goes with the cluster
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	testkit.Create(t, admin, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{madeHere: ""}}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef:                      &corev1.ObjectReference{Namespace: agents, Name: "workspace-" + workspace},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/lib/" + name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpExists}},
		}}}},
	}})
	return folder
}

// awaitRecord waits for an AuditEvent about a run.
func awaitRecord(t *testing.T, run, action, reason string) {
	t.Helper()
	testkit.Within(t, patience, fmt.Sprintf("%s of run %s is on record: %s", action, run, reason), func(context.Context) bool { return recorded(t, run, action, reason) })
}

// recorded reports whether there is an AuditEvent about a run.
func recorded(t *testing.T, run, action, reason string) bool {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list.Items, func(e v1alpha1.AuditEvent) bool {
		return e.Spec.Verb == action && strings.Contains(e.Spec.Reason, reason) && e.Spec.Object != nil && e.Spec.Object.Name == run
	})
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// asProgram makes the test's binary the operator.
const asProgram = "ADMITKIT_TEST_AS_PROGRAM"

func init() {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
}

func TestAReleaseWorksAndItsUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{ControllerManager: true, Kwok: true})
	releases := map[string]string{
		"one":   "split.enabled=false,crds.keep=false,hooks.enabled=true,hooks.namespaces={default},access.enabled=true,access.namespaces={*},audit.objects.enabled=true,audit.enforcement.enabled=true,binding.roles={default/reader},scan.every=1m",
		"split": "audit.touchedPods.evictAfter=1h",
		"job":   "split.registrar=Job,watchNamespaces={default}",
	}
	if testing.Short() {
		delete(releases, "split")
	}
	kubectl(t, cluster, "create", "namespace", releaseNamespace)
	t.Run("all in one namespace", func(t *testing.T) {
		for name, values := range releases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				i := &installed{T: t, cluster: cluster, name: name, grants: strings.Contains(values, "access")}
				i.helm("install", name, chartDir, "--wait", "--set", values)
				i.work()
				i.checkFails()
				if !testing.Short() {
					i.helm("upgrade", name, chartDir, "--wait", "--set", values)
				}
				i.unregister()
				i.helm("uninstall", name, "--wait")
			})
		}
	})
	for name := range releases {
		if left := labelled(t, cluster, everyKind(t, cluster), "app.kubernetes.io/instance="+name); len(left) > 0 {
			t.Errorf("left of %s: %v", name, left)
		}
	}
	if left := labelled(t, cluster, everyKind(t, cluster), "app.kubernetes.io/managed-by in (admitkit, admitkit-access)"); len(left) > 0 {
		t.Errorf("left of the programs: %v", left)
	}
}

// A deleted namespace takes the rights in it away, too.
func TestASplitReleaseIsUninstalledWhenANamespaceThatItWorkedInIsGone(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{ControllerManager: true, Kwok: true})
	for _, name := range []string{releaseNamespace, "apps"} {
		kubectl(t, cluster, "create", "namespace", name)
	}
	i := &installed{T: t, cluster: cluster, name: release, grants: true}
	i.helm("install", release, chartDir, "--wait", "--set", "watchNamespaces={apps},access.enabled=true,access.namespaces={apps,default},binding.roles={default/reader},scan.every=1m,rbac.extraRules[0].apiGroups={apps},rbac.extraRules[0].resources={deployments},rbac.extraRules[0].verbs={get}")
	kubectl(t, cluster, "--namespace", releaseNamespace, "rollout", "status", "deployment", "rel-admitkit", "rel-admitkit-registrar", "rel-admitkit-reconciler", "--timeout=2m")
	i.work()
	kubectl(t, cluster, "delete", "namespace", "apps", "--timeout=1m")
	i.unregister()
	i.helm("uninstall", release, "--wait")
	left := labelled(t, cluster, everyKind(t, cluster), "app.kubernetes.io/instance="+release)
	// Nine CRDs, and seven policies with their bindings.
	if len(left) != 23 || slices.ContainsFunc(left, func(name string) bool {
		return !strings.HasPrefix(name, "customresourcedefinition") && !strings.HasPrefix(name, "validatingadmissionpolic")
	}) {
		t.Errorf("left: %v, want the CRDs and policies of access and binding", left)
	}
	// A record that somebody made outlives the release, and the next one takes the CRDs over.
	const asked = "execaccessrequest/incident"
	kubectl(t, cluster, "get", "--namespace", "default", asked)
	i.helm("install", release, chartDir, "--set", "access.enabled=true,access.namespaces={default}")
	kubectl(t, cluster, "get", "--namespace", "default", asked)
}

func kubectl(t *testing.T, cluster *controlplane.ControlPlane, args ...string) string {
	t.Helper()
	var problems bytes.Buffer
	cmd := cluster.Kubectl(t.Context(), nil, args...)
	cmd.Stderr = &problems
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, problems.String())
	}
	return string(output)
}

// everyKind is what a cluster has, Events excepted.
func everyKind(t *testing.T, cluster *controlplane.ControlPlane) string {
	t.Helper()
	kinds := strings.Fields(kubectl(t, cluster, "api-resources", "--verbs=list", "--output=name"))
	return strings.Join(slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") }), ",")
}

// labelled are the objects that a selector selects.
func labelled(t *testing.T, cluster *controlplane.ControlPlane, kinds, selector string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, cluster, "get", kinds, "--all-namespaces", "--selector", selector, "--output=name"))
}

// installed is a release in a cluster whose kubelets only say that Pods run.
type installed struct {
	*testing.T
	cluster *controlplane.ControlPlane
	name    string
	// grants: it has the extensions access and binding.
	grants bool
	// address are the flags of all programs for where the API server calls them.
	address []string
	// ofHelm are the hooks of the release.
	ofHelm []string
}

func (i *installed) helm(args ...string) string {
	i.Helper()
	home := i.TempDir() // no repositories, plugins or caches of who runs the test
	var problems bytes.Buffer
	cmd := exec.CommandContext(i.Context(), testkit.Chart{Dir: chartDir}.Tool(i, "helm"), append(args, "--kubeconfig", i.cluster.Admin().KubeConfig, "--namespace", releaseNamespace)...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_CACHE_HOME="+home)
	cmd.Stderr = &problems
	text, err := cmd.Output()
	if err != nil {
		i.Fatalf("helm %q: %v: %s%s", args, err, text, problems.String())
	}
	return string(text)
}

// run starts a program of a Pod, as its ServiceAccount.
func (i *installed) run(pod corev1.PodSpec, args ...string) *testkit.Process {
	i.Helper()
	user, err := testkit.ServiceAccount(i.cluster, releaseNamespace, pod.ServiceAccountName)
	if err != nil {
		i.Fatal(err)
	}
	// There is no network by which an API server could reach a Service.
	args = slices.Concat(pod.Containers[0].Args, []string{"--kubeconfig=" + user.KubeConfig, "--drain-period=0s", "--metrics-address="}, args)
	args = slices.DeleteFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--service-") })
	cmd := testkit.Again(i, asProgram, "yes", args...)
	if pod.Containers[0].Name == "hooks" {
		cmd = exec.Command(builtHooks(i), args...)
	}
	for _, variable := range pod.Containers[0].Env {
		cmd.Env = append(cmd.Env, variable.Name+"="+variable.Value)
	}
	return testkit.Run(i, cmd)
}

// end waits for a program, which must not have been forbidden anything.
func (i *installed) end(process *testkit.Process) {
	i.Helper()
	if err := process.Wait(); err != nil || process.Output.HasLine("forbidden") {
		i.Errorf("%v: %s", err, &process.Output)
	}
}

// work runs the programs of the release until a request has come through the API
// server.
func (i *installed) work() {
	i.Helper()
	clientset := kubernetes.NewForConfigOrDie(i.cluster.Config())
	deployments, err := clientset.AppsV1().Deployments(releaseNamespace).List(i.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + i.name})
	if err != nil {
		i.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(i))
	i.address = []string{"--advertise-host=127.0.0.1", fmt.Sprintf("--port=%d", freeport.For(i))}
	for _, job := range i.hooks("apply", "registrar") { // kwok has only said that it ran
		i.end(i.run(job, i.address...))
		i.hooks("delete", "registrar")
	}
	for _, deployment := range deployments.Items {
		health := "--health-address="
		if deployment.Name == i.name+"-admitkit" {
			health += address
		}
		process := i.run(deployment.Spec.Template.Spec, append(i.address, health)...)
		if strings.HasSuffix(deployment.Name, "-scanner") {
			testkit.Within(i, time.Minute, "everything is scanned", func(context.Context) bool { return process.Output.HasLine(`"scanned"`) })
		}
		defer i.end(process)
		defer func() { _ = process.Process.Signal(syscall.SIGTERM) }()
	}
	testkit.Within(i, time.Minute, "the server is ready", func(ctx context.Context) bool { return testkit.IsReady(ctx, address) })
	if len(i.registered()) == 0 {
		i.Error("nothing is registered")
	}
	if process, err := i.check("--timeout=1m"); err != nil || process.Output.HasLine("forbidden") {
		i.Errorf("helm test says %v: %s", err, &process.Output)
	}
	if i.grants {
		i.grant()
	}
}

// check runs what helm test would.
func (i *installed) check(timeout string) (*testkit.Process, error) {
	i.Helper()
	defer i.hooks("delete", "test")
	process := i.run(i.hooks("apply", "test")[0], append(i.address, timeout)...)
	return process, process.Wait()
}

// checkFails makes sure of that when nobody serves any more.
func (i *installed) checkFails() {
	i.Helper()
	if process, err := i.check("--timeout=10s"); err == nil || !process.Output.HasLine("probing "+i.name+"-admitkit") {
		i.Errorf("nobody serves, but helm test says %v: %s", err, &process.Output)
	}
}

// grant has access granted to a Pod, and a role bound, which is to end with the release. The
// policies of the chart let only those who grant and bind write the status.
func (i *installed) grant() {
	i.Helper()
	objects := `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec: {containers: [{name: main, image: example.com/web}]}
---
apiVersion: admitkit.dev/v1alpha1
kind: ExecAccessTemplate
metadata: {name: web, namespace: default}
spec:
  accessConfig: {allowedUsers: [` + i.cluster.Admin().Name + `]}
  controllerTargetRef: {apiVersion: v1, kind: Pod, name: web}
---
apiVersion: admitkit.dev/v1alpha1
kind: ExecAccessRequest
metadata: {name: incident, namespace: default}
spec: {templateName: web}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
---
apiVersion: admitkit.dev/v1alpha1
kind: TransientRoleBinding
metadata: {name: incident, namespace: default}
spec:
  validUntil: ` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `
  roleRef: {kind: Role, name: reader}
  subjects: [{kind: User, name: eve}]
  reason: incident
`
	// An API server takes up a new kind only some time later as the parameter of a policy.
	testkit.Succeeds(i, time.Minute, "the request and the binding are taken", func(ctx context.Context) error {
		apply := i.cluster.Kubectl(ctx, nil, "apply", "--filename", "-")
		apply.Stdin = strings.NewReader(objects)
		output, err := apply.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	kubectl(i.T, i.cluster, "wait", "--namespace", "default", "execaccessrequest/incident", "--for=jsonpath={.status.ready}=true", "--timeout=2m")
	kubectl(i.T, i.cluster, "wait", "--namespace", "default", "transientrolebinding/incident", "--for=condition=Effective", "--timeout=2m")
	if len(i.granted()) == 0 {
		i.Error("nothing is granted")
	}
}

func (i *installed) granted() []string {
	i.Helper()
	return labelled(i.T, i.cluster, "roles,rolebindings", "app.kubernetes.io/managed-by=admitkit-access")
}

// hooks applies or deletes the hooks of the release that belong to a Job, which
// kwok would only say to have run, and returns the Job's Pod.
func (i *installed) hooks(verb, component string) []corev1.PodSpec {
	i.Helper()
	if i.ofHelm == nil {
		i.ofHelm = documentsOf(i.T, i.helm("get", "hooks", i.name))
	}
	var pods []corev1.PodSpec
	for _, document := range i.ofHelm {
		object := decode(i.T, document)
		if !strings.HasSuffix(object.GetName(), "-"+component) {
			continue
		}
		if pod := podOf(object); pod != nil {
			pods = append(pods, pod.Spec)
			continue
		}
		cmd := i.cluster.Kubectl(i.Context(), nil, verb, "--namespace", releaseNamespace, "--filename", "-")
		cmd.Stdin = strings.NewReader(document)
		if output, err := cmd.CombinedOutput(); err != nil {
			i.Fatalf("%v: %s", err, output)
		}
	}
	return pods
}

func (i *installed) unregister() {
	i.Helper()
	for _, job := range i.hooks("apply", "unregister") {
		i.end(i.run(job, i.address...))
	}
	if left := i.registered(); len(left) > 0 {
		i.Errorf("left after unregister: %v", left)
	}
	if left := i.granted(); i.grants && len(left) > 0 {
		i.Errorf("granted after unregister: %v", left)
	}
}

// registered is what the manager has made.
func (i *installed) registered() []string {
	i.Helper()
	return labelled(i.T, i.cluster, "validatingwebhookconfigurations,mutatingwebhookconfigurations,secrets", "admitkit.dev/fingerprint="+i.name+"-admitkit")
}

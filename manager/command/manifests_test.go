package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/webhook"
)

// watcher is a Watcher that says which rights it needs.
type watcher struct{}

func (watcher) Handle(context.Context, extension.Manager, watch.Event) {}

func (watcher) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"delete"}}}
}

func (watcher) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}}
}

// buildAll adds one extension of each kind that matters to the manifests.
func buildAll(mgr *manager.Manager) error {
	if err := mgr.AddExtension(watcher{}); err != nil {
		return err
	}
	return build(mgr)
}

// manifestsOf returns what the subcommand prints.
func manifestsOf(t *testing.T, build command.Build, args ...string) string {
	t.Helper()
	cmd := command.New("stamp", build)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"manifests", "--image=example.com/stamp:1"}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// object finds and decodes an object.
func object[T any](t *testing.T, text, kind, name string) *T {
	t.Helper()
	for document := range strings.SplitSeq(text, "---\n") {
		var meta metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatal(err)
		}
		if meta.Kind != kind || meta.Name != name {
			continue
		}
		into := new(T)
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Fatal(err)
		}
		return into
	}
	t.Fatalf("there is no %s %s in\n%s", kind, name, text)
	return nil
}

func TestTheManifestsGiveEachProcessItsRightsAndNoOther(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system")
	registrar := object[rbacv1.Role](t, text, "Role", "stamp-registrar")
	server := object[rbacv1.Role](t, text, "Role", "stamp")
	reconciler := object[rbacv1.Role](t, text, "Role", "stamp-reconciler")
	extensions := object[rbacv1.Role](t, text, "Role", "stamp-reconciler-extensions")
	everywhere := object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-extensions")
	may := func(role *rbacv1.Role, verb, resource, name string) bool {
		return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
		})
	}
	for name, holds := range map[string]bool{
		"the registrar writes the CA":                may(registrar, "update", "secrets", "stamp-setupcertificate"),
		"the registrar reads no other Secret":        !may(registrar, "get", "secrets", "other"),
		"the server reads its certificate":           may(server, "get", "secrets", "stamp-certificate"),
		"the server does not read the CA":            !may(server, "get", "secrets", "stamp-setupcertificate"),
		"the server writes no Secret":                !may(server, "update", "secrets", "stamp-certificate") && !may(server, "create", "secrets", ""),
		"the reconciler takes part in the election":  may(reconciler, "update", "leases", "stamp.my-system") && !may(reconciler, "update", "leases", "other"),
		"the reconciler reads no certificate":        !may(reconciler, "get", "secrets", "stamp-certificate"),
		"the server has no right of the watcher":     !strings.Contains(text, "name: stamp-extensions"),
		"the watcher watches":                        may(extensions, "watch", "pods", "") && !may(extensions, "get", "pods", ""),
		"the watcher gets what it asks for":          may(extensions, "delete", "secrets", "any"),
		"what is in no namespace is for all":         len(everywhere.Rules) == 1 && everywhere.Rules[0].Resources[0] == "nodes" && !may(extensions, "get", "nodes", "any"),
		"they are confined to the manager's objects": extensions.Namespace == "apps" && server.Namespace == "my-system",
		"no rule has a wildcard or escalates":        !strings.Contains(text, "'*'\n  verbs") && !strings.Contains(text, "escalate") && !strings.Contains(text, "- bind"),
		"no webhook is there before its caBundle":    !strings.Contains(text, "\nkind: MutatingWebhookConfiguration") && strings.Contains(text, "\n# kind: MutatingWebhookConfiguration"),
	} {
		if !holds {
			t.Errorf("not so: %s:\n%s", name, text)
		}
	}
	if again := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system"); again != text {
		t.Errorf("they differ from one time to the next:\n%s\n%s", text, again)
	}
}

func TestOnlySecureMetricsNeedTheRightToAskWhoMayReadThem(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system", "--metrics-secure")
	for _, account := range []string{"stamp-registrar", "stamp", "stamp-reconciler"} {
		role := object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-"+account+"-metrics")
		binding := object[rbacv1.ClusterRoleBinding](t, text, "ClusterRoleBinding", "my-system-"+account+"-metrics")
		if len(role.Rules) != 2 || binding.Subjects[0].Name != account || !strings.Contains(text, "--metrics-secure=true") {
			t.Errorf("%+v, %+v", role.Rules, binding.Subjects)
		}
	}
	if text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system"); strings.Contains(text, "tokenreviews") {
		t.Error("the right is given to those who do not need it")
	}
}

func TestWithoutANamespaceTheExtensionsHaveAClusterRole(t *testing.T) {
	text := manifestsOf(t, buildAll, "--webhook-namespace=my-system")
	if role := object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-extensions"); len(role.Rules) != 3 {
		t.Errorf("%+v", role)
	}
	binding := object[rbacv1.ClusterRoleBinding](t, text, "ClusterRoleBinding", "my-system-stamp-reconciler-extensions")
	if binding.Subjects[0] != (rbacv1.Subject{Kind: "ServiceAccount", Name: "stamp-reconciler", Namespace: "my-system"}) {
		t.Errorf("%+v", binding.Subjects)
	}
}

func TestWhatOnlyWatchesHasNoRegistrarNoServerAndNoService(t *testing.T) {
	text := manifestsOf(t, func(mgr *manager.Manager) error { return mgr.AddExtension(watcher{}) }, "--namespace=apps")
	for _, absent := range []string{"registrar", "kind: Service\n", "secrets\n  verbs:\n  - get", "kind: Namespace", "WebhookConfiguration"} {
		if strings.Contains(text, absent) {
			t.Errorf("there is %q in\n%s", absent, text)
		}
	}
	object[appsv1.Deployment](t, text, "Deployment", "stamp-reconciler")
	if strings.Count(text, "kind: Deployment") != 1 {
		t.Errorf("there is another Deployment in\n%s", text)
	}
}

// copying is a watcher that makes Secrets.
type copying struct{ watcher }

func (copying) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}}}
}

func TestAnAccountThatCreatesSecretsIsKeptFromTokens(t *testing.T) {
	for _, args := range [][]string{{"--webhook-namespace=my-system"}, {"--webhook-namespace=my-system", "--namespace=apps"}} {
		text := manifestsOf(t, func(mgr *manager.Manager) error { return mgr.AddExtension(copying{}) }, args...)
		policy := object[admissionregistrationv1.ValidatingAdmissionPolicy](t, text, "ValidatingAdmissionPolicy", "stamp-reconciler-tokens.my-system")
		for _, of := range []string{"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"} {
			if !strings.Contains(policy.Spec.Validations[0].Expression, of) {
				t.Errorf("%v: it may create Secrets of type %s: %s", args, of, policy.Spec.Validations[0].Expression)
			}
		}
	}
}

// everyReplica is a watcher that runs in every server.
type everyReplica struct{ watcher }

func (everyReplica) NeedLeaderElection() bool { return false }

func TestAWatcherOfEveryReplicaRunsInTheServersWithItsRights(t *testing.T) {
	text := manifestsOf(t, func(mgr *manager.Manager) error { return mgr.AddExtension(everyReplica{}) }, "--namespace=apps")
	object[appsv1.Deployment](t, text, "Deployment", "stamp")
	object[rbacv1.Role](t, text, "Role", "stamp-extensions")
	if strings.Contains(text, "reconcile") {
		t.Errorf("there is something that reconciles in\n%s", text)
	}
}

// apart is an extension with rights in namespaces of its own choice.
type apart struct{ watcher }

func (apart) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{"shop": {{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}}
}

func TestRightsInANamespaceOfItsOwnAreARoleThere(t *testing.T) {
	text := manifestsOf(t, func(mgr *manager.Manager) error { return mgr.AddExtension(apart{}) }, "--webhook-namespace=my-system")
	if role := object[rbacv1.Role](t, text, "Role", "stamp-reconciler-extensions"); role.Namespace != "shop" || len(role.Rules) != 1 {
		t.Errorf("%+v", role)
	}
}

func TestAWatcherMaySeeTheConversionForWhichItWaits(t *testing.T) {
	same := func(*unstructured.Unstructured, *unstructured.Unstructured) error { return nil }
	text := manifestsOf(t, func(mgr *manager.Manager) error {
		return errors.Join(mgr.AddExtension(extension.Converting("alarms.example.com", "v2", extension.Between("v1", same, same))), mgr.AddExtension(apart{}))
	}, "--webhook-namespace=my-system")
	want := rbacv1.PolicyRule{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, ResourceNames: []string{"alarms.example.com"}, Verbs: []string{"get"}}
	role := object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-extensions")
	if !slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return reflect.DeepEqual(rule, want) }) {
		t.Errorf("it may %v", role.Rules)
	}
}

// extended is an extension whose rights its users extend.
type extended struct{ watcher }

func (extended) AggregateLabel() string { return "example.com/aggregate-to-stamp" }

func TestRightsThatOthersGrantAreAggregatedByTheirLabel(t *testing.T) {
	text := manifestsOf(t, func(mgr *manager.Manager) error { return mgr.AddExtension(extended{}) }, "--webhook-namespace=my-system")
	role := object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-aggregate")
	want := []metav1.LabelSelector{{MatchLabels: map[string]string{"example.com/aggregate-to-stamp": "true"}}}
	if role.AggregationRule == nil || !reflect.DeepEqual(role.AggregationRule.ClusterRoleSelectors, want) {
		t.Errorf("%+v", role)
	}
	if _, after, _ := strings.Cut(text, "aggregationRule:"); strings.Contains(strings.Split(after, "---")[0], "rules:") {
		t.Error("it has rules, which to apply it again would put in place of those that are aggregated")
	}
	binding := object[rbacv1.ClusterRoleBinding](t, text, "ClusterRoleBinding", "my-system-stamp-reconciler-aggregate")
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != "stamp-reconciler" {
		t.Errorf("%+v", binding)
	}
	// Its own rights are in another one: an aggregated ClusterRole has none but those of others.
	object[rbacv1.ClusterRole](t, text, "ClusterRole", "my-system-stamp-reconciler-extensions")
}

func TestReconcilersThatRunElsewhereHaveNoDeployment(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system", "--reconciler-user=jane")
	if strings.Contains(text, "stamp-reconciler") || !strings.Contains(text, "--reconciler-user=jane") {
		t.Errorf("got\n%s", text)
	}
}

func TestTheSecretOfCertManagerIsOnlyRead(t *testing.T) {
	text := manifestsOf(t, build, "--namespace=apps", "--webhook-namespace=my-system", "--foreign-ca-bundle", "--leaf-secret-name=theirs")
	for _, name := range []string{"stamp-registrar", "stamp"} {
		for _, r := range object[rbacv1.Role](t, text, "Role", name).Rules {
			if slices.Contains(r.Resources, "secrets") && slices.Contains(r.ResourceNames, "theirs") && !slices.Equal(r.Verbs, []string{"get", "watch"}) || slices.Contains(r.ResourceNames, "stamp-setupcertificate") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

func TestTheFlagsReachEveryProcess(t *testing.T) {
	t.Setenv("ADMITKIT_DRAIN_PERIOD", "20s")
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system", "--webhook-annotations=a=b,c=d", "--allow-own-pods=*", "--kubeconfig=/nowhere", "--modes-file=/etc/stamp/modes.yaml")
	if warning := "/etc/stamp/modes.yaml is not on this machine: the modes in it are not checked"; !strings.Contains(text, warning) {
		t.Errorf("not said: %s", warning)
	}
	want := []string{
		"--allow-own-pods=*", "--drain-period=20s", "--leader-election=true", "--leaf-secret-name=stamp-certificate",
		"--modes-file=/etc/stamp/modes.yaml", "--namespace=apps", "--service-name=stamp", "--webhook-annotations=a=b,c=d", "--webhook-namespace=my-system",
	}
	for name, subcommand := range map[string][]string{
		"stamp": {"serve", "--reconciler-user=system:serviceaccount:my-system:stamp-reconciler"}, "stamp-registrar": {"register", "--stay"},
		"stamp-reconciler": {"reconcile", "--reconciler-user=system:serviceaccount:my-system:stamp-reconciler"},
	} {
		deployment := object[appsv1.Deployment](t, text, "Deployment", name)
		args := deployment.Spec.Template.Spec.Containers[0].Args
		if !slices.Equal(args, append(subcommand, want...)) {
			t.Errorf("%s has %q", name, args)
		}
		grace := time.Duration(*deployment.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
		if grace <= 20*time.Second+webhook.ShutdownTimeout {
			t.Errorf("%s is killed while it drains", name)
		}
	}
}

func TestManifestsThatWouldNotWorkAreNotPrinted(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no image":       {[]string{"manifests", "--namespace=apps"}, "--image: required: the container image of the program"},
		"nothing":        {[]string{"manifests"}, "--webhook-namespace: required unless --namespace names one: set it to the manager's own namespace\n--image: required"},
		"no namespace":   {[]string{"manifests", "--image=x"}, "--webhook-namespace: required unless --namespace names one"},
		"its own Pods":   {[]string{"manifests", "--image=x", "--namespace=apps"}, "the manager's own"},
		"a folder":       {[]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=y", "--certificate-dir=/certs"}, "--certificate-dir: a Pod has no such folder; put the certificate into a Secret, and name it in --leaf-secret-name"},
		"minus replicas": {[]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=y", "--replicas=-1"}, "--replicas: -1: must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			if stdout, stderr, code := run(t, "", test.args...); code != 2 || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d: %s%s", code, stdout, stderr)
			}
		})
	}
}

func TestAnInstallationRunsWithTheRightsOfItsManifests(t *testing.T) {
	if _, err := clientset.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, reportCRDs("openreports.io", "v1alpha1", ""))
	// The manifests with a Service can be applied, although nothing runs them here.
	apply(t, manifestsOf(t, build, "--namespace=apps", "--webhook-namespace=other-system"))

	text := manifestsOf(t, build, "--namespace=apps", "--webhook-namespace=my-system", "--advertise-host=127.0.0.1", "--scan-every=1h", "--scan-reports", "--candidate=example.com/stamp:2",
		fmt.Sprintf("--port=%d", freeport.For(t)), "--health-address=", "--metrics-address=", "--drain-period=10ms")
	apply(t, text)
	unstamped := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "unstamped"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}}}
	kube := testkit.Client(t, cluster.Admin(), nil)
	testkit.Create(t, kube, unstamped)
	port := freeport.For(t)
	var candidate *testkit.Output
	for _, name := range []string{"stamp-registrar", "stamp", "stamp-scanner", "stamp-candidate"} {
		deployment := object[appsv1.Deployment](t, text, "Deployment", name)
		user, err := cluster.AddUser("system:serviceaccount:my-system:"+deployment.Spec.Template.Spec.ServiceAccountName, "system:serviceaccounts", "system:serviceaccounts:my-system")
		if err != nil {
			t.Fatal(err)
		}
		args := slices.Concat(deployment.Spec.Template.Spec.Containers[0].Args, []string{"--kubeconfig=" + user.KubeConfig})
		switch name { // no Service leads anywhere here
		case "stamp":
			args = append(args, fmt.Sprintf("--mirror=127.0.0.1:%d", port))
		case "stamp-candidate":
			args = append(args, fmt.Sprintf("--port=%d", port))
		}
		process, log := program(t, args...)
		if name == "stamp-candidate" {
			process.Env, candidate = append(process.Env, "COMMAND_TEST_MAIN=next"), log
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, process, log) })
	}
	eventuallyStamped(t, "apps")
	testkit.Eventually(t, "the Pod that was there before has a Report", func(ctx context.Context) bool {
		report, err := reportOf(ctx, kube, "openreports.io/v1alpha1", "Report", "stamp", unstamped)
		return err == nil && strings.Contains(fmt.Sprint(report.Object["results"]), "it would change metadata.annotations")
	})
	testkit.Eventually(t, "the candidate tells what it answers differently", func(context.Context) bool {
		eventuallyStamped(t, "apps") // it may have begun later
		return candidate.HasLine("the candidate answers differently", "mutate/stamp", "effect", "stamped: twice", "CREATE Pod apps/pod by")
	})
}

// end stops a program and fails the test if it was forbidden anything.
func end(t *testing.T, process *exec.Cmd, log *testkit.Output) {
	t.Helper()
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := process.Wait(); err != nil || strings.Contains(log.String(), "forbidden") {
		t.Errorf("%v: %s", err, log)
	}
}

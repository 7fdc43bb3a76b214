package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests run the plugin's command lines in their own process, against one real control
// plane with one manager. process_test.go has the claims that need a process.
var (
	cluster *controlplane.ControlPlane
	admin   client.Client
	// alice is in the group devs, mallory is not; both may make requests.
	alice, mallory *controlplane.User
	// nobody has no kubeconfig.
	nobody = &controlplane.User{}
	// auditLog is the API server's own.
	auditLog string
)

const (
	// namespace is a shop whose templates and Pods stay as they are; see newShop.
	namespace = "shop"
	// sandboxed is where SandboxRuns run.
	sandboxed = "agents"
	// system is the manager's own namespace.
	system = "admitkit"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		main()
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	bin, err := os.MkdirTemp("", "kubectl-access-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	auditLog = filepath.Join(bin, "audit.log")
	cluster, err = controlplane.Start(ctx, controlplane.Options{
		CRDPaths: []string{"../../config/crd"}, ControllerManager: true, Kwok: true,
		APIServerArgs: map[string][]string{"audit-policy-file": {"../../audit/testdata/audit-policy.yaml"}, "audit-log-path": {auditLog}},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := errors.Join(installPlugin(bin), setUp(ctx)); err != nil {
		return 0, err
	}
	port, err := freeport.Find()
	if err != nil {
		return 0, err
	}
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "admitkit", WebhookNamespace: system, Host: "127.0.0.1", Port: port, Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		RESTConfig: cluster.Config(), Logger: zap.NewNop().Sugar(),
	})
	if err != nil {
		return 0, err
	}
	granting := access.Options{Namespaces: []string{access.AllNamespaces}, ClusterRoles: []string{"view"}}
	for n := range maxShops {
		granting.Roles = append(granting.Roles, shopName(n)+"/deployer")
	}
	records := audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{})}}, NamespaceSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{metav1.NamespaceDefault}}},
	}})
	// Pods of runs whose names begin with loud have a log.
	onKubelet := extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if strings.HasPrefix(pod.Labels[sandbox.LabelRun], loudNode) {
			pod.Spec.NodeName = loudNode
		}
		return nil
	}, extension.Scope{Name: "kubelet", NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: sandboxed}}})
	if err := errors.Join(mgr.AddExtension(onKubelet), mgr.AddExtension(access.New(granting)), mgr.AddExtension(records),
		mgr.AddExtension(sandbox.New(sandbox.Options{Namespaces: []string{sandboxed}, Interactive: true, Egress: egress.Options{Mode: egress.ModeOff}}))); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	select {
	case <-mgr.Ready():
	case err := <-done:
		return 0, err
	}
	code = m.Run()
	cancel()
	return code, <-done
}

func setUp(ctx context.Context) error {
	var err error
	if admin, err = client.New(cluster.Config(), client.Options{Scheme: cli.Scheme}); err != nil {
		return err
	}
	if alice, err = cluster.AddUser("alice", "devs"); err != nil {
		return err
	}
	if mallory, err = cluster.AddUser("mallory", "sales"); err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sandboxed}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "access-requester"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"}, Verbs: []string{"create", "get", "list", "watch", "update", "patch"}},
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccesstemplates", "execaccesstemplates", "roleaccesstemplates"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces"}, ResourceNames: []string{"shared"}, Verbs: []string{"get"}},
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"sandboxruns"}, Verbs: []string{"create", "get", "list", "watch", "patch"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "engineers"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "access-requester"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "devs"}, {APIGroup: rbacv1.GroupName, Kind: "Group", Name: "sales"}, {APIGroup: rbacv1.GroupName, Kind: "Group", Name: "pilots"}},
		},
		// They are allowed by templates, and lack rights.
		clusterRole("no-patch", "create", "get", "list", "watch"), boundTo("no-patch", "carol"),
		clusterRole("no-watch", "create", "get", "list"), boundTo("no-watch", "dave"),
		clusterRole("no-list", "create", "get"), boundTo("no-list", "erin"),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "no-requests"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccesstemplates", "execaccesstemplates"}, Verbs: []string{"list"}},
		}}, boundTo("no-requests", "frank"),
	} {
		if err := admin.Create(ctx, object); err != nil {
			return err
		}
	}
	return openShop(ctx, namespace)
}

// maxShops bounds how many tests have a shop of their own.
const maxShops = 50

// shops counts them.
var shops atomic.Int32

// shopName is that of a shop before it is there: an operator names the Roles that may be
// given, and where.
func shopName(n int) string { return fmt.Sprint("shop-", n) }

// newShop opens a shop for a test that adds templates, changes Pods or counts what there is,
// and returns its namespace.
func newShop(t *testing.T) string {
	t.Helper()
	n := int(shops.Add(1))
	if n >= maxShops {
		t.Fatalf("more than %d shops: raise maxShops", maxShops)
	}
	if err := openShop(t.Context(), shopName(n)); err != nil {
		t.Fatal(err)
	}
	return shopName(n)
}

// openShop makes a namespace with two workloads, a Role, and templates for them.
func openShop(ctx context.Context, namespace string) error {
	labels := map[string]string{"app": "web"}
	one, none := int32(1), int32(0)
	deployment := func(name string, replicas *int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: appsv1.DeploymentSpec{
			Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}}},
		}}
	}
	config := v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, AllowedUsers: []string{"carol", "dave", "erin"}, DefaultDuration: "30m", MaxDuration: "2h", MaxConcurrent: 100, AccessCommand: "kubectl get pod -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -o name"}
	echo, evil := config, config
	echo.AccessCommand = "kubectl exec -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- echo 'two words'"
	evil.AccessCommand = "rm -rf $HOME {{ .Metadata.Name }} \x1b]0;owned\a"
	target := func(name string) v1alpha1.ControllerTargetRef {
		return v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	}
	web := target("web")
	yes := true
	privileged := &corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deployer"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}},
		deployment("web", &one), deployment("asleep", &none),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "of-nobody", Namespace: namespace}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "example.com/a"}}}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace}, Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: config, ControllerTargetRef: web}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "working", Namespace: namespace}, Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: echo, ControllerTargetRef: web}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "evil", Namespace: namespace}, Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: evil, ControllerTargetRef: web}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "asleep", Namespace: namespace}, Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: config, ControllerTargetRef: target("asleep")}},
		&v1alpha1.PodAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "debug", Namespace: namespace}, Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: config, ControllerTargetRef: &web}},
		&v1alpha1.PodAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "privileged", Namespace: namespace}, Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: config, PodSpec: privileged}},
	} {
		if err := admin.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// clusterRole gives rights on requests.
func clusterRole(name string, verbs ...string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccessrequests", "execaccessrequests"}, Verbs: verbs},
	}}
}

func boundTo(role, user string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
}

// requested asks for exec access and returns the request's name.
func requested(t *testing.T, args ...string) string {
	t.Helper()
	return requestedIn(t, namespace, args...)
}

func requestedIn(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	o := kubectlAccess(t, alice, append([]string{"exec", "web", "-n", namespace, "-o", "name"}, args...)...).expect(t, 0)
	return strings.TrimPrefix(strings.TrimSpace(o.stdout), "execaccessrequest.admitkit.dev/")
}

func TestAnEngineerGetsAccessAndTheCommandThatUsesIt(t *testing.T) {
	t.Parallel()
	o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--duration", "10m", "--reason", "a test").expect(t, 0, "access until")
	if !strings.HasPrefix(o.stdout, "kubectl get pod -n shop web-") || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("standard output is %q, want the command alone", o.stdout)
	}
}

func TestTheShellIsACommandOfKubectlAndNothingElse(t *testing.T) {
	t.Parallel()
	o := kubectlAccess(t, alice, "pod", "debug", "-n", namespace, "--shell").expect(t, 0)
	if !strings.HasPrefix(o.stdout, "pod/podaccess-debug-") {
		t.Errorf("standard output is %q, want that of the command", o.stdout)
	}
	kubectlAccess(t, alice, "exec", "evil", "-n", namespace, "--shell").expect(t, cli.CodeError, "more than one plain command", "rm -rf")
}

func TestAnAccessCommandDoesNothingToTheTerminal(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--shell"}, nil} {
		o := kubectlAccess(t, alice, append([]string{"exec", "evil", "-n", namespace}, args...)...)
		if !strings.Contains(o.stdout+o.stderr, "owned") || strings.Contains(o.stdout+o.stderr, "\x1b") {
			t.Errorf("%q: %q has an escape sequence of the template's author in it", args, o.stdout+o.stderr)
		}
	}
}

func TestTheShellShowsWhatItRuns(t *testing.T) {
	t.Parallel()
	o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--shell").expect(t, 0)
	if !strings.Contains(o.stderr, "kubectl get --namespace=shop --output=name pod/web-") {
		t.Errorf("standard error is %q, want the command in it", o.stderr)
	}
}

func TestTheShellRunsInThePod(t *testing.T) {
	t.Parallel()
	o := kubectlAccess(t, alice, "exec", "working", "-n", namespace, "--shell").expect(t, 0)
	if o.stdout != "two words\n" {
		t.Errorf("standard output is %q, want that of the command in the Pod", o.stdout)
	}
}

func TestAPodThatTheAPIServerRefusesIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	kubectlAccess(t, alice, "pod", "privileged", "-n", namespace, "--name", "too-much", "--timeout", "1m").
		expect(t, cli.CodeRefused, "PodRefused", "privileged", "kubectl access revoke too-much")
	kubectlAccess(t, alice, "revoke", "too-much", "-n", namespace).expect(t, 0)
}

func TestWhatIsRefusedIsExplained(t *testing.T) {
	t.Parallel()
	for sentence, c := range map[string]struct {
		user  *controlplane.User
		args  string
		code  int
		words []string
	}{
		"no such template":         {alice, "exec wbe", cli.CodeNotFound, []string{`no ExecAccessTemplate "wbe"`, "asleep, evil, web"}},
		"no template at all":       {alice, "exec web -n default", cli.CodeNotFound, []string{`no ExecAccessTemplate "web" in namespace default`}},
		"not in the group":         {mallory, "exec web", cli.CodeRefused, []string{`user "mallory" is not allowed`, `"devs"`}},
		"too long":                 {alice, "exec web -d 3h", cli.CodeRefused, []string{`duration 3h exceeds the maximum of template "web", 2h`}},
		"too many days":            {alice, "exec web -d 1d12h", cli.CodeRefused, []string{"duration 36h exceeds"}},
		"a Pod that is not there":  {alice, "exec web --pod nosuch", cli.CodeNotFound, []string{`there is no Pod "nosuch" in namespace shop; without --pod`}},
		"another's Pod":            {alice, "exec asleep --pod of-nobody", cli.CodeRefused, []string{"Pod shop/of-nobody is not one of Deployment/asleep"}},
		"no right to ask":          {nil, "exec web --as nobody", cli.CodeRefused, []string{"no right", "nobody"}},
		"a duration of nonsense":   {alice, "exec web -d soon", cli.CodeUsage, []string{"--duration", "soon"}},
		"a duration below nothing": {alice, "exec web -d -1m", cli.CodeUsage, []string{"--duration", "must be more than 0"}},
		"a duration of nothing":    {alice, "exec web -d 0s", cli.CodeUsage, []string{"--duration", "must be more than 0; leave it out for the template's default"}},
		"a wait below nothing":     {alice, "exec web --timeout -1m", cli.CodeUsage, []string{"--timeout", "0 does not wait"}},
		"an unknown format":        {alice, "exec web -o xml", cli.CodeUsage, []string{"xml", "table, wide, json, yaml", "custom-columns"}},
		"a broken format":          {alice, "list -o jsonpath={.items[}", cli.CodeUsage, []string{"jsonpath {.items[}"}},
		"no column":                {alice, "list -o custom-columns", cli.CodeUsage, []string{`must be NAME:.path`}},
		"a column without a path":  {alice, "list -o custom-columns=NAME", cli.CodeUsage, []string{`"NAME" must be NAME:.path`}},
		"a missing template":       {alice, "exec", cli.CodeUsage, []string{"TEMPLATE is missing; those that you may use in namespace shop: asleep, evil, web"}},
		"no template for anybody":  {mallory, "exec", cli.CodeUsage, []string{"TEMPLATE is missing", "exec --help"}},
		"a workload of several":    {alice, "exec Deployment/web", cli.CodeUsage, []string{"several templates fit Deployment/web", ": evil, web, working"}},
		"a workload of none":       {alice, "exec deploy/none", cli.CodeNotFound, []string{"no ExecAccessTemplate for Deployment/none in namespace shop"}},
		"a workload of others":     {mallory, "exec deployments.apps/asleep", cli.CodeRefused, []string{"none of the templates for Deployment/asleep: asleep"}},
		"a workload of what":       {alice, "exec depl/web", cli.CodeUsage, []string{`no kind "depl"`}},
		"one argument too many":    {alice, "exec web debug", cli.CodeUsage, []string{`"debug"`}},
		"an unknown command":       {alice, "exce web", cli.CodeUsage, []string{"exce", "exec"}},
		"flags that do not agree":  {alice, "exec web --shell -o json", cli.CodeUsage, []string{"shell", "output", "exec --help"}},
		"an unknown request":       {alice, "describe none", cli.CodeNotFound, []string{`no request "none"`, "list"}},
		"an unknown kind":          {alice, "describe job/none", cli.CodeUsage, []string{"exec/NAME"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			args := strings.Fields(c.args)
			if !strings.Contains(c.args, "-n ") {
				args = append(args, "-n", namespace)
			}
			if o := kubectlAccess(t, c.user, args...).expect(t, c.code, c.words...); o.stdout != "" {
				t.Errorf("standard output is %q, want nothing", o.stdout)
			}
		})
	}
}

func TestAWaitThatIsTooLongSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	kubectlAccess(t, alice, "exec", "asleep", "-n", namespace, "--timeout", "10s").
		expect(t, cli.CodeTimeout, "not ready after 10s", "NoPod", "kubectl access revoke asleep-")
}

func TestAccessCanBeExtendedShortenedAndGivenBack(t *testing.T) {
	t.Parallel()
	name := requested(t, "-d", "10m")
	req := &v1alpha1.ExecAccessRequest{}
	duration := func(want string) {
		t.Helper()
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, req); err != nil || req.Spec.Duration != want {
			t.Errorf("duration %q, %v; want %s", req.Spec.Duration, err, want)
		}
	}
	kubectlAccess(t, alice, "extend", name, "15m", "-n", namespace).expect(t, 0, name+": access until", "24m")
	duration("25m")
	kubectlAccess(t, alice, "extend", "-n", namespace, "--", "exec/"+name, "-3m").expect(t, 0)
	duration("22m")
	kubectlAccess(t, alice, "extend", name, "-2m", "-n", namespace).expect(t, 0, "19m")
	duration("20m")
	kubectlAccess(t, alice, "extend", name, "2h", "-n", namespace).expect(t, cli.CodeRefused, "2h20m", "2h")
	kubectlAccess(t, alice, "extend", name, "1d", "-n", namespace).expect(t, cli.CodeRefused, "duration 24h20m exceeds the maximum")
	kubectlAccess(t, mallory, "extend", name, "1m", "-n", namespace).
		expect(t, cli.CodeRefused, `refused: the duration can be changed by the requester only, not by "mallory"; to end the access use 'kubectl access revoke'`)
	kubectlAccess(t, alice, "extend", name, "long", "-n", namespace).expect(t, cli.CodeUsage, `DURATION: "long" is not a duration such as 30m, 1h30m or 1d`)
	kubectlAccess(t, alice, "extend", name, "0m", "-n", namespace).expect(t, cli.CodeUsage, "0m changes nothing")
	kubectlAccess(t, mallory, "revoke", name, "-n", namespace, "--reason", "why not").expect(t, cli.CodeRefused, `refused: user "mallory" neither made the request nor may delete`)
	kubectlAccess(t, nil, "revoke", name, "-n", namespace).expect(t, cli.CodeRefused, "--reason: say why")
	kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--name", name).expect(t, cli.CodeError, "leave out --name, or revoke it")
	kubectlAccess(t, alice, "revoke", "execaccessrequest.admitkit.dev/"+name, "-n", namespace, "-r", "done").expect(t, 0, "revoked")
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil || req.Spec.Revoked == nil || req.Spec.Revoked.By != "alice" || req.Spec.Revoked.Reason != "done" {
		t.Errorf("the record after revoke: %+v, %v", req.Spec.Revoked, err)
	}
	kubectlAccess(t, nil, "revoke", name, "-n", namespace, "-r", "to be sure").expect(t, cli.CodeRefused, "make another request")
	kubectlAccess(t, alice, "describe", name, "-n", namespace).expect(t, 0, "by alice at", "done")
	kubectlAccess(t, alice, "exec", "web", "-n", namespace, "--name", name).expect(t, cli.CodeError, "access has ended", "leave out --name, or choose another")

	over := requested(t, "-d", "10m")
	kubectlAccess(t, alice, "extend", over, "-1d", "-n", namespace).expect(t, 0, over+": access ends now")
	kubectlAccess(t, alice, "extend", over, "1m", "-n", namespace).expect(t, cli.CodeRefused, "access ended at", "make another request")
}

func TestRequestsAndTemplatesAreListedInEveryFormat(t *testing.T) {
	t.Parallel()
	name := requested(t, "-r", "for the list")
	kubectlAccess(t, alice, "list", "-n", namespace).expect(t, 0, "NAME", "LEFT", name, "alice", "29m")
	kubectlAccess(t, alice, "list", "-A", "-o", "wide").expect(t, 0, "REASON", "for the list", "30m")
	kubectlAccess(t, alice, "list", "-A", "-o", "name").expect(t, 0, "execaccessrequest.admitkit.dev/"+name)
	var list struct{ Items []v1alpha1.ExecAccessRequest }
	if err := json.Unmarshal([]byte(kubectlAccess(t, alice, "list", "-A", "-o", "json").expect(t, 0).stdout), &list); err != nil || len(list.Items) == 0 || list.Items[0].Kind == "" {
		t.Errorf("as JSON: %v, %v", list, err)
	}
	kubectlAccess(t, alice, "list", "-A", "-o", "yaml").expect(t, 0, "templateName: web")
	if o := kubectlAccess(t, nil, "list", "-A", "--mine", "--as", "nina", "--as-group", "sales").expect(t, 0, "no requests"); o.stdout != "" {
		t.Errorf("nina made none, and got %q", o.stdout)
	}
	kubectlAccess(t, alice, "list", "-A", "--mine").expect(t, 0, name)
	kubectlAccess(t, alice, "templates", "-n", namespace).expect(t, 0, "Deployment/web", "debug", "devs", "2h")
	kubectlAccess(t, alice, "templates", "-n", namespace, "-o", "wide").expect(t, 0, "exec,log", "optional", "ON EXPIRY", "Keep")
	kubectlAccess(t, alice, "describe", name, "-n", namespace).expect(t, 0, "AccessResourcesReady", "alice", "for the list", "kubectl get pod")
	kubectlAccess(t, nil, "describe", name, "-n", namespace).expect(t, 0, "AccessGranted")
}

func TestExtendMindsNothingButTheDuration(t *testing.T) {
	t.Parallel()
	cl := testkit.Client(t, alice, cli.Scheme)
	read := func(name string) request {
		t.Helper()
		req, err := find(t.Context(), cl, namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		return req
	}
	name := requested(t, "-d", "10m")

	req := read(name)
	status := read(name).(*v1alpha1.ExecAccessRequest)
	status.Status.Conditions[0].Message = "written in the meantime"
	if err := admin.Status().Update(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	if err := extend(t.Context(), cl, req, time.Minute); err != nil || req.GetRequestSpec().Duration != "11m" {
		t.Errorf("extended by 1m: %v, duration %s; want 11m", err, req.GetRequestSpec().Duration)
	}

	req = read(name)
	kubectlAccess(t, alice, "extend", name, "5m", "-n", namespace).expect(t, 0)
	var exit *cli.ExitError
	if err := extend(t.Context(), cl, req, time.Minute); !errors.As(err, &exit) || exit.Code != cli.CodeError || !strings.Contains(err.Error(), "16m") {
		t.Errorf("extended by what another has extended in the meantime: %v, want an error with the duration", err)
	}
	if after := read(name).GetRequestSpec().Duration; after != "16m" {
		t.Errorf("duration %s, want that of the other: 16m", after)
	}
}

func TestAListIsAListOfHoweverMany(t *testing.T) {
	t.Parallel()
	type list struct {
		Kind  string
		Items []json.RawMessage
	}
	// One record, of one session.
	pod := &v1alpha1.ExecAccessRequest{}
	name := requested(t)
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil {
		t.Fatal(err)
	}
	if output, err := cluster.Kubectl(t.Context(), nil, "exec", "-n", namespace, pod.Status.PodName, "--as=once", "--as-group=system:masters", "--", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	const one = "single"
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: one}},
		&v1alpha1.PodAccessTemplate{ObjectMeta: metav1.ObjectMeta{Name: "debug", Namespace: one}, Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}}, PodSpec: &corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}},
		&v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "once", Namespace: one}, Spec: v1alpha1.ExecAccessRequestSpec{RequestSpec: v1alpha1.RequestSpec{TemplateName: "none", Duration: "1m"}}},
	} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]int{
		"templates -n default -o json": 0, "templates -n " + one + " -o json": 1, "list -n " + one + " -o json": 1, "list -n " + one + " -o yaml": 1,
		"audit -A --user nobody -o json": 0, "audit -A --user once -o json": 1,
	} {
		t.Run(args, func(t *testing.T) {
			testkit.Eventually(t, fmt.Sprint(want, " of them"), func(context.Context) bool {
				var got list
				o := kubectlAccess(t, nil, strings.Fields(args)...).expect(t, 0)
				if err := yaml.Unmarshal([]byte(o.stdout), &got); err != nil || got.Kind != "List" {
					t.Fatalf("%v, not a List: %s", err, o.stdout)
				}
				return len(got.Items) == want
			})
		})
	}
	var req v1alpha1.ExecAccessRequest
	o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "-o", "json").expect(t, 0)
	if err := json.Unmarshal([]byte(o.stdout), &req); err != nil || req.Kind != "ExecAccessRequest" {
		t.Errorf("%v: the one request that was asked for is a %q, want an ExecAccessRequest", err, req.Kind)
	}
	var event v1alpha1.AuditEvent
	watching := begin(t, nil, "audit", "-A", "--user", "once", "-w", "-o", "json")
	testkit.Eventually(t, "the watch has shown the record", func(context.Context) bool {
		return json.Unmarshal([]byte(watching.stdout.String()), &event) == nil
	})
	if event.Kind != "AuditEvent" {
		t.Errorf("the watch begins with a %q, want an AuditEvent", event.Kind)
	}
}

func TestAnAuditorSeesWhoDidWhatAndWhatComes(t *testing.T) {
	t.Parallel()
	name := requested(t)
	req := &v1alpha1.ExecAccessRequest{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, req); err != nil {
		t.Fatal(err)
	}
	pod := req.Status.PodName
	run := func(words ...string) {
		t.Helper()
		command := cluster.Kubectl(t.Context(), alice, append([]string{"exec", "-n", namespace, pod, "--"}, words...)...)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	watching := begin(t, nil, "audit", "-n", namespace, "-w", "--since", "0s", "-o", "wide")
	run("echo", "two words", "\x1b[31mred")
	testkit.Eventually(t, "the record is listed", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, nil, "audit", "-n", namespace, "--user", "alice", "--pod", pod, "--since", "1m").stdout, `echo "two words" "\x1b[31mred"`)
	})
	for args, want := range map[string]bool{
		"--user mallory": false, "--until 1h": false, "--decision Denied": false, "--decision Allowed": true, "--since 2020-01-01T00:00:00Z": true, "-A -o json": true, "-A -o wide": true,
	} {
		o := kubectlAccess(t, nil, append([]string{"audit", "-n", namespace}, strings.Fields(args)...)...).expect(t, 0)
		if found := strings.Contains(o.stdout, "two words"); found != want {
			t.Errorf("audit %s shows it: %t, want %t\n%s", args, found, want, o.stdout)
		}
	}
	testkit.Eventually(t, "the watch shows it", func(context.Context) bool {
		// The first may have been before the watch began.
		run("true", "watched")
		return strings.Contains(watching.stdout.String(), "true watched")
	})
	watching.interrupt()
	watching.wait().expect(t, cli.CodeInterrupted)
	testkit.Eventually(t, "the story of a request is told", func(context.Context) bool {
		story := kubectlAccess(t, nil, "audit", "-n", namespace, "--request", name).stdout
		return strings.Contains(story, "asked "+name) && strings.Contains(story, "granted "+name) && !strings.Contains(story, "two words")
	})
	kubectlAccess(t, nil, "audit", "--since", "yesterday").expect(t, cli.CodeUsage, "--since", "yesterday")
	kubectlAccess(t, nil, "audit", "--decision", "Maybe").expect(t, cli.CodeUsage, "Allowed or Denied")
	kubectlAccess(t, alice, "audit", "-A").expect(t, cli.CodeRefused, "no right")
}

func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	name, ended := requested(t), requested(t)
	kubectlAccess(t, alice, "revoke", ended, "-n", namespace).expect(t, 0)
	completed := func(want, not string, args ...string) {
		t.Helper()
		words := strings.Fields(kubectlAccess(t, nil, append([]string{"__complete"}, append(args, "")...)...).expect(t, 0).stdout)
		if !slices.Contains(words, want) || slices.Contains(words, not) {
			t.Errorf("%q is completed by %q, want %q, and not %q", args, words, want, not)
		}
	}
	kubectlAccess(t, alice, "__complete", "exec", "-n", namespace, "").expect(t, 0, "asleep\nevil\nweb\n")
	completed(name, ended, "revoke", "-n", namespace)
	completed(name, ended, "extend", "-n", namespace)
	completed(name, ended, "describe", "-n", namespace)
	completed("yaml", "", "list", "-o")
	completed(namespace, "", "list", "-n")
	config, err := clientcmd.LoadFromFile(cluster.Admin().KubeConfig)
	if err != nil {
		t.Fatal(err)
	}
	completed(config.CurrentContext, "", "list", "--context")
	completed("Denied", "", "audit", "--decision")
	req := &v1alpha1.ExecAccessRequest{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, req); err != nil {
		t.Fatal(err)
	}
	completed(req.Status.PodName, "of-nobody", "exec", "web", "-n", namespace, "--pod")
	completed(req.Status.PodName, "of-nobody", "exec", "deployment/web", "-n", namespace, "--pod")
	completed(req.Status.PodName, "", "audit", "-n", namespace, "--pod")
}

func TestHelpSpeaksOfKubectlAccess(t *testing.T) {
	t.Parallel()
	kubectlAccess(t, alice, "--help").expect(t, 0, "kubectl access [command]", "templates", "revoke")
	kubectlAccess(t, alice, "exec", "--help").expect(t, 0, "kubectl access exec TEMPLATE", "--duration", "(default 5m)", "--kubeconfig", "--as")
	kubectlAccess(t, alice, "--version").expect(t, 0, "version")
	kubectlAccess(t, alice, "version").expect(t, 0, "kubectl access ", runtime.Version())
	kubectlAccess(t, alice, "version", "-o", "json").expect(t, 0, `"version": "`, `"program": "github.com/admitkit/admitkit/operator/cmd/kubectl-access`)
	kubectlAccess(t, alice, "version", "-o", "wide").expect(t, cli.CodeUsage, `unknown format "wide"`)
}

func TestAClusterWithoutAdmitkitIsNamedAsSuch(t *testing.T) {
	t.Parallel()
	bare := controlplane.Run(t, controlplane.Options{})
	for _, args := range []string{"exec web", "list", "templates", "describe a", "audit"} {
		kubectlAccess(t, bare.Admin(), strings.Fields(args)...).expect(t, cli.CodeNotFound, "no admitkit in this cluster")
	}
	// As the chart installs it by default.
	crd, err := os.ReadFile("../../config/crd/admitkit.dev_execaccessrequests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Apply(t.Context(), bare, string(crd)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the group is served", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, bare.Admin(), "audit").expect(t, cli.CodeNotFound).stderr, "not recorded as objects")
	})
	kubectlAccess(t, bare.Admin(), "audit").expect(t, cli.CodeNotFound, "not recorded as objects", "audit.objects.enabled")
}

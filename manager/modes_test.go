package manager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// moody is a handler that does what the name of its object says: FORM-OUTCOME-SUBJECT-MODE.
func moody(form, subject string, scope extension.Scope, change func(*unstructured.Unstructured)) *extension.Handler {
	scope.Name, scope.Timeout = form+"-"+subject, time.Second
	handle := func(ctx context.Context, object *unstructured.Unstructured, req *extension.Request) error {
		is := strings.Split(req.Name, "-")
		if len(is) != 4 || is[0] != form || is[2] != subject {
			return nil
		}
		switch is[1] {
		case "deny":
			return extension.Deny("no " + req.Name)
		case "change":
			change(object)
		case "error":
			return errors.New("no connection")
		case "panic":
			panic("oh")
		case "timeout":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	if form == "mutator" {
		return extension.MutatingFunc(handle, scope)
	}
	return extension.ValidatingFunc(handle, scope)
}

// subject is what is admitted in a test of modes.
type subject struct {
	name    string
	rules   []admissionregistrationv1.RuleWithOperations
	change  func(*unstructured.Unstructured) // nil if it cannot be changed
	prepare func(ctx context.Context, namespace, name string) error
	// try makes the request, and reports whether it was changed.
	try func(ctx context.Context, namespace, name string) (changed bool, err error)
}

// warned collects the warnings of a client.
type warned struct {
	mu  sync.Mutex
	all []string
}

func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warned) has(words string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.all, func(text string) bool { return strings.Contains(text, words) })
}

func subjects(t *testing.T, warnings *warned) []subject {
	t.Helper()
	config := cluster.Config()
	config.QPS, config.WarningHandler = -1, warnings
	client := kubernetes.NewForConfigOrDie(config)
	custom := newAlarms(t)
	custom.install()
	custom.client = dynamic.NewForConfigOrDie(config)
	label := func(object *unstructured.Unstructured) {
		object.SetLabels(map[string]string{"changed-" + object.GetName(): "yes"})
	}
	createPod := func(ctx context.Context, namespace, name string) (bool, error) {
		made, err := client.CoreV1().Pods(namespace).Create(ctx, newPod(name), metav1.CreateOptions{})
		return err == nil && len(made.Labels) > 0, err
	}
	prepare := func(ctx context.Context, namespace, name string) error {
		_, err := clientset.CoreV1().Pods(namespace).Create(ctx, newPod(name), metav1.CreateOptions{})
		return err
	}
	return []subject{
		{name: "pods", rules: extension.Pods(), change: label, try: createPod},
		{
			name: "alarms", rules: extension.Resources(custom.group, "*", []string{"alarms"}, admissionregistrationv1.Create), change: label,
			try: func(ctx context.Context, namespace, name string) (bool, error) {
				alarm := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": custom.group + "/v2", "kind": "Alarm", "metadata": map[string]any{"name": name},
					"spec": map[string]any{"hour": int64(7), "minute": int64(0)},
				}}
				made, err := custom.of("v2").Namespace(namespace).Create(ctx, alarm, metav1.CreateOptions{})
				return err == nil && len(made.GetLabels()) > 0, err
			},
		},
		{
			name: "connect", rules: extension.Connect("pods/exec"), prepare: prepare,
			change: func(object *unstructured.Unstructured) { object.Object["container"] = "changed" },
			try: func(ctx context.Context, namespace, name string) (bool, error) {
				err := client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(name).SubResource("exec").
					VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}}, scheme.ParameterCodec).Do(ctx).Error()
				switch {
				case err != nil && strings.Contains(err.Error(), "container changed is not valid"):
					return true, nil
				case err != nil && strings.Contains(err.Error(), "does not have a host assigned"): // it got that far
					return false, nil
				}
				return false, err
			},
		},
		{
			name: "delete", rules: extension.Pods(admissionregistrationv1.Delete), prepare: prepare,
			try: func(ctx context.Context, namespace, name string) (bool, error) {
				return false, client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
			},
		},
	}
}

// modesByNamespace returns a namespace for each mode, and a file with the modes.
func modesByNamespace(t *testing.T) (namespaces map[extension.Mode]string, file string) {
	t.Helper()
	namespaces, file = map[extension.Mode]string{}, filepath.Join(t.TempDir(), "modes.yaml")
	var rules []manager.ModeRule
	for _, mode := range []extension.Mode{extension.Enforce, extension.Warn, extension.Observe} {
		namespaces[mode] = newNamespace(t)
		if mode != extension.Enforce {
			rules = append(rules, manager.ModeRule{Extensions: []string{"*"}, NamespaceSelector: extension.InNamespaces(namespaces[mode]), Mode: mode})
		}
	}
	writeModes(t, file, rules...)
	return namespaces, file
}

func writeModes(t *testing.T, file string, rules ...manager.ModeRule) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"modes": rules})
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, file, text)
}

// replaceFile replaces a file at once, as a kubelet does.
func replaceFile(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// Each mode and outcome, of a Mutator and a Validator, for what can be admitted.
func TestAnExtensionIsInForceOnlyInItsMode(t *testing.T) {
	t.Parallel()
	warnings := &warned{}
	all := subjects(t, warnings)
	namespaces, file := modesByNamespace(t)
	var handlers []any
	for _, s := range all {
		scope := extension.Scope{Rules: s.rules, NamespaceSelector: extension.InNamespaces(slices.Collect(maps.Values(namespaces))...)}
		handlers = append(handlers, moody("mutator", s.name, scope, s.change), moody("validator", s.name, scope, nil))
	}
	r := start(t, manager.Options{WebhookNamespace: newNamespace(t), Registration: manager.RegistrationOptions{ModesFile: file}}, handlers...)
	testkit.Eventually(t, "the API server calls the webhooks", func(ctx context.Context) bool {
		_, err := all[0].try(ctx, namespaces[extension.Enforce], "validator-deny-pods-first")
		return apierrors.IsForbidden(err)
	})
	var cases, wrong atomic.Int64
	nameOf := func(s subject, form, outcome string, mode extension.Mode) string {
		return strings.ToLower(strings.Join([]string{form, outcome, s.name, string(mode)}, "-"))
	}
	prepare := func(ctx context.Context, s subject, form, outcome string, mode extension.Mode) {
		if s.prepare != nil {
			if err := s.prepare(ctx, namespaces[mode], nameOf(s, form, outcome, mode)); err != nil {
				t.Error(err)
			}
		}
	}
	check := func(ctx context.Context, s subject, form, outcome string, mode extension.Mode) {
		name := nameOf(s, form, outcome, mode)
		changed, err := s.try(ctx, namespaces[mode], name)
		cases.Add(1)
		want := wantOf(mode, outcome)
		got := map[bool]string{true: "changed", false: "passed"}[changed]
		if err != nil {
			got = string(apierrors.ReasonForError(err))
		}
		if finding := map[string]string{"deny": "no " + name, "change": form + "-" + s.name + " would change this"}[outcome]; finding != "" && warnings.has(finding) {
			got += " with a warning"
		}
		if got != want {
			wrong.Add(1)
			t.Errorf("%s: %s (%v), want %s", name, got, err, want)
		}
	}
	each := func(do func(context.Context, subject, string, string, extension.Mode), mode extension.Mode, outcomes ...string) {
		var group errgroup.Group
		group.SetLimit(8)
		for _, s := range all {
			for _, outcome := range outcomes {
				for _, form := range []string{"mutator", "validator"} {
					if outcome != "change" || form == "mutator" && s.change != nil {
						group.Go(func() error {
							do(t.Context(), s, form, outcome, mode)
							return nil
						})
					}
				}
			}
		}
		_ = group.Wait() // check tells the test
	}
	modes := []extension.Mode{extension.Observe, extension.Enforce, extension.Warn} // before it, nobody is warned
	for _, mode := range modes {
		each(prepare, mode, "allow", "deny", "change", "error", "panic", "timeout", "away")
	}
	for _, mode := range modes {
		each(check, mode, "allow", "deny", "change", "error", "panic", "timeout")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range modes {
		each(check, mode, "away")
	}
	testkit.Figure("modes.cases", float64(cases.Load()), "cases")
	testkit.Figure("modes.wrong", float64(wrong.Load()), "cases")
}

// wantOf says what becomes of a request.
func wantOf(mode extension.Mode, outcome string) string {
	switch {
	case outcome == "allow" || mode == extension.Observe:
		return "passed"
	case mode == extension.Warn && (outcome == "deny" || outcome == "change"):
		return "passed with a warning"
	case mode == extension.Warn:
		return "passed"
	case outcome == "deny":
		return string(metav1.StatusReasonForbidden)
	case outcome == "change":
		return "changed"
	}
	return string(metav1.StatusReasonInternalError)
}

// An object in no namespace has the mode of the rules without a selector, a Namespace the mode
// of its own labels. No object reaches the extension twice, or not at all.
func TestObjectsInNoNamespaceHaveAMode(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	warn := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home + "-warn", Labels: map[string]string{home: "warn"}}}
	if _, err := clientset.CoreV1().Namespaces().Create(t.Context(), warn, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	refuse := extension.ValidatingFunc(func(context.Context, runtime.Object, *extension.Request) error {
		calls.Add(1)
		return extension.Deny("no")
	}, extension.Scope{
		Name: "refuse", NamespaceSelector: &metav1.LabelSelector{},
		Rules:           slices.Concat(extension.Resources("", "v1", []string{"*/*"}, admissionregistrationv1.Create), extension.Resources("rbac.authorization.k8s.io", "*", []string{"*"}, admissionregistrationv1.Create)),
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "of-this-test", Expression: "request.name.startsWith('" + home + "-x')"}},
	})
	start(t, manager.Options{WebhookNamespace: home, Registration: manager.RegistrationOptions{Modes: []manager.ModeRule{
		{Extensions: []string{"refuse"}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{home: "warn"}}, Mode: extension.Warn},
	}}}, refuse)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	name := home + "-x"
	for what, test := range map[string]struct {
		create  func(context.Context) error
		refused bool
	}{
		"a Namespace": {func(ctx context.Context) error {
			_, err := clientset.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, dry)
			return err
		}, true},
		"a Namespace with the label": {func(ctx context.Context) error {
			_, err := clientset.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: warn.Labels}}, dry)
			return err
		}, false},
		"a ClusterRole": {func(ctx context.Context) error {
			_, err := clientset.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}, dry)
			return err
		}, true},
		"a ConfigMap": {func(ctx context.Context) error {
			_, err := clientset.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, dry)
			return err
		}, true},
		"a ConfigMap below the label": {func(ctx context.Context) error {
			_, err := clientset.CoreV1().ConfigMaps(warn.Name).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, dry)
			return err
		}, false},
	} {
		testkit.Succeeds(t, time.Minute, what, func(ctx context.Context) error {
			before := calls.Load()
			err := test.create(ctx)
			if apierrors.IsForbidden(err) != test.refused || err != nil && !test.refused || calls.Load() != before+1 {
				return fmt.Errorf("called %d times: %w", calls.Load()-before, err)
			}
			return nil
		})
	}
}

func TestExemptionsFollowTheirFile(t *testing.T) {
	t.Parallel()
	namespace, file := newNamespace(t), filepath.Join(t.TempDir(), "exemptions.yaml")
	write := func(text string) { replaceFile(t, file, []byte(text)) }
	write("exemptions: []")
	refuse := extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return extension.Deny("no") }, extension.Scope{Name: "refuse"})
	r := start(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{ExemptionsFile: file}}, refuse)
	becomes := func(exempt bool) {
		t.Helper()
		testkit.Succeeds(t, time.Minute, fmt.Sprint("exempt: ", exempt), func(ctx context.Context) error {
			if _, err := dryRunPod(ctx, namespace); exempt && err != nil || !exempt && !apierrors.IsForbidden(err) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	becomes(false)
	const exemption = "exemptions: [{name: legacy, extensions: [refuse], names: [probe], reason: it is rewritten, until: %q}]"
	write(fmt.Sprintf(exemption, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	becomes(true)
	write("exemptions: [{name: legacy}]")
	testkit.Eventually(t, "the wrong file is told", func(context.Context) bool {
		return len(r.logs.FilterMessageSnippet("the exemptions stay as they were").All()) == 1
	})
	becomes(true)
	write(fmt.Sprintf(exemption, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)))
	becomes(false)
	testkit.Eventually(t, "its end is told", func(context.Context) bool {
		return len(r.logs.FilterMessageSnippet("an exemption has ended").All()) == 1
	})
}

// Two replicas behind one Service follow files of their own, which change one after the
// other as kubelets write them, while requests come.
func TestModesThatChangeFailNoRequest(t *testing.T) {
	t.Parallel()
	home, namespace := newNamespace(t), newNamespace(t)
	if _, err := clientset.CoreV1().Services(home).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "modes"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refuse := extension.ValidatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if pod.Name == "refused" {
			return extension.Deny("no")
		}
		return nil
	}, extension.Scope{Name: "refuse"})
	stamp := extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "marked", "yes")
		return nil
	}, extension.Scope{Name: "mark"})
	balancer := newBalancer(t)
	balancer.ready = map[string]string{}
	var files []string
	var replicas []*running
	for range 2 {
		file := filepath.Join(t.TempDir(), "modes.yaml")
		writeModes(t, file)
		r := newManager(t, manager.Options{
			Namespaces: []string{namespace}, WebhookNamespace: home, ServiceName: "modes",
			Serving:      manager.ServingOptions{ServicePort: int32(balancer.listener.Addr().(*net.TCPAddr).Port)},
			Registration: manager.RegistrationOptions{ModesFile: file},
		}, stamp, refuse)
		balancer.mu.Lock()
		balancer.ready[r.address] = r.address
		balancer.mu.Unlock()
		r.run(t)
		r.await(t)
		files, replicas = append(files, file), append(replicas, r)
	}
	config := cluster.Config()
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	client := kubernetes.NewForConfigOrDie(config)
	ask := func(ctx context.Context, name string) (marked bool, err error) {
		made, err := client.CoreV1().Pods(namespace).Create(ctx, newPod(name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && made.Annotations["marked"] != "", err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var requests, failed atomic.Int64
	var clients errgroup.Group
	defer func() { _ = clients.Wait() }()
	defer cancel()
	for range 4 {
		clients.Go(func() error {
			for ctx.Err() == nil {
				if _, err := ask(ctx, "probe"); err != nil && ctx.Err() == nil {
					failed.Add(1)
					t.Error(err)
				}
				requests.Add(1)
			}
			return nil
		})
	}
	var slowest time.Duration
	for n := 0; n < 4 || requests.Load() < testkit.Long[int64](10_000, 1000); n++ {
		marks, refuses := extension.Enforce, extension.Enforce
		var rules []manager.ModeRule
		if n%2 == 0 {
			marks = extension.Warn
			rules = append(rules, manager.ModeRule{Extensions: []string{"mark"}, Mode: marks})
		}
		if n/2%2 == 0 {
			refuses = extension.Observe
			rules = append(rules, manager.ModeRule{Extensions: []string{"refuse"}, NamespaceSelector: extension.InNamespaces(namespace), Mode: refuses})
		}
		writeModes(t, files[n%2], rules...)
		began := time.Now()
		inForce := func(ctx context.Context) bool {
			marked, err := ask(ctx, "probe")
			_, refused := ask(ctx, "refused")
			return err == nil && marked == (marks == extension.Enforce) && apierrors.IsForbidden(refused) == (refuses == extension.Enforce)
		}
		testkit.Eventually(t, "the modes are in force by one file", inForce)
		slowest = max(slowest, time.Since(began))
		writeModes(t, files[1-n%2], rules...)
		testkit.Eventually(t, "the modes are in force by both files", inForce)
	}
	for _, r := range replicas {
		for _, line := range r.logs.FilterMessage("webhooks registered").All() {
			if fields := line.ContextMap(); fields["reason"] == "entry" {
				t.Errorf("a change of modes counts as one by somebody else: %v", fields)
			}
		}
	}
	testkit.Figure("modes.in_force_s", slowest.Seconds(), "s")
	testkit.Figure("modes.requests", float64(requests.Load()), "requests")
	testkit.Figure("modes.failed", float64(failed.Load()), "requests")
}

// An extension that observes costs a request no more than one in force.
func TestAnExtensionThatObservesCostsNoMoreThanInForce(t *testing.T) {
	testkit.OnlyLong(t)
	namespaces, file := modesByNamespace(t)
	without := newNamespace(t)
	check := extension.ValidatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if pod.Spec.HostNetwork {
			return extension.Deny("no host network")
		}
		return nil
	}, extension.Scope{Name: "check", NamespaceSelector: extension.InNamespaces(slices.Collect(maps.Values(namespaces))...)})
	start(t, manager.Options{WebhookNamespace: newNamespace(t), Registration: manager.RegistrationOptions{ModesFile: file}}, check)
	took := map[string][]time.Duration{}
	for range 1000 {
		for _, namespace := range []string{without, namespaces[extension.Enforce], namespaces[extension.Observe]} {
			began := time.Now()
			if _, err := dryRunPod(t.Context(), namespace); err != nil {
				t.Fatal(err)
			}
			took[namespace] = append(took[namespace], time.Since(began))
		}
	}
	median := func(namespace string) float64 { return testkit.Milliseconds(testkit.Percentile(took[namespace], 0.5)) }
	testkit.Figure("modes.enforce_adds_ms", median(namespaces[extension.Enforce])-median(without), "ms")
	testkit.Figure("modes.observe_adds_ms", median(namespaces[extension.Observe])-median(without), "ms")
}

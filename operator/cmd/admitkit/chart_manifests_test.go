package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// rights are what a ServiceAccount may do, each by itself: where, verb, what.
type rights map[string]bool

func (r rights) add(namespace string, rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range append(rule.ResourceNames, "*")[:max(1, len(rule.ResourceNames))] {
						r[fmt.Sprintf("%s: %s %s.%s %s", namespace, verb, resource, group, name)] = true
					}
				}
			}
		}
	}
}

func (r rights) without(other rights) []string {
	less := maps.Clone(r)
	maps.DeleteFunc(less, func(right string, _ bool) bool { return other[right] })
	return slices.Sorted(maps.Keys(less))
}

// rightsOf returns the rights of each ServiceAccount by its bindings.
func rightsOf(t *testing.T, objects []metav1.Object) map[string]rights {
	t.Helper()
	roles, clusterRoles := map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}
	aggregate := map[string]string{} // labels by ClusterRole
	for _, object := range objects {
		switch o := object.(type) {
		case *rbacv1.Role:
			roles[o.Namespace+"/"+o.Name] = o.Rules
		case *rbacv1.ClusterRole:
			clusterRoles[o.Name] = o.Rules
			if o.AggregationRule != nil {
				aggregate[o.Name] = metav1.FormatLabelSelector(&o.AggregationRule.ClusterRoleSelectors[0])
			}
		}
	}
	all := map[string]rights{}
	bind := func(namespace string, rules []rbacv1.PolicyRule, aggregate string, subjects []rbacv1.Subject) {
		for _, subject := range subjects {
			if (len(rules) == 0) != (aggregate != "") || subject.Namespace != releaseNamespace {
				t.Errorf("%+v is given %v", subject, rules)
			}
			if all[subject.Name] == nil {
				all[subject.Name] = rights{}
			}
			all[subject.Name].add(namespace, rules)
			if aggregate != "" {
				all[subject.Name][namespace+": what ClusterRoles have with the label "+aggregate] = true
			}
		}
	}
	for _, object := range objects {
		switch o := object.(type) {
		case *rbacv1.RoleBinding:
			bind(o.Namespace, roles[o.Namespace+"/"+o.RoleRef.Name], "", o.Subjects)
		case *rbacv1.ClusterRoleBinding:
			bind("everywhere", clusterRoles[o.RoleRef.Name], aggregate[o.RoleRef.Name], o.Subjects)
		}
	}
	return all
}

// manifestsOf returns what `admitkit manifests` prints with the flags and the
// environment of a Pod that serves, and with more flags.
func manifestsOf(t *testing.T, pod corev1.PodSpec, more ...string) []metav1.Object {
	t.Helper()
	text, err := manifests(t, pod, more...)
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(text, "---\n")
	return objectsOf(t, slices.DeleteFunc(documents, func(text string) bool { return strings.HasPrefix(text, "#") }))
}

func manifests(t *testing.T, pod corev1.PodSpec, more ...string) (text string, err error) {
	t.Helper()
	container := pod.Containers[0]
	for _, variable := range container.Env {
		t.Setenv(variable.Name, strings.NewReplacer("/cloudevents/token", "/dev/null", "/access-checks/", "testdata/", "/access-notify/token", "/dev/null", "/access-notify/ca.crt", "/dev/null", "/access-notify/tls.crt", "/dev/null", "/access-notify/tls.key", "/dev/null").Replace(variable.Value))
	}
	// Those of its process are not for the others.
	shared := slices.DeleteFunc(slices.Clone(container.Args), func(arg string) bool { return slices.Contains(processOf(pod), arg) })
	args := slices.Concat([]string{"manifests", "--image=x", "--replicas=1"}, shared, more) // several need a volume for sessions
	if !strings.Contains(strings.Join(args, " "), "--leaf-secret-name=") {
		args = append(args, "--leaf-secret-name=")
	}
	cmd := newOperator().cmd
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		return "", fmt.Errorf("%q: %w", args, err)
	}
	return out.String(), nil
}

// The chart is asked with the release in another namespace for the Pods, whose
// program is then told that it is in the watched one.
func TestTheChartRefusesToWatchItsOwnNamespaceWhereItsProgramWould(t *testing.T) {
	const allowed = "--allow-own-pods=access-pod,access-record,audit-pods"
	for values, refused := range map[string]bool{
		`{}`: false,
		`{failurePolicy: Ignore, access: {enabled: true}}`:                                                          true,
		`{access: {enabled: true}}`:                                                                                 true,
		`{access: {enabled: true}, extraArgs: ["` + allowed + `"]}`:                                                 false,
		`{access: {enabled: true}, extraEnv: [{name: ADMITKIT_ALLOW_OWN_PODS, value: "access-pod,access-record"}]}`: false,
		`{access: {enabled: true, namespaces: [other]}}`:                                                            false,
		`{access: {enabled: true, namespaces: ["*"]}}`:                                                              true,
		`{audit: {required: true}}`:                                                                                 true,
		`{audit: {required: true, allNamespaces: true}}`:                                                            false,
		`{audit: {required: true, allNamespaces: true}, access: {enabled: true}}`:                                   true,
		`{audit: {log: {failurePolicy: Closed}}}`:                                                                   true,
		`{audit: {log: {failurePolicy: Closed, enabled: false}}}`:                                                   false,
		`{audit: {cloudEvents: {failurePolicy: Closed, url: "https://siem.example.com"}}}`:                          true,
		`{audit: {otlp: {failurePolicy: Closed, endpoint: "https://collector:4318"}}}`:                              true,
		`{replicas: 1, sessions: {enabled: true}}`:                                                                  true,
		`{replicas: 1, sessions: {enabled: true, unrecorded: Open}}`:                                                false,
		`{replicas: 1, sessions: {enabled: true, namespaces: [shop]}}`:                                              false,
		`{audit: {touchedPods: {evictAfter: 1h}, objects: {enabled: true}}}`:                                        false,
		`{image: {repository: example.com/stamp}, audit: {enabled: false, required: true}, failurePolicy: Fail}`:    false,
	} {
		t.Run(values, func(t *testing.T) {
			watched := "{watchNamespaces: [apps], " + strings.TrimPrefix(values, "{")
			pod := podOf(serverOf(objectsOf(t, render(t, watched)))).Spec
			if _, err := manifests(t, pod, "--webhook-namespace=apps"); (err != nil) != refused && !strings.Contains(values, "stamp") {
				t.Errorf("the program: %v", err)
			}
			if err := refusal(t, "apps", watched); (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "watchNamespaces: apps is the manager's own namespace") {
				t.Errorf("the chart: %v", err)
			}
		})
	}
}

// The chart is asked with values, and its program with the flags that these stand for.
func TestTheChartRefusesPlacesOfAccessThatItsProgramWould(t *testing.T) {
	const closed = "who gets into its Pods could grant themselves anything"
	for _, c := range []struct {
		watched string
		places  []string
		want    string
	}{
		{"", nil, "access.namespaces: required, because watchNamespaces is empty: name the namespaces in which access may be granted"},
		{"", []string{"*", "apps"}, "access.namespaces: * stands for all, and must be alone"},
		{"", []string{"apps", releaseNamespace}, "access.namespaces: rel-system is the manager's own namespace: " + closed},
		{"apps", []string{releaseNamespace}, "access.namespaces: rel-system is the manager's own namespace: " + closed},
		{"", []string{metav1.NamespaceSystem}, "access.namespaces: kube-system is a namespace of the control plane: " + closed},
		{"", []string{"apps", corev1.NamespaceNodeLease}, "access.namespaces: kube-node-lease is a namespace of the control plane: " + closed},
		{metav1.NamespaceSystem, nil, "watchNamespaces: kube-system is a namespace of the control plane: " + closed},
		{metav1.NamespaceSystem, []string{"apps"}, ""},
		{"apps", nil, ""},
		{"", []string{"*"}, ""},
		{"", []string{metav1.NamespacePublic, metav1.NamespaceDefault}, ""},
	} {
		t.Run(fmt.Sprintf("%v, watching %q", c.places, c.watched), func(t *testing.T) {
			places, err := json.Marshal(append([]string{}, c.places...))
			if err != nil {
				t.Fatal(err)
			}
			values := fmt.Sprintf("{watchNamespaces: [%s], access: {enabled: true, namespaces: %s}}", c.watched, places)
			made, err := rendering(t, releaseNamespace, values)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the chart says %v, want %q", err, c.want)
			}
			pod := corev1.PodSpec{Containers: []corev1.Container{{Args: []string{
				"serve", "--access", "--namespace=" + c.watched, "--access-namespaces=" + strings.Join(c.places, ","), "--webhook-namespace=" + releaseNamespace,
			}}}}
			if err == nil {
				pod = podOf(serverOf(objectsOf(t, documentsOf(t, made.Documents())))).Spec
			}
			if _, err := manifests(t, pod); (err != nil) != (c.want != "") {
				t.Errorf("the program says %v", err)
			}
		})
	}
}

// The chart is asked with values, and its program with the flags that these stand for.
func TestTheChartRefusesSessionsThatItsProgramWould(t *testing.T) {
	for _, c := range []struct{ watched, namespaces, selector, want string }{
		{"", "", "", "ay where sessions are recorded: "},
		{"", releaseNamespace, "", "rel-system is the manager's own namespace"},
		{"", "apps", "a=b", "both say where sessions are recorded"},
		{"", "apps", "", ""},
		{"", "", "a=b", ""},
		{"apps", "", "", ""},
	} {
		values := fmt.Sprintf("{watchNamespaces: [%s], replicas: 1, sessions: {enabled: true, namespaces: [%s], selector: %q}}", c.watched, c.namespaces, c.selector)
		err := refusal(t, releaseNamespace, values)
		want := strings.Replace(c.want, "ay where sessions are recorded: ", "sessions.namespaces: required", 1)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: the chart says %v", c, err)
		}
		args := []string{"serve", "--sessions", "--sessions-image=x", "--namespace=" + c.watched, "--sessions-namespaces=" + c.namespaces, "--sessions-selector=" + c.selector, "--webhook-namespace=" + releaseNamespace}
		_, err = manifests(t, corev1.PodSpec{Containers: []corev1.Container{{Args: args}}})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: the program says %v", c, err)
		}
	}
}

// processes are what the names of ServiceAccounts and Deployments end with.
var processes = map[string]string{"": "the server", "-registrar": "the registrar", "-reconciler": "the reconciler", "-scanner": "what scans"}

// scanned returns values with a scan.
func scanned(values string) string {
	const scan = `scan: {every: 1h, reports: true}`
	if strings.Contains(values, scan) {
		return values
	}
	if flow, is := strings.CutPrefix(values, "{"); is {
		return "{" + scan + ", " + flow
	}
	return scan + "\n" + values
}

func TestTheChartGivesTheRightsOfTheManifestsAndNoOther(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, scanned(values)))
			pod := podOf(serverOf(objects)).Spec
			chart, want := rightsOf(t, objects), map[string]rights{}
			for of, rights := range rightsOf(t, manifestsOf(t, pod, "--scan-every=1h", "--scan-reports")) {
				process := strings.TrimPrefix(of, "admitkit")
				if _, known := processes[process]; !known {
					t.Errorf("manifests has a process %s", of)
				}
				if processOf(pod)[0] == "start" && process != "-scanner" {
					process = "" // one process does it all but scan
				}
				if want[process] == nil {
					want[process] = map[string]bool{}
				}
				maps.Copy(want[process], rights)
			}
			// extraRules.
			mine := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}
			switch name {
			case "everything else":
				want[""].add("everywhere", mine)
				want["-scanner"].add("everywhere", mine)
			case "a namespace, and access in it and another":
				want[""].add("apps", mine)
				want["-reconciler"].add("apps", mine)
				want["-scanner"].add("apps", mine)
			}
			for process, called := range processes {
				got := chart[release+"-admitkit"+process]
				if more := got.without(want[process]); len(more) > 0 {
					t.Errorf("the chart gives %s more:\n%s", called, strings.Join(more, "\n"))
				}
				if less := want[process].without(got); len(less) > 0 {
					t.Errorf("the chart does not give %s:\n%s", called, strings.Join(less, "\n"))
				}
			}
			for account := range chart {
				process := strings.TrimPrefix(account, release+"-admitkit")
				if _, known := processes[process]; !known && process != "-unregister" && process != "-test" && process != "-hooks" {
					t.Errorf("the chart has an account %s", account)
				}
			}
		})
	}
}

// A right to bind is a right to give away whatever is in the role.
func TestNoProcessMayBindMoreThanTheRolesThatAreNamed(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"roles": {
			"apps: bind clusterroles.rbac.authorization.k8s.io system:monitor", "apps: bind clusterroles.rbac.authorization.k8s.io view",
			"apps: bind roles.rbac.authorization.k8s.io deployer", "apps: bind roles.rbac.authorization.k8s.io reader",
			"other: bind clusterroles.rbac.authorization.k8s.io system:monitor", "other: bind clusterroles.rbac.authorization.k8s.io view",
			"other: bind roles.rbac.authorization.k8s.io reader",
		},
		"roles, everywhere":    {"apps: bind roles.rbac.authorization.k8s.io deployer", "everywhere: bind clusterroles.rbac.authorization.k8s.io view"},
		"roles of a namespace": {"apps: bind clusterroles.rbac.authorization.k8s.io view", "apps: bind roles.rbac.authorization.k8s.io deployer"},
		"roles of two namespaces": {
			"apps: bind clusterroles.rbac.authorization.k8s.io view", "apps: bind roles.rbac.authorization.k8s.io deployer",
			"default: bind clusterroles.rbac.authorization.k8s.io view",
		},
		"bindings": {
			"apps: bind clusterroles.rbac.authorization.k8s.io edit", "apps: bind clusterroles.rbac.authorization.k8s.io view",
			"apps: bind roles.rbac.authorization.k8s.io deployer", "everywhere: bind clusterroles.rbac.authorization.k8s.io node-reader",
			"other: bind roles.rbac.authorization.k8s.io teller",
		},
		"bindings, split": {
			"apps: bind clusterroles.rbac.authorization.k8s.io view", "apps: bind roles.rbac.authorization.k8s.io deployer",
			"default: bind clusterroles.rbac.authorization.k8s.io view", "everywhere: bind clusterroles.rbac.authorization.k8s.io node-reader",
		},
		"bindings and access": {"apps: bind roles.rbac.authorization.k8s.io deployer"},
	}
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		var binds []string
		for account, rights := range rightsOf(t, objects) {
			for right := range rights {
				if strings.Contains(right, ": escalate ") || strings.Contains(right, ": * ") {
					t.Errorf("%s: %s may %s", name, account, right)
				}
				if strings.Contains(right, ": bind ") {
					binds = append(binds, right)
					if !strings.Contains(values, "split: {enabled: false}") != strings.HasSuffix(account, "-reconciler") {
						t.Errorf("%s: %s may %s", name, account, right)
					}
				}
			}
		}
		slices.Sort(binds)
		if !slices.Equal(binds, want[name]) {
			t.Errorf("%s: may be bound: %q, want %q", name, binds, want[name])
		}
	}
}

func TestTheChartRefusesRolesThatItsProgramWould(t *testing.T) {
	for _, c := range []struct{ places, roles, clusterRoles, want string }{
		{"apps", "other/deployer", "", "no access is granted in namespace other: add it to "},
		{"*", "kube-system/deployer", "", "no access is granted in namespace kube-system: add it to "},
		{"apps", "deployer", "", "deployer"},
		{"apps", "apps/*", "", "apps/*"},
		{"apps", "", "*", "*"},
		{"apps", "", "a/b", "a/b"},
		{"*", "apps/deployer", "view", ""},
		{"apps", "apps/deployer", "system:view", ""},
	} {
		list := func(item string) string {
			if item == "" {
				return "[]"
			}
			return fmt.Sprintf("[%q]", item)
		}
		values := fmt.Sprintf("{access: {enabled: true, namespaces: [%q], roles: %s, clusterRoles: %s}}", c.places, list(c.roles), list(c.clusterRoles))
		if err := refusal(t, releaseNamespace, values); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), "oles") {
			t.Errorf("%+v: the chart says %v", c, err)
		}
		args := []string{"serve", "--access", "--access-namespaces=" + c.places, "--webhook-namespace=" + releaseNamespace, "--access-role=" + c.roles, "--access-cluster-role=" + c.clusterRoles}
		_, err := manifests(t, corev1.PodSpec{Containers: []corev1.Container{{Args: args}}})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: the program says %v", c, err)
		}
	}
}

func TestTheChartKeepsWhatRegistersToItsOwnSecretsAsTheManifestsDo(t *testing.T) {
	spec := func(objects []metav1.Object) string {
		for _, object := range objects {
			if isPolicy(object) {
				continue
			}
			switch o := object.(type) {
			case *admissionregistrationv1.ValidatingAdmissionPolicy:
				text, err := json.Marshal(o.Spec)
				if err != nil {
					t.Fatal(err)
				}
				return strings.ReplaceAll(string(text), release+"-admitkit", "admitkit")
			case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
				if o.Spec.PolicyName != o.Name {
					t.Errorf("%s binds %s", o.Name, o.Spec.PolicyName)
				}
			}
		}
		return "none"
	}
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			pod := podOf(serverOf(objects)).Spec
			got, want := spec(objects), spec(manifestsOf(t, pod))
			if processOf(pod)[0] == "start" {
				want = strings.ReplaceAll(want, "admitkit-registrar", "admitkit")
			}
			if want == "none" || got != want {
				t.Errorf("the chart has\n%s\nthe manifests have\n%s", got, want)
			}
		})
	}
}

// What the manifests give is what the extensions ask for. This says it of what would
// matter most if somebody took over a process.
func TestEachProcessOfASplitReleaseLacksTheRightsOfTheOthers(t *testing.T) {
	t.Parallel()
	const (
		registers = `: (create|patch|update|delete) (mutatingwebhookconfigurations|validatingwebhookconfigurations)\.`
		certifies = `: (create|patch|update|delete) secrets\.`
		grants    = `: (create|delete|\*) (roles|rolebindings|pods|pods/exec|pods/attach|pods/portforward|pods/eviction)\.`
	)
	lacks := map[string]*regexp.Regexp{
		"":            regexp.MustCompile(registers + "|" + certifies + "|" + grants),
		"-registrar":  regexp.MustCompile(grants),
		"-reconciler": regexp.MustCompile(registers + "|" + `: [a-z]+ secrets\.`),
		"-scanner":    regexp.MustCompile(registers + "|" + grants + "|" + `: [a-z]+ secrets\.|: (patch|update|delete) [a-z/]+\.admitkit\.dev `),
	}
	has := map[string]*regexp.Regexp{
		"":            regexp.MustCompile(`: get secrets\.`),
		"-registrar":  regexp.MustCompile(registers),
		"-reconciler": regexp.MustCompile(grants),
		"-scanner":    regexp.MustCompile(`: list pods\.`),
	}
	for values, places := range map[string]string{
		`{access: {enabled: true, namespaces: [other, apps]}}`:                               `^(other|apps): `,
		`{access: {enabled: true, namespaces: ["*"]}}`:                                       `^everywhere: `,
		`{access: {enabled: true}, watchNamespaces: [apps], split: {registrar: Job}}`:        `^apps: `,
		`{access: {enabled: true, namespaces: [other]}, watchNamespaces: [apps]}`:            `^other: `,
		`{access: {enabled: true, namespaces: [other]}, watchNamespaces: [rel-system]}`:      `^other: `,
		`{access: {enabled: true, namespaces: [other]}, audit: {allNamespaces: true}}`:       `^other: `,
		`{access: {enabled: true, namespaces: [other]}, audit: {objects: {enabled: true}}}`:  `^other: `,
		`{access: {enabled: true, namespaces: [other]}, audit: {touchedPods: {mark: true}}}`: `^other: `,
	} {
		all := rightsOf(t, objectsOf(t, render(t, scanned(values))))
		for process, called := range processes {
			found := false
			for right := range all[release+"-admitkit"+process] {
				if lacks[process].MatchString(right) {
					t.Errorf("%s: %s may %s", values, called, right)
				}
				found = found || has[process].MatchString(right)
				if regexp.MustCompile(grants).MatchString(right) && !regexp.MustCompile(places).MatchString(right) {
					t.Errorf("%s: %s may %s", values, called, right)
				}
			}
			if !found {
				t.Errorf("%s: %s has none of the rights that make it what it is", values, called)
			}
		}
	}
}

// Rights that stay wait for the one who makes the ServiceAccount that only a hook makes.
func TestWhatStaysForTheHookOfTheUninstallIsNothingThatTheReconcilerMayNotDo(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		all := rightsOf(t, objects)
		reconciler := all[release+"-admitkit-reconciler"]
		if reconciler == nil {
			reconciler = all[release+"-admitkit"] // one process, or nothing to reconcile
		}
		stays := slices.DeleteFunc(objects, func(o metav1.Object) bool { return o.GetAnnotations()["helm.sh/hook"] != "" })
		left := rightsOf(t, stays)[release+"-admitkit-unregister"]
		if more := left.without(reconciler); len(more) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(more, "\n"))
		}
		for right := range left {
			if strings.HasPrefix(right, "everywhere: ") || strings.HasPrefix(right, releaseNamespace+": ") {
				t.Errorf("%s: it stays where it could be a hook: %s", name, right)
			}
		}
	}
}

func TestTheUninstallEndsAccessWhereverItIsGranted(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		objects := objectsOf(t, render(t, values))
		all := rightsOf(t, objects)
		for _, object := range objects {
			if job, is := object.(*batchv1.Job); is && strings.HasSuffix(job.Name, "-unregister") {
				var deployments []string
				for _, other := range objects {
					if _, is := other.(*appsv1.Deployment); is {
						deployments = append(deployments, other.GetName())
					}
				}
				stopped, _ := strings.CutPrefix(job.Spec.Template.Spec.Containers[0].Args[1], "--scale-down=")
				got := strings.Split(stopped, ",")
				slices.Sort(got)
				if slices.Sort(deployments); !slices.Equal(got, deployments) {
					t.Errorf("%s: it stops %q, not %q", name, got, deployments)
				}
				for _, deployment := range deployments {
					if !all[job.Name][releaseNamespace+": patch deployments/scale.apps "+deployment] || !all[job.Name][releaseNamespace+": get deployments.apps "+deployment] {
						t.Errorf("%s: it may not stop %s", name, deployment)
					}
				}
			}
		}
		for _, account := range []string{release + "-admitkit", release + "-admitkit-reconciler"} {
			for right := range all[account] {
				place, granted := strings.CutSuffix(right, ": create rolebindings.rbac.authorization.k8s.io *")
				if !granted {
					continue
				}
				needs := []string{"delete rolebindings.rbac.authorization.k8s.io *"} // all that a transient binding is
				if all[account][place+": create roles.rbac.authorization.k8s.io *"] {
					needs = append(needs, "delete roles.rbac.authorization.k8s.io *", "delete pods. *", "create pods/eviction. *", "patch execaccessrequests/status.admitkit.dev *")
				}
				for _, needed := range needs {
					if !all[release+"-admitkit-unregister"][place+": "+needed] {
						t.Errorf("%s: the hook of the uninstall may not %s: %s", name, place, needed)
					}
				}
				if place != "everywhere" && !all[release+"-admitkit-unregister"]["everywhere: get namespaces. "+place] {
					t.Errorf("%s: the hook of the uninstall could not see that namespace %s is gone", name, place)
				}
			}
		}
	}
}

// shape is what the chart and `manifests` have in common besides rights: all but
// names, labels and what a user of a chart can choose.
type shape struct {
	Process    []string
	Replicas   *int32
	Strategy   appsv1.DeploymentStrategy
	Grace      *int64
	Links      *bool
	Nodes      map[string]string
	Pod        *corev1.PodSecurityContext
	Spread     []corev1.TopologySpreadConstraint
	Container  *corev1.SecurityContext
	Secrets    []corev1.EnvVar
	Ports      []corev1.ContainerPort
	Live       *corev1.Probe
	Ready      *corev1.Probe
	Disruption policyv1.PodDisruptionBudgetSpec
	Service    []corev1.ServicePort
}

// shapeOf returns the shape of a Deployment, and of what selects its Pods, if there is
// such a Deployment.
func shapeOf(objects []metav1.Object, name string) (s shape, found bool) {
	var pods labels.Set
	for _, object := range objects {
		o, is := object.(*appsv1.Deployment)
		if !is || o.Name != name {
			continue
		}
		pods, found = o.Spec.Template.Labels, true
		pod := o.Spec.Template.Spec
		s.Replicas, s.Strategy = o.Spec.Replicas, o.Spec.Strategy
		s.Nodes, s.Grace, s.Links, s.Pod, s.Spread = pod.NodeSelector, pod.TerminationGracePeriodSeconds, pod.EnableServiceLinks, pod.SecurityContext, pod.TopologySpreadConstraints
		c := pod.Containers[0]
		s.Container, s.Ports, s.Live, s.Ready = c.SecurityContext, c.Ports, c.LivenessProbe, c.ReadinessProbe
		for _, variable := range c.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
				s.Secrets = append(s.Secrets, variable)
			}
		}
		for _, arg := range processOf(pod) {
			s.Process = append(s.Process, strings.ReplaceAll(arg, release+"-admitkit", "admitkit"))
		}
	}
	for i := range s.Spread {
		s.Spread[i].LabelSelector = nil
	}
	for _, object := range objects {
		selector, port := selectorOf(object)
		if selector == nil || !selector.Matches(pods) || port == "metrics" {
			continue
		}
		switch o := object.(type) {
		case *policyv1.PodDisruptionBudget:
			s.Disruption = o.Spec
			s.Disruption.Selector = nil
		case *corev1.Service:
			s.Service = o.Spec.Ports
		}
	}
	return s, found
}

func TestTheChartsPodsAreThoseOfTheManifests(t *testing.T) {
	for name, values := range map[string]string{
		"the default":                  "",
		"one process":                  `{split: {enabled: false}}`,
		"a longer drain":               `{drainPeriodSeconds: 45}`,
		"other ports":                  `{port: 10443, service: {port: 8443}}`,
		"without metrics":              `{metrics: {enabled: false}}`,
		"ports of one's own":           `{healthPort: 8181, metrics: {port: 8180}}`,
		"three":                        `{access: {enabled: true, namespaces: [apps]}}`,
		"three, of one replica":        `{audit: {objects: {enabled: true}}, replicas: 1}`,
		"three, of three replicas":     `{audit: {touchedPods: {evictAfter: 1h}}, replicas: 3}`,
		"three, and a scan":            `{access: {enabled: true, namespaces: [apps]}, scan: {every: 1h0m0s, reports: true}}`,
		"three, without election":      `{access: {enabled: true, namespaces: [apps]}, leaderElection: false}`,
		"three, otherwise":             `{access: {enabled: true, namespaces: ["*"]}, port: 10443, drainPeriodSeconds: 45, metrics: {enabled: false}}`,
		"sessions":                     `{replicas: 1, sessions: {enabled: true, namespaces: [apps], port: 9444}}`,
		"sessions, three":              `{replicas: 1, audit: {objects: {enabled: true}}, sessions: {enabled: true, namespaces: [apps]}}`,
		"sessions, read":               `{replicas: 1, sessions: {enabled: true, namespaces: [apps], api: {enabled: true}}}`,
		"sessions that end":            `{replicas: 1, access: {enabled: true, namespaces: [apps]}, sessions: {enabled: true, selector: "a=b", evict: true}}`,
		"sessions in a bucket":         `{audit: {objects: {enabled: true}}, sessions: {enabled: true, namespaces: [apps], s3: {endpoint: "s3.example.com:9000", bucket: bbb, prefix: a/, secret: s3}}}`,
		"a namespace, and three":       `{access: {enabled: true}, watchNamespaces: [apps]}`,
		"two namespaces, and three":    `{access: {enabled: true}, watchNamespaces: [apps, default]}`,
		"two, and the registrar a Job": `{split: {registrar: Job}, access: {enabled: true, namespaces: [apps]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, render(t, values))
			server := serverOf(objects).(*appsv1.Deployment)
			more := []string{fmt.Sprintf("--replicas=%d", *server.Spec.Replicas)}
			if strings.Contains(values, "secret: s3") {
				more = append(more, "--sessions-s3-secret=s3") // which the program itself does not need
			}
			if strings.Contains(values, "scan:") {
				more = append(more, "--scan-every=1h", "--scan-reports")
			}
			manifests := manifestsOf(t, server.Spec.Template.Spec, more...)
			for process, called := range processes {
				chart, has := shapeOf(objects, release+"-admitkit"+process)
				want, wanted := shapeOf(manifests, "admitkit"+process)
				switch alone := processOf(server.Spec.Template.Spec)[0] == "start"; {
				case alone && process == "":
					want.Process = chart.Process // it does it all
				case alone, process == "-registrar" && strings.Contains(values, "Job"):
					wanted = false
				}
				if has != wanted {
					t.Errorf("the chart has %s: %t, want %t", called, has, wanted)
				}
				if diff := cmp.Diff(want, chart); has && wanted && diff != "" {
					t.Errorf("%s: - manifests, + chart: %s", called, diff)
				}
			}
		})
	}
}

// serverOf returns the Deployment that serves.
func serverOf(objects []metav1.Object) metav1.Object {
	return objects[slices.IndexFunc(objects, func(o metav1.Object) bool { return podOf(o) != nil && o.GetName() == release+"-admitkit" })]
}

// Roles that Kubernetes adds to its own give no editor a say in who gets access.
func TestUsersHaveRolesAndEditorsWriteNoTemplates(t *testing.T) {
	t.Parallel()
	rolesOf := func(values string) map[string]*rbacv1.ClusterRole {
		found := map[string]*rbacv1.ClusterRole{}
		for _, object := range objectsOf(t, render(t, values)) {
			if role, ok := object.(*rbacv1.ClusterRole); ok {
				if _, user, ok := strings.Cut(role.Name, "-access-"); ok {
					found[user] = role
				}
			}
		}
		return found
	}
	const enabled = `access: {enabled: true, namespaces: [apps]}`
	for user, into := range map[string]string{"viewer": "view", "engineer": "edit", "approver": "admin"} {
		role := rolesOf(`{` + enabled + `}`)[user]
		if role == nil {
			t.Fatalf("there is no role of the %s", user)
		}
		for label, value := range role.Labels {
			if of, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); ok && (of != into || value != "true") {
				t.Errorf("the %s is added to %s", user, of)
			}
		}
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-"+into] != "true" {
			t.Errorf("the %s is not added to %s", user, into)
		}
		may := rights{}
		may.add("", role.Rules)
		for right := range may {
			written := regexp.MustCompile(`: (create|update|patch|delete) [a-z]+accesstemplates`).MatchString(right)
			if written && user != "approver" || user == "viewer" && !regexp.MustCompile(`: (get|list|watch) `).MatchString(right) || strings.Contains(right, "*.") || !strings.Contains(right, "access") {
				t.Errorf("the %s may %s", user, right)
			}
		}
		asks, ends := may[": create execaccessrequests.admitkit.dev *"], may[": delete execaccessrequests.admitkit.dev *"]
		if asks != (user == "engineer") || ends != (user == "approver") || may[": create podaccesstemplates.admitkit.dev *"] != (user == "approver") {
			t.Errorf("the %s asks: %t, ends others': %t", user, asks, ends)
		}
		if kept := rolesOf(`{` + enabled + `, rbac: {userRoles: {aggregate: false}}}`)[user]; kept == nil || kept.Labels["rbac.authorization.k8s.io/aggregate-to-"+into] != "" {
			t.Errorf("without aggregation the %s is %+v", user, kept)
		}
	}
	for _, values := range []string{"", `{` + enabled + `, rbac: {userRoles: {create: false}}}`} {
		if roles := rolesOf(values); len(roles) > 0 {
			t.Errorf("%s: %d roles", values, len(roles))
		}
	}
}

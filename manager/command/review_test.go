package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/admitkit/admitkit/examples/alarm/v1"
	v2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// reviewed has a mutator that records the user, one that adds a label, and a validator
// that requires a team.
func reviewed(mgr *manager.Manager) error {
	scope := extension.Scope{Name: "pods", Rules: extension.Pods(admissionregistrationv1.Create, admissionregistrationv1.Update)}
	for _, mutate := range []extension.MutatorFunc[*corev1.Pod]{
		func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "by", req.User().Username)
			if req.DryRun() {
				req.Warnf("only tried")
			}
			return nil
		},
		func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, "seen", "yes")
			return nil
		},
	} {
		if err := mgr.AddExtension(extension.Mutating(mutate, scope)); err != nil {
			return err
		}
	}
	team := extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		var old corev1.Pod
		if err := req.Old(&old); err == nil && old.Labels["team"] != pod.Labels["team"] {
			return extension.Denyf("the team was %q", old.Labels["team"])
		}
		if pod.Labels["team"] == "" {
			return extension.Deny("the label team is missing")
		}
		return nil
	})
	if err := mgr.AddExtension(extension.Validating(team, scope)); err != nil {
		return err
	}
	exec := extension.ValidatorFunc[runtime.Object](func(_ context.Context, _ runtime.Object, req *extension.Request) error {
		return extension.Denyf("no %s in %s/%s", req.SubResource, req.Namespace, req.Name)
	})
	return mgr.AddExtension(extension.Validating(exec, extension.Scope{Rules: extension.Connect("pods/exec")}))
}

// run runs a subcommand in this process.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runBuilt(t, reviewed, stdin, args...)
}

func runBuilt(t *testing.T, build command.Build, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return execute(t, command.New("reviewed", build), stdin, args...)
}

// execute runs a command in the process of the test.
func execute(t *testing.T, cmd *cobra.Command, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, messages bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&messages)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err != nil {
		messages.WriteString(err.Error())
	}
	return out.String(), messages.String(), command.ExitCode(err)
}

const withTeam = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {team: a}}
spec: {containers: [{name: main, image: "example.com/web:1"}]}
`

func TestAReviewShowsEachExtensionsPart(t *testing.T) {
	stdout, _, code := run(t, withTeam, "review", "-f", "-", "--user=alice", "--groups=developers")
	const want = `Pod default/web: allowed, changed by 2 of 3 extensions
# pods, extension.MutatorFunc: mutated
@@ -1,6 +1,8 @@
 apiVersion: v1
 kind: Pod
 metadata:
+  annotations:
+    by: alice
   labels:
     team: a
   name: web
# pods, extension.MutatorFunc: mutated
@@ -4,6 +4,7 @@
   annotations:
     by: alice
   labels:
+    seen: "yes"
     team: a
   name: web
   namespace: default
# pods, extension.ValidatorFunc: allowed
`
	if stdout != want || code != 0 {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestAReviewEndsWith1OnADenial(t *testing.T) {
	stdout, stderr, code := run(t, strings.ReplaceAll(withTeam, "team", "squad"), "review", "-f", "-")
	if code != 1 || !strings.Contains(stdout, "Pod default/web: denied: the label team is missing") || !strings.Contains(stderr, "1 of 1 denied") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	exec := `{"apiVersion": "v1", "kind": "PodExecOptions", "metadata": {"name": "web", "namespace": "apps"}, "command": ["sh"]}`
	if stdout, _, code := run(t, exec, "review", "-f", "-"); code != 1 || !strings.Contains(stdout, "no exec in apps/web") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestAReviewSaysWhatExtensionsThatAreNotInForceWouldDo(t *testing.T) {
	stdout, stderr, code := run(t, strings.ReplaceAll(withTeam, "team", "squad"), "review", "-f", "-", "--mode=*=Observe", "--mode=extension.ValidatorFunc=warn")
	for _, want := range []string{
		"Pod default/web: allowed, unchanged\n",
		"# pods, extension.MutatorFunc: would change this (Observe)\n",
		"# pods, extension.ValidatorFunc: would deny this (Warn): the label team is missing\n",
		"extension.ValidatorFunc would deny this once it is enforced: the label team is missing\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("not said: %s", want)
		}
	}
	if code != 0 || strings.Contains(stdout, "MutatorFunc would") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestAReviewSaysWhatIsExempt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exemptions.yaml")
	text := "exemptions: [{name: old, extensions: [extension.ValidatorFunc], users: [alice], until: 2999-01-01T00:00:00Z, reason: it is rewritten}]"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"modes-file", "exemptions-file"} {
		if _, stderr, code := run(t, withTeam, "review", "-f", "-", "--"+flag+"="+pipe); code != 2 || !strings.Contains(stderr, "is no regular file") {
			t.Errorf("a pipe for --%s: exit code %d: %s", flag, code, stderr)
		}
	}
	for user, want := range map[string]int{"alice": 0, "bob": 1} {
		stdout, _, code := run(t, strings.ReplaceAll(withTeam, "team", "squad"), "review", "-f", "-", "--exemptions-file="+file, "--user="+user)
		if code != want || strings.Contains(stdout, "# pods, extension.ValidatorFunc: exempted: old: it is rewritten\n") != (want == 0) {
			t.Errorf("%s: exit code %d: %s", user, code, stdout)
		}
	}
}

func TestAFileOfModesOrExemptionsThatIsWrongIsToldWhole(t *testing.T) {
	for name, test := range map[string]struct {
		flag, text string
		want       []string
	}{
		"empty":             {"modes-file", "", []string{`it has no field "modes": write "modes: []" if there are to be none`}},
		"only a comment":    {"exemptions-file", "# none\n---\n", []string{`it has no field "exemptions"`}},
		"none":              {"modes-file", "# none\n---\nmodes: []\n", nil},
		"two documents":     {"modes-file", "modes: []\n---\nmodes: []\n", []string{"it has several documents: put all entries into one"}},
		"two wrong modes":   {"modes-file", `modes: [{mode: obs}, {mode: warn, extensions: ["*"]}, {extension: [x]}]`, []string{`modes[0]: `, `"obs": must be Enforce, Warn or Observe`, `modes[2]: `, `unknown field "extension"`}},
		"a day for a time":  {"exemptions-file", `exemptions: [{until: 2027-01-31}]`, []string{"exemptions[0]: ", `"2027-01-31"`, "a time is such as 2027-01-31T00:00:00Z"}},
		"a key twice":       {"modes-file", "modes:\n- mode: warn\n  mode: observe\n", []string{`key "mode" already set`}},
		"aliases of others": {"modes-file", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\nmodes: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", []string{"excessive aliasing"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file.yaml")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, stderr, code := run(t, withTeam, "review", "-f", "-", "--"+test.flag+"="+file)
			for _, want := range test.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("not said: %s, but %s", want, stderr)
				}
			}
			if wrong := code == 2; wrong != (len(test.want) > 0) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}

func TestAFieldThatTheKindHasNotIsTold(t *testing.T) {
	pod := strings.ReplaceAll(withTeam, "spec: {", "spec: {contaners: [], ")
	_, stderr, code := run(t, pod, "review", "-f", "-")
	if code != 0 || !strings.Contains(stderr, `warning: Pod default/web: unknown field "spec.contaners": kubectl refuses it`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, stderr, code := run(t, pod, "review", "-f", "-", "--strict"); code != 1 || !strings.Contains(stderr, "--strict: 1 of 1 with unknown fields") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestAReviewPrintsTheObjects(t *testing.T) {
	two := withTeam + "---\n# a comment\n---\n" + strings.ReplaceAll(withTeam, "web", "db")
	stdout, stderr, code := run(t, two, "review", "-f", "-", "-o", "yaml", "--dry-run", "--namespace", "apps")
	if code != 0 || strings.Count(stdout, "---\n") != 1 || strings.Count(stdout, "seen: \"yes\"") != 2 || strings.Count(stderr, "warning: only tried") != 2 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	// The output can be reviewed again.
	if again, _, _ := run(t, stdout, "review", "-f", "-", "-o", "yaml", "--namespace", "apps"); again != stdout {
		t.Errorf("%s\nbecame\n%s", stdout, again)
	}
	stdout, _, _ = run(t, withTeam, "review", "-f", "-", "-o", "json")
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(stdout), &pod); err != nil || pod.Annotations["by"] != "admin" {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestAReviewReadsFoldersListsAndOldObjects(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pods/a.yaml", withTeam)
	write("pods/b.json", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"db","labels":{"team":"b"}}}]}`)
	write("pods/README", "no manifest")
	write("pods/deeper/c.yml", strings.ReplaceAll(withTeam, "web", "deep"))
	write("old.yaml", strings.ReplaceAll(withTeam, "team: a", "team: z"))
	for name, test := range map[string]struct {
		args []string
		want int
	}{
		"a folder":               {[]string{"-f", dir + "/pods"}, 2},
		"a folder and those in":  {[]string{"-f", dir + "/pods", "-R"}, 3},
		"two paths":              {[]string{"-f", dir + "/pods", "-f", dir + "/pods/deeper"}, 3},
		"an update of itself":    {[]string{"-f", dir + "/pods", "--operation", "update"}, 2},
		"an update of something": {[]string{"-f", dir + "/pods", "--operation", "UPDATE", "--old", dir + "/old.yaml"}, 1},
		"a deletion":             {[]string{"-f", dir + "/pods", "--operation", "DELETE"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, _ := run(t, "", append([]string{"review"}, test.args...)...)
			if got := strings.Count(stdout, "changed by 2 of 3"); got != test.want {
				t.Errorf("%d objects are changed and allowed: %s%s", got, stdout, stderr)
			}
		})
	}
}

// As jq -c '.items[]' writes one.
func TestAReviewReadsEachObjectOfAStream(t *testing.T) {
	const stream = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"team":"a"}}}
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}
`
	stdout, stderr, code := run(t, stream, "review", "--strict", "-f", "-")
	if code != 1 || !strings.Contains(stderr, "1 of 2 denied") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// A repository has files that are no objects, such as the values of a chart.
func TestAReviewGoesOnPastAFileThatHasNoObjects(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": withTeam, "kustomization.yaml": "resources: [a.yaml]\n", "values.yaml": "a: [", "kubeconfig.yaml": "apiVersion: v1\nkind: Config\n", "z.yaml": withTeam} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, code := run(t, "", "review", "-R", "-f", dir)
	if code != 2 || strings.Count(stdout, "changed by 2 of 3") != 2 || !strings.Contains(stderr, "kustomization.yaml: document 1: has no apiVersion") || !strings.Contains(stderr, "values.yaml: document 1") ||
		!strings.Contains(stderr, "kubeconfig.yaml: document 1: v1 has no kind Config") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if _, stderr, code := run(t, "", "manifests", "--image=x", "--webhook-namespace=my-system", "--with", dir); code != 2 || !strings.Contains(stderr, "kustomization.yaml") {
		t.Errorf("manifests: exit code %d: %s", code, stderr)
	}
}

func TestAReviewSaysWhatIsWrongWithTheInput(t *testing.T) {
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no file":               {"", nil, "--filename: required"},
		"a file that is not":    {"", []string{"-f", "/does/not/exist"}, "/does/not/exist"},
		"nothing":               {"# nothing\n", []string{"-f", "-"}, "-: contains no objects"},
		"no kind":               {withTeam + "---\nmetadata: {name: x}\n", []string{"-f", "-"}, "standard input: document 2"},
		"a kind that is not":    {strings.Replace(withTeam, "Pod", "Deployment", 1), []string{"-f", "-"}, "standard input: document 1: v1 has no kind Deployment: correct the kind or its apiVersion"},
		"no YAML":               {"a: [", []string{"-f", "-"}, "standard input: document 1"},
		"more after its end":    {withTeam + "...\n" + withTeam, []string{"-f", "-"}, "document 1: something follows its end"},
		"half a stream":         {`{"apiVersion":"v1","kind":"Pod"}{"kind":`, []string{"-f", "-"}, "standard input: document 2"},
		"a key twice":           {"kind: Pod\nkind: Pod\napiVersion: v1\n", []string{"-f", "-"}, `"kind" already set`},
		"an output":             {withTeam, []string{"-f", "-", "-o", "xml"}, "--output: \"xml\""},
		"an operation":          {withTeam, []string{"-f", "-", "--operation", "EAT"}, "operation \"EAT\""},
		"old without an update": {withTeam, []string{"-f", "-", "--old", "x"}, "--old: only an UPDATE"},
		"groups of nobody":      {withTeam, []string{"-f", "-", "--groups", "x"}, "--groups"},
		"an option":             {withTeam, []string{"-f", "-", "--failure-policy", "Never"}, "--failure-policy: \"Never\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := run(t, test.stdin, append([]string{"review"}, test.args...)...)
			if code != 2 || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}

const mayDelete = "authorizer.requestResource.check('delete').allowed()"

// choosy has extensions whose calls depend on what only a cluster knows.
func choosy(mgr *manager.Manager) error {
	for name, scope := range map[string]extension.Scope{
		"team":     {NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
		"mine":     {Rules: extension.Pods("UPDATE"), MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "request.name == 'web' && " + mayDelete}}},
		"dying":    {Rules: extension.Pods("DELETE"), MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "dying", Expression: "object.metadata.name == 'web'"}}},
		"gateways": {Rules: extension.Resources("example.com", "v1", []string{"gws"}, "*")},
		"scalers":  {Rules: extension.Resources("autoscaling", "v1", []string{"horizontalpodautoscalers"}, "*")},
	} {
		scope.Name = name
		deny := extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error {
			return extension.Denyf("no by %s", name)
		})
		if err := mgr.AddExtension(extension.Validating(deny, scope)); err != nil {
			return err
		}
	}
	return nil
}

func TestAReviewAsksForWhatOnlyAClusterKnows(t *testing.T) {
	const (
		gateway   = `{"apiVersion": "example.com/v1", "kind": "Gateway", "metadata": {"name": "g"}}`
		crd       = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gateways.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced", "names": {"kind": "Gateway", "plural": "gws"}, "versions": [{"name": "v1", "served": true}]}}`
		namespace = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"team": "a"}}}`
		scaler    = `{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}}`
	)
	for name, test := range map[string]struct {
		stdin string
		args  []string
		code  int
		want  string
	}{
		"the labels of a namespace":               {withTeam, nil, 2, "calls the webhook team: it selects namespaces by labels, and those of default are unknown: set --namespace-labels, or add the Namespace to --with"},
		"the labels by a flag":                    {withTeam, []string{"--namespace-labels", "team=a"}, 1, "no by team"},
		"labels that no namespace has":            {withTeam, []string{"--namespace-labels", "team=a b"}, 2, `--namespace-labels: Invalid value: "a b"`},
		"a file of modes that is not there":       {withTeam, []string{"--modes-file", "nosuch.yaml"}, 2, "--modes-file: stat nosuch.yaml: no such file or directory: leave it out"},
		"a file of exemptions that is not there":  {withTeam, []string{"--exemptions-file", "nosuch.yaml"}, 2, "--exemptions-file: stat nosuch.yaml"},
		"other labels by a flag":                  {withTeam, []string{"--namespace-labels", "team=b"}, 0, "no extension applies"},
		"the labels of a Namespace given":         {namespace + "\n---\n" + withTeam, nil, 1, "Pod default/web: denied: no by team"},
		"a match condition":                       {withTeam, []string{"--operation=UPDATE", "--namespace-labels=team=b"}, 2, "mine (request.name == 'web' && " + mayDelete + "), which reads the authorizer: set --match-conditions NAME=true, or false"},
		"a match condition that needs no cluster": {strings.ReplaceAll(withTeam, "name: web", "name: db"), []string{"--operation=UPDATE", "--namespace-labels=team=b"}, 0, " is not called: its match condition mine is false\n"},
		"a match condition that holds":            {withTeam, []string{"--operation=UPDATE", "--namespace-labels=team=b", "--match-conditions=mine=true"}, 1, "denied: no by mine (match conditions as given)"},
		"a match condition that does not":         {withTeam, []string{"--operation=UPDATE", "--namespace-labels=team=b", "--match-conditions=mine=false"}, 0, "no extension applies"},
		"a match condition that fails":            {withTeam, []string{"--operation=DELETE"}, 1, " is not called: a match condition failed, and its failure policy is Fail: dying: expression"},
		"a match condition that no scope has":     {withTeam, []string{"--match-conditions=mein=true"}, 2, "--match-conditions: no scope has the match condition mein"},
		"a match condition that is neither":       {withTeam, []string{"--match-conditions=mine=perhaps"}, 2, "--match-conditions: mine=perhaps"},
		"the plural of a custom kind":             {gateway, nil, 2, "Gateway default/g: cannot determine whether the API server calls the webhook gateways: the kind Gateway.example.com is not one of Kubernetes"},
		"the plural, from the CRD":                {crd + "\n---\n" + gateway, nil, 1, "Gateway default/g: denied: no by gateways"},
		"a CRD that says too little":              {strings.ReplaceAll(crd, "Namespaced", ""), nil, 2, "standard input: document 1: CustomResourceDefinition gateways.example.com: spec.scope"},
		"another version":                         {scaler, nil, 2, "give the manifest in a version that the rules name"},
		"the object of a subresource":             {`{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "s"}}`, nil, 2, "name the resource of the Scale, such as deployments.apps/scale"},
		"the other objects are reviewed anyway":   {gateway + "\n---\n" + `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}`, nil, 2, "ConfigMap default/c: allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runBuilt(t, choosy, test.stdin, append([]string{"review", "-f", "-"}, test.args...)...)
			if code != test.code || !strings.Contains(stdout+stderr, test.want) {
				t.Errorf("exit code %d, want %d and %q: %s%s", code, test.code, test.want, stdout, stderr)
			}
		})
	}
}

// custom has an extension for each of some kinds whose plurals are no rule.
func custom(mgr *manager.Manager) error {
	deny := extension.ValidatorFunc[runtime.Object](func(_ context.Context, _ runtime.Object, req *extension.Request) error {
		return extension.Denyf("no %s", req.Resource.Resource)
	})
	return mgr.AddExtension(extension.Validating(deny, extension.Scope{
		Name: "custom", Rules: extension.Resources("example.com", "v1", []string{"gateways", "indices", "chassis"}, "CREATE"),
	}))
}

func TestAKindIsKnownByThePluralThatTheRulesName(t *testing.T) {
	for kind, plural := range map[string]string{"Gateway": "gateways", "Index": "indices", "Chassis": "chassis"} {
		object := `{"apiVersion": "example.com/v1", "kind": "` + kind + `", "metadata": {"name": "x"}}`
		if stdout, stderr, code := runBuilt(t, custom, object, "review", "-f", "-"); code != 1 || !strings.Contains(stdout, kind+" default/x: denied: no "+plural) {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
		if stdout, stderr, code := runBuilt(t, custom, object, "review", "-f", "-", "--operation=DELETE", "--strict"); code != 1 ||
			!strings.Contains(stdout, "its rules name CREATE of example.com/v1 gateways,indices,chassis; this is DELETE of example.com/v1 "+plural) {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	}
}

func TestAnObjectOfAnotherVersionIsConvertedByTheProgram(t *testing.T) {
	cmd := command.New("alarms", func(mgr *manager.Manager) error {
		if err := mgr.AddExtension(extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
			func(from *v1.Alarm, to *v2.Alarm) error {
				to.Spec.Message = from.Spec.Text
				if from.Spec.Text == "" {
					return errors.New("the text is missing")
				}
				return nil
			},
			func(from *v2.Alarm, to *v1.Alarm) error { to.Spec.Text = from.Spec.Message; return nil }))); err != nil {
			return err
		}
		return mgr.AddExtension(extension.ValidatingFunc(func(_ context.Context, alarm *unstructured.Unstructured, _ *extension.Request) error {
			message, _, err := unstructured.NestedString(alarm.Object, "spec", "message")
			return errors.Join(err, extension.Denyf("%q is too loud", message))
		}, extension.Scope{Rules: extension.Resources("alarm.example.com", "v2", []string{"alarms"}, "CREATE")}))
	})
	stdout, stderr, code := execute(t, cmd, `{"apiVersion": "alarm.example.com/v1", "kind": "Alarm", "metadata": {"name": "bad"}, "spec": {}}
---
{"apiVersion": "alarm.example.com/v1", "kind": "Alarm", "metadata": {"name": "a"}, "spec": {"text": "Get up"}}`, "review", "-f", "-")
	if code != 1 || !strings.Contains(stdout, `"Get up" is too loud`) || !strings.Contains(stderr, "Alarm default/bad: converting Alarm bad to v2") || !strings.Contains(stderr, "1 of 2 denied") {
		t.Errorf("%d: %s%s", code, stdout, stderr)
	}
}

func TestAnObjectThatReachesNobodySaysWhy(t *testing.T) {
	const deployment = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}`
	const want = `Deployment default/web: allowed, no extension applies
# pods (extension.MutatorFunc, extension.MutatorFunc) is not called: its rules name CREATE,UPDATE of v1 pods; this is CREATE of apps/v1 deployments
# pods (extension.ValidatorFunc) is not called: its rules name CREATE,UPDATE of v1 pods; this is CREATE of apps/v1 deployments
# pods-exec-`
	stdout, stderr, code := run(t, deployment, "review", "-f", "-")
	if code != 0 || !strings.HasPrefix(stdout, want) || !strings.Contains(stdout, "is not called: its rules name CONNECT of v1 pods/exec; this is CREATE of apps/v1 deployments\n") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if _, stderr, code := run(t, deployment+"\n---\n"+withTeam, "review", "-f", "-", "-o=yaml", "--strict"); code != 1 || !strings.Contains(stderr, "# pods (") ||
		!strings.HasSuffix(stderr, "--strict: 1 of 2 reached no extension") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, stderr, code := run(t, withTeam, "review", "-f", "-", "--strict"); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	watches := func(mgr *manager.Manager) error { return mgr.AddExtension(watcher{}) }
	if stdout, _, code := runBuilt(t, watches, withTeam, "review", "-f", "-"); code != 0 || !strings.HasSuffix(stdout, "# the program has no extension that answers admissions\n") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestAReviewOfASubresource(t *testing.T) {
	sees := func(mgr *manager.Manager) error {
		deny := extension.ValidatorFunc[runtime.Object](func(_ context.Context, o runtime.Object, req *extension.Request) error {
			return extension.Denyf("no %s of %s/%s with a %T", req.Operation, req.Resource.Resource, req.SubResource, o)
		})
		rules := append(extension.Resources("", "v1", []string{"pods/*"}, "*"), extension.Resources("apps", "v1", []string{"deployments/*"}, "*")...)
		return mgr.AddExtension(extension.Validating(deny, extension.Scope{Name: "sees", Rules: rules}))
	}
	const deployment = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}}`
	const scale = `{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 2}}`
	for name, test := range map[string]struct {
		stdin string
		args  []string
		code  int
		want  string
	}{
		"a scale":                   {deployment, []string{"--subresource=scale"}, 1, "Scale default/web (deployments/scale): denied: no UPDATE of deployments/scale with a *v1.Scale"},
		"a Scale by itself":         {scale, []string{"--subresource=deployments.apps/scale"}, 1, "no UPDATE of deployments/scale with a *v1.Scale"},
		"a status":                  {deployment, []string{"--subresource=status", "--operation=UPDATE"}, 1, "no UPDATE of deployments/status with a *v1.Deployment"},
		"ephemeral containers":      {withTeam, []string{"--subresource=ephemeralcontainers"}, 1, "no UPDATE of pods/ephemeralcontainers with a *v1.Pod"},
		"an eviction":               {withTeam, []string{"--subresource=eviction"}, 1, "no CREATE of pods/eviction with a *v1.Eviction"},
		"a port-forward":            {`{"apiVersion": "v1", "kind": "PodPortForwardOptions", "metadata": {"name": "web"}}`, nil, 1, "no CONNECT of pods/portforward with a *v1.PodPortForwardOptions"},
		"another operation":         {withTeam, []string{"--subresource=status", "--operation=CREATE"}, 2, "operation CREATE: requests for the subresource status are UPDATE"},
		"one that is not there":     {withTeam, []string{"--subresource=scale"}, 2, "a Pod has no subresource scale"},
		"the Pod itself, by pods/*": {withTeam, nil, 1, "no CREATE of pods/ with a *v1.Pod"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runBuilt(t, sees, test.stdin, append([]string{"review", "-f", "-"}, test.args...)...)
			if code != test.code || !strings.Contains(stdout+stderr, test.want) {
				t.Errorf("exit code %d, want %d and %q: %s%s", code, test.code, test.want, stdout, stderr)
			}
		})
	}
}

// tenant is a Mutator that copies a label of the Namespace, and of a ConfigMap.
type tenant struct {
	mgr    extension.Manager
	rights []rbacv1.PolicyRule
	reads  []client.Object
}

func (x *tenant) Register(mgr extension.Manager) error {
	x.mgr = mgr
	return nil
}

func (x *tenant) Rights() []rbacv1.PolicyRule { return x.rights }

func (x *tenant) Reads() []client.Object { return x.reads }

func (x *tenant) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	core, err := x.mgr.GetKubeClient()
	if err != nil {
		return err
	}
	namespace, err := core.Namespaces().Get(ctx, req.Namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var settings corev1.ConfigMap // through the cache
	if err := x.mgr.GetKubeManager().GetClient().Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: "settings"}, &settings); err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "tenant", namespace.Labels["tenant"]+" "+settings.Data["tier"])
	req.AddAuditAnnotation("tenant", namespace.Labels["tenant"])
	return nil
}

func TestAReviewHasTheObjectsAndTheRightsThatAreGiven(t *testing.T) {
	with := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(with, []byte(`
apiVersion: v1
kind: Namespace
metadata: {name: default, labels: {tenant: shop}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {tier: gold}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	definition := filepath.Join(t.TempDir(), "crd.yaml")
	if err := os.WriteFile(definition, []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.example.com}
spec: {group: example.com, names: {kind: Gateway, plural: gateways}, scope: Namespaced, versions: [{name: v1, served: true}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	all, reads := []rbacv1.PolicyRule{rule("namespaces", "get")}, []client.Object{&corev1.ConfigMap{}}
	gateway := &unstructured.Unstructured{}
	gateway.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gateway"})
	for name, test := range map[string]struct {
		rights []rbacv1.PolicyRule
		reads  []client.Object
		args   []string
		code   int
		want   []string
	}{
		"all":        {all, reads, []string{"--with", with}, 0, []string{"+    tenant: shop gold\n", "Pod default/web: audit annotation: tenant/command_test.tenant.tenant=shop\n"}},
		"no objects": {all, reads, nil, 1, []string{"no cluster: give the objects that the extensions read by --with"}},
		"no rights": {nil, reads, []string{"--with", with}, 1, []string{
			"extension command_test.tenant needs rights that it does not ask for", `cannot get resource "namespaces" in API group "" in the namespace "default"`,
			"1 of 1 denied; 1 of 1 with an extension that does something in vain, without the right, or reads what it does not declare",
		}},
		"a read that it does not declare": {all, nil, []string{"--with", with}, 1, []string{
			"extension command_test.tenant reads what it does not declare:\nreading ConfigMap of v1 in an admission: no extension declares it: return it from Reads (extension.Reader)",
			"1 of 1 denied; 1 of 1 with an extension that does something in vain, without the right, or reads what it does not declare",
		}},
		"a custom kind": {all, append(reads, gateway), []string{"--with", with}, 2, []string{
			"Reads of *command_test.tenant: the plural of Gateway.example.com, for the rights to read it, is not known without the cluster",
		}},
		"a custom kind with its definition": {all, append(reads, gateway), []string{"--with", with + "," + definition}, 0, []string{"+    tenant: shop gold\n"}},
		"nothing to read":                   {all, reads, []string{"--with", os.DevNull}, 2, []string{"--with: /dev/null: contains no objects"}},
	} {
		t.Run(name, func(t *testing.T) {
			build := func(mgr *manager.Manager) error {
				return mgr.AddExtension(extension.Mutating(&tenant{rights: test.rights, reads: test.reads}, extension.Scope{Name: "tenant", Timeout: 2 * time.Second}))
			}
			stdout, stderr, code := runBuilt(t, build, withTeam, append([]string{"review", "-f", "-"}, test.args...)...)
			for _, want := range test.want {
				if code != test.code || !strings.Contains(stdout+stderr, want) {
					t.Errorf("exit code %d, want %d and %q: %s%s", code, test.code, want, stdout, stderr)
				}
			}
			if name == "all" {
				dir := recordings(t, strings.NewReplacer("pods\",\"mutates", "tenant\",\"mutates", `"apps"`, `"default"`).Replace(recorded(true, "web", `{"outcome":"allowed"}`)))
				stdout, stderr, code := runBuilt(t, build, "", append([]string{"replay", dir}, test.args...)...)
				if code != 1 || !strings.Contains(stdout, "+    tenant: shop gold\n") {
					t.Errorf("a replay: exit code %d: %s%s", code, stdout, stderr)
				}
			}
		})
	}
}

func TestAReviewSaysOnceHowToReadWhatTheCacheDoesNotHold(t *testing.T) {
	build := func(mgr *manager.Manager) error {
		x := &tenant{reads: []client.Object{&corev1.ConfigMap{}}}
		read := func(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error {
			return x.mgr.GetKubeManager().GetClient().Get(ctx, client.ObjectKey{Namespace: "elsewhere", Name: "settings"}, &corev1.ConfigMap{})
		}
		return errors.Join(mgr.AddExtension(extension.Mutating(x, extension.Scope{Rules: extension.Pods("DELETE")})), mgr.AddExtension(extension.ValidatingFunc(read, extension.Scope{})))
	}
	with := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(with, []byte(withTeam), 0o600); err != nil {
		t.Fatal(err)
	}
	for remedy, args := range map[string][]string{
		"read by GetAPIReader in Register, and give review the objects by --with": nil,
		"read what is elsewhere by GetAPIReader, or watch every namespace":        {"--with", with, "--namespace=apps"},
	} {
		stdout, _, code := runBuilt(t, build, withTeam, append([]string{"review", "-f", "-"}, args...)...)
		if code != 1 || !strings.Contains(stdout, remedy) || strings.Contains(stdout, remedy+": ") {
			t.Errorf("exit code %d, want %q once: %s", code, remedy, stdout)
		}
	}
}

// forgetful is an Extension that returns no patch.
type forgetful struct{}

func (forgetful) Handle(_ context.Context, _ extension.Manager, pod *corev1.Pod, _ admission.Request) admission.Response {
	pod.Labels = map[string]string{"a": "b"}
	return admission.Allowed("")
}

func TestAChangeInVainIsTold(t *testing.T) {
	changes := extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		pod.Spec.NodeName = "n"
		return nil
	}), extension.Scope{})
	mutate := func(mutate func(*corev1.Pod)) *extension.Handler {
		return extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error { mutate(pod); return nil }, extension.Scope{Name: "pods", Rules: extension.Pods("*")})
	}
	for want, x := range map[string]any{
		"extension pods changes a field that must not change:\nmetadata.namespace: \"default\" -> \"mine\"":            mutate(func(pod *corev1.Pod) { pod.Namespace = "mine" }),
		"extension pods sets the status, which the API server drops when it creates pods":                              mutate(func(pod *corev1.Pod) { pod.Status.Reason = "r" }),
		"extension extension.ValidatorFunc changes the object, but nothing comes of it, because it is a Validator":     changes,
		"extension command_test.forgetful changes the Pod, but nothing comes of it, because its response has no patch": forgetful{},
	} {
		stdout, stderr, code := runBuilt(t, func(mgr *manager.Manager) error { return mgr.AddExtension(x) }, withTeam, "review", "-f", "-")
		if code != 1 || !strings.Contains(stdout, "Pod default/web: "+want) {
			t.Errorf("exit code %d, want %q: %s%s", code, want, stdout, stderr)
		}
	}
	node := mutate(func(pod *corev1.Pod) { pod.Spec.NodeName = "n" })
	stdout, stderr, code := runBuilt(t, func(mgr *manager.Manager) error { return mgr.AddExtension(node) }, withTeam, "review", "-f", "-", "--operation", "UPDATE")
	if want := "extension pods changes a field that must not change:\nspec.nodeName: null -> \"n\""; code != 1 || !strings.Contains(stdout, want) {
		t.Errorf("exit code %d, want %q: %s%s", code, want, stdout, stderr)
	}
}

func TestAScopeThatNothingMatchesIsWrong(t *testing.T) {
	for want, scope := range map[string]extension.Scope{
		"Kubernetes has no resource deployment.apps, but deployments.apps": {Rules: extension.Resources("apps", "v1", []string{"deployment"}, "*")},
		"MatchConditions[0]: Expression: ":                                 {MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "x", Expression: "request.name = 'x'"}}},
	} {
		x := extension.Validating(extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil }), scope)
		if _, stderr, code := runBuilt(t, func(mgr *manager.Manager) error { return mgr.AddExtension(x) }, withTeam, "review", "-f", "-"); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, want %q: %s", code, want, stderr)
		}
	}
}

func TestAFlagComesFromTheEnvironmentUnlessItIsGiven(t *testing.T) {
	t.Setenv("ADMITKIT_OUTPUT", "yaml")
	t.Setenv("ADMITKIT_NAMESPACE", "apps")
	t.Setenv("ADMITKIT_FAILURE_POLICY", "Ignore")
	if stdout, stderr, code := run(t, withTeam, "review", "-f", "-"); code != 0 || !strings.Contains(stdout, "namespace: apps") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if stdout, stderr, code := run(t, withTeam, "review", "-f", "-", "--namespace=db"); code != 0 || !strings.Contains(stdout, "namespace: db") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	t.Setenv("ADMITKIT_DRY_RUN", "perhaps")
	if _, stderr, code := run(t, withTeam, "review", "-f", "-"); code != 2 || !strings.Contains(stderr, "ADMITKIT_DRY_RUN") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestTheVariablesOfAServiceNamedAdmitkitAreNoFlags(t *testing.T) {
	t.Setenv("ADMITKIT_SERVICE_HOST", "10.0.0.1")
	t.Setenv("ADMITKIT_SERVICE_PORT", "443")
	t.Setenv("ADMITKIT_PORT", "tcp://10.0.0.1:443")
	if _, stderr, code := run(t, withTeam, "review", "-f", "-"); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestTheVersionIsSaid(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"--version", 0, []string{"reviewed version ", "go1."}},
		{"version", 0, []string{"reviewed ", "go        go1.", goruntime.GOOS + "/" + goruntime.GOARCH}},
		{"version -o json", 0, []string{`"version": "`, `"admitkit": "`, `"goVersion": "go1.`}},
		{"version -o yaml", 2, []string{`--output: unknown format "yaml"`, "json"}},
		{"version now", 2, []string{"now"}},
	} {
		stdout, stderr, code := run(t, "", strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("%s: exit code %d: %s", c.args, code, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%s does not say %q: %s%s", c.args, want, stdout, stderr)
			}
		}
	}
}

func TestAnAuthorsVersionWins(t *testing.T) {
	cmd := command.New("stamp", reviewed)
	cmd.Version = "v7, by hand"
	var stdout bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetArgs([]string{"version", "-o", "json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(stdout.String(), `"version": "v7, by hand"`) {
		t.Errorf("%v: %s", err, stdout.String())
	}
}

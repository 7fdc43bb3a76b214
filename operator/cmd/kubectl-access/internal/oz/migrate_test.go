package oz

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// migrated runs the command on manifests, or on files.
func migrated(t *testing.T, manifest string, args ...string) (out, said string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := Command(&cli.Base{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(manifest), Out: &stdout, ErrOut: &stderr}})
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestWhatIsChangedAndDroppedIsSaid(t *testing.T) {
	_, said, err := migrated(t, "", "-f", "testdata/oz")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PodAccessTemplate shop/shell: changed: spec.accessConfig.subjects: only the engineer who asks gets in",
		"PodAccessTemplate shop/shell: dropped: spec.maxStorage: 0 allows nothing",
		"PodAccessTemplate shop/shell: changed: spec.maxCpu: admitkit holds to it",
		`dropped: spec.controllerTargetMutationConfig.patchSpecOperations[1]: "/metadata/name": of an access Pod only spec, labels and annotations`,
		"dropped: spec.controllerTargetMutationConfig.patchSpecOperations[2]: move needs from",
		"PodAccessTemplate shop/toolbox: changed: spec.accessConfig.defaultDuration: 1h exceeds maxDuration, and is now 30m",
		"PodAccessTemplate shop/toolbox: dropped: spec.controllerTargetMutationConfig: Oz does not apply it to a podSpec",
		"ExecAccessTemplate shop/web-exec: dropped: metadata.finalizers",
		"ExecAccessTemplate shop/web-exec: dropped: spec.accessConfig.allowedGroups[1]: an empty name",
		`ExecAccessTemplate shop/web-exec: dropped: spec.accessConfig.allowedGroups[2]: "devs" is there twice`,
		"dropped: spec.accessConfig.accessCommand: admitkit does not understand {{ if .Metadata.UID }}",
		`changed: spec.controllerTargetRef.apiVersion: "v1" is now apps/v1`,
		"ExecAccessTemplate shop/web-exec: dropped: spec.colour: admitkit has no such field",
		"changed: metadata.name: it has 61 characters, at most 52 are allowed, and is now incident-with-a-name-that-is-longer-than-those-of-po",
		`dropped: spec.duration: "0s" is not a duration such as 90m, more than 0`,
		"changed: spec.requester: the requester is who applies it",
		"ConfigMap other: skipped: not a manifest of Oz",
		"5 of 6 objects are rewritten; 0 cannot be carried over, 10 fields are dropped",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if _, said, err := migrated(t, "", "-f", "testdata/oz", "--strict"); err == nil || !strings.Contains(err.Error(), "--strict: 10 fields are dropped") {
		t.Errorf("--strict: %v\n%s", err, said)
	}
}

func TestManifestsOfFirstVersionsOfOzAreRead(t *testing.T) {
	out, said, err := migrated(t, "", "-R", "-f", "testdata/oz")
	if err == nil || !strings.Contains(err.Error(), "1 objects cannot be carried over") || strings.Contains(out, "neither") {
		t.Errorf("%v: %s", err, out)
	}
	for _, want := range []string{
		"early: changed: spec.targetRef: is now spec.controllerTargetRef", "early: changed: spec.allowedGroups: is now spec.accessConfig.allowedGroups",
		"neither: changed: kind: AccessTemplate is called PodAccessTemplate", "neither: cannot be carried over: spec: one of controllerTargetRef and podSpec",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestAnAccessPodOfAFirstTemplateDoesNotRunTheApplication(t *testing.T) {
	out, said, err := migrated(t, "{apiVersion: crds.wizardofoz.co/v1alpha1, kind: AccessTemplate, metadata: {name: a}, spec: {allowedGroups: [devs], "+
		"targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, command: [/bin/sleep, infinity], resources: {requests: {memory: 42Mi}}}}", "-f", "-", "--strict")
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var template v1alpha1.PodAccessTemplate
	if err := yaml.Unmarshal([]byte(out), &template); err != nil {
		t.Fatal(err)
	}
	config := template.Spec.ControllerTargetMutationConfig
	if config == nil || config.Command == nil || !slices.Equal(*config.Command, []string{"/bin/sleep", "infinity"}) || config.Resources.Requests.Memory().String() != "42Mi" {
		t.Errorf("%+v:\n%s", config, out)
	}
	for _, want := range []string{
		"spec.command: is now spec.controllerTargetMutationConfig.command",
		"spec.resources: is now spec.controllerTargetMutationConfig.resources",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestWhatCannotBeCarriedOverIsSaidAndLeftOut(t *testing.T) {
	const target = "controllerTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"
	for manifest, want := range map[string]string{
		"kind: ExecAccessTemplate, spec: {accessConfig: {allowedGroups: []}, " + target + "}":                        "spec.accessConfig.allowedGroups: it names nobody",
		"kind: ExecAccessTemplate, spec: {accessConfig: {allowedGroups: 5}, " + target + "}":                         "spec.accessConfig.allowedGroups",
		"kind: ExecAccessTemplate, spec: {accessConfig: {allowedGroups: [a], maxDuration: soon}, " + target + "}":    `spec.accessConfig.maxDuration: "soon" is not a duration`,
		"kind: ExecAccessTemplate, spec: {accessConfig: [], " + target + "}":                                         "spec.accessConfig",
		"kind: ExecAccessTemplate, spec: {accessConfig: {allowedGroups: [a]}}":                                       "spec.controllerTargetRef: there is none",
		"kind: ExecAccessTemplate, spec: {accessConfig: {allowedGroups: [a]}, controllerTargetRef: {kind: Service}}": `admitkit gives no access to a "Service"`,
		"kind: ExecAccessTemplate": "spec: there is none",
		"kind: Wand, spec: {}":     "kind: admitkit has no Wand",
		"kind: PodAccessTemplate, spec: {accessConfig: {allowedGroups: [a]}, " + target + ", podSpec: {containers: []}}":    "one of controllerTargetRef and podSpec",
		"kind: PodAccessTemplate, spec: {accessConfig: {allowedGroups: [a]}, " + target + ", maxCpu: '1e-999999999'}":       "spec.maxCpu: the exponent",
		"kind: PodAccessTemplate, spec: {accessConfig: {allowedGroups: [a]}, podSpec: {containers: [{name: a, image: 5}]}}": "containers",
		"kind: PodAccessRequest, spec: {duration: 1h}":                                                                      "spec.templateName: there is none",
	} {
		t.Run(manifest, func(t *testing.T) {
			out, said, err := migrated(t, "{apiVersion: crds.wizardofoz.co/v1alpha1, metadata: {name: a}, "+manifest+"}", "-f", "-")
			if err == nil || out != "" || !strings.Contains(said, "cannot be carried over: ") || !strings.Contains(said, want) {
				t.Errorf("%v, %q, %s", err, out, said)
			}
		})
	}
	for args, want := range map[string]string{
		"":                       "-f is missing",
		"-f nowhere":             "no such file",
		"-f - --subjects All":    "must be Requester or Groups",
		"-f migrate_test.go":     "migrate_test.go",
		"-f testdata/oz surplus": "surplus",
	} {
		if _, _, err := migrated(t, "", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestManifestsOfEveryGroupOfOzAreRead(t *testing.T) {
	const spec = "{accessConfig: {allowedGroups: [a]}, controllerTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}"
	for version, read := range map[string]bool{
		"crds.wizardofoz.co/v1alpha1":      true,
		"templates.wizardofoz.co/v1alpha1": true, // its samples
		"templates.wizardoz.io/v1alpha1":   true,
		"wizardofoz.io/v1alpha":            true, // its README
		"crds.wizardofoz.com/v1":           false,
		"wizardofoz.co":                    false, // no version
	} {
		out, said, _ := migrated(t, "{apiVersion: "+version+", kind: ExecAccessTemplate, metadata: {name: a}, spec: "+spec+"}", "-f", "-")
		if got := strings.Contains(out, "apiVersion: admitkit.dev/v1alpha1"); got != read {
			t.Errorf("%s: read: %t, want %t: %s", version, got, read, said)
		}
	}
}

func TestARequestDoesNotKeepWhomOzRecorded(t *testing.T) {
	out, said, err := migrated(t, "{apiVersion: crds.wizardofoz.co/v1alpha1, kind: PodAccessRequest, metadata: {name: a, annotations: {ticket: \"7\", "+
		"crds.wizardofoz.co/requested-by: alice}}, spec: {templateName: web, image: example.com/debug}}", "-f", "-")
	if err != nil || strings.Contains(out, "alice") || !strings.Contains(out, `ticket: "7"`) {
		t.Errorf("%v: %s", err, out)
	}
	for _, want := range []string{
		`changed: metadata.annotations: without crds.wizardofoz.co/requested-by: it names "alice", who asked Oz`,
		"dropped: spec.image: admitkit has no such field",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

// FuzzMigrate reads whatever a file has.
func FuzzMigrate(f *testing.F) {
	files, err := filepath.Glob("testdata/oz/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"apiVersion":"wizardofoz.io/v1","kind":"PodAccessTemplate","spec":{"accessConfig":{"allowedGroups":["a"]},"podSpec":{"containers":[[],{"x":{"y":1}}]},"a":[{"b":1}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var out, said bytes.Buffer
		m := &migration{Base: &cli.Base{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &said}}, subjects: "Requester"}
		if m.migrate("fuzz", bytes.NewReader(raw)) != nil {
			return
		}
		for document := range strings.SplitSeq(out.String(), "\n---\n") {
			var object struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(document), &object); err != nil || document != "" && (object.APIVersion != "admitkit.dev/v1alpha1" || !slices.Contains(kindsOfOz(), object.Kind)) {
				t.Errorf("%v: %s", err, document)
			}
		}
	})
}

func kindsOfOz() (names []string) {
	for name := range typed {
		names = append(names, name)
	}
	return names
}

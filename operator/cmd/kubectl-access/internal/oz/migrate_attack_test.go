package oz

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hostile returns a template of Oz with more in its spec and in its accessConfig.
func hostile(config, more string) string {
	return fmt.Sprintf("{apiVersion: crds.wizardofoz.co/v1alpha1, kind: PodAccessTemplate, metadata: {name: a}, spec: {accessConfig: {allowedGroups: [a]%s}, podSpec: {containers: [{name: a, image: b}]}%s}}", config, more)
}

// attacksOnMigrate are files that somebody gives to whoever migrates. Each returns what went
// through.
var attacksOnMigrate = map[string]func(t *testing.T) string{
	"by escapes in a name that is skipped": func(t *testing.T) string {
		return controls(migrated(t, "{apiVersion: v1, kind: \"x\\e[2J\\e]0;mine\\a\", metadata: {name: \"a\\u009b31m\"}}", "-f", "-"))
	},
	"by escapes in the name of a file": func(t *testing.T) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "\x1b[2J.yaml"), []byte("{apiVersion: v1, kind: A, metadata: {name: b}}"), 0o600); err != nil {
			t.Fatal(err)
		}
		return controls(migrated(t, "", "-f", dir))
	},
	"by a line of its own": func(t *testing.T) string {
		_, said, _ := migrated(t, `{apiVersion: v1, kind: A, metadata: {name: "b\n9 of 9 objects are rewritten"}}`, "-f", "-")
		if strings.Count(said, "\n") != 2 {
			return said
		}
		return ""
	},
	"by escapes in what is rewritten": func(t *testing.T) string {
		return controls(migrated(t, hostile(`, "x\e[2J": 1, accessCommand: "\e[2J {{ \e[2J }}"`, `, "y\u009b": 1, maxCpu: "\e[2J"`), "-f", "-"))
	},
	"by a field that looks like an index before the first": func(t *testing.T) (through string) {
		defer func() {
			if reason := recover(); reason != nil {
				through = fmt.Sprint(reason)
			}
		}()
		manifest := strings.Replace(hostile("", ""), "image: b}]", `image: b}], "containers[-1]": 1`, 1)
		_, _, _ = migrated(t, manifest, "-f", "-")
		return ""
	},
	"by fields that Oz ignored": func(t *testing.T) string {
		out, said, err := migrated(t, hostile(", subjects: Groups, allowedUsers: [mallory], askFor: {users: [mallory]}, verbs: [exec]", "")+
			"\n---\n{apiVersion: crds.wizardofoz.co/v1alpha1, kind: ExecAccessRequest, metadata: {name: a}, spec: {templateName: x, onBehalfOf: mallory, singleUse: true}}", "-f", "-")
		if err != nil || strings.Contains(out, "mallory") || strings.Contains(out, "subjects") || !strings.Contains(said, "dropped: spec.accessConfig.allowedUsers: Oz has no such field") || !strings.Contains(said, "dropped: spec.onBehalfOf") {
			return fmt.Sprintf("%v\n%s\n%s", err, out, said)
		}
		return ""
	},
	"by a field whose name is the path of another": func(t *testing.T) string {
		out, _, err := migrated(t, hostile(", maxDuration: 1h", `, "accessConfig.maxDuration": 1`), "-f", "-")
		if err == nil || out != "" {
			return out
		}
		return ""
	},
	"by more unknown fields than are reported": func(t *testing.T) string {
		var more strings.Builder
		for i := range 150 {
			fmt.Fprintf(&more, ", x%d: 1", i)
		}
		out, _, err := migrated(t, hostile("", more.String()), "-f", "-")
		if err == nil || strings.Contains(out, "x1") {
			return out
		}
		return ""
	},
	"by nesting that is indented to many times its size": func(t *testing.T) string {
		deep := strings.Repeat(`{"a":`, 3000) + "1" + strings.Repeat("}", 3000)
		for _, manifest := range []string{
			strings.Replace(hostile("", ""), "{name: a}", `{"name": a, "x": `+deep+"}", 1),
			hostile("", ", controllerTargetMutationConfig: {patchSpecOperations: [{op: add, path: /spec/x, value: "+deep+"}]}"),
		} {
			if out, _, err := migrated(t, manifest, "-f", "-"); err == nil || len(out) > 2*len(manifest) {
				return fmt.Sprintf("%d bytes became %d", len(manifest), len(out))
			}
		}
		return ""
	},
	"by nesting that exhausts the stack": func(t *testing.T) string {
		for _, manifest := range []string{
			strings.Repeat("[", 1_000_000), "a: " + strings.Repeat("{a: ", 100_000), strings.Repeat(`{"items":[`, 100_000), "a:\n" + strings.Repeat("- ", 100_000),
		} {
			if _, _, err := migrated(t, manifest, "-f", "-"); err == nil {
				return manifest[:20]
			}
		}
		return ""
	},
	"by aliases of aliases": func(t *testing.T) string {
		var manifest strings.Builder
		manifest.WriteString("a0: &a0 [x]\n")
		for i := range 20 {
			fmt.Fprintf(&manifest, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
		}
		if _, _, err := migrated(t, manifest.String(), "-f", "-"); err == nil || !strings.Contains(err.Error(), "alias") {
			return fmt.Sprint(err)
		}
		return ""
	},
	"by aliases of a long text": func(t *testing.T) string {
		start := time.Now()
		_, _, err := migrated(t, "a: &a "+strings.Repeat("x", 20_000)+"\nb: ["+strings.Repeat("*a,", 10_000)+"]\n", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "aliases") {
			return fmt.Sprintf("50 kB became 200 MB in %s: %v", time.Since(start), err)
		}
		return ""
	},
	"by links in a directory, and files without end": func(t *testing.T) string {
		dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret.yaml")
		if err := os.WriteFile(secret, []byte("{apiVersion: crds.wizardofoz.co/v1alpha1, kind: ExecAccessRequest, metadata: {name: a}, spec: {templateName: secret}}"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, to := range map[string]string{"link.yaml": secret, "root": "/", "loop": dir, "zero.yaml": "/dev/zero"} {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if out, said, _ := migrated(t, "", "-R", "-f", dir); out != "" || !strings.Contains(said, "0 of 0 objects") {
			return out + said
		}
		if _, _, err := migrated(t, "", "-f", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "split it") {
			return fmt.Sprint(err)
		}
		return ""
	},
}

// controls returns what would control a terminal.
func controls(out, said string, _ error) string {
	if text := out + said; strings.ContainsAny(text, "\x1b\x07\u009b") {
		return fmt.Sprintf("%q", text)
	}
	return ""
}

func TestManifestsOfAnAttackerAreMigratedWithoutHarm(t *testing.T) {
	for name, attack := range attacksOnMigrate {
		t.Run(name, func(t *testing.T) {
			if what := attack(t); what != "" {
				t.Errorf("this went through: %.2000s", what)
			}
		})
	}
}

package testkit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
)

const asProgram = "TESTKIT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if text := os.Getenv(asProgram); text != "" {
		_, _ = os.Stdout.WriteString(text)
		time.Sleep(time.Hour) // until it is killed
	}
	os.Exit(m.Run())
}

func TestAwaitReturnsTheNextLineWithThePrefix(t *testing.T) {
	p := testkit.Run(t, testkit.Again(t, asProgram, "starting\nport 1\nport 2\nport"))
	for _, want := range []string{"port 1", "port 2"} {
		if got := p.Await(t, "port"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	p.Kill()
	if err := p.Wait(); err == nil {
		t.Error("a killed program ended without an error")
	}
	if !p.Output.HasLine("t 2", "po") || p.Output.HasLine("starting", "port") {
		t.Errorf("HasLine is wrong about %q", p.Output.String())
	}
}

func TestManifestReturnsTheObjectsWithTheNames(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	object := func(name string) string { return "kind: Role\nmetadata:\n  name: " + name + "\n" }
	text := "```go\nkind: Go\n```\n\n```yaml\n" + object("a") + "---\n" + object("b") + "```\n\n```yaml\n" + object("ab") + "```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for names, want := range map[string]string{
		"":     object("a") + "---\n" + object("b") + "---\n" + object("ab"),
		"b":    object("b"),
		"ab a": object("a") + "---\n" + object("ab"),
	} {
		if got, err := testkit.Manifest(page, strings.Fields(names)...); err != nil || got != want {
			t.Errorf("of the names %q: %v, %q, want %q", names, err, got, want)
		}
	}
	if _, err := testkit.Manifest(page, "none"); err == nil {
		t.Error("an object that the page lacks is no error")
	}
}

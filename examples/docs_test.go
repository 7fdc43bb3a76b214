package examples_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// pages are the Markdown files that users read.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "bin" || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != "..") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			text, err := os.ReadFile(path)
			found[path] = string(text)
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, must := range []string{"../README.md", "../docs/operations.md", "../operator/audit/README.md"} {
		if found[must] == "" {
			t.Fatalf("%s is not found", must)
		}
	}
	return found
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are those that GitHub gives to headings.
func anchors(page string) (list []string) {
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		text := dropped.ReplaceAllString(strings.ToLower(match[1]), "")
		list = append(list, strings.ReplaceAll(text, " ", "-"))
	}
	return list
}

func TestEveryRelativeLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	anchorsOf := map[string][]string{}
	for path, page := range all {
		anchorsOf[path] = anchors(page)
	}
	links := 0
	for path, page := range all {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			target, err := url.Parse(match[1])
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if target.IsAbs() {
				continue // somebody else's, and no network here
			}
			links++
			file := path
			if target.Path != "" {
				file = filepath.Join(filepath.Dir(path), target.Path)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: link to %s: %v", path, match[1], err)
			} else if target.Fragment != "" && !slices.Contains(anchorsOf[file], target.Fragment) {
				t.Errorf("%s: link to %s: there is no such heading", path, match[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links are found", links)
	}
}

func TestTheProgramOfTheMigrationPageCompiles(t *testing.T) {
	blocks, err := testkit.Blocks("../docs/from-eirinix.md", "go")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	after := blocks[1] + `
type MyExtension struct{}

func (*MyExtension) Handle(_ context.Context, _ extension.Manager, _ *corev1.Pod, _ admission.Request) (response admission.Response) {
	return response
}

type MyWatcher struct{}

func (*MyWatcher) Handle(context.Context, extension.Manager, watch.Event) {}
`
	imports := `
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)
`
	if err := os.WriteFile(file, []byte(strings.Replace(after, "\n)\n", imports, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	goIn(t, ".", "list", "-export", file) // compiles, and does not link
}

// TestTheGoOfConceptsIsThatOfAnExample keeps the excerpts on the page true: the examples
// are compiled and tested.
func TestTheGoOfConceptsIsThatOfAnExample(t *testing.T) {
	excerpts, err := testkit.Blocks("../docs/concepts.md", "go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, excerpt := range excerpts {
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), excerpt)
		}) {
			t.Errorf("no example has:\n%s", excerpt)
		}
	}
	if len(excerpts) == 0 {
		t.Error("there is no excerpt")
	}
}

var (
	longFlag   = regexp.MustCompile(`--[a-z][a-z-]+`)
	makeTarget = regexp.MustCompile(`(?m)(?:^    |^\$ |` + "`" + `)make ([a-z0-9-]+)`)
	// A line of a code block that runs a program of ours.
	commandLine = regexp.MustCompile(`(?m)^(?:    |\$ )(?:.*\| )?(go run \.\S*|stamp|contact|admitkit) (.*)$`)
	// `--flag` by itself or after a subcommand, in prose.
	inlineFlag = regexp.MustCompile("`(?:(?:start|serve|reconcile|register|check|unregister|review|scan|explain|replay|manifests) )?(--[a-z][a-z-]+)[^`]*`")
)

// helpOf returns what --help prints, by subcommand; "" is the program's own.
func helpOf(t *testing.T) map[string]string {
	t.Helper()
	help := map[string]string{}
	for _, sub := range []string{"", "start", "serve", "reconcile", "register", "check", "unregister", "review", "scan", "explain", "replay", "manifests"} {
		var text strings.Builder
		cmd := command.New("stamp", func(*manager.Manager) error { return nil })
		cmd.SetOut(&text)
		cmd.SetArgs(strings.Fields(sub + " --help"))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%s --help: %v", sub, err)
		}
		help[sub] = text.String()
	}
	return help
}

// hasFlag reports whether a help lists a flag, as a whole word.
func hasFlag(help, name string) bool { return slices.Contains(longFlag.FindAllString(help, -1), name) }

// TestTheCommandsOfThePagesExist looks at the general pages. Every program has
// these commands; the shipped extensions have more flags, on pages of their own.
func TestTheCommandsOfThePagesExist(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help := helpOf(t)
	commands, flags := 0, 0
	for path, page := range pages(t) {
		for _, match := range makeTarget.FindAllStringSubmatch(page, -1) {
			if !strings.Contains(string(makefile), "\n"+match[1]+":") {
				t.Errorf("%s: there is no `make %s`", path, match[1])
			}
		}
		if path != "../README.md" && filepath.Dir(path) != "../docs" {
			continue
		}
		for _, match := range commandLine.FindAllStringSubmatch(page, -1) {
			commands++
			words, _, _ := strings.Cut(match[2], " | ")
			text := help[""]
			if sub, _, _ := strings.Cut(words, " "); !strings.HasPrefix(sub, "-") {
				text = help[sub]
			}
			if text == "" {
				t.Errorf("%s: %s: there is no such subcommand", path, match[0])
				continue
			}
			for _, name := range longFlag.FindAllString(words, -1) {
				flags++
				if !hasFlag(text, name) {
					t.Errorf("%s: %s: there is no flag %s", path, match[0], name)
				}
			}
		}
		for _, match := range inlineFlag.FindAllStringSubmatch(page, -1) {
			flags++
			known := false
			for _, text := range help {
				known = known || hasFlag(text, match[1])
			}
			if !known && match[1] != "--zap-" {
				t.Errorf("%s: %s: there is no flag %s", path, match[0], match[1])
			}
		}
	}
	if commands < 8 || flags < 40 {
		t.Errorf("only %d commands and %d flags are found", commands, flags)
	}
}

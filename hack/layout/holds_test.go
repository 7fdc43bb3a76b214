package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// holding are the parts of pages that say what holds against whom. Each of their rows and items, and each paragraph of a
// page without parts, names the test that tries to break it, in a comment that a reader does not see:
//
//	<!-- holds: FOLDER TEST (a text that the tests of the folder have) -->
//
// One that says what does not hold has <!-- not held -->, one that advises, or tells of Kubernetes, <!-- no claim -->.
// Whether it is the right test, no check can tell.
var holding = map[string][]string{
	"docs/security.md":                   nil,
	"operator/docs/security.md":          nil,
	"operator/docs/access.md":            {"## What holds, and why", "**What holds, and why**:"},
	"operator/docs/access-roles.md":      {"## What holds"},
	"operator/docs/audit/enforcement.md": {"## What holds, and why"},
	"operator/docs/sandbox.md":           {"## What holds, and what does not"},
	"operator/docs/sessions.md":          {"### When two present a ticket", "### What it does against those whom it records"},
}

var holds = regexp.MustCompile(`<!-- (?:not held|no claim|holds: (\S+) (Test\w+)(?: \((.+?)\))?) -->`)

func TestWhatHoldsNamesTheTestThatTriesToBreakIt(t *testing.T) {
	for page, parts := range holding {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		said := claims(string(text), true)
		if parts != nil {
			said = nil
		}
		for _, part := range parts {
			found := claims(partOf(string(text), part), false)
			if len(found) == 0 {
				t.Errorf("%s: %q says nothing", page, part)
			}
			said = append(said, found...)
		}
		for _, claim := range said {
			found := holds.FindStringSubmatch(claim)
			if found == nil {
				t.Errorf("%s: no test is named for: %.100s", page, claim)
			} else if err := tries(found[1], found[2], found[3]); err != nil {
				t.Errorf("%s: %v, which is named for: %.100s", page, err, claim)
			}
		}
	}
}

// partOf returns the part of a page that begins after a line, and ends with the next heading, or, if the line is none, with
// the next paragraph.
func partOf(page, line string) string {
	_, rest, _ := strings.Cut(page, "\n"+line+"\n")
	rest, _, _ = strings.Cut(rest, "\n#")
	if strings.HasPrefix(line, "**") {
		rest, _, _ = strings.Cut(strings.TrimLeft(rest, "\n"), "\n\n")
	}
	return rest
}

// claims returns the rows and items of a text, and its paragraphs if wanted.
func claims(text string, paragraphs bool) (all []string) {
	var open, code bool // the next line may go on with the last claim
	for line := range strings.SplitSeq(text, "\n") {
		switch last := len(all) - 1; {
		case strings.HasPrefix(line, "```"):
			code, open = !code, false
		case code, line == "", line[0] == '#', strings.HasPrefix(line, "<!-- "):
			open = false
		case strings.HasPrefix(line, "|---"):
			all = all[:last] // the head of a table
		case strings.HasPrefix(line, "| "), strings.HasPrefix(line, "- "):
			all = append(all, line)
			open = line[0] == '-'
		case open:
			all[last] += line
		case paragraphs:
			all = append(all, line)
			open = true
		}
	}
	return all
}

// tries returns an error unless a folder has a test, and its tests the text.
func tries(folder, name, text string) error {
	if name == "" { // it is not held
		return nil
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		return err
	}
	var all strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, _ = all.Write(content) // never fails
	}
	if !strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T)") {
		return fmt.Errorf("%s has no %s", folder, name)
	}
	if !strings.Contains(all.String(), text) {
		return fmt.Errorf("the tests of %s have no %q", folder, text)
	}
	return nil
}

func TestClaimsAreRowsAndItems(t *testing.T) {
	const page = "# A\n\n## What holds\n\n| who | what |\n|---|---|\n| a | b |\n\nText.\n\n- an item\n  of two lines\n- another\n\n## B\n\n- no more\n"
	if got := strings.Join(claims(partOf(page, "## What holds"), false), "\n"); got != "| a | b |\n- an item  of two lines\n- another" {
		t.Errorf("claims are %q", got)
	}
	if got := strings.Join(claims(page, true), "\n"); got != "| a | b |\nText.\n- an item  of two lines\n- another\n- no more" {
		t.Errorf("claims of a whole page are %q", got)
	}
	for what, err := range map[string]error{
		"a test that is not there": tries("hack/layout", "TestNothing", ""),
		"a folder that is not":     tries("hack/nowhere", "TestClaimsAreRowsAndItems", ""),
		"a case that is not there": tries("hack/layout", "TestClaimsAreRowsAndItems", "no "+"case"),
	} {
		if err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

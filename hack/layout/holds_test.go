package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// holding are the parts of pages that say what holds against whom. Each of their rows and items names the
// test that tries to break it, in a comment that a reader does not see:
//
//	<!-- holds: FOLDER TEST (a text that the tests of the folder have) -->
//
// One that says what does not hold has <!-- not held -->. Whether it is the right test, no check can tell.
var holding = map[string][]string{
	"docs/security.md":                   {"## Attacks"},
	"operator/docs/access.md":            {"## What holds, and why", "**What holds, and why**:"},
	"operator/docs/access-roles.md":      {"## What holds"},
	"operator/docs/audit/enforcement.md": {"## What holds, and why"},
	"operator/docs/sandbox.md":           {"## What holds, and what does not"},
	"operator/docs/sessions.md":          {"### When two present a ticket", "### What it does against those whom it records"},
}

var holds = regexp.MustCompile(`<!-- (?:not held|holds: (\S+) (Test\w+)(?: \((.+?)\))?) -->`)

func TestWhatHoldsNamesTheTestThatTriesToBreakIt(t *testing.T) {
	for page, parts := range holding {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			said := claims(string(text), part)
			if len(said) == 0 {
				t.Errorf("%s: %q says nothing", page, part)
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
}

// claims returns the rows and items of a part of a page, which begins with a line.
func claims(page, part string) (all []string) {
	_, rest, _ := strings.Cut(page, "\n"+part+"\n")
	var head bool // the row before a line of dashes
	for line := range strings.SplitSeq(rest, "\n") {
		switch last := len(all) - 1; {
		case strings.HasPrefix(line, "#"), strings.HasPrefix(part, "**") && len(all) > 0 && line == "":
			return all
		case strings.HasPrefix(line, "|---"):
			all = all[:last]
			head = false
		case strings.HasPrefix(line, "| "), strings.HasPrefix(line, "- "):
			all = append(all, line)
			head = true
		case strings.HasPrefix(line, "  ") && head:
			all[last] += line
		default:
			head = false
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
	if got := strings.Join(claims(page, "## What holds"), "\n"); got != "| a | b |\n- an item  of two lines\n- another" {
		t.Errorf("claims are %q", got)
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

package main

import (
	"os"
	"strings"
	"testing"
)

const changelog = `# Changelog

## [Unreleased]

### Added

- Something new.

## [0.2.0] - 2026-12-01

### Added

- Releases.

### Fixed

## [0.2.0-rc.1] - 2026-11-30

### Added

## [0.1.0] - 2026-11-01

- The [first](docs/a.md#b), [here](#c) and [there](https://example.com/d.md).
`

func TestTheNotesAreTheSectionOfTheTag(t *testing.T) {
	for name, c := range map[string]struct{ tag, want, wrong string }{
		"a release":                      {"v0.2.0", "### Added\n\n- Releases.\n\n### Fixed\n", ""},
		"the last section":               {"v0.1.0", "- The [first](https://github.com/admitkit/admitkit/blob/v0.1.0/docs/a.md#b), [here](#c) and [there](https://example.com/d.md).\n", ""},
		"a snapshot has what is to come": {"v0.3.0-snapshot", "### Added\n\n- Something new.\n", ""},
		"no section":                     {"v0.3.0", "", "CHANGELOG.md has no section [0.3.0]: rename [Unreleased] to it"},
		"headings alone say nothing":     {"v0.2.0-rc.1", "", "the section [0.2.0-rc.1] is empty: say what changed"},
		"no version":                     {"release-7", "", `the tag "release-7" is not a version such as v0.2.0`},
		"a version without its v":        {"0.2.0", "", `the tag "0.2.0" is not a version`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := notes(changelog, c.tag)
			if got != c.want {
				t.Errorf("notes %q, want %q", got, c.want)
			}
			if c.wrong == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
		})
	}
}

func TestOurChangelogHasNotesForTheNextRelease(t *testing.T) {
	ours, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := notes(string(ours), "v99.0.0-snapshot"); err != nil || !strings.Contains(text, "### ") {
		t.Errorf("%v: %.200s", err, text)
	}
}

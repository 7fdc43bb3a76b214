package main

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	tagPattern = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
	heading    = regexp.MustCompile(`(?m)^## \[([^\]]+)\].*\n`)
	// links are those to files, which a page of a release does not resolve.
	links = regexp.MustCompile(`\]\(([^):#]+(?:#[^)]*)?)\)`)
)

// snapshot is the pre-release of a release that is only checked. It needs no section
// in CHANGELOG.md.
const snapshot = "-snapshot"

// notes returns the section of the changelog for a tag. A release without one is an
// error: nobody would know what changed. Links to files lead to those of the tag.
func notes(changelog, tag string) (string, error) {
	if !tagPattern.MatchString(tag) {
		return "", fmt.Errorf("the tag %q is not a version such as v0.2.0 or v0.2.0-rc.1", tag)
	}
	want := strings.TrimPrefix(tag, "v")
	if strings.HasSuffix(tag, snapshot) {
		want = "Unreleased"
	}
	sections := heading.FindAllStringSubmatchIndex(changelog, -1)
	for i, section := range sections {
		if changelog[section[2]:section[3]] != want {
			continue
		}
		end := len(changelog)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		if text := strings.TrimSpace(withoutHeadings(changelog[section[1]:end])); text == "" {
			return "", fmt.Errorf("CHANGELOG.md: the section [%s] is empty: say what changed", want)
		}
		return links.ReplaceAllString(strings.TrimSpace(changelog[section[1]:end]), "](https://github.com/admitkit/admitkit/blob/"+tag+"/$1)") + "\n", nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section [%s]: rename [Unreleased] to it, with the date, and begin a new one", want)
}

var subheading = regexp.MustCompile(`(?m)^###.*$`)

func withoutHeadings(text string) string { return subheading.ReplaceAllString(text, "") }

package testkit

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Blocks returns the code blocks of a language in a Markdown page.
func Blocks(page, language string) ([]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var blocks []string
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, match[1])
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s has no block of %s", page, language)
	}
	return blocks, nil
}

// Manifest returns the objects in the YAML blocks of a Markdown page: those with
// the names, or all of them if no name is given.
func Manifest(page string, names ...string) (string, error) {
	blocks, err := Blocks(page, "yaml")
	if err != nil {
		return "", err
	}
	var objects []string
	for object := range strings.SplitSeq(strings.Join(blocks, "---\n"), "---\n") {
		if len(names) == 0 || hasName(object, names) {
			objects = append(objects, object)
		}
	}
	if len(objects) == 0 {
		return "", fmt.Errorf("%s has no object named %s", page, strings.Join(names, " or "))
	}
	return strings.Join(objects, "---\n"), nil
}

func hasName(object string, names []string) bool {
	for _, name := range names {
		if strings.Contains(object, "\n  name: "+name+"\n") {
			return true
		}
	}
	return false
}

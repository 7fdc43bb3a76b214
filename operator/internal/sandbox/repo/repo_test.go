package repo_test

import (
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
)

func TestAURLIsOfHTTPSOrSSHAndHoldsNoSecret(t *testing.T) {
	for text, want := range map[string]string{
		"https://git.example.com/a/b.git":          "https git.example.com",
		"https://git.example.com:8443/a":           "https git.example.com",
		"ssh://git@git.example.com/a/b.git":        "ssh git.example.com",
		"ssh://git.example.com:2222/a":             "ssh git.example.com",
		"git@git.example.com:a/b.git":              "ssh git.example.com",
		"git.example.com:/srv/a.git":               "ssh git.example.com",
		"http://git.example.com/a":                 "only https and ssh",
		"git://git.example.com/a":                  "only https and ssh",
		"file:///etc":                              "only https and ssh",
		"ext::sh -c true":                          "spaces",
		"ext::sh":                                  "only https and ssh",
		"/etc/passwd":                              "only https and ssh",
		"https://hunter2@git.example.com/a":        "credentialsFrom",
		"https://me:hunter2@git.example.com/a":     "credentialsFrom",
		"ssh://me:hunter2@git.example.com/a":       "credentialsFrom",
		"me:hunter2@git.example.com:a":             "only https and ssh",
		"https://git.example.com/a?token=hunter2":  "neither query nor fragment",
		"https://git.example.com/a#hunter2":        "neither query nor fragment",
		"https://git.example.com/":                 "has no path",
		"https:///a":                               "has no host",
		"ssh://-oProxyCommand=hunter2/a":           "has no host",
		"-oProxyCommand=hunter2@git.example.com:a": "no user name",
		"https://git.example.com/a\nhunter2":       "control characters",
	} {
		scheme, host, err := repo.Parse(text)
		got := scheme + " " + host
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestAPathStaysBelowTheWorkspace(t *testing.T) {
	for text, want := range map[string]string{
		"": ".", ".": ".", "a": "a", "a/b": "a/b", "a/": "a", "./a": "a",
		"/a": "!", "..": "!", "a/../b": "!", "a//b": "!", "a/.git": "!", ".GIT": "!", ".admitkit": "!", `a\b`: "!", "a\x00": "!",
	} {
		got, err := repo.Clean(text)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for pair, within := range map[[2]string]bool{{"a", "a"}: true, {"a", "a/b"}: true, {"a/b", "a"}: true, {"a", "ab"}: false, {".", "a"}: true, {"a", "b"}: false} {
		if repo.Within(pair[0], pair[1]) != within {
			t.Errorf("%q", pair)
		}
	}
}

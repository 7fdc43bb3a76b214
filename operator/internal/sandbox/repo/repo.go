// Package repo says which git repositories a Workspace can be seeded from. Admission, the
// reconciler and the program that fetches them ask it.
package repo

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// Dir is where the program that seeds has the folder of the Workspace, CredentialsDir the
// credentials of the repositories, each in the folder of its number, and CAFile the
// authorities of servers, if any are named.
const (
	Dir            = "/workspace"
	CredentialsDir = "/admitkit/credentials" //nolint:gosec // it is a folder
	CAFile         = "/admitkit/ca/ca.crt"
)

// Env is the variable that has the repositories, as a list of [Repo] in JSON.
const Env = "ADMITKIT_SEED"

// Repo is a repository to fetch.
type Repo struct {
	URL   string `json:"url"`
	Ref   string `json:"ref,omitempty"`
	Path  string `json:"path"`
	Depth int    `json:"depth,omitempty"`
	// Credentials is the folder of its credentials, "" for none.
	Credentials string `json:"credentials,omitempty"`
}

// Schemes of URLs.
const (
	HTTPS = "https"
	SSH   = "ssh"
)

var (
	user = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	// scp is the form that git takes for ssh://USER@HOST/PATH.
	scp = regexp.MustCompile(`^(?:([^@/:]+)@)?([A-Za-z0-9.-]+):([^/:@][^@]*|/[^/@][^@]*)$`)
)

// Parse returns the scheme and the host of a URL, without its port. The error does not hold the URL, which may hold a password.
func Parse(text string) (scheme, host string, err error) {
	for _, r := range text {
		if r <= ' ' || r == 0x7f || r > 0x7e {
			return "", "", errors.New("must not contain spaces, control characters, or characters beyond ASCII: percent-encode them")
		}
	}
	if m := scp.FindStringSubmatch(text); m != nil && !strings.Contains(text, "://") {
		if m[1] != "" && !user.MatchString(m[1]) {
			return "", "", errors.New("has a user that is no user name")
		}
		return SSH, m[2], hostIs(m[2])
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", "", errors.New("cannot be read as a URL")
	}
	if err := checkURL(u); err != nil {
		return "", "", err
	}
	return u.Scheme, u.Hostname(), hostIs(u.Hostname())
}

func checkURL(u *url.URL) error {
	_, password := u.User.Password()
	switch {
	case password:
		return errors.New("has a password in it: put it into a Secret, and name that in credentialsFrom")
	case u.Scheme == HTTPS && u.User != nil:
		return errors.New("has a user in it: put it into a Secret with username and password, and name that in credentialsFrom")
	case u.Scheme != HTTPS && u.Scheme != SSH:
		return fmt.Errorf("has the scheme %.20q: only https and ssh are supported, and USER@HOST:PATH", u.Scheme)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("must have neither query nor fragment, which often hold tokens")
	case strings.Trim(u.Path, "/") == "":
		return errors.New("has no path")
	case u.User != nil && !user.MatchString(u.User.Username()):
		return errors.New("has a user that is no user name")
	}
	return nil
}

func hostIs(host string) error {
	if host == "" || strings.HasPrefix(host, "-") {
		return errors.New("has no host")
	}
	return nil
}

// Clean returns the path of a repository below the folder of the Workspace, "." for the
// folder itself.
func Clean(text string) (string, error) {
	cleaned := path.Clean("/" + text)[1:]
	switch {
	case text == "":
		return ".", nil
	case path.IsAbs(text), cleaned != strings.TrimSuffix(strings.TrimPrefix(text, "./"), "/") && text != ".":
		return "", errors.New("must be relative, without .. or empty parts")
	case cleaned == "":
		return ".", nil
	}
	for part := range strings.SplitSeq(cleaned, "/") {
		if strings.EqualFold(part, ".git") || strings.EqualFold(part, ".admitkit") || strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r > 0x7e || r == '\\' }) {
			return "", errors.New("must not have parts named .git or .admitkit, backslashes, control characters, or characters beyond ASCII")
		}
	}
	return cleaned, nil
}

// Within reports whether one cleaned path is the other, or lies in it.
func Within(a, b string) bool {
	return a == b || a == "." || b == "." || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

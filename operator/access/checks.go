package access

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension/manifest"
	"github.com/admitkit/admitkit/operator/access/internal/check"
)

// Check is an HTTPS endpoint that decides about requests by the templates that name it. The
// author of a template chooses one of these by its name, and never where to connect.
type Check struct {
	// Name is the check's, by which templates name it. There is no default.
	Name string `json:"name"`
	// URL is where requests are posted to. It must be https. There is no default.
	URL string `json:"url"`
	// Timeout is how long an answer may take, at most 8 s. Default: 5 s.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// CAFile or CABundle have the authorities of the endpoint's certificate, in PEM.
	// Default: those of the system. The files are read again before each question.
	CAFile   string `json:"caFile,omitempty"`
	CABundle string `json:"caBundle,omitempty"`
	// TokenFile has the bearer token. Default: none.
	TokenFile string `json:"tokenFile,omitempty"`
	// CertFile and KeyFile have the client certificate and its key, in PEM. Default: none.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// Limits of checks.
const (
	DefaultCheckTimeout = 5 * time.Second
	// MaxCheckTimeout is below the time that an attempt of a reconciler has.
	MaxCheckTimeout = 8 * time.Second

	maxChecks     = 64
	maxChecksFile = 1 << 20
)

// ReadChecks reads the checks of a file, in YAML or JSON:
//
//	checks:
//	- name: change-windows
//	  url: https://changes.example.com/admitkit
//	  caFile: ca.crt
//	  tokenFile: token
//	  timeout: 3s
//
// The names of other files are relative to the folder of this one.
func ReadChecks(path string) ([]Check, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxChecksFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxChecksFile:
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxChecksFile)
	}
	document, err := onlyDocument(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var content struct {
		Checks []Check `json:"checks"`
	}
	strict, err := kjson.UnmarshalStrict(document, &content)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", path, misread(document, err))
	}
	if len(content.Checks) == 0 {
		return nil, fmt.Errorf("%s: checks: must name at least one", path)
	}
	for i := range content.Checks {
		c := &content.Checks[i]
		for _, name := range []*string{&c.CAFile, &c.TokenFile, &c.CertFile, &c.KeyFile} {
			if *name != "" && !filepath.IsAbs(*name) {
				*name = filepath.Join(filepath.Dir(path), *name)
			}
		}
	}
	if err := validateChecks(content.Checks); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content.Checks, nil
}

// onlyDocument returns the document of a file: others would be left out.
func onlyDocument(text []byte) (json.RawMessage, error) {
	document := json.RawMessage("{}")
	for read, err := range manifest.Documents(bytes.NewReader(text)) {
		switch {
		case err != nil:
			return nil, err
		case string(read) == "null":
		case len(document) > 2:
			return nil, errors.New("must be one document")
		default:
			document = read
		}
	}
	return document, nil
}

// misread returns err as the field that it is about and what that must be: the errors of
// JSON name Go types instead. It holds no values, which may be credentials.
func misread(document []byte, err error) error {
	const form = "must be a list, each with name and url: checks: [{name: change-windows, url: \"https://changes.example.com\"}]"
	var content map[string]json.RawMessage
	if json.Unmarshal(document, &content) != nil {
		return errors.New("checks: " + form)
	}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if name != "checks" {
			return fmt.Errorf("%s: there is no such field: the file has checks only", name)
		}
	}
	var checks []map[string]json.RawMessage
	if json.Unmarshal(content["checks"], &checks) != nil {
		return errors.New("checks: " + form)
	}
	for i, fields := range checks {
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if wrong := misreadField(name, fields[name]); wrong != "" {
				return fmt.Errorf("checks[%d].%s: %s", i, name, wrong)
			}
		}
	}
	return err
}

// misreadField returns what is wrong with a field of a check, "" for nothing.
func misreadField(name string, value []byte) string {
	names := []string{"name", "url", "timeout", "caFile", "caBundle", "tokenFile", "certFile", "keyFile"}
	switch {
	case !slices.Contains(names, name):
		return "there is no such field: a check has " + strings.Join(names, ", ")
	case name == "timeout" && json.Unmarshal(value, new(metav1.Duration)) != nil:
		return "must be a duration such as 3s or 500ms"
	case name != "timeout" && json.Unmarshal(value, new(string)) != nil:
		return "must be a string: put it in quotation marks"
	}
	return ""
}

// validateChecks returns an error that names the field.
func validateChecks(all []Check) error {
	if len(all) > maxChecks {
		return fmt.Errorf("checks: there are %d: at most %d", len(all), maxChecks)
	}
	known := map[string]bool{}
	for i := range all {
		c := &all[i]
		field := func(name string) string { return fmt.Sprintf("checks[%d].%s", i, name) }
		if problems := validation.IsDNS1123Label(c.Name); len(problems) > 0 {
			return fmt.Errorf("%s: %q: %s", field("name"), c.Name, strings.Join(problems, ", "))
		}
		u, err := url.Parse(c.URL)
		switch {
		case known[c.Name]:
			return fmt.Errorf("%s: %q is there twice", field("name"), c.Name)
		case err != nil:
			return fmt.Errorf("%s: it cannot be parsed", field("url")) // its text may hold a credential
		case u.Scheme != "https" || u.Host == "":
			return fmt.Errorf("%s: must be https://HOST/..., because its answer gives access", field("url"))
		case u.User != nil:
			return fmt.Errorf("%s: must hold no user and password: use tokenFile", field("url"))
		case c.Timeout.Duration < 0 || c.Timeout.Duration > MaxCheckTimeout:
			return fmt.Errorf("%s: %s: must be from 0, for the default of %s, to %s", field("timeout"), c.Timeout.Duration, DefaultCheckTimeout, MaxCheckTimeout)
		case c.CAFile != "" && c.CABundle != "":
			return fmt.Errorf("%s and caBundle exclude each other", field("caFile"))
		case (c.CertFile == "") != (c.KeyFile == ""):
			return fmt.Errorf("%s and keyFile need each other: set both", field("certFile"))
		case c.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CABundle)):
			return fmt.Errorf("%s: there is no certificate in PEM", field("caBundle"))
		}
		known[c.Name] = true
	}
	return nil
}

// endpointsOf returns where the checks are asked, by their names.
func endpointsOf(all []Check) map[string]check.Endpoint {
	endpoints := make(map[string]check.Endpoint, len(all))
	for i := range all {
		c := &all[i]
		endpoint := check.Endpoint{
			URL: c.URL, Timeout: cmp.Or(c.Timeout.Duration, DefaultCheckTimeout),
			CAFile: c.CAFile, TokenFile: c.TokenFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		}
		if c.CABundle != "" {
			endpoint.CABundle = []byte(c.CABundle)
		}
		endpoints[c.Name] = endpoint
	}
	return endpoints
}

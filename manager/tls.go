package manager

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// tlsVersions are the versions of TLS that a server may ask for, by the names of crypto/tls
// and of Kubernetes' flags.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "VersionTLS12": tls.VersionTLS12, "1.3": tls.VersionTLS13, "VersionTLS13": tls.VersionTLS13,
}

// completeTLS reads the names of TLS's version and cipher suites.
func (o *Options) completeTLS() error {
	s := &o.Serving
	version, known := tlsVersions[s.TLSMinVersion]
	if !known {
		return fmt.Errorf("Serving.TLSMinVersion: %q: must be 1.2 or 1.3", s.TLSMinVersion)
	}
	s.minVersion, s.cipherSuites = version, nil
	for _, name := range s.TLSCipherSuites {
		suite, err := cipherSuite(name)
		if err != nil {
			return fmt.Errorf("Serving.TLSCipherSuites: %w", err)
		}
		if !slices.Contains(s.cipherSuites, suite.ID) {
			s.cipherSuites = append(s.cipherSuites, suite.ID)
		}
	}
	own := o.Certificates.Dir == "" && !o.Registration.ForeignCABundle
	switch {
	case len(s.cipherSuites) == 0:
	case version > tls.VersionTLS12:
		return errors.New("Serving.TLSCipherSuites: TLS 1.3 has no choice of cipher suites: leave them out, or set Serving.TLSMinVersion to 1.2")
	case own && !slices.ContainsFunc(s.TLSCipherSuites, func(name string) bool { return strings.Contains(name, "_ECDSA_") }):
		return errors.New("Serving.TLSCipherSuites: none fits the manager's own certificate, which has an ECDSA key: add one of TLS_ECDHE_ECDSA_...")
	}
	if len(s.ClientNames) > 0 && s.ClientCAFile == "" {
		return errors.New("Serving.ClientNames: set without Serving.ClientCAFile: without it nobody verifies certificates of clients")
	}
	return nil
}

// cipherSuite returns the suite of TLS 1.2 with the name.
func cipherSuite(name string) (*tls.CipherSuite, error) {
	named := func(suite *tls.CipherSuite) bool { return suite.Name == name }
	secure := slices.DeleteFunc(tls.CipherSuites(), func(suite *tls.CipherSuite) bool { return !slices.Contains(suite.SupportedVersions, tls.VersionTLS12) })
	if i := slices.IndexFunc(secure, named); i >= 0 {
		return secure[i], nil
	}
	names := make([]string, len(secure))
	for i, suite := range secure {
		names[i] = suite.Name
	}
	problem := "is not known"
	switch {
	case slices.ContainsFunc(tls.InsecureCipherSuites(), named):
		problem = "is insecure"
	case slices.ContainsFunc(tls.CipherSuites(), named):
		problem = "is one of TLS 1.3, which are always on: leave it out"
	}
	return nil, fmt.Errorf("%q %s; there are %s", name, problem, strings.Join(names, ", "))
}

package otlp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// maxFile is the size of the largest token or certificate file.
const maxFile = 1 << 20

// maxHeader bounds the status line and the headers of an answer, which end up in errors.
const maxHeader = 16 << 10

// credentials are the contents of the files of an endpoint, and a client made of them.
type credentials struct {
	files  [4][]byte // token, CA, certificate, key
	token  string
	client *http.Client
}

// read reads the files. It returns the last credentials if no file has changed.
func (e *Endpoint) read(last *credentials) (*credentials, error) {
	c := &credentials{}
	for i, file := range []struct{ option, path string }{
		{"TokenFile", e.TokenFile}, {"CAFile", e.CAFile}, {"CertFile", e.CertFile}, {"KeyFile", e.KeyFile},
	} {
		if file.path == "" {
			continue
		}
		text, err := readFile(file.path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.option, err)
		}
		c.files[i] = text
	}
	c.token = string(bytes.TrimSpace(c.files[0]))
	if e.TokenFile != "" && (c.token == "" || strings.ContainsAny(c.token, "\r\n\x00")) {
		return nil, fmt.Errorf("TokenFile: %s must have one line, the token", e.TokenFile)
	}
	if last != nil && same(last.files[1:], c.files[1:]) {
		c.client = last.client
		return c, nil
	}
	config, err := e.tls(c)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.MaxResponseHeaderBytes = maxHeader
	c.client = &http.Client{
		Transport: transport, Timeout: e.Timeout,
		// A redirect could lead records, and the token with them, to anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}

func same(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func (e *Endpoint) tls(c *credentials) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CAFile != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(c.files[1]) {
			return nil, fmt.Errorf("CAFile: %s has no certificate in PEM", e.CAFile)
		}
	}
	if e.CertFile != "" {
		pair, err := tls.X509KeyPair(c.files[2], c.files[3])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("CertFile %s and KeyFile %s", e.CertFile, e.KeyFile), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

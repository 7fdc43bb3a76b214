package cloudevents

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxCredential bounds a file with a credential.
const maxCredential = 64 << 10

// maxHeader bounds the status line and the headers of an answer, which end up in errors,
// and maxStatus what an error quotes of a status.
const maxHeader, maxStatus = 16 << 10, 256

// credentials are what the files have. They are read again before each request, because
// who renews a credential replaces the file and tells nobody. A batch has up to 100
// events, so the read costs little.
type credentials struct {
	options *Options

	mu       sync.Mutex
	client   http.Client
	token    string
	pair     *tls.Certificate
	cert, ca []byte // what pair and the roots were made of
}

func newCredentials(options *Options) *credentials {
	c := &credentials{options: options, client: *options.Client}
	// A redirect would take the credential and the events to somebody else.
	c.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if c.client.Transport == nil {
		c.connectAnew(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	return c
}

// connectAnew ends the connections on which an old certificate was presented or trusted.
// A transport that is in use must not change, so there is a new one.
func (c *credentials) connectAnew(config *tls.Config) {
	if c.pair != nil {
		config.Certificates = []tls.Certificate{*c.pair}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxResponseHeaderBytes = config, maxHeader
	c.client.CloseIdleConnections()
	c.client.Transport = transport
}

func (c *credentials) config() *tls.Config {
	return c.client.Transport.(*http.Transport).TLSClientConfig.Clone()
}

// ofTLS reports whether files configure the connection.
func (o *Options) ofTLS() bool { return o.CertFile != "" || o.KeyFile != "" || o.CAFile != "" }

// refresh reads the files. While one cannot be read, which may be so for a moment while it
// is replaced, what was read before stays in use; usable is false if nothing was.
func (c *credentials) refresh() (usable bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.options
	err = errors.Join(c.readToken(), c.readPair(), c.readRoots())
	return (o.TokenFile == "" || c.token != "") && (o.CertFile == "" || c.pair != nil) && (o.CAFile == "" || c.ca != nil), err
}

func (c *credentials) readToken() error {
	if c.options.TokenFile == "" {
		return nil
	}
	text, err := c.read("TokenFile", c.options.TokenFile)
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return err
	case token == "":
		return fmt.Errorf("TokenFile %s is empty", c.options.TokenFile)
	case strings.ContainsAny(token, "\r\n"):
		return fmt.Errorf("TokenFile %s has several lines: it must have the token alone", c.options.TokenFile)
	}
	c.token = token
	return nil
}

func (c *credentials) readPair() error {
	if c.options.CertFile == "" {
		return nil
	}
	cert, err := c.read("CertFile", c.options.CertFile)
	if err != nil {
		return err
	}
	key, err := c.read("KeyFile", c.options.KeyFile)
	if err != nil {
		return err
	}
	if both := slices.Concat(cert, key); c.pair == nil || !bytes.Equal(both, c.cert) {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("CertFile %s and KeyFile %s: %w", c.options.CertFile, c.options.KeyFile, err)
		}
		c.pair, c.cert = &pair, both
		c.connectAnew(c.config())
	}
	return nil
}

func (c *credentials) readRoots() error {
	if c.options.CAFile == "" {
		return nil
	}
	text, err := c.read("CAFile", c.options.CAFile)
	if err != nil || bytes.Equal(text, c.ca) {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("CAFile %s has no certificate in PEM", c.options.CAFile)
	}
	config := c.config()
	config.RootCAs, c.ca = roots, text
	c.connectAnew(config)
	return nil
}

func (c *credentials) read(option, name string) ([]byte, error) {
	file, err := c.options.Fs.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxCredential+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", option, err)
	case len(text) > maxCredential:
		return nil, fmt.Errorf("%s: %s has more than %d bytes, so it is no credential", option, name, maxCredential)
	}
	return text, nil
}

// use adds the token to a request, and returns the client to send it with.
func (c *credentials) use(request *http.Request) http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.client
}

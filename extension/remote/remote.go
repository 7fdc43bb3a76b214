// Package remote connects to the servers that an operator names, such as a collector or a
// ticket system, with a token, a client certificate and authorities that come from files.
// Whoever renews one of them replaces the file and tells nobody, so [Client.Connect] reads
// the files each time.
package remote

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/afero"
)

const (
	// MaxFile is the size of the largest file that is read, in bytes.
	MaxFile = 1 << 20
	// maxHeader bounds the status line and the headers of a response, which end up in errors.
	maxHeader = 16 << 10
)

// Options say how to connect. The zero value connects without credentials, and trusts the
// authorities of the system.
type Options struct {
	// TokenFile has a bearer token, alone on one line.
	TokenFile string
	// CAFile has the authorities that may sign the server's certificate, in PEM. CA has
	// them where there is no file.
	CAFile string
	CA     []byte
	// CertFile and KeyFile have the client certificate, in PEM. Set both or neither.
	CertFile, KeyFile string
	// Client is what each connection's client is made of. Its Transport is kept as it is
	// if it is no *http.Transport; then only TokenFile has an effect. Default: a clone of
	// http.DefaultTransport that bounds the headers of a response.
	Client http.Client
	// Fs has the files. Default: the real file system.
	Fs afero.Fs
}

// Client connects. Make one with [New].
type Client struct {
	options Options

	mu   sync.Mutex
	last *Connection
}

// New returns a Client. It reads no file.
func New(options Options) *Client {
	if options.Fs == nil {
		options.Fs = afero.NewOsFs()
	}
	if options.Client.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxResponseHeaderBytes = maxHeader
		options.Client.Transport = transport
	}
	// A redirect would take what is sent, and the credential, to somebody whom the operator
	// did not name.
	options.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{options: options}
}

// Connection has the credentials of one moment.
type Connection struct {
	client *http.Client
	token  string
	files  [3][]byte // the authorities, the certificate and its key, of which client was made
}

// Connect returns the connection for what the files have now. Errors name the option and the file. While they cannot be read,
// as may be so for a moment while one is replaced, it returns an error, and with it the
// last connection whose files were whole, or nil if there was none.
func (c *Client) Connect() (*Connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := c.read()
	if err != nil {
		return c.last, err
	}
	if c.last != nil && next.client != c.last.client {
		c.last.client.CloseIdleConnections()
	}
	c.last = next
	return next, nil
}

// Close closes idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		c.last.client.CloseIdleConnections()
	}
}

func (c *Client) read() (*Connection, error) {
	o := &c.options
	next := &Connection{files: [3][]byte{o.CA}}
	var err error
	if o.TokenFile != "" {
		if next.token, err = c.readToken(); err != nil {
			return nil, fmt.Errorf("TokenFile: %w", err)
		}
	}
	for i, file := range []struct{ option, path string }{{"CAFile", o.CAFile}, {"CertFile", o.CertFile}, {"KeyFile", o.KeyFile}} {
		if file.path != "" {
			if next.files[i], err = c.readFile(file.path); err != nil {
				return nil, fmt.Errorf("%s: %w", file.option, err)
			}
		}
	}
	if c.last != nil && slices.EqualFunc(c.last.files[:], next.files[:], bytes.Equal) {
		next.client = c.last.client
		return next, nil
	}
	next.client, err = c.connect(next.files)
	return next, err
}

func (c *Client) readToken() (string, error) {
	text, err := c.readFile(c.options.TokenFile)
	token := string(bytes.TrimSpace(text))
	if err == nil && (token == "" || strings.ContainsAny(token, "\r\n\x00")) {
		err = fmt.Errorf("%s must have the token alone, on one line", c.options.TokenFile)
	}
	return token, err
}

func (c *Client) readFile(path string) ([]byte, error) {
	file, err := c.options.Fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err == nil && len(text) > MaxFile {
		err = fmt.Errorf("%s has more than %d bytes, so it is no credential", path, MaxFile)
	}
	return text, err
}

// connect returns a client for the files. A transport that is in use must not change, so
// there is a new one, without the connections on which something else was trusted or shown.
func (c *Client) connect(files [3][]byte) (*http.Client, error) {
	client := c.options.Client
	transport, ok := client.Transport.(*http.Transport)
	if !ok {
		return &client, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if transport.TLSClientConfig != nil {
		config = transport.TLSClientConfig.Clone()
	}
	if files[0] != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(files[0]) {
			if c.options.CAFile == "" {
				return nil, errors.New("CA has no certificate in PEM")
			}
			return nil, fmt.Errorf("CAFile: %s has no certificate in PEM", c.options.CAFile)
		}
	}
	if c.options.CertFile != "" {
		pair, err := tls.X509KeyPair(files[1], files[2])
		if err != nil {
			return nil, fmt.Errorf("CertFile %s and KeyFile %s: %w", c.options.CertFile, c.options.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	transport = transport.Clone()
	transport.TLSClientConfig = config
	client.Transport = transport
	return &client, nil
}

// Do sends a request with the token. Its error does not have the URL, whose user, path or
// query may be secret.
func (c *Connection) Do(request *http.Request) (*http.Response, error) {
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.client.Do(request) //nolint:gosec // the operator names the server
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err
	}
	return response, err
}

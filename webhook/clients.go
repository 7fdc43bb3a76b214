package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/webhook/internal/limits"
)

// The limits of what ClientsOptions name.
const (
	maxClientCA    = 1 << 20
	maxClientNames = 64
	// maxRefusal is the length of the reason for which a client is refused.
	maxRefusal = 512
	// clientCAInterval is how long the certificates of a file are used before it is
	// read again.
	clientCAInterval = 10 * time.Second
)

// ClientsOptions are the options of [NewClients].
type ClientsOptions struct {
	// CAFile has the certificates, in PEM, of those who sign for clients. Required.
	CAFile string
	// Names are the clients that may connect, by the common name or a DNS name of their
	// certificate. Default: every client with a certificate of the CA.
	Names []string
	// Clock says when to read the file again. Default: the real one.
	Clock clock.PassiveClock
	// Logger logs who is refused, and failures to read the file. Default: none.
	Logger *zap.Logger
}

// Clients decide by their certificates who may connect to a [Server], and send requests by a
// connection that is open. Both read the file again if that was last done ten seconds ago. If
// it does not load, the last certificates stay in use, and each failure is logged.
type Clients struct {
	options ClientsOptions
	log     *zap.Logger

	mu      sync.Mutex
	content []byte
	pool    *x509.CertPool
	read    time.Time
}

// NewClients reads the file once, to fail early.
func NewClients(options ClientsOptions) (*Clients, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	if len(options.Names) > maxClientNames {
		return nil, fmt.Errorf("%d names of clients: at most %d", len(options.Names), maxClientNames)
	}
	if slices.Contains(options.Names, "") {
		return nil, errors.New("the name of a client is empty")
	}
	c := &Clients{options: options, log: sample(options.Logger)}
	content, pool, err := loadClientCA(options.CAFile)
	if err != nil {
		return nil, err
	}
	c.content, c.pool, c.read = content, pool, options.Clock.Now()
	return c, nil
}

func loadClientCA(path string) ([]byte, *x509.CertPool, error) {
	// To open a named pipe waits for a writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("the CA of clients: %s is no regular file", path)
	}
	file, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, nil, fmt.Errorf("the CA of clients: %w", err)
	}
	defer func() { _ = file.Close() }() // it is only read
	content, err := io.ReadAll(io.LimitReader(file, maxClientCA+1))
	if err != nil {
		return nil, nil, fmt.Errorf("the CA of clients: %w", err)
	}
	if len(content) > maxClientCA {
		return nil, nil, fmt.Errorf("the CA of clients: %s has more than %d bytes", path, maxClientCA)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, nil, fmt.Errorf("the CA of clients: %s has no certificate in PEM", path)
	}
	return content, pool, nil
}

// roots returns whom to trust now.
func (c *Clients) roots() *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.options.Clock.Now()
	if now.Sub(c.read) < clientCAInterval {
		return c.pool
	}
	c.read = now
	content, pool, err := loadClientCA(c.options.CAFile)
	switch {
	case err != nil:
		c.options.Logger.Error("the CA of clients cannot be read again, the last one stays in use", zap.Error(err))
	case !bytes.Equal(content, c.content):
		c.content, c.pool = content, pool
		c.options.Logger.Info("the CA of clients was read again", zap.String("file", c.options.CAFile))
	}
	return c.pool
}

// verify is the VerifyConnection of a server. It decides about resumed sessions, too.
func (c *Clients) verify(state tls.ConnectionState) error {
	_, _, err := c.check(state.PeerCertificates)
	if err == nil {
		return nil
	}
	return c.refuse(err)
}

// refuse counts and logs a refusal, and returns its reason.
func (c *Clients) refuse(err error) error {
	// Certificates of strangers can have long names.
	text := err.Error()
	if len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal], "") + "..."
	}
	clientsRefused.WithLabelValues(refusedCertificate).Inc()
	c.log.Warn("a client was refused", zap.String("error", text))
	return errors.New(text)
}

// around lets a request through only while the certificate of its connection still verifies:
// an API server keeps connections open for as long as it has requests, and meanwhile the
// certificate may end, or its CA leave the file.
func (c *Clients) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.stillMay(limits.ConnectionFrom(r.Context()), r.TLS); err != nil {
			w.Header().Set("Connection", "close") // the next one begins with a handshake
			http.Error(w, "the client certificate: "+c.refuse(err).Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stillMay verifies the certificate of a connection again if that could have changed.
func (c *Clients) stillMay(of *limits.Connection, state *tls.ConnectionState) error {
	if last := of.Verified.Load(); last != nil && last.By == c.roots() && !c.options.Clock.Now().After(last.Until) {
		return nil
	}
	by, until, err := c.check(state.PeerCertificates)
	if err == nil {
		of.Verified.Store(&limits.Verified{By: by, Until: until})
	}
	return err
}

// check returns the roots by which the certificate verifies, and until when it does.
func (c *Clients) check(chain []*x509.Certificate) (by *x509.CertPool, until time.Time, err error) {
	if len(chain) == 0 {
		return nil, until, errors.New("it has no client certificate: configure the API server to present one (--admission-control-config-file)")
	}
	leaf, intermediates := chain[0], x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	by = c.roots()
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: by, Intermediates: intermediates, CurrentTime: c.options.Clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	switch {
	case err != nil:
		return nil, until, fmt.Errorf("the certificate of %q: %w", leaf.Subject.CommonName, err)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth): // Verify also takes one for any use, or for none
		return nil, until, fmt.Errorf("the certificate of %q does not name the extended key usage clientAuth", leaf.Subject.CommonName)
	case !c.named(leaf):
		return nil, until, fmt.Errorf("the certificate is of %q, and only %s may connect", leaf.Subject.CommonName, strings.Join(c.options.Names, ", "))
	}
	for i, certificate := range chains[0] {
		if i == 0 || certificate.NotAfter.Before(until) {
			until = certificate.NotAfter
		}
	}
	return by, until, nil
}

// named reports whether a certificate is of a client that may connect.
func (c *Clients) named(leaf *x509.Certificate) bool {
	names := c.options.Names
	return len(names) == 0 || slices.Contains(names, leaf.Subject.CommonName) ||
		slices.ContainsFunc(leaf.DNSNames, func(name string) bool { return slices.Contains(names, name) })
}

// Package deliver sends events and logs to a server outside the cluster, through a
// bounded queue on disk if you want one. It speaks two encodings: [Events] are batches of
// CloudEvents 1.0 for any HTTP endpoint, [Logs] are log records for an OpenTelemetry
// collector. Both take the same [Options].
//
//	events := deliver.NewEvents(deliver.EventOptions{
//		Options: deliver.Options{Name: "orders", URL: "https://events.example.com", Dir: "/queue"},
//		Source:  "example.com/orders",
//	})
//	if err := events.Validate(); err != nil { ... }
//
//	func (e *MyExtension) Register(mgr extension.Manager) error { return e.events.Register(mgr) }
//
//	err := events.Send(ctx, deliver.Event{ID: id, Type: "com.example.order", Time: now, Data: order})
//
// Without a queue, Send returns when the server has the event or record. With a queue, it
// returns when it is on disk; the server gets it later, at least once and in order, even
// if the process is killed in between. After a failure a batch is sent again, so the
// server must recognize what comes twice: a CloudEvent by source and id, a log record by
// its attribute log.record.uid.
//
// [Spans] sends spans, without a queue: a trace that is lost harms nobody.
//
// opentelemetry-go's own exporters do not keep what a collector does not take, and link
// gRPC even for HTTP: see docs/adr/0007-otlp.md.
package deliver

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/afero"
	"k8s.io/utils/clock"
)

// Options are what the encodings have in common: the server, the credentials and the queue.
type Options struct {
	// Name names the sender in logs and metrics. There is no default.
	Name string
	// URL is the server's address. It must be https, or http on this machine. There is no
	// default.
	URL string
	// Header is added to each request.
	Header http.Header
	// TokenFile has the bearer token. Like the other files it is read again before
	// each request, so it may be replaced at any time; while it cannot be read, the last
	// token stays in use. Default: no token.
	TokenFile string
	// CertFile and KeyFile have the client certificate and its key, in PEM. A new
	// one is presented on a new connection. Default: no client certificate.
	CertFile, KeyFile string
	// CAFile has the authorities that may sign the server's certificate, in PEM.
	// Default: those of the system.
	CAFile string
	// Timeout is how long a request may take, to the end of its answer. Default: 10 s.
	Timeout time.Duration
	// Client sends the requests. Its Timeout is not used, and it follows no redirects,
	// whatever its CheckRedirect says: what is sent and the credential are for this server
	// alone. Default: a client with a clone of http.DefaultTransport.
	Client *http.Client
	// Dir is the folder of the queue on disk. Each replica needs its own.
	// Default: no queue.
	Dir string
	// Memory queues in memory instead. Such a queue ends with the process, but Send waits for
	// no server and no disk. Default: false.
	Memory bool
	// MaxQueued is how many events or records the queue holds. Default: 100,000.
	MaxQueued int
	// BatchSize is how many of them a request has at most. Default: 100.
	BatchSize int
	// Backoff is the pause after the first failure. It doubles with each further
	// failure, up to MaxBackoff. Default: 500 ms, up to 30 s.
	Backoff, MaxBackoff time.Duration
	// Rejected is called for each queued event or record that the server rejects for good.
	// It is logged, counted, and not sent again. item is the event in JSON or the LogRecord
	// in protobuf, or nil if a collector says only how many records it rejected.
	Rejected func(item []byte)
	// Fs is the file system of Dir and of the files. Default: the real one.
	Fs afero.Fs
	// Clock tells the time. Default: the real clock.
	Clock clock.Clock
}

// Defaults of [Options].
const (
	DefaultTimeout    = 10 * time.Second
	DefaultMaxQueued  = 100_000
	DefaultBatchSize  = 100
	DefaultBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
)

// server returns the URL, or an error that names the wrong option, of those that say how to
// reach the server. It does not read the files: where the options are written, they may not
// exist.
func (o *Options) server() (*url.URL, error) {
	u, err := url.Parse(o.URL)
	switch {
	case o.URL == "":
		return nil, errors.New("URL is missing")
	case err != nil:
		return nil, errors.New("URL cannot be parsed; it must be such as https://collector:4318") // the error has the URL, and that a credential
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("URL %q must be such as https://collector:4318", u.Redacted())
	case (o.CertFile == "") != (o.KeyFile == ""):
		return nil, errors.New("CertFile and KeyFile must be set together")
	case o.Client != nil && o.Client.Transport != nil && (o.CertFile != "" || o.CAFile != ""):
		return nil, errors.New("CertFile, KeyFile and CAFile configure the default Client: with a Client of your own, configure its Transport")
	case o.TokenFile != "" && o.Header.Get("Authorization") != "":
		return nil, errors.New("TokenFile and an Authorization in Header exclude each other")
	case o.Timeout < 0:
		return nil, fmt.Errorf("Timeout %s must be positive", o.Timeout)
	}
	return u, nil
}

// validate returns an error that names the wrong option of the others.
func (o *Options) validate() error {
	switch {
	case o.Name == "":
		return errors.New("Name is missing")
	case o.Dir != "" && o.Memory:
		return errors.New("Dir and Memory exclude each other")
	case o.MaxQueued < 0 || o.BatchSize < 0 || o.Backoff < 0 || o.MaxBackoff < o.Backoff:
		return errors.New("MaxQueued, BatchSize and Backoff must be positive, and MaxBackoff no less than Backoff")
	}
	return nil
}

func onThisMachine(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

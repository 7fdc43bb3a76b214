// Package otlp sends logs to an OpenTelemetry collector: OTLP over HTTP, in protobuf,
// through a bounded queue on disk if you want one.
//
//	logs := otlp.NewLogs(otlp.LogOptions{
//		Name: "orders", Endpoint: otlp.Endpoint{URL: "https://collector:4318"}, Dir: "/queue",
//	})
//	if err := logs.Validate(); err != nil { ... }
//
//	func (e *MyExtension) Register(mgr extension.Manager) error { return e.logs.Register(mgr) }
//
//	var record log.Record // go.opentelemetry.io/otel/log
//	record.SetBody(attribute.StringValue(text))
//	err := logs.Send(ctx, id, record)
//
// Without a queue, Send returns when the collector has the record. With a queue, it
// returns when the record is on disk; the collector gets it later, at least once and in
// order, even if the process is killed in between. A record that comes twice has the same
// attribute log.record.uid.
//
// [Client] sends what is encoded already, such as spans.
//
// opentelemetry-go's own exporters do not keep what a collector does not take, and link
// gRPC even for HTTP: see docs/adr/0007-otlp.md.
package otlp

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Endpoint is a collector, and how to reach it. Only URL is required.
type Endpoint struct {
	// URL is the collector's address, such as https://collector:4318. The path of the
	// signal, /v1/logs or /v1/traces, is added unless the URL ends with it. It must be
	// https, or http on this machine. There is no default.
	URL string
	// Insecure allows http to another machine. Anybody in between can read what is sent,
	// so credentials are not allowed then. Default: false.
	Insecure bool
	// Header is added to each request.
	Header http.Header
	// TokenFile is a file with a bearer token. Default: none.
	TokenFile string
	// CAFile is a file with the certificates of the authorities that may sign the
	// collector's, in PEM. Default: the system's.
	CAFile string
	// CertFile and KeyFile are the files of the client certificate, in PEM. Default: none.
	CertFile, KeyFile string
	// Timeout is how long a request may take, to the end of its answer. Default: 10 s.
	Timeout time.Duration
}

// DefaultTimeout is the default of [Endpoint].Timeout.
const DefaultTimeout = 10 * time.Second

// Validate returns an error that names the wrong option, if there is one. It does not
// read the files: where the options are written, they may not exist.
func (e *Endpoint) Validate() error {
	u, err := url.Parse(e.URL)
	switch {
	case e.URL == "":
		return errors.New("URL is missing")
	case err != nil:
		return errors.New("URL cannot be parsed; it must be such as https://collector:4318") // the error has the URL, and that a credential
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("URL %q must be such as https://collector:4318", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("URL %q must not have a query; put a credential into Header or TokenFile", u.Scheme+"://"+u.Host+u.Path)
	case (e.CertFile == "") != (e.KeyFile == ""):
		return errors.New("CertFile and KeyFile must be set together")
	case e.Timeout < 0:
		return fmt.Errorf("Timeout %s must be positive", e.Timeout)
	case u.Scheme == "https":
		return nil
	case e.CAFile != "" || e.CertFile != "":
		return fmt.Errorf("URL %q must be https: CAFile and CertFile have no effect by http", u.Redacted())
	case onThisMachine(u.Hostname()):
		return nil
	case !e.Insecure:
		return fmt.Errorf("URL %q must be https, or http on this machine; set Insecure to send by http all the same", u.Redacted())
	case e.TokenFile != "" || len(e.Header) > 0 || u.User != nil:
		return fmt.Errorf("URL %q must be https: by http anybody in between could read the credentials", u.Redacted())
	}
	return nil
}

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Signal is what is sent.
type Signal string

// The signals.
const (
	SignalLogs   Signal = "logs"
	SignalTraces Signal = "traces"
)

// address returns where a signal goes.
func (e *Endpoint) address(signal Signal) string {
	path := "/v1/" + string(signal)
	address := strings.TrimRight(e.URL, "/")
	if strings.HasSuffix(address, path) {
		return address
	}
	return address + path
}
